"""Pause and resume queues, set the width of groups, and cancel messages by hand, with entries in the audit log."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..audit import Audit
from ..duration import Duration, milliseconds, rfc3339
from ..errors import ConfigError, Conflict, Unsupported
from ..events import Notify
from ..message import Cancel, Swap, decoded, version_of
from ..store import Store
from ..worker import Service
from ..worker.leases import KILL_MS, kill_cell

LONGEST_MS = 366 * 86_400_000
LOOK_S = 2.0  # seconds between two looks for pauses that are over


class Pause(Struct, frozen=True):
    """The person who paused a queue, the time and the reason, and when a worker resumes it (None: not by itself)."""

    at_ms: int
    actor: str = ""
    reason: str = ""
    until_ms: int | None = None


def pause(
    store: Store, queue: str, *, for_: Duration | None = None, actor: str | None = None, reason: str = ""
) -> None:
    """Stop all claims from the queue; with `for_`, until a worker resumes it after this time.

    `actor` defaults to user@host. The pause and its entry in the audit log are one commit; on SQS the entry follows.
    Raises ConfigError, StoreError, Unsupported as `Store.configure`."""
    _set(store, queue, paused=True, actor=actor, reason=reason, span_ms=span_of(for_, f"pause of queue {queue!r}"))


def resume(store: Store, queue: str, *, actor: str | None = None, reason: str = "") -> None:
    """Let workers claim from the queue again. Raises as `pause`, and is in the audit log."""
    _set(store, queue, paused=False, actor=actor, reason=reason)


def span_of(for_: Duration | None, what: str) -> int | None:
    """Return how many ms a pause lasts; None for one without an end. Raises ConfigError, which names `what`."""
    span_ms = None if for_ is None else milliseconds(for_, "for_")
    if span_ms is not None and not 0 < span_ms <= LONGEST_MS:
        raise ConfigError(f"{what} for {for_}: expected a time above 0, a year at most")
    return span_ms


def set_width(
    store: Store, queue: str, group: str | None, width: int, *, actor: str | None = None, reason: str = ""
) -> None:
    """Set the width of one group, or (None) of all groups in the queue; 0: the declared width. Otherwise as `pause`."""
    audit = Audit(store)
    entry = audit.by_hand("width", _group(queue, group), actor, reason, f"{width}" if width else "as declared")
    audit.commit(entry, lambda swaps: store.configure_group(queue, group, width=width, swaps=swaps))


def resume_group(store: Store, queue: str, group: str, *, actor: str | None = None, reason: str = "") -> None:
    """Unblock a group that a dead message blocks. Otherwise as `pause`."""
    audit = Audit(store)
    entry = audit.by_hand("resume", _group(queue, group), actor, reason)
    audit.commit(entry, lambda swaps: store.configure_group(queue, group, resume=True, swaps=swaps))


def cancel(
    store: Store, ids: Sequence[str], *, kill: bool = False, actor: str | None = None, reason: str = ""
) -> list[Cancel]:
    """Like `Store.cancel`, in one commit with its audit entry, which is then corrected for messages that were not
    cancelled. `kill` also kills the child process of an isolated execution. On SQS the entry follows. Raises
    ConfigError, StoreError, Unsupported."""
    audit, named = Audit(store), list(dict.fromkeys(ids))
    entry = audit.by_hand("cancel", "", actor, reason, "kill" if kill else "", ids=named)

    def write(swaps: list[Swap]) -> list[Cancel]:
        if kill:  # in the same commit, so that a worker that is asked to stop the message finds this cell
            keys = [kill_cell(id) for id in named]
            cells = store.cells.read(keys)
            swaps = [*swaps, *(Swap(k, version_of(c), b"1", KILL_MS) for k, c in zip(keys, cells, strict=True))]
        return store.cancel(named, swaps=swaps)

    answers = dict(zip(named, audit.beside(entry, write), strict=True))
    done = [id for id, word in answers.items() if word in (Cancel.CANCELLED, Cancel.REQUESTED)]
    if len(done) < len(named):
        audit.amend(entry, ids=done)
    return [answers[id] for id in ids]


def tell(
    store: Store, action: str, about: str, *, text: str = "", count: int = 0, actor: str | None = None, reason: str = ""
) -> None:
    """Write an audit entry for an action outside the store's commits, on blobs or on SQS. A store without cells has no
    log. Raises ConfigError, StoreError."""
    audit = Audit(store)
    audit.keep(audit.by_hand(action, about, actor, reason, text, count=count))


def _group(queue: str, group: str | None) -> str:
    return f"queue/{queue}" if group is None else f"queue/{queue}/group/{group}"


def _set(store: Store, queue: str, *, paused: bool, actor: str | None, reason: str, span_ms: int | None = None) -> None:
    if span_ms is not None and not store.traits.cells:
        raise Unsupported(
            f"a pause of queue {queue!r} with an end needs a store with cells, which {store.traits.name} is not"
        )
    audit, until_ms = Audit(store), None if span_ms is None else store.now_ms() + span_ms
    text = "" if until_ms is None else f"until {rfc3339(until_ms)}"
    entry = audit.by_hand("pause" if paused else "resume", f"queue/{queue}", actor, reason, text)
    key = cell_of(queue)

    def write(swaps: list[Swap]) -> None:
        if store.traits.cells:
            (cell,) = store.cells.read([key])
            known = Pause(entry.at_ms, entry.claimed or entry.actor, entry.reason, until_ms)
            if paused or cell is not None:
                swaps = [*swaps, Swap(key, version_of(cell), msgspec.json.encode(known) if paused else None)]
        store.configure(queue, paused=paused, swaps=swaps)

    audit.commit(entry, write)


class PauseEnds(Service):
    """Resumes the queues whose pause is over."""

    def __init__(self, store: Store, owner: str, notice: Notify) -> None:
        self._store, self._notice = store, notice
        self._due_s = 0.0 if store.traits.cells else math.inf

    def look(self, *, now: bool = False) -> None:
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + LOOK_S
        paused = sorted(self._store.paused())
        if not paused:
            return
        cells, now_ms = self._store.cells.read([cell_of(queue) for queue in paused]), self._store.now_ms()
        for queue, cell in zip(paused, cells, strict=True):
            pause = decoded(cell, _pause, None)
            if pause is not None and pause.until_ms is not None and pause.until_ms <= now_ms:
                try:
                    swap = Swap(cell_of(queue), version_of(cell), None)
                    self._store.configure(queue, paused=False, swaps=[swap])
                except Conflict:
                    continue  # a person or another worker was first
                self._notice("resumed", f"queue {queue}: its pause by {pause.actor} is over", queue)


_pause = msgspec.json.Decoder(Pause).decode


def paused_by(store: Store, queues: Sequence[str]) -> dict[str, Pause]:
    """Read who paused these queues, when and why, as far as `pause` recorded it. Raises StoreError."""
    if not queues or not store.traits.cells:
        return {}
    cells = store.cells.read([cell_of(queue) for queue in queues])
    pauses = {queue: decoded(cell, _pause, None) for queue, cell in zip(queues, cells, strict=True)}
    return {queue: pause for queue, pause in pauses.items() if pause is not None}


def cell_of(queue: str) -> str:
    return f"pause/{queue}"
