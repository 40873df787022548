"""What the screens read and change: a store, and its app if one is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cli.terminal.output import Output
from ..triage.controls import Controls
from ..triage.dlq import DeadLetters

if TYPE_CHECKING:
    from ..registry import Registry
    from ..store import Store


class Model:
    """The store and its views, as commands have them. Without `app`, its tasks and rules are unknown."""

    def __init__(self, store: Store, app: Registry | None, url: str, *, actor: str | None = None) -> None:
        """`url` is shown: it has no password. `actor` signs what is changed (default: user@host)."""
        self.store, self.app, self.url, self.actor = store, app, url, actor
        self.dlq, self.flow = DeadLetters(store, app), Controls(store, app)
        self.out = Output("table")  # of it the stories of messages take what hides secrets, and relative times
        self.out.colour, self.out.terminal, self.out.now_ms = False, True, store.now_ms
