"""Options and arguments that select dead messages: filters, and the terms of a selector."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from ..errors import ConfigError, Misread
from ..ids import is_id
from ..message import REASONS, Filter, Ids, Lane, Message
from ..present.commands import again, command, completed, corrected, onward, program, typed
from ..present.failure import DONE, FAILED, PARTIAL, REASON, REFUSED, USAGE, Failure
from ..present.holds import holds_text
from ..redact import one_line, redact
from ..triage.actions import ActionResult
from ..triage.lanes import at_rest
from ..triage.lookup import message_ids, run_ids
from ..triage.select.parser import parse
from ..triage.select.terms import ALL, Node, as_node, both
from ..triage.selection import Selection
from .opening import OpenedStore
from .terminal.nothing import Here
from .terminal.output import Column, Output
from .terminal.stderr import block, note
from .terminal.types import PAST


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the filter options to a command, which gets them as one node of a selector."""

    @click.option("-q", "--queue", help="only of this queue")
    @click.option("--task", help="only of this task")
    @click.option("--died-of", metavar="REASON", help="only dead for this reason: exhausted, permanent, rejected, …")
    @click.option("--error", help="only with this exception, by its qualified name")
    @click.option("--fingerprint", help="only of this failure group")
    @click.option("--since", type=PAST, help="only messages that died since this time: 6h, or 2026-01-31T15:04:05Z")
    @click.option("--until", type=PAST, help="only messages that died before this time")
    @functools.wraps(command)
    def run(
        *args: Any,
        queue: str,
        task: str,
        died_of: str,
        error: str,
        fingerprint: str,
        since: int,
        until: int,
        **rest: Any,
    ) -> Any:
        _refuse_death_as_reason(rest)
        where = Filter(queue, task, died_of, fingerprint, error, since_ms=since, until_ms=until)
        return command(*args, chosen=as_node(where), **rest)

    return run


def _refuse_death_as_reason(given: Mapping[str, Any]) -> None:
    """Raise Failure if `--reason` is a reason of death: it was once a filter, and an old script must not act on all
    messages."""
    said = given.get("reason") or given.get("reveal_why")
    if said in REASONS:
        why = "it would be recorded in the audit log; --died-of filters by how messages died"
        raise Failure(f"--reason {said} is no filter", why, corrected("--reason", "--died-of"), USAGE)


selector_argument = click.argument("selector", nargs=-1, metavar="[SELECTOR…]")


def selection(opened: OpenedStore, words: tuple[str, ...], *others: Node, waiting: bool = False) -> Selection:
    """Return the selection that a selector's words and the options' nodes describe, with `waiting` of any lane. Raises
    Failure, with the place of a mistake."""
    with understood():
        node = parse(" ".join(words))
        node = node if waiting else at_rest(node)
    return Selection(opened.store, both((node, *others)), app=opened.app)


@contextmanager
def understood(next: str | None = None) -> Iterator[None]:
    """Turn a mistake in a selector or an option into a Failure, whose next command is `next` or the command's help."""
    next = next or f"{command()} --help"
    try:
        yield
    except Misread as error:
        if error.pointer:
            block(error.pointer)
        raise Failure(error.what, error.why, next, USAGE) from error
    except ConfigError as error:
        what, _, why = str(error).replace(": expected", "; expected", 1).partition("; ")
        raise Failure(what, why or "it is not understood", next, USAGE) from error


def note_unread(matching: Selection) -> None:
    if matching.unread:
        note(f"left out: {matching.unread:,} whose bodies are in blob storage and could not be read (REDRIVE_BLOBS)")


actor_option = click.option(
    "--actor", envvar="REDRIVE_ACTOR", help="your name for the audit log, beside user@host [REDRIVE_ACTOR]"
)


