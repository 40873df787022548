"""Queues: what waits, runs and is dead, how fast they run, and what holds them. Pause and resume them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...message import Counts, Filter
from ...present.formats import listed, milliseconds, number, seconds, share, state_word
from ...present.queues import LANES, counts_record, lanes_shown
from ...present.spark import spark
from ...present.table import Column
from ...triage import pauses
from ...triage.select.terms import as_node
from ..model import Model
from ..screen import KeyAction, Screen, ScreenPage, ScreenRow, Text
from ..texts import count, pairs
from ..tones import Tone

if TYPE_CHECKING:
    from ...history import History, Tally
    from ...message import FailureGroup
    from ...status import Hold, Upcoming

RATED_MAX = 30  # the most queues whose history is read: those with the most messages
BACK, STEP = "5m", "1m"
DRAWN, DRAWN_MAX, LISTED_MAX = "20m", 20, 10  # the time that is drawn, and its minutes; those in a table
_LANES = LANES[:-1]  # without done messages, which need no action


class QueueCounts(NamedTuple):
    """The counts by queue, and the names of paused queues."""

    counts: Mapping[str, Counts]
    paused: frozenset[str]


class QueueNotes(NamedTuple):
    """By queue, the holds of its messages in a few words, and its history: of BACK, and of DRAWN."""

    held: Mapping[str, str]
    history: Mapping[str, History]
    minutes: Mapping[str, History]


def counted(model: Model) -> QueueCounts:
    """Return the counts of all queues, declared ones without messages included. Raises StoreError."""
    from ...presence import with_claimed
    from ...status import worker_reports

    app = model.app
    declared = app.queue_names if app is not None else ()
    counts = dict.fromkeys(sorted(declared), Counts()) | model.store.counts_by_queue()
    counts = with_claimed(counts, worker_reports(model.store))
    return QueueCounts(counts, model.store.paused())


def rates(model: Model, names: Sequence[str], back: str = BACK) -> Mapping[str, History]:
    """Return the history of these queues' last minutes; empty if the store keeps none. Raises StoreError."""
    from ...history import read_history

    return {name: read_history(model.store, name, None, back, STEP) for name in names} if _keeps(model) else {}


def by_minute(history: History, of: Callable[[Tally], int], most: int = DRAWN_MAX) -> str:
    """Draw a count of a history's last minutes, the last at the right, with a dot for 0."""
    counts = {point.at_ms: of(point.tally) for point in history.points}
    last_ms = history.until_ms - history.until_ms % history.step_ms
    return spark([counts.get(last_ms - n * history.step_ms, 0) for n in reversed(range(most))]).replace(" ", "·")


def _keeps(model: Model) -> bool:
    return model.store.traits.cells


def _pause(model: Model, row: ScreenRow, reason: str) -> str:
    pauses.pause(model.store, row["queue"], actor=model.actor, reason=reason)
    return f"queue {row['queue']} is paused; what runs goes on"


def _resume(model: Model, row: ScreenRow, reason: str) -> str:
    pauses.resume(model.store, row["queue"], actor=model.actor, reason=reason)
    return f"queue {row['queue']} is resumed"


def _about(row: ScreenRow) -> str:
    return f"queue {row['queue']}"


ACTS = (
    KeyAction("P", "pause", _about, _pause, lambda row: not row["paused"]),
    KeyAction("R", "resume", _about, _resume, lambda row: bool(row["paused"]), ends=True),
)


class QueuesScreen(Screen):
    name: ClassVar[str] = "queues"
    id: ClassVar[str] = "queue"
    columns: tuple[Column, ...] = (
        Column("queue", shrinks=True),
        *(Column(lane, state_word(lane), spare=5 * (lane == "parked")) for lane in _LANES),
        Column("oldest", None, seconds),
        Column("in_s", "in/s", number, spare=2),
        Column("out_s", "done/s", number, spare=1),
        Column("drawn", f"done {LISTED_MAX}m", spare=2),
        Column("failed", None, share, spare=3),
        Column("wait_p95", "wait p95", milliseconds, spare=4),
        Column("held", shrinks=True),
    )
    acts = ACTS
    studies = True

    def read(self, model: Model) -> QueueCounts:
        return counted(model)

    def study(self, model: Model) -> QueueNotes:
        from ...status import Reasons

        counts, reasons = counted(model).counts, Reasons(model.store, model.app)
        held = {
            name: "; ".join(hold.short(reasons.now_ms) for hold in reasons.of_queue(name, of) if hold.kind != "pause")
            for name, of in counts.items()
        }
        fullest = sorted(counts, key=lambda name: (-counts[name].ready, -counts[name].leased, name))
        some = fullest[:RATED_MAX]
        return QueueNotes(held, rates(model, some), rates(model, some, DRAWN))

    def page(self) -> ScreenPage:
        found, studied = self.reading, self.studied or QueueNotes({}, {}, {})
        rows = [
            row_of(name, of, name in found.paused, studied.held.get(name, ""), studied.history.get(name))
            | _minute_cell(studied.minutes.get(name))
            for name, of in sorted(found.counts.items())
        ]
        return ScreenPage(rows, empty="no queue: nothing was ever enqueued here")

    def tones(self, row: ScreenRow) -> Mapping[str, Tone]:
        tones = {name: Tone.WAIT for name in ("dead", "quarantine") if row[name]}
        return tones | ({"held": Tone.WAIT} if row["held"] else {})

    def look(self, row: ScreenRow) -> Screen:
        return QueueDetail(row["queue"])

    def selector(self, row: ScreenRow | None) -> str | None:
        return None if row is None else str(as_node(Filter(queue=row["queue"])))


