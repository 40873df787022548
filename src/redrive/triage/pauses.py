"""Pause and resume queues, set the width of groups, and cancel messages by hand, with entries in the audit log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..audit import Audit
from ..message import Cancel, Swap, decoded, version_of
from ..store import Store
from ..worker.leases import KILL_MS, kill_cell


class Pause(Struct, frozen=True):
    """The person who paused a queue, the time and the reason."""

    at_ms: int
    actor: str = ""
    reason: str = ""


def pause(store: Store, queue: str, *, actor: str | None = None, reason: str = "") -> None:
    """Stop all claims from the queue. `actor` defaults to user@host. The pause and its entry in the audit log are one
    commit; on SQS the entry follows. Raises ConfigError, StoreError, Unsupported as `Store.configure`."""
    _set(store, queue, paused=True, actor=actor, reason=reason)


def resume(store: Store, queue: str, *, actor: str | None = None, reason: str = "") -> None:
    """Let workers claim from the queue again. Raises as `pause`, and is in the audit log."""
    _set(store, queue, paused=False, actor=actor, reason=reason)


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


def _set(store: Store, queue: str, *, paused: bool, actor: str | None, reason: str) -> None:
    audit = Audit(store)
    entry = audit.by_hand("pause" if paused else "resume", f"queue/{queue}", actor, reason)
    key = cell_of(queue)

    def write(swaps: list[Swap]) -> None:
        if store.traits.cells:
            (cell,) = store.cells.read([key])
            known = Pause(entry.at_ms, entry.claimed or entry.actor, entry.reason)
            if paused or cell is not None:
                swaps = [*swaps, Swap(key, version_of(cell), msgspec.json.encode(known) if paused else None)]
        store.configure(queue, paused=paused, swaps=swaps)

    audit.commit(entry, write)


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
