"""Count the outcomes of a delivery from the store: messages that are no longer stored were delivered."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ..message import RESTING, Discard, Filter, Lane, Message
from ..store import Store, pages
from .ingest import LINE_HEADER, FileRecord, Ledger

LINES_SHOWN_MAX = 5


class DeadGroup(Struct, frozen=True):
    """Messages that died for the same reason."""

    lane: str
    reason: str
    error: str
    text: str
    fingerprint: str
    count: int
    lines: tuple[int, ...]  # numbers in the file of the first lines that died so
    sample_id: str


class Summary(Struct, frozen=True):
    """The number of lines of a delivery by outcome. `enqueued` counts those of its `lines` that became messages:
    delivered, waiting, or counted by a field below."""

    file: str
    to: str
    queue: str
    lines: int
    bad: int
    enqueued: int
    delivered: int
    waiting: int
    dead: int
    quarantined: int
    cancelled: int
    removed: int
    groups: tuple[DeadGroup, ...] = ()

    @property
    def finished(self) -> bool:
        return self.waiting == 0 and self.enqueued >= self.lines

    @property
    def failed(self) -> int:
        """The number of lines whose messages ended undelivered."""
        return self.dead + self.quarantined + self.cancelled + self.removed


def summarize(store: Store, record: FileRecord) -> Summary:
    """Count the outcomes of a delivery. Messages are read page by page, so millions of dead ones need little memory."""
    c = store.counts(record.queue)
    waiting, resting = c.waiting + c.leased, c.dead + c.quarantine
    cancelled = max(record.cancelled, _count_cancelled(store, record) if c.done else 0)
    removed = record.removed + max(0, (record.resting or 0) - waiting - resting)
    return Summary(
        file=record.file,
        to=record.to,
        queue=record.queue,
        lines=record.total,
        bad=record.bad,
        enqueued=record.done,
        delivered=max(0, record.done - waiting - resting - cancelled - removed),
        waiting=waiting,
        dead=c.dead,
        quarantined=c.quarantine,
        cancelled=cancelled,
        removed=removed,
        groups=_groups(store, record.queue) if resting else (),
    )


def close(ledger: Ledger, summary: Summary) -> None:
    """Record the dead messages at the end of a run, so that those removed by hand later do not count as delivered."""
    if ledger.record is not None and summary.finished:
        resting = summary.dead + summary.quarantined
        ledger.write(replace(ledger.record, resting=resting, removed=summary.removed, cancelled=summary.cancelled))


def remove(store: Store, queue: str) -> tuple[int, int]:
    """Remove all messages of a delivery; running ones are asked to stop. Returns the numbers cancelled, discarded."""
    cancelled = discarded = 0
    for lane in (Lane.READY, Lane.LEASED):
        for messages in pages(store, lane, Filter(queue=queue)):
            store.cancel([m.id for m in messages])
            cancelled += len(messages)
    for lane in RESTING:
        for messages in pages(store, lane, Filter(queue=queue)):
            handles = [m.handle for m in messages]
            discarded += sum(store.triage(handles, Discard("its delivery was forgotten")))
    return cancelled, discarded


def _count_cancelled(store: Store, record: FileRecord) -> int:
    where = Filter(queue=record.queue, reason="cancelled", since_ms=record.started_ms)
    return sum(len(messages) for messages in pages(store, Lane.DONE, where))


def _groups(store: Store, queue: str) -> tuple[DeadGroup, ...]:
    groups: dict[tuple[str, ...], DeadGroup] = {}
    for lane in RESTING:
        for messages in pages(store, lane, Filter(queue=queue)):
            for message in messages:
                _add(groups, message)
    return tuple(sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint)))


def _add(groups: dict[tuple[str, ...], DeadGroup], message: Message) -> None:
    fault = message.faults[-1] if message.faults else None
    key = message.lane.value, message.reason or "", fault.fingerprint if fault is not None else ""
    line = int(message.headers.get(LINE_HEADER, 0))
    group = groups.get(key)
    if group is None:
        error, text = (fault.error, fault.text) if fault is not None else ("", "")
        groups[key] = DeadGroup(key[0], key[1], error, text, key[2], 1, (line,), message.id)
    else:
        lines = tuple(sorted([*group.lines, line])[:LINES_SHOWN_MAX])
        groups[key] = replace(group, count=group.count + 1, lines=lines)


def spool_folder(store: Store) -> Path:
    """Return the folder for spooled input: beside the store's file, or else in the working directory."""
    if store.state_dir is None:
        return Path.cwd() / ".redrive-spool"
    return store.state_dir.with_name(store.state_dir.name.removesuffix("-workers") + "-spool")
