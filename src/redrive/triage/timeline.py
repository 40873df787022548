"""The timeline of a message: its enqueue, its attempts, actions of people, and its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from ..audit import Audit, Entry
from ..fault import Fault
from ..message import FAULTS_KEPT_EACH_END, Message
from ..store import Store
from .edit import REPLACES

READ_MAX = 20_000  # most entries of the audit log that are read
GONE = ("discard", "edit")  # audit actions that remove a message


class Moment(Struct, frozen=True):
    """One event of a timeline, `after_ms` after the one before it. `fault` belongs to an attempt, `entry` to an action
    by a person; `text` describes the event."""

    at_ms: int
    what: str
    text: str = ""
    after_ms: int | None = None
    fault: Fault | None = None
    entry: Entry | None = None


def by_hand(store: Store, message: Message) -> list[Entry]:
    """Return the audit entries of this message, and of the run that last moved it, oldest first. Raises StoreError."""
    log = islice(Audit(store).entries(since_ms=message.enqueued_ms), READ_MAX)
    about = {message.run_id} - {None}
    return [entry for entry in log if message.id in entry.ids or entry.about in about][::-1]


def ended_by(store: Store, id: str) -> Entry | None:
    """Return the audit entry that discarded or replaced this message; None if there is none. Raises StoreError."""
    log = islice(Audit(store).entries(), READ_MAX)
    return next((e for e in log if e.action in GONE and id in (e.ids if e.action != "edit" else e.ids[:1])), None)


def timeline(message: Message, entries: Sequence[Entry] = ()) -> list[Moment]:
    """Return the events of a message, with actions from these audit entries, oldest first. Pure."""
    moments = sorted(_moments(message, entries), key=lambda moment: moment.at_ms)  # stable: ties keep their order
    return [
        Moment(m.at_ms, m.what, m.text, m.at_ms - before.at_ms if before else None, m.fault, m.entry)
        for before, m in zip([None, *moments], moments, strict=False)
    ]


def _moments(message: Message, entries: Sequence[Entry]) -> Iterator[Moment]:
    replaced = message.headers.get(REPLACES)
    yield Moment(message.enqueued_ms, "enqueued", f"in place of {replaced}" if replaced else "")
    dropped = _dropped(message.faults)
    for at, fault in enumerate(message.faults):
        if at == FAULTS_KEPT_EACH_END and dropped:
            yield Moment(fault.at_ms, "…", f"{dropped:,} attempts in between are not kept")
        yield Moment(fault.at_ms, f"attempt {fault.attempt}" if fault.attempt else "fault", fault=fault)
    yield from (Moment(entry.at_ms, entry.action, entry.text, entry=entry) for entry in entries)
    if message.redrives and not _shows_redrive(entries, message):
        by = f" by run {message.run_id}" if message.run else ""
        yield Moment(message.life_ms, "redriven", f"for the {_nth(message.redrives)} time{by}")
    if message.rested_ms is not None:
        yield Moment(message.rested_ms, str(message.lane), message.reason or "")


def _dropped(faults: Sequence[Fault]) -> int:
    """Return how many attempts were dropped from the middle of one life's history, by the faults on both sides."""
    if len(faults) < 2 * FAULTS_KEPT_EACH_END:
        return 0
    last, next = faults[FAULTS_KEPT_EACH_END - 1], faults[FAULTS_KEPT_EACH_END]
    return max(0, next.attempt - last.attempt - 1)


def _shows_redrive(entries: Iterable[Entry], message: Message) -> bool:
    """True if the audit entries contain the redrive that began the message's present life."""
    return any(entry.action == "retry" and abs(entry.at_ms - message.life_ms) < 60_000 for entry in entries)


def _nth(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"
