"""Plan a redrive: freeze the messages, count them, and start the run when a person confirms it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ...duration import show as show_duration
from ...present.formats import listed, number
from ...triage.redrive.pacing import CANARY, MAX_PER_S, NEVER, SLOW_START, STOP_IF
from ..model import Model
from ..screen import KeyAction, Screen, ScreenRow, Text
from ..texts import count, pairs
from .runs import RunDetail

if TYPE_CHECKING:
    from ...triage.redrive.plan import PlanHandle

CANARIES = (CANARY, 50, 0)
STOPS = (STOP_IF, NEVER)
RATES = (None, "1/s", "10/s", "100/s")


def _apply(model: Model, row: ScreenRow, reason: str) -> Screen:
    run = model.dlq.plan(row["id"]).start(reason=reason, actor=model.actor)
    return RunDetail(run.id)


class PlanScreen(Text):
    """A new plan of a selector's messages, with the defaults of all surfaces. Changing a setting makes another plan;
    `b` drops all that holds the run back but its rate."""

    reads: bool
    studies: bool
    canary: int
    rate: int
    stop: int
    slow_start: bool
    name: ClassVar[str] = "plan"
    once: ClassVar[bool] = True
    reads, studies = False, True
    acts: tuple[KeyAction] = (
        KeyAction("A", "apply", lambda row: f"the plan: move {count(row['total'], 'message')}", _apply,
            lambda row: row["total"] > 0, lambda row: int(row["total"])),
    )  # fmt: skip

    def __init__(self, selector: str) -> None:
        super().__init__()
        self.chosen_by = selector
        self.canary, self.rate, self.stop, self.slow_start = 0, 0, 0, SLOW_START

    @property
    def shifts(self) -> Mapping[str, str]:
        return {
            "c": "canary",
            "v": "rate",
            "s": "slow start",
            "x": "stop rule",
            "b": "safe" if self._is_brave else "brave",
        }

    @property
    def _is_brave(self) -> bool:
        """True if nothing holds the run back but its rate."""
        return not (CANARIES[self.canary] or self.slow_start) and STOPS[self.stop] == NEVER

    def shift(self, key: str) -> bool:
        match key:
            case "c":
                self.canary = (self.canary + 1) % len(CANARIES)
            case "v":
                self.rate = (self.rate + 1) % len(RATES)
            case "s":
                self.slow_start = not self.slow_start
            case "x":
                self.stop = (self.stop + 1) % len(STOPS)
            case "b" if self._is_brave:
                self.canary, self.stop, self.slow_start = 0, 0, SLOW_START
            case "b":
                self.canary, self.stop, self.slow_start = CANARIES.index(0), STOPS.index(NEVER), False
            case _:
                return False
        return True

    def study(self, model: Model) -> PlanHandle:
        return model.select(self.chosen_by).plan(
            rate=RATES[self.rate],
            canary=CANARIES[self.canary],
            slow_start=self.slow_start,
            stop_if=STOPS[self.stop],
        )

    def subject(self, row: ScreenRow | None) -> ScreenRow | None:
        return None if self.studied is None else {"id": self.studied.id, "total": self.studied.total}

    def lines(self) -> Sequence[str]:
        return list(self._lines(self.studied))

    def _canary(self, made: PlanHandle) -> str:
        if made.plan.settings.canary:
            return f"{made.plan.settings.canary:,} first"
        return "none: all of it is no more than one" if CANARIES[self.canary] else "none"

    def _lines(self, made: PlanHandle) -> Iterator[str]:
        settings = made.plan.settings
        would, ages = ("would make due", "due in") if settings.hurry else ("would move", "dead for")
        yield from pairs(
            [
                ("plan", made.id),
                ("chosen by", self.chosen_by or "all that is dead"),
                (
                    would,
                    f"{count(made.total, 'message')} in about {show_duration(made.eta_s)}",
                ),
                ("queues", listed(made.by_queue, 8)),
                ("tasks", listed(made.by_task, 8)),
                (ages, listed(made.by_age, 8)),
                ("left out", listed(made.excluded, 8)),
                ("rate", f"{number(settings.rate or MAX_PER_S)}/s at most"),
                ("canary", self._canary(made)),
                ("slow start", "from 1/s, doubled every 10 s" if settings.slow_start else "no"),
                ("stops", f"if {settings.stop_if}" if settings.stop_if else "never by itself"),
            ]
        )
        yield ""
        if made.total:
            yield "These messages are frozen; nothing was moved. A applies the plan, esc leaves it."
        else:
            yield "Nothing would be moved: none of it is dead, or all is left out."
