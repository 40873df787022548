"""`redrive dlq edit`: replace a dead message by an edited one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import click
import msgspec

from ...codec import is_json
from ...errors import ConfigError, Refused
from ...message import RESTING, Message
from ...present.commands import command, completed, corrected, onward, typed
from ...present.failure import DONE, FAILED, REFUSED, USAGE, Failure
from ...redact import redact_json
from ...triage.edit import Editor, NoArgument, Prepared
from ...triage.reveal import reveal
from ..job import message_of
from ..opening import OpenedStore, at_store
from ..selecting import signature, stated
from ..terminal.output import Output
from ..terminal.stderr import block, note
from ..terminal.types import DURATION


@click.command()
@click.argument("id")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=JSON",
    help="the new value of an argument, or of a part of one (order.country), as JSON or plain text",
)
@click.option("--unset", "unsets", multiple=True, metavar="NAME", help="remove an argument")
@click.option("--body", type=click.File("rb"), metavar="FILE", help="the whole body, from a file ('-' is stdin)")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="set a header; nothing after = removes it"
)
@click.option("--delay", type=DURATION, default="0s", help="run no earlier than this from now")
@click.option("--unchecked", is_flag=True, help="do not check whether the body fits its task")
@click.option("--dry-run", is_flag=True, help="show the difference; change nothing")
@click.option("--yes", is_flag=True, help="do not ask")
@signature(required=False)
@at_store()
def edit(
    opened: OpenedStore,
    out: Output,
    id: str,
    sets: tuple[str, ...],
    unsets: tuple[str, ...],
    body: IO[bytes] | None,
    headers: tuple[str, ...],
    delay: float,
    unchecked: bool,
    dry_run: bool,
    yes: bool,
    actor: str | None,
    reason: str,
) -> int:
    """Replace a dead message by one with another body or headers, and run it.

    Without --set, --unset, --body or --header the body opens in your editor. The body must fit the task, so --app must
    name it. The new message has an id of its own and names the original, which is discarded in the same commit.
    Group, unique key, priority and correlation stay; a deadline is removed. Needs a --reason.
    """
    if not dry_run:
        stated(reason)
    original = message_of(opened, id)
    id, show = original.id, "dlq" if original.lane in RESTING else "job"
    editor = Editor(opened.store, opened.app)
    given = _given(sets, unsets, body, headers)
    options: dict[str, Any] = {"delay": delay, "unchecked": unchecked}
    try:
        message = editor.find(id)
        prepared = editor.prepared(message, **given, **options) if any(given.values()) else None
        prepared = prepared or _in_editor(editor, message, options, _Noting(opened, reason, actor))
    except (Refused, ConfigError) as error:
        raise _refused(id, error, show) from error
    if prepared is None:
        note("nothing was changed")
        return FAILED
    if out.form == "table" or not yes:
        block(prepared.diff)
    if dry_run:
        note("dry run: nothing was changed")
        return DONE
    if sys.stdin.isatty() and sys.stderr.isatty() and not yes and not click.confirm("Replace it?", err=True):
        note("nothing was changed")
        return FAILED
    try:
        done = editor.commit(message, prepared, reason=reason, actor=actor)
    except Refused as error:
        raise _refused(id, error, show) from error
    record = {"id": done.id, "replaces": done.replaces, "diff": done.diff}
    out.record(record, id="id", table=lambda: [f"{done.id} takes the place of {done.replaces}"])
    return DONE


def _refused(id: str, error: Refused | ConfigError, show: str) -> Failure:
    """Return the failure that reports a refused edit of the message, with the next command; `show` is the group that
    shows the message."""
    text = str(error)
    what, _, why = text.partition("; " if "; " in text else ": ")
    code = REFUSED if isinstance(error, Refused) else USAGE
    if isinstance(error, NoArgument) and error.near:
        sets: Sequence[str] = click.get_current_context().params["sets"]
        given = next((each for each in sets if each.startswith(error.name)), error.name)
        return Failure(what, why, corrected(given, error.near + given.removeprefix(error.name)), code)
    if "unchecked" in why:
        return Failure(what, why, completed("--unchecked"), code)
    return Failure(what, why, onward(f"{show} show {typed(id)}"), code)


def _given(
    sets: Sequence[str], unsets: Sequence[str], body: IO[bytes] | None, headers: Sequence[str]
) -> dict[str, Any]:
    args: dict[str, Any] = {name: _value(text) for name, text in map(_pair, sets)}
    args |= dict.fromkeys(unsets, msgspec.UNSET)
    if args and body is not None:
        raise click.UsageError("give --set and --unset, which change some arguments, or --body, which is the whole")
    named = {name: text or None for name, text in map(_pair, headers)}
    return {"args": args or None, "body": None if body is None else body.read(), "headers": named or None}


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"'{text}' has no name before an =; expected NAME=VALUE")
    return name, value


def _value(text: str) -> Any:
    return msgspec.Raw(text.encode()) if is_json(text) else text


class _Noting(NamedTuple):
    """The person who sees a body in an editor, and the reason for the audit log."""

    opened: OpenedStore
    reason: str
    actor: str | None

    def note(self, message: Message, body: bytes) -> None:
        """If the body has secrets, record in the audit log that a person sees them. Raises StoreError."""
        if redact_json(body) != body:
            reason = self.reason or f"opened by {command()}"
            reveal(self.opened.store, "", reason=reason, actor=self.actor, ids=[message.id])


def _in_editor(editor: Editor, message: Message, options: Mapping[str, Any], noting: _Noting) -> Prepared | None:
    """Let a person edit the body in an editor; return the edit, or None if nothing changed. The editor opens again if
    the body does not fit the task. Raises Failure without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        why = "without a terminal there is no editor"
        raise Failure("nothing is said of what to change", why, f"{command()} --help", USAGE)
    body = editor.body(message)
    text = _for_editor(message, body)
    noting.note(message, body)
    while True:
        edited = click.edit(text, extension=".json", require_save=True)
        if edited is None or edited == text:
            return None
        try:
            msgspec.json.decode(edited)
            return editor.prepared(message, body=_compact(edited), **options)
        except (msgspec.DecodeError, Refused) as error:
            block(str(error) if isinstance(error, Refused) else f"it is not JSON: {error}")
            if not click.confirm("Edit it again?", default=True, err=True):
                return None
            text = edited


def _for_editor(message: Message, body: bytes) -> str:
    if not is_json(body):
        why = "an editor would not keep its bytes"
        next = f"{command()} --help"
        raise Failure(f"the body of message {message.id} is no JSON", why, next, REFUSED)
    return msgspec.json.format(body, indent=2).decode() + "\n"


def _compact(text: str) -> bytes:
    return bytes(msgspec.json.format(text.encode(), indent=-1))


COMMANDS = (edit,)
