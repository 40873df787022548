"""Pause a queue, and let it go on: by a person's word, which the audit log keeps."""

from __future__ import annotations

from ..store import Store
from .actor import signed
from .audit import Audit


def pause(store: Store, queue: str, *, actor: str | None = None, reason: str = "") -> None:
    """Stop all claims from the queue. `actor` is user@host unless given. The pause and its entry in the audit log are
    one commit; on SQS the entry comes right after. Raises ConfigError, StoreError, Unsupported as `Store.configure`."""
    _set(store, queue, paused=True, actor=actor, reason=reason)


def resume(store: Store, queue: str, *, actor: str | None = None, reason: str = "") -> None:
    """Claim from the queue again; else as `pause`."""
    _set(store, queue, paused=False, actor=actor, reason=reason)


def _set(store: Store, queue: str, *, paused: bool, actor: str | None, reason: str) -> None:
    word, audit = "pause" if paused else "resume", Audit(store)
    who, why = signed(actor, reason, f"{word} of queue {queue!r}", needed=False)
    entry = audit.entry(word, who, why, about=f"queue/{queue}")
    audit.commit(entry, lambda swaps: store.configure(queue, paused=paused, swaps=swaps))
