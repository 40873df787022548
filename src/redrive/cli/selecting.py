"""How commands choose among dead messages: filters, and the words of a selector."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from ..errors import Misread
from ..message import Where
from ..triage.select import Selection, as_node
from ..triage.select_parser import parse
from ..triage.select_terms import Node, both
from .failure import USAGE, Failure, command, note
from .place import Place
from .types import PAST


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose among dead messages, given to the command as one node of a selector."""

    @click.option("-q", "--queue", help="only of this queue")
    @click.option("--task", help="only of this task")
    @click.option("--reason", help="only dead for this reason: exhausted, permanent, elapsed, rejected, …")
    @click.option("--error", help="only with this exception, by its qualified name")
    @click.option("--fingerprint", help="only of this failure group")
    @click.option("--since", type=PAST, help="only those that died since then: 6h, or 2026-01-31T15:04:05Z")
    @click.option("--until", type=PAST, help="only those that died before then")
    @functools.wraps(command)
    def run(
        *args: Any,
        queue: str,
        task: str,
        reason: str,
        error: str,
        fingerprint: str,
        since: int,
        until: int,
        **rest: Any,
    ) -> Any:
        where = Where(queue, task, reason, fingerprint, error, since_ms=since, until_ms=until)
        return command(*args, chosen=as_node(where), **rest)

    return run


selector_argument = click.argument("selector", nargs=-1, metavar="[SELECTOR…]")


def selection(place: Place, words: tuple[str, ...], *others: Node) -> Selection:
    """What the words of a selector and the options choose. Raises Failure, below the words and what is wrong there."""
    try:
        node = parse(" ".join(words))
    except Misread as error:
        if error.pointer:
            note(error.pointer)
        raise Failure(error.what, error.why, f"{command()} --help", USAGE) from error
    return Selection(place.store, both((node, *others)))


def note_unread(found: Selection) -> None:
    if found.unread:
        note(f"left out: {found.unread:,} whose bodies lie in blob storage and could not be read (REDRIVE_BLOBS)")
