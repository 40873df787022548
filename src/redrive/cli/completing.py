"""Complete names of the app and the store in a shell: queues, tasks, dependencies, schedules, failures, plans, runs.

It reads them on a thread, for a second at most, and prints nothing but completions. If an app prints or fails, or the
store cannot be reached, there are no completions.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    _resolve_context,
    _resolve_incomplete,
    add_completion_class,
)

from ..config import settings
from ..present.names import NAMES_MAX, NamedThing, declared_names, stored_names
from ..stores import open_store
from ..stores.upkeep import is_there
from .opening import load_app

WAIT_S = 1.0  # seconds for which the app and the store are read; the names read by then are offered
_SAFE = re.compile(r"[A-Za-z0-9_.@/+][A-Za-z0-9_.@/+-]*")  # names that a shell inserts without quotes
_BY_OPTION = {"queue": "queues", "queues": "queues", "task": "tasks", "of_lines": "tasks", "fingerprint": "failures"}
_BY_ARGUMENT = {
    ("queue", "names"): "queues",
    ("task", "name"): "tasks",
    ("task", "names"): "tasks",
    ("flow", "name"): "dependencies",
    ("schedule", "name"): "schedules",
    ("schedule", "names"): "schedules",
    ("run", "id"): "runs",
    ("dlq", "plan"): "plans",
}


def install() -> None:
    """Add the completion of names to click, for each shell that it supports."""
    for shell in (BashComplete, ZshComplete, FishComplete):
        add_completion_class(type(f"Names{shell.__name__}", (_Names, shell), {}), shell.name)


class _Names(ShellComplete):
    def complete(self) -> str:
        with _quiet():
            text = super().complete()
        if any(thread.name == "redrive-complete" for thread in threading.enumerate()):
            print(text, flush=True)
            os._exit(0)  # at once, as a thread that still imports an app or waits for a server would delay the exit
        return text

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        with suppress(Exception):
            context = _resolve_context(self.cli, self.ctx_args, self.prog_name, args)
            asked, text = _resolve_incomplete(context, args, incomplete)
            kind = _kind(context, asked)
            if kind is None:
                return asked.shell_complete(context, text)
            names = _found(kind, context, text.rpartition(",")[2])
            before = text[: len(text) - len(text.rpartition(",")[2])]  # all but the last entry of a list
            if not names and asked.name == "task":
                return [CompletionItem(text, type="file")]
            return [CompletionItem(before + name, help=help or None) for name, help in names]
        return []


def _kind(context: click.Context, asked: click.Command | click.Parameter) -> str | None:
    """Return the kind of names that a parameter takes, by the path of its command and its own name; None for other
    parameters."""
    if not isinstance(asked, click.Parameter) or asked.name is None:
        return None
    first = context.command_path.split()[1:2]
    return _BY_ARGUMENT.get((first[0] if first else "", asked.name)) or _BY_OPTION.get(asked.name)


def _found(kind: str, context: click.Context, prefix: str) -> list[NamedThing]:
    names: dict[str, str] = {}

    def look() -> None:
        with suppress(Exception):
            for name, help in islice(_look(kind, context.params), 100 * NAMES_MAX):
                if name.startswith(prefix) and _SAFE.fullmatch(name) and len(names) < NAMES_MAX:
                    names.setdefault(name, help)

    thread = threading.Thread(target=look, name="redrive-complete", daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return list(names.copy().items())


def _look(kind: str, given: dict[str, Any]) -> Iterator[NamedThing]:
    """Yield the names of this kind that the app declares, then those in its store."""
    spec, url = given.get("app") or given.get("app_argument"), given.get("url")
    chosen = settings({"app": spec, "url": url})
    app = load_app(chosen.app, chosen.folder) if chosen.app and (spec or not url) else None
    if app is not None:
        yield from declared_names(kind, app)
    where = url or (chosen.url if app is None else app.url)
    if where is None or not is_there(where):
        return
    store = open_store(where)
    try:
        yield from stored_names(kind, store)
    finally:
        store.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what the app and libraries print until the block ends: a terminal would show it within the line being
    typed."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)  # stderr is not restored afterwards, as nothing else is written to it
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
