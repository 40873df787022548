"""Needs, running messages and problems, each with the screen that has its details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...crypto import shown_text
from ...message import Counts
from ...present.formats import listed, milliseconds, number, seconds, share, state_word
from ...present.queues import LANES
from ...present.runs import run_text
from ...present.table import Column
from ...redact import joined
from ..model import Model
from ..screen import Screen, ScreenPage, ScreenRow
from ..texts import COUNTS, count
from ..tones import Tone
from .flow import FlowDetail, FlowScreen
from .groups import GroupDetail, GroupsScreen
from .messages import MessagesScreen
from .queues import BACK, DRAWN, STEP, QueueCounts, QueueDetail, QueuesScreen, by_minute, counted
from .runs import RunDetail, RunsScreen
from .workers import WorkersScreen

if TYPE_CHECKING:
    from ...history import History
    from ...status import Hold, Need, QueueStatus, Status

_SEVERE = {"page": Tone.ACT, "ticket": Tone.WAIT, "note": Tone.QUIET}
EACH_MAX = 5  # the most holds, failures, runs and queues listed


class OverviewHistory(NamedTuple):
    """The status of the store, and its last minutes of history, if the store keeps one: those that the figures are of,
    and those that are drawn."""

    status: Status
    history: History | None
    minutes: History | None


class OverviewScreen(Screen):
    """Rows of needs, holds, failures, runs and the worst queues; Enter opens the screen of each."""

    name: ClassVar[str] = "overview"
    columns: tuple[Column, ...] = (Column("area"), Column("text", "what", shrinks=True))
    studies = True

    def read(self, model: Model) -> QueueCounts:
        return counted(model)

    def study(self, model: Model) -> OverviewHistory:
        from ...history import read_history
        from ...status import read_status

        status = read_status(model.store, model.app)
        kept = model.store.traits.cells
        spans = [read_history(model.store, None, None, back, STEP) if kept else None for back in (BACK, DRAWN)]
        return OverviewHistory(status, *spans)

    def page(self) -> ScreenPage:
        found: QueueCounts = self.reading
        studied: OverviewHistory | None = self.studied
        head = [_lanes(found)]
        if studied is None:
            return ScreenPage([{"id": "", "area": "…", "text": "reading what needs a person"}], head)
        if studied.history is not None:
            head += _flowed(studied.history)
        if studied.minutes is not None:
            head.append(_minute_line(studied.minutes))
        head.append(_fleet(studied.status))
        needs = len(studied.status.needs)
        says = f"{count(needs, 'thing')} need{'s' * (needs == 1)} a person" if needs else "all is well"
        worst = next((_SEVERE[need.severity] for need in studied.status.needs), Tone.QUIET)
        rows = list(_rows(studied.status))
        return ScreenPage(rows, head, "all is well, and no queue was ever used", (says, worst))

    def tones(self, row: ScreenRow) -> Mapping[str, Tone]:
        tone = _SEVERE.get(row.get("severity", ""))
        return {} if tone is None else {"area": tone, "text": tone} if tone is Tone.ACT else {"area": tone}

    def look(self, row: ScreenRow) -> Screen | None:
        area, _, name = str(row["id"]).partition("/")
        match area:
            case "failure":
                return GroupDetail(*name.split("/", 1))
            case "run":
                return RunDetail(name)
            case "queue":
                return QueueDetail(name)
            case "needs":
                return _object(str(row["about"])) or _led_to(str(row["of"]))
            case "held":
                return _led_to(str(row["of"]))
            case _:
                return None

    def selector(self, row: ScreenRow | None) -> str | None:
        found = self.look(row) if row is not None else None
        return found.selector(None) if isinstance(found, GroupDetail | QueueDetail) else None


def _led_to(area: str) -> Screen:
    """Return the screen that has the details of an area of `redrive status`, or of a kind of hold."""
    kinds = {
        "failures": GroupsScreen,
        "runs": RunsScreen,
        "queues": MessagesScreen,
        "batches": MessagesScreen,
        "no_worker": WorkersScreen,
        "pause": QueuesScreen,
    }
    kinds |= dict.fromkeys(("breaker", "cool-down", "budget", "rate", "ramp", "concurrency"), FlowScreen)
    return kinds.get(area, QueuesScreen)()


def _object(about: str) -> Screen | None:
    """Return the screen about the subject of a need; None if that has no screen of its own."""
    kind, _, name = about.partition("/")
    match kind:
        case "queue":
            return QueueDetail(name)
        case "run":
            return RunDetail(name)
        case "flow":
            return FlowDetail(name.partition("/")[0])
        case "worker":
            return WorkersScreen()
        case "batch":
            return _members(name)
        case _:
            return None


def _members(batch: str) -> Screen:
    """Return the screen of the dead messages, with the members of a batch."""
    screen = MessagesScreen()
    screen.filter = f"batch:{batch}"
    return screen


def _lanes(figures: QueueCounts) -> str:
    """Return the message counts of all queues together, as text."""
    of = figures.counts.values()
    lanes = {lane: sum(getattr(each, lane) for each in of) for lane in LANES if lane != "done"}
    if not lanes["parked"]:
        del lanes["parked"]
    parts = [f"{state_word(lane)} {number:,}" for lane, number in lanes.items()]
    oldest = max((each.oldest_age_s for each in of), default=0.0)
    paused = [f"paused {', '.join(sorted(figures.paused))}"] if figures.paused else []
    return "  ".join([*parts, f"oldest {seconds(int(oldest))}", *paused])


def _flowed(history: History) -> Iterator[str]:
    total, past_s = history.total, max(1.0, (history.until_ms - history.since_ms) / 1000)
    retried = total.outcomes.get("retry", 0)
    yield "   ".join(
        [
            f"last {BACK}: in {number(total.enqueued / past_s)}/s",
            f"done {number(total.done / past_s)}/s",
            f"failed {share(total.error_rate)}",
            f"retried {retried:,}",
            f"dead {sum(total.dead.values()):,}",
        ]
    )
    done = total.by_attempt.get("done", {})
    waits = "  ".join(f"p{p} {milliseconds(total.wait.percentile(p / 100))}" for p in (50, 95, 99))
    by = listed({f"#{band}": number for band, number in done.items()}, 6)
    yield f"wait {waits}   done at attempt {by or '–'}"


def _minute_line(minutes: History) -> str:
    lines = {
        "in": by_minute(minutes, lambda tally: tally.enqueued),
        "done": by_minute(minutes, lambda tally: tally.done),
        "dead": by_minute(minutes, lambda tally: sum(tally.dead.values())),
    }
    return f"last {DRAWN}: " + "  ".join(f"{name} {drawn}" for name, drawn in lines.items())


def _fleet(status: Status) -> str:
    states: dict[str, int] = {}
    for worker in status.workers:
        states[worker.state] = states.get(worker.state, 0) + 1
    workers = f"workers {listed(states, COUNTS)}" if states else "no worker is alive"
    return f"{workers}   open runs {len(status.runs):,}   failure groups {status.group_count:,}"


def _rows(status: Status) -> Iterator[dict[str, Any]]:
    needs = {need.text for need in status.needs}
    yield from (_need(need, status.at_ms) for need in status.needs)
    holds = [hold for hold in status.holds if not any(text.startswith(hold.text) for text in needs)]
    yield from (_held(hold, status.at_ms) for hold in holds[:EACH_MAX])
    for group in status.failures[:EACH_MAX]:
        text = f"{group.count:,} × {group.error} in {group.task}, {group.trend}: {shown_text(group.text)}"
        yield {"id": f"failure/{group.fingerprint}/{group.task}", "area": "failure", "text": text}
    for run in status.runs[:EACH_MAX]:
        yield {"id": f"run/{run.id}", "area": "run", "text": run_text(run)}
    yield from map(_queue, [queue for queue in status.queues if queue.counts != Counts()][:EACH_MAX])


def _need(need: Need, now_ms: int) -> dict[str, Any]:
    return {
        "id": f"needs/{need.about or need.area}/{need.next}",
        "area": "NEEDS YOU",
        "text": need.line(now_ms),
        "of": need.area,
        "about": need.about,
        "severity": need.severity,
    }


def _held(hold: Hold, now_ms: int) -> dict[str, Any]:
    waits = f" ({count(hold.count, 'message')})" if hold.count else ""
    return {"id": f"held/{hold.kind}/{hold.by}", "area": "held", "text": hold.line(now_ms) + waits, "of": hold.kind}


def _queue(queue: QueueStatus) -> dict[str, Any]:
    of = queue.counts
    parked = {"parked": of.parked} if of.parked else {}
    lanes = {"ready": of.ready, "scheduled": of.scheduled, **parked, "running": of.leased, "dead": of.dead}
    paused = ", PAUSED" if queue.paused else ""
    text = joined(queue.name, f": {listed(lanes, COUNTS)}, oldest due {seconds(int(of.oldest_age_s))}{paused}")
    return {"id": f"queue/{queue.name}", "area": "queue", "text": text}