def signature(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--reason` and `--actor` to a command. If not `required`, the command itself checks
    the reason."""

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        why = "why: the audit log keeps it"
        needed: dict[str, Any] = {"required": True} if required else {"default": ""}  # click takes None as given
        return click.option("--reason", help=why, callback=not_blank, **needed)(actor_option(command))

    return wrap


def not_blank(context: click.Context, option: click.Parameter, value: str) -> str:
    """Return the option's value. Raises Failure if it is given and blank, as with an unset variable."""
    given = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    return stated(value, option.opts[0]) if given else value


def stated(reason: str, option: str = "--reason") -> str:
    """Return the reason. Raises Failure, which names `option`, if the reason is blank."""
    if not reason.strip():
        raise Failure(f"{option} is missing", "the audit log has to say why", completed(option, REASON), USAGE)
    return reason


def confirmed(question: str, what: str, yes: bool) -> bool:
    """Ask a person at a terminal, unless `yes`; return True if the answer is yes. Raises Failure without a terminal: it
    says `what` would be done, and its next command has --yes."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(what, "there is no terminal to ask on, so --yes is needed", completed("--yes"), REFUSED)
    return click.confirm(one_line(redact(question)), err=True)


def message_id(opened: OpenedStore, given: str) -> str:
    """Return the id of the message that the user named by its id, whole or shortened; an unknown one is returned as it
    is."""
    return given if is_id(given) else _one_of(message_ids(opened.store, given), given, "messages")


def run_id(opened: OpenedStore, given: str) -> str:
    """Return the id of a plan or a run that the user named, as `message_id` does."""
    return given if is_id(given) else _one_of(run_ids(opened.store, given), given, "plans and runs")


def _one_of(ids: Ids, given: str, what: str) -> str:
    """Return the one id that was found, or `given` if there is none. Raises Failure if there are several. `what` are
    the things with the ids."""
    if not ids.whole:
        note(f"only some {what} were looked through for '{given}'; the whole id is sure")
    if len(ids.found) > 1:
        more = f"the first {len(ids.found)}: " if len(ids.found) == 10 else ""
        whole = [ids.found[0] if word == given else word for word in sys.argv[1:]]
        raise Failure(
            f"'{given}' is the beginning of several ids of {what}",
            f"give more of it; {more}{', '.join(ids.found)}",
            f"{program()} {shlex.join(whole)}" if given in sys.argv else again(ids.found[0]),
            USAGE,
        )
    return ids.found[0] if ids.found else given


def chosen_words(
    opened: OpenedStore, words: tuple[str, ...], every: bool, chosen: Node = ALL, lane: Lane = Lane.DEAD
) -> tuple[tuple[str, ...], Selection | None]:
    """Return the ids among the words, or the selection in that lane by a selector, --all or filters. Raises Failure if
    neither or both are given."""
    ids = words if words and not any(":" in word for word in words) else ()
    ids = tuple(message_id(opened, id) for id in ids)
    if not (every or words) or (ids and (every or chosen != ALL)):
        why = "--all, filters and selectors select among all dead messages; ids name single ones"
        raise Failure("give ids, a selector, or --all", why, f"{command()} --help", USAGE)
    return ids, None if ids else selection(opened, words, chosen, as_node(lane=lane))


def here(opened: OpenedStore) -> Here:
    return Here(opened.store, opened.app, opened.url)


def write_result(
    opened: OpenedStore, out: Output, done: ActionResult, did: str, matching: Selection | None, lane: Lane = Lane.DEAD
) -> int:
    """Write the result for each message, and the counts as a note; return the exit code. `matching` is the selection,
    None if the user gave ids. Raises Failure if the action changed no message, or not all of the ids."""
    left = len(done.changed) + len(done.unknown)
    if matching is not None and not len(done) and not left:
        raise here(opened).matched(matching, did, lane)
    rows = [
        {"id": id, "result": result}
        for ids, result in ((done.ids, did), (done.changed, "changed"), (done.unknown, "unknown"))
        for id in ids
    ]
    out.rows(rows[: len(done)] if out.form == "ids" else rows, (Column("id"), Column("result")), id="id")
    parts = [f"{len(done):,} {did}"] if len(done) or not left else []
    if done.changed:
        parts.append(f"{len(done.changed):,} no longer {'in quarantine' if lane is Lane.QUARANTINE else 'dead'}")
    if done.unknown:
        parts.append(f"{len(done.unknown):,} unknown")
    text = "; ".join(parts)
    waits = _waiting(opened, done.changed) if did == "retried" and matching is None else []
    if waits:
        from ..status import Reasons

        what = f"{left:,} of {left + len(done):,} messages were not retried: {len(waits):,} wait and are not dead"
        if left + len(done) == 1:
            what = f"message {waits[0].id} was not retried: it waits and is not dead"
        why = holds_text(Reasons(opened.store, opened.app).of(waits[0]), opened.store.now_ms())
        later = [typed(m.id) for m in waits if (m.due_ms or 0) > opened.store.now_ms()]
        next = f"job run {' '.join(later[:10])}" if later else f"job show {typed(waits[0].id)}"
        raise Failure(what, why, onward(next), PARTIAL if len(done) else FAILED)
    if matching is None and left:
        total = left + len(done)
        what = f"{left:,} of {total:,} messages were not {did}"
        if total == 1:
            what = f"message {(done.changed or done.unknown)[0]} was not {did}"
            text = (
                "no message has this id, or it is done: done messages are deleted"
                if done.unknown
                else f"it is {text[2:]}"
            )
        shown = f"job show {typed(done.changed[0])}" if done.changed else "dlq list"
        raise Failure(what, text, onward(shown), PARTIAL if len(done) else FAILED)
    note(text)
    return DONE


def _waiting(opened: OpenedStore, ids: Sequence[str]) -> list[Message]:
    """Return those of the messages that wait and that this store can make due."""
    if not opened.store.traits.hastens:
        return []
    return [m for m in opened.store.find(ids) if m is not None and m.lane is Lane.READY]
