"""Showing secrets as they are: noted in the audit log before anybody sees them."""

from __future__ import annotations

from collections.abc import Sequence

from ..audit.actor import signed
from ..audit.log import Audit
from ..store import Store


def reveal(
    store: Store, what: str, *, reason: str, actor: str | None = None, ids: Sequence[str] = (), count: int | None = None
) -> None:
    """Note that somebody gets to see secrets: of the messages `ids`, or of `count` messages that `what` names.

    Returns once that is written. Raises ConfigError without a reason, StoreError: then nothing may be shown.
    """
    actor, reason = signed(actor, reason, "reveal")
    audit = Audit(store)
    audit.keep(audit.entry("reveal", actor, reason, ids=ids, count=count, about=what or ("" if ids else "all")))
