"""`--reveal`: show secrets, after an entry in the audit log with the actor and the reason."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from ..present.commands import command
from ..present.failure import USAGE, Failure
from ..triage.reveal import reveal
from .opening import OpenedStore
from .selecting import actor_option
from .terminal.output import Output

REVEALS = "show secrets; the audit log records who did, and why"


class Reveal:
    """A request to show secrets, which stay hidden until `of` is called."""

    asked: bool
    reason: str
    actor: str | None

    def __init__(self, asked: bool, reason: str, actor: str | None) -> None:
        self.asked, self.reason, self.actor = asked, reason, actor

    def of(
        self, opened: OpenedStore, out: Output, what: str = "", *, ids: Sequence[str] = (), count: int | None = None
    ) -> None:
        """If the user requested it, let `out` show secrets, after an entry in the audit log. Raises StoreError."""
        if self.asked:
            self.note(opened, what, ids=ids, count=count)
            out.reveal = True

    def note(self, opened: OpenedStore, what: str = "", *, ids: Sequence[str] = (), count: int | None = None) -> None:
        """Record in the audit log that the user sees secrets. Raises StoreError."""
        reason = self.reason or f"asked for by {command()} --reveal"
        reveal(opened.store, what, reason=reason, actor=self.actor, ids=ids, count=count)


def reveal_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--reveal`, `--reason` and `--actor` to a command, which gets them as the argument
    `reveal`."""

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--reveal", is_flag=True, help=REVEALS)
        @click.option("--reason", "reveal_why", default="", help="with --reveal: why; the audit log keeps it")
        @actor_option
        @functools.wraps(command)
        def run(*args: Any, reveal: bool, reveal_why: str, actor: str | None, **options: Any) -> Any:
            if reveal_why and not reveal:
                raise Failure(
                    "--reason is for --reveal",
                    "without it nothing is recorded; by how messages died filters --died-of, where there is one",
                    click.get_current_context().command_path + " --help",
                    USAGE,
                )
            return command(*args, reveal=Reveal(reveal, reveal_why, actor), **options)

        return run

    return wrap
