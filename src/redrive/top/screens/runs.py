"""Redrive runs: how far they are, and the story of one. Pause, resume, cancel, undo and approve them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...errors import ConfigError, PlanRefused
from ...present.formats import listed, number, timestamp
from ...present.table import Column
from ...triage.redrive.records import FINAL
from ..model import Model
from ..screen import KeyAction, Screen, ScreenPage, ScreenRow, Text
from ..texts import count, pairs

if TYPE_CHECKING:
    from ...triage.redrive.records import Failure, Line
    from ...triage.redrive.run import Run, RunView

RUNS_MAX = 100
FAILURES_MAX = 20  # the most failures that are listed for one run
_COUNTS = ("planned", "moved", "done", "failed", "waiting")


def row_of(view: RunView) -> dict[str, Any]:
    return {
        "id": view.id,
        "state": view.state if view.state != "running" else f"running: {view.phase}",
        "status": view.state,
        "phase": view.phase,
        "returned": view.returned,
        **{name: view.counts.get(name, 0) for name in _COUNTS},
        "per_s": view.per_s,
        "started_at": timestamp(view.started_ms),
        "selector": view.selector or "all that is dead",
        "why": view.why or None,
    }


def _about(row: ScreenRow) -> str:
    return f"run {row['id']}"


def _steer(done: str, do: Callable[[Run, str, str | None], object]) -> Callable[[Model, ScreenRow, str], str]:
    """Return the function that a key calls: it changes the run of the row by `do`, and returns a line with the word
    `done`."""

    def act(model: Model, row: ScreenRow, reason: str) -> str:
        answer = do(model.dlq.run(row["id"]), reason, model.actor)
        more = f": {count(answer, 'message')} returned" if isinstance(answer, int) else ""
        return f"run {row['id']} is {done}{more}"

    return act


def _is_open(row: ScreenRow) -> bool:
    return row["status"] not in FINAL


ACTS = (
    KeyAction("P", "pause", _about, _steer("paused", lambda run, why, who: run.pause(reason=why, actor=who)),
        lambda row: row["status"] == "running"),
    KeyAction("R", "resume", _about, _steer("resumed", lambda run, why, who: run.resume(reason=why, actor=who)),
        lambda row: row["status"] == "paused"),
    KeyAction("C", "cancel", _about, _steer("cancelled", lambda run, why, who: run.cancel(reason=why, actor=who)),
        _is_open),
    KeyAction("U", "undo", _about, _steer("undone", lambda run, why, who: run.undo(reason=why, actor=who)),
        count=lambda row: int(row["moved"])),
    KeyAction("A", "approve", _about, _steer("approved", lambda run, why, who: run.approve(reason=why, actor=who)),
        _is_open),
)  # fmt: skip


class RunsScreen(Screen):
    name: ClassVar[str] = "runs"
    columns: tuple[Column, Column, *tuple[Column, ...], Column, Column, Column, Column, Column] = (
        Column("id"),
        Column("state", shrinks=True),
        *(Column(name) for name in _COUNTS[:4]),
        Column("waiting", spare=3),
        Column("per_s", "now/s", number, spare=2),
        Column("started_at", "started", spare=2),
        Column("selector", shrinks=True, spare=1),
        Column("why", shrinks=True, spare=1),
    )
    acts = ACTS

    def read(self, model: Model) -> Sequence[RunView]:
        return model.dlq.runs(RUNS_MAX)

    def page(self) -> ScreenPage:
        return ScreenPage([row_of(view) for view in self.reading], empty="no run: p on a group plans one")

    def look(self, row: ScreenRow) -> Screen:
        return RunDetail(row["id"])


class RunReading(NamedTuple):
    """A run, its story, its messages that failed again, and its holds as text."""

    view: RunView
    story: Sequence[Line]
    failures: Sequence[Failure]
    held: str


def _held(model: Model, run: Run, view: RunView) -> str:
    """Return the holds of messages that the run has moved, as text; empty if its plan cannot be read."""
    from ...status import Reasons

    try:
        plan = run.plan
    except (ConfigError, PlanRefused):
        return ""
    reasons = Reasons(model.store, model.app)
    return "; also ".join(hold.line(reasons.now_ms) for hold in reasons.of_run(view, plan))


class RunDetail(Text):
    acts = ACTS

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    @property
    def title(self) -> str:
        return f"run {self.run[:23]}"

    def subject(self, row: ScreenRow | None) -> ScreenRow | None:
        return None if self.reading is None else row_of(self.reading.view)

    def read(self, model: Model) -> RunReading:
        run = model.dlq.run(self.run)
        view = run.view()
        return RunReading(view, run.story(), run.failures(FAILURES_MAX), _held(model, run, view))

    def lines(self) -> Sequence[str]:
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        found: RunReading = self.reading
        view = found.view
        yield from pairs(
            [
                ("run", view.id),
                ("state", row_of(view)["state"]),
                ("why", view.why),
                ("held by", found.held),
                ("messages", listed({name: n for name, n in view.counts.items() if n}, 8) or "none"),
                ("speed", None if view.per_s is None else f"{number(view.per_s)}/s"),
                ("chosen by", view.selector or "all that is dead"),
                ("started", f"{timestamp(view.started_ms)} by {view.actor}: {view.reason}"),
                ("cause", view.cause),
                ("over", timestamp(view.over_ms or None)),
                ("returned", view.returned),
                ("carried by", view.carried_by or ("" if view.closed else "no worker now")),
            ]
        )
        yield from ("", "story", *(f"  {timestamp(line.at_ms)}  {line.text}" for line in found.story))
        if found.failures:
            yield from ("", f"failed again, the first {len(found.failures):,} of {view.counts['failed']:,}")
            yield from (f"  {each.id}  {each.error}: {each.text}" for each in found.failures)
