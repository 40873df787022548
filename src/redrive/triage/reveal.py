"""Record in the audit log that a person sees secrets."""

from __future__ import annotations

from collections.abc import Sequence

from ..audit import Audit, signed
from ..store import Store


def reveal(
    store: Store, what: str, *, reason: str, actor: str | None = None, ids: Sequence[str] = (), count: int | None = None
) -> None:
    """Record that a person sees secrets: of the messages `ids`, or of `count` messages that `what` describes.

    Returns once the entry is written. Raises ConfigError without a reason, StoreError: then show nothing.
    """
    actor, reason = signed(actor, reason, "reveal")
    audit = Audit(store)
    audit.keep(audit.entry("reveal", actor, reason, ids=ids, count=count, about=what or ("" if ids else "all")))
