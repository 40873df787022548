"""Queues, groups and messages by a person's word, which the audit log keeps: pause, resume, width, cancel."""

from __future__ import annotations

from collections.abc import Sequence

from ..audit.log import Audit
from ..message import Cancel
from ..store import Store


def pause(store: Store, queue: str, *, actor: str | None = None, reason: str = "") -> None:
    """Stop all claims from the queue. `actor` is user@host unless given. The pause and its entry in the audit log are
    one commit; on SQS the entry comes right after. Raises ConfigError, StoreError, Unsupported as `Store.configure`."""
    _set(store, queue, paused=True, actor=actor, reason=reason)


def resume(store: Store, queue: str, *, actor: str | None = None, reason: str = "") -> None:
    """Claim from the queue again; else as `pause`."""
    _set(store, queue, paused=False, actor=actor, reason=reason)


def set_width(
    store: Store, queue: str, group: str | None, width: int, *, actor: str | None = None, reason: str = ""
) -> None:
    """Give one group, or (None) all of the queue, this width; 0: what the app declared. Else as `pause`."""
    audit = Audit(store)
    entry = audit.by_hand("width", _group(queue, group), actor, reason, f"{width}" if width else "as declared")
    audit.commit(entry, lambda swaps: store.configure_group(queue, group, width=width, swaps=swaps))


def resume_group(store: Store, queue: str, group: str, *, actor: str | None = None, reason: str = "") -> None:
    """Let a group go on that a dead message blocks. Else as `pause`."""
    audit = Audit(store)
    entry = audit.by_hand("resume", _group(queue, group), actor, reason)
    audit.commit(entry, lambda swaps: store.configure_group(queue, group, resume=True, swaps=swaps))


def cancel(store: Store, ids: Sequence[str], *, actor: str | None = None, reason: str = "") -> list[Cancel]:
    """As `Store.cancel`, in one commit with its entry; what it came to nothing for is taken out of that just after. On
    SQS the entry comes right after. Raises ConfigError, StoreError, Unsupported."""
    audit, named = Audit(store), list(dict.fromkeys(ids))
    entry = audit.by_hand("cancel", "", actor, reason, ids=named)
    found = dict(zip(named, audit.beside(entry, lambda swaps: store.cancel(named, swaps=swaps)), strict=True))
    done = [id for id, word in found.items() if word in (Cancel.CANCELLED, Cancel.REQUESTED)]
    if len(done) < len(named):
        audit.amend(entry, ids=done)
    return [found[id] for id in ids]


def tell(
    store: Store, action: str, about: str, *, text: str = "", count: int = 0, actor: str | None = None, reason: str = ""
) -> None:
    """Write the entry of what was done outside of the store's commits: to blobs, to SQS itself. Where the store has no
    cells there is no log. Raises ConfigError, StoreError."""
    audit = Audit(store)
    audit.keep(audit.by_hand(action, about, actor, reason, text, count=count))


def _group(queue: str, group: str | None) -> str:
    return f"queue/{queue}" if group is None else f"queue/{queue}/group/{group}"


def _set(store: Store, queue: str, *, paused: bool, actor: str | None, reason: str) -> None:
    audit = Audit(store)
    entry = audit.by_hand("pause" if paused else "resume", f"queue/{queue}", actor, reason)
    audit.commit(entry, lambda swaps: store.configure(queue, paused=paused, swaps=swaps))
