"""The store that the screens show, with its app if known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..present.table import relative
from ..triage.controls import Controls
from ..triage.dlq import DeadLetters
from ..triage.selection import Selection

if TYPE_CHECKING:
    from ..registry import Registry
    from ..store import Store


class Model:
    """The store with the views that commands use. Without `app`, its tasks and rules are unknown."""

    store: Store
    app: Registry | None
    url: str
    actor: str | None
    dlq: DeadLetters
    flow: Controls

    def __init__(self, store: Store, app: Registry | None, url: str, *, actor: str | None = None) -> None:
        """Take the store's URL for display, without a password, and the `actor` who signs changes (default:
        user@host)."""
        self.store, self.app, self.url, self.actor = store, app, url, actor
        self.dlq, self.flow = DeadLetters(store, app), Controls(store, app)

    def select(self, selector: str, *, every: bool = False) -> Selection:
        """Return the selection of this selector, in all lanes: see `Selection`. Raises SelectorError, StoreError."""
        return Selection(self.store, selector, app=self.app, every=every)


class TerminalReader:
    """Options for a message's story: relative times, and no details unless it is `verbose`."""

    verbose: bool
    is_brief: bool

    def __init__(self, store: Store, *, verbose: bool) -> None:
        self._store = store
        self.verbose, self.is_brief = verbose, not verbose

    def when(self, at: str | None) -> str:
        return relative(at, self._store.now_ms()) if at else ""

    def dim(self, text: str) -> str:
        return text
