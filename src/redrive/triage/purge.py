"""Purge a queue: cancel its waiting messages, batch by batch, with a note of the person and the reason.

The note and the entry in the audit log are written before the first batch. So after a crash the log has the purge, and
the number of messages that waited at its start.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from ..audit import Audit
from ..errors import Unsupported
from ..message import Cancel, Filter, Lane, Message, Swap, decoded, version_of
from ..store import Store, fitting
from ..stores.validation import admit_names

PAGE = 500  # messages cancelled in one commit
# Most messages of one page; larger bodies allow fewer. Large pages pay: a store may read its whole lane for each.
LOOK_MAX = 20_000
NOTES_MAX = 20  # most notes kept per queue
KEPT_MS = 24 * 3600 * 1000  # notes are kept as long as cancelled messages, in ms


class PurgeNote(Struct, frozen=True):
    """A purge, to be shown with its cancelled messages. `ended_ms` is None during the purge, and after a crash."""

    began_ms: int
    ended_ms: int | None
    actor: str
    reason: str


_decode = msgspec.json.Decoder(list[PurgeNote]).decode


class Purged(Struct, frozen=True):
    """The result of a purge: the number of messages cancelled, and the number that a worker had claimed by then and
    that were asked to stop."""

    cancelled: int = 0
    asked_to_stop: int = 0


def admit(store: Store, queue: str) -> None:
    """Raise ConfigError for an invalid queue name, Unsupported if the store cannot list waiting messages."""
    admit_names(queue)
    if not store.traits.finds:
        raise Unsupported(
            f"queue {queue!r}: store {store.traits.name} cannot list what waits, so there is nothing to cancel by; "
            "pause the queue, or empty it with the store's own tools (SQS: aws sqs purge-queue)"
        )


def purge(
    store: Store, queue: str, *, actor: str, reason: str = "", tick: Callable[[int], object] = lambda count: None
) -> Purged:
    """Cancel the messages waiting in the queue (ready, scheduled, parked) that were enqueued before now. `tick` is
    called with the size of each batch.

    Leased, dead, quarantined and done messages stay. A message that a worker claims just before it is cancelled is
    asked to stop, as by `cancel`; pause the queue first to avoid that. After a crash call it again. The audit log has
    one entry per purge. Raises StoreError, Unsupported if the store cannot list waiting messages.
    """
    admit(store, queue)
    note, audit, counts = PurgeNote(store.now_ms(), None, actor, reason), Audit(store), store.counts(queue)
    waiting = counts.waiting
    entry = audit.entry("purge", actor, reason, count=waiting, about=f"queue/{queue}")
    audit.commit(entry, lambda swaps: _begin(store, queue, note, swaps))
    before = Filter(queue=queue, until_ms=note.began_ms + 1)
    done = Purged()
    while (now := _pass(store, before, done, tick)) != done:  # a page may miss messages that move during the read
        done = now
    _write(store, queue, msgspec.structs.replace(note, ended_ms=store.now_ms()))
    count = done.cancelled + done.asked_to_stop
    if count != waiting or not count:
        audit.amend(entry, count=count)
    return done


def _begin(store: Store, queue: str, note: PurgeNote, swaps: list[Swap]) -> None:
    store.put([], swaps=[_with(store, queue, note), *swaps])


def _pass(store: Store, where: Filter, done: Purged, tick: Callable[[int], object]) -> Purged:
    cursor, limit = None, PAGE
    while True:
        page = store.peek(Lane.READY, where=where, limit=limit, cursor=cursor)
        for at in range(0, len(page.messages), PAGE):
            words = store.cancel([message.id for message in page.messages[at : at + PAGE]])
            done = Purged(
                done.cancelled + words.count(Cancel.CANCELLED), done.asked_to_stop + words.count(Cancel.REQUESTED)
            )
            tick(len(words))
        cursor = page.cursor
        if cursor is None:
            return done
        limit = max(PAGE, fitting(page.messages, LOOK_MAX))


def purge_behind(store: Store, message: Message) -> PurgeNote | None:
    """Return the purge of the message's queue during which the message was cancelled, or None."""
    if message.reason != "cancelled" or message.rested_ms is None:
        return None
    for note in reversed(_notes(store, message.queue)[1]):
        if note.began_ms <= message.rested_ms and (note.ended_ms is None or message.rested_ms <= note.ended_ms):
            return note
    return None


def cell_of(queue: str) -> str:
    return f"redrive:purges:{queue}"


def _notes(store: Store, queue: str) -> tuple[int, list[PurgeNote]]:
    cell = store.cells.read([cell_of(queue)])[0]
    return version_of(cell), decoded(cell, _decode, [])


def _write(store: Store, queue: str, note: PurgeNote) -> None:
    """Write the note, and try again until the swap succeeds: concurrent purges of a queue each keep a note."""
    while not store.cells.swap([_with(store, queue, note)])[0]:
        pass


def _with(store: Store, queue: str, note: PurgeNote) -> Swap:
    """Return the swap that adds the note to the notes of its queue, or replaces the same purge's note."""
    version, notes = _notes(store, queue)
    others = [n for n in notes if (n.began_ms, n.actor) != (note.began_ms, note.actor)]
    return Swap(cell_of(queue), version, msgspec.json.encode([*others, note][-NOTES_MAX:]), KEPT_MS)