def _minute_cell(minutes: History | None) -> dict[str, Any]:
    return {} if minutes is None else {"drawn": by_minute(minutes, lambda tally: tally.done, LISTED_MAX)}


def row_of(name: str, of: Counts, paused: bool, held: str, history: History | None) -> dict[str, Any]:
    lanes = {lane: getattr(of, lane) for lane in _LANES}
    reason = "; ".join(filter(None, ["PAUSED" if paused else "", held])) or None
    row: dict[str, Any] = {
        "queue": name,
        **lanes,
        "oldest": int(of.oldest_age_s),
        "held": reason,
        "paused": paused,
    }
    if history is None:
        return row
    total, past_s = history.total, max(1.0, (history.until_ms - history.since_ms) / 1000)
    return row | {
        "in_s": total.enqueued / past_s,
        "out_s": total.done / past_s,
        "failed": total.error_rate,
        "wait_p95": total.wait.percentile(0.95),
    }


class QueueReading(NamedTuple):
    """The holds, the history, the upcoming messages and the failures of one queue."""

    holds: Sequence[Hold]
    history: History | None
    upcoming: Upcoming | None
    failures: Sequence[FailureGroup]
    workers: Sequence[str]


class QueueDetail(Text):
    acts = ACTS
    studies = True

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue = queue

    @property
    def title(self) -> str:
        return f"queue {self.queue}"

    def subject(self, row: ScreenRow | None) -> ScreenRow | None:
        return None if self.reading is None else {"queue": self.queue, "paused": self.queue in self.reading.paused}

    def selector(self, row: ScreenRow | None) -> str | None:
        return str(as_node(Filter(queue=self.queue)))

    def read(self, model: Model) -> QueueCounts:
        return counted(model)

    def study(self, model: Model) -> QueueReading:
        from ...errors import Unsupported
        from ...presence import read_workers
        from ...status import Reasons, read_upcoming

        store, name = model.store, self.queue
        try:
            upcoming = read_upcoming(store, name)
        except Unsupported:
            upcoming = None
        workers = read_workers(store) if _keeps(model) else ()
        return QueueReading(
            Reasons(store, model.app).of_queue(name, store.counts(name)),
            rates(model, [name]).get(name),
            upcoming,
            store.failure_groups(where=Filter(queue=name), trend=True) if store.traits.triages else (),
            [f"{w.name} {w.state}" for w in workers if name in {queue.name for queue in w.queues}],
        )

    def lines(self) -> Sequence[str]:
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        of = self.reading.counts.get(self.queue, Counts())
        yield f"state      {'PAUSED' if self.queue in self.reading.paused else 'claimed from'}"
        lanes = lanes_shown([counts_record(of)])
        yield f"messages   {listed({lane: getattr(of, lane) for lane in lanes}, len(lanes))}"
        yield f"oldest due {seconds(int(of.oldest_age_s))}"
        deep: QueueReading | None = self.studied
        if deep is None:
            yield "reading more …"
            return
        if deep.history is not None:
            yield from ("", f"last {BACK}", *(f"  {each}" for each in happened(deep.history)))
        yield from ("", "held by", *(f"  {hold.line(self.now_ms)}" for hold in deep.holds))
        if not deep.holds:
            yield "  nothing"
        if deep.upcoming is not None:
            yield from ("", "coming due", *(f"  {each}" for each in wave(deep.upcoming)))
        yield from ("", "workers", *(f"  {each}" for each in deep.workers or ["none tells that it works it"]))
        yield from ("", "failures")
        for group in deep.failures[:10]:
            yield f"  {group.count:,} × {group.error} in {group.task}, {group.trend}"
        if not deep.failures:
            yield "  none is dead"


def happened(history: History) -> Sequence[str]:
    """Return what a history contains as a few lines."""
    total, past_s = history.total, max(1.0, (history.until_ms - history.since_ms) / 1000)
    failed = {outcome: number for outcome, number in total.outcomes.items() if number and outcome != "done"}
    times = [(name, of) for name, of in (("wait", total.wait), ("run", total.run)) if of.count]
    return pairs(
        [
            ("in", f"{total.enqueued:,}, {number(total.enqueued / past_s)}/s"),
            ("done", f"{total.done:,}, {number(total.done / past_s)}/s"),
            ("not done", listed(failed, 6)),
            ("failed", share(total.error_rate)),
            *(
                (name, "  ".join(f"p{p} {milliseconds(of.percentile(p / 100))}" for p in (50, 95, 99)))
                for name, of in times
            ),
        ]
    )


def wave(upcoming: Upcoming) -> Sequence[str]:
    """Return how many messages are upcoming as a few lines."""
    spans = ((60, "1m"), (600, "10m"), (3600, "1h"), (86_400, "24h"))
    return [f"within {word:>3}  {count(upcoming.within(s), 'message')}" for s, word in spans]
