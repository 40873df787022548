"""Flow control by dependency: breakers, budgets, rates. Hold a breaker open or closed, and release it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...present.formats import listed, number, seconds, share, timestamp
from ...present.table import Column
from ..model import Model
from ..screen import KeyAction, Screen, ScreenPage, ScreenRow, Text
from ..texts import COUNTS, pairs

if TYPE_CHECKING:
    from ...triage.controls import Control

LASTS = ("15m", "1h", None)  # times for which a breaker is held; None: until it is released


def row_of(control: Control, waiting: Control | None, now_ms: int) -> dict[str, Any]:
    """Return a dependency as a row. `waiting` is the same control with its messages counted, if that is known."""
    breaker = (control.breaker or "–").replace("_", " ")
    return {
        "dependency": control.name,
        "breaker": breaker.upper() if "open" in breaker else breaker,  # upper case, as colours alone may not be visible
        "until": _left(control.until_ms, now_ms),
        "failed": f"{control.failed:,} of {control.calls:,}" if control.calls else None,
        "budget": number(control.budget_left) if control.budget_left is not None else None,
        "rate": number(control.rate_per_s) if control.rate_per_s is not None else None,
        "cool": _left(control.cool_until_ms, now_ms),
        "concurrency": control.concurrency,
        "waiting": None if waiting is None else waiting.waiting,
        "deferred": listed(waiting.deferred, COUNTS) or None if waiting is not None else None,
    }


def _left(until_ms: int | None, now_ms: int) -> str | None:
    return None if until_ms is None else f"in {seconds((until_ms - now_ms) / 1000)}" if until_ms > now_ms else "now"


def _about(row: ScreenRow) -> str:
    return f"the breaker of {row['dependency']}"


def _release(model: Model, row: ScreenRow, reason: str) -> str:
    model.flow.auto(row["dependency"], reason=reason, actor=model.actor)
    return f"the breaker of {row['dependency']} is released"


class Holding(Screen):
    """A screen with the keys that hold a breaker, for the time that `lasts` chooses, and release it."""

    lasts: int
    acts: Sequence[KeyAction]

    def __init__(self) -> None:
        super().__init__()
        self.lasts = 0
        self.acts = self._acts()

    def _acts(self) -> Sequence[KeyAction]:
        return (
            KeyAction("A", "release", _about, _release),
            KeyAction("O", f"hold open {self._long}", _about, self._hold("open")),
            KeyAction("C", f"hold closed {self._long}", _about, self._hold("closed")),
        )

    @property
    def shifts(self) -> Mapping[str, str]:
        return {"t": "for how long"}

    def shift(self, key: str) -> bool:
        if key != "t":
            return False
        self.lasts = (self.lasts + 1) % len(LASTS)
        self.acts = self._acts()
        return True

    @property
    def _long(self) -> str:
        return f"for {lasts}" if (lasts := LASTS[self.lasts]) else "until released"

    def _hold(self, word: str) -> Callable[[Model, ScreenRow, str], str]:
        lasts, span = LASTS[self.lasts], self._long

        def act(model: Model, row: ScreenRow, reason: str) -> str:
            do = model.flow.open if word == "open" else model.flow.close
            do(row["dependency"], reason=reason, actor=model.actor, for_=lasts)
            return f"the breaker of {row['dependency']} is held {word} {span}"

        return act


class FlowScreen(Holding):
    name: ClassVar[str] = "flow"
    id: ClassVar[str] = "dependency"
    columns: tuple[Column, ...] = (
        Column("dependency", shrinks=True),
        Column("breaker"),
        Column("until"),
        Column("failed", "failed calls"),
        Column("budget", "budget left", spare=1),
        Column("rate", "rate/s", spare=2),
        Column("cool", "cool-down", spare=1),
        Column("concurrency", spare=3),
        Column("waiting"),
        Column("deferred", shrinks=True, spare=1),
    )
    studies = True
    toned: ClassVar[Sequence[str]] = ("breaker",)

    def read(self, model: Model) -> Sequence[Control]:
        return model.flow.list(waiting=False)

    def study(self, model: Model) -> Mapping[str, Control]:
        return {control.name: control for control in model.flow.list()}

    def page(self) -> ScreenPage:
        waiting = self.studied or {}
        rows = [row_of(control, waiting.get(control.name), self.now_ms) for control in self.reading]
        return ScreenPage(rows, empty="no dependency: no task names one, and none was ever called")

    def look(self, row: ScreenRow) -> Screen:
        return FlowDetail(row["dependency"])


class FlowDetail(Holding, Text):
    def __init__(self, dependency: str) -> None:
        super().__init__()
        self.dependency = dependency

    @property
    def title(self) -> str:
        return f"dependency {self.dependency}"

    def subject(self, row: ScreenRow | None) -> ScreenRow | None:
        return {"dependency": self.dependency}

    def read(self, model: Model) -> Control:
        return model.flow.show(self.dependency)

    def lines(self) -> Sequence[str]:
        return list(self._lines(self.reading))

    def _lines(self, control: Control) -> Iterator[str]:
        row = row_of(control, control, self.now_ms)
        yield from pairs(
            [
                ("dependency", control.name),
                ("split by", control.per),
                ("over all keys", control.parent),
                ("breaker", row["breaker"]),
                ("since", timestamp(control.since_ms)),
                ("released" if "FORCED" in row["breaker"].upper() else "probes", row["until"]),
                ("opened in a row", control.opened),
                (
                    "failed calls",
                    f"{row['failed']}, {share(control.failed / control.calls)}" if control.calls else None,
                ),
                ("ramp", None if control.ramp_per_s is None else f"{number(control.ramp_per_s)}/s"),
                ("budget left", row["budget"]),
                ("rate/s", row["rate"]),
                (
                    "rates",
                    "; ".join(control.rates) if len(control.rates) > 1 or control.mean_cost is not None else None,
                ),
                ("mean cost", control.mean_cost or None),
                ("next slot", _left(control.next_ms, self.now_ms)),
                ("cool-down ends", row["cool"]),
                ("concurrency", control.concurrency),
                ("workers", control.workers),
                ("waiting", control.waiting),
                ("deferred", row["deferred"]),
            ]
        )
        yield from ("", "transitions, the last first")
        for each in reversed(control.transitions):
            by = f" by {each.actor}" if each.actor else ""
            why = each.reason or each.why
            turn = f"{each.before} to {each.after}".replace("_", " ")
            yield f"  {timestamp(each.at_ms)}  {turn}{by}" + (f": {why}" if why else "")
        if not control.transitions:
            yield "  none"
