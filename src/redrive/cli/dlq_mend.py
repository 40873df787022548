"""`redrive dlq edit|discard|quarantine|readmit|export|import`: mend what died, and put it where it belongs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import click
import msgspec

from ..codec import is_json
from ..errors import ConfigError, Refused
from ..message import RESTING, Lane, Message, Where
from ..triage.actor import signed
from ..triage.edit import Editor, Prepared
from ..triage.lines import Exported, Importer, Looked, export
from ..triage.mend import Mending
from ..triage.select import Selection, as_node
from ..triage.select_terms import Or
from .failure import DONE, FAILED, PARTIAL, REFUSED, USAGE, Failure, again, command, note, onward
from .job import found
from .output import Column, Output, bar
from .place import Place, at_store
from .selecting import chosen_words, confirmed, note_unread, signature, stated, write_mended
from .types import DURATION

DAMAGED_SHOWN = 20
every_option = click.option(
    "--all",
    "every",
    is_flag=True,
    help="every dead message; quarantined ones only by id or lane:quarantine",
)
words_argument = click.argument("words", nargs=-1, metavar="[ID…|SELECTOR…]")


@click.command()
@click.argument("id")
@click.option(
    "--set", "sets", multiple=True, metavar="NAME=JSON", help="an argument's new value; text that is no JSON is text"
)
@click.option("--unset", "unsets", multiple=True, metavar="NAME", help="take an argument away")
@click.option("--body", type=click.File("rb"), metavar="FILE", help="the whole body, from a file ('-' is stdin)")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="a header; with nothing after = it goes")
@click.option("--delay", type=DURATION, default="0s", help="run no earlier than this from now")
@click.option("--unchecked", is_flag=True, help="put it without looking whether it fits its task")
@click.option("--dry-run", is_flag=True, help="show what would differ; change nothing")
@click.option("--yes", is_flag=True, help="do not ask")
@signature(required=False)
@at_store()
def edit(
    place: Place,
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
    """Put a message with another body or headers in the place of a dead one, and run it.

    Without --set, --unset, --body or --header the body opens in your editor. The body must fit the task, so --app must
    name it. The new message has an id of its own and names the original, which is discarded with it: both or neither.
    Its group, unique key, priority and correlation stay; a deadline goes. Needs a --reason.

    \b
      redrive dlq edit ID --set record_id=42 --reason "typo in the import, CRM-77"
    """
    if not dry_run:
        stated(reason)
    show = "dlq" if found(place, id).lane in RESTING else "job"
    editor = Editor(place.store, place.app)
    given = _given(sets, unsets, body, headers)
    options: dict[str, Any] = {"delay": delay, "unchecked": unchecked}
    try:
        message = editor.find(id)
        prepared = editor.prepared(message, **given, **options) if any(given.values()) else None
        prepared = prepared or _in_editor(editor, message, options)
    except (Refused, ConfigError) as error:
        raise _refused(id, error, show) from error
    if prepared is None:
        note("nothing was changed")
        return FAILED
    if out.form == "table" or not yes:
        note(prepared.diff)
    if dry_run:
        note("dry run: nothing was changed")
        return DONE
    if sys.stdin.isatty() and sys.stderr.isatty() and not yes and not click.confirm("Put this in its place?", err=True):
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
    """What is wrong with an edit, and where to look."""
    text = str(error)
    what, _, why = text.partition("; " if "; " in text else ": ")
    code = REFUSED if isinstance(error, Refused) else USAGE
    if "unchecked" in why:
        return Failure(what, why, f"{command()} {id} --app MODULE:APP …, or --unchecked", code)
    return Failure(what, why, onward(f"{show} show {id}"), code)


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


def _in_editor(editor: Editor, message: Message, options: Mapping[str, Any]) -> Prepared | None:
    """The edit that a person makes; None where the editor was left without one. A body that does not fit can be edited
    again. Raises Failure where there is nobody."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        why = "without a terminal there is no editor"
        raise Failure("nothing is said of what to change", why, again(f"{message.id} --set NAME=JSON …"), USAGE)
    text = _for_editor(message, editor.body(message))
    while True:
        edited = click.edit(text, extension=".json", require_save=True)
        if edited is None or edited == text:
            return None
        try:
            msgspec.json.decode(edited)
            return editor.prepared(message, body=_compact(edited), **options)
        except (msgspec.DecodeError, Refused) as error:
            note(str(error) if isinstance(error, Refused) else f"it is not JSON: {error}")
            if not click.confirm("Edit it again?", default=True, err=True):
                return None
            text = edited


def _for_editor(message: Message, body: bytes) -> str:
    if not is_json(body):
        why = "an editor would not keep its bytes"
        next = again(f"{message.id} --body FILE …")
        raise Failure(f"the body of message {message.id} is no JSON", why, next, REFUSED)
    return msgspec.json.format(body, indent=2).decode() + "\n"


def _compact(text: str) -> bytes:
    return bytes(msgspec.json.format(text.encode(), indent=-1))


# -- put where it belongs


@click.command()
@words_argument
@every_option
@click.option("--yes", is_flag=True, help="do not ask")
@signature()
@at_store()
def discard(
    place: Place, out: Output, words: tuple[str, ...], every: bool, yes: bool, actor: str | None, reason: str
) -> int:
    """Remove dead messages for good. Their unique keys are free again.

    Give ids, or a selector as for `dlq list`, or --all. Asks first, with their number. Each batch of 500 is one commit,
    with its entry in the audit log; cut off, the same command does the rest.
    """
    stated(reason)
    ids, selected = chosen_words(place, words, every)
    count = len(set(ids)) if selected is None else selected.count()
    if selected is not None:
        note_unread(selected)
    if not count:
        note("nothing dead matches")
        return DONE
    what = f"{count:,} dead messages would be discarded" if count > 1 else "a dead message would be discarded"
    asked = f"Discard {count:,} dead {'messages' if count > 1 else 'message'} of {place.url} for good?"
    if not confirmed(asked, what, yes, words=words or ("--all",), reason=reason):
        note("nothing was discarded")
        return FAILED
    with bar(count, "discarding") as tick:
        done = Mending(place.store).discard(ids or None, select=selected, reason=reason, actor=actor, tick=tick)
    return write_mended(out, done, "discarded", named=bool(ids))


@click.command()
@words_argument
@every_option
@signature()
@at_store()
def quarantine(place: Place, out: Output, words: tuple[str, ...], every: bool, actor: str | None, reason: str) -> int:
    """Move dead messages to the quarantine lane, out of reach of bulk redrives. `dlq readmit` brings them back."""
    stated(reason)
    ids, selected = chosen_words(place, words, every)
    done = Mending(place.store).quarantine(ids or None, select=selected, reason=reason, actor=actor)
    if selected is not None:
        note_unread(selected)
    return write_mended(out, done, "quarantined", named=bool(ids))


@click.command()
@words_argument
@click.option("--all", "every", is_flag=True, help="every quarantined message")
@signature()
@at_store()
def readmit(place: Place, out: Output, words: tuple[str, ...], every: bool, actor: str | None, reason: str) -> int:
    """Move quarantined messages to the dead lane, from where they can be redriven.

    Give ids, or a selector that chooses among what is in quarantine, or --all.
    """
    stated(reason)
    ids, selected = chosen_words(place, words, every, lane=Lane.QUARANTINE)
    done = Mending(place.store).readmit(ids or None, select=selected, reason=reason, actor=actor)
    if selected is not None:
        note_unread(selected)
    return write_mended(out, done, "readmitted", named=bool(ids))


# -- carried elsewhere


@click.command("export")
@words_argument
@every_option
@click.option("-f", "--file", metavar="FILE", help="write here, whole or not at all (default: stdout)")
@at_store()
def export_(place: Place, out: Output, words: tuple[str, ...], every: bool, file: str | None) -> int:
    """Write dead messages as JSON lines, with all that is kept of them. They stay where they are.

    \b
      redrive dlq export queue:crm -f dead.jsonl
      redrive dlq import dead.jsonl --url sqlite:///here.db --reason "to find out why"
    """
    ids, selected = chosen_words(place, words, every)
    chosen = selected if selected is not None else _of_any_lane(place, ids)
    if file in (None, "-"):
        done = export(place.store, chosen, sys.stdout.buffer)
    else:
        try:
            done = export(place.store, chosen, str(file))
        except OSError as error:
            what = f"{file} cannot be written: {error.strerror or error}"
            raise Failure(what, "nothing was exported", f"{command()} --help") from error
    note_unread(chosen)
    note(f"{done.count:,} exported" + (f" to {file}" if file not in (None, "-") else ""))
    return _export_verdict(done, len(set(ids)))


def _of_any_lane(place: Place, ids: tuple[str, ...]) -> Selection:
    where = Where(ids=tuple(dict.fromkeys(ids)))
    return Selection(place.store, Or((as_node(where), as_node(where, Lane.QUARANTINE))))


def _export_verdict(done: Exported, named: int) -> int:
    if done.unread:
        more = f"{len(done.unread):,} carry a reference: their bodies lie in blob storage and could not be read"
        note(f"{more}, such as {done.unread[0]}")
    if named > done.count:
        note(f"{named - done.count:,} are not dead, or unknown")
    return FAILED if named and not done.count else PARTIAL if done.unread or named > done.count else DONE


@click.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--skip-damaged", is_flag=True, help="import the other lines where some are damaged (default: nothing)")
@signature()
@at_store(create=True)
def import_(place: Place, out: Output, file: IO[bytes], skip_damaged: bool, actor: str | None, reason: str) -> int:
    """Import dead messages that `dlq export` wrote: FILE, or '-' for stdin.

    They keep their ids and histories and rest as they did, until you retry them here. What the store has already stays
    as it is, and so does what another message holds the unique key of. Exit 5 if some were not imported.
    """
    actor, reason = signed(actor, stated(reason), "import")
    with Importer(place.store, file) as importer:
        looked = importer.look()
        _tell_damaged(looked)
        if looked.bad and not skip_damaged:
            what = f"{looked.bad:,} of {looked.bad + looked.count:,} lines of {importer.name} are damaged"
            next = again(shlex.join([importer.name, "--reason", reason, "--skip-damaged"]))
            raise Failure(f"{what}; nothing was imported", "each is named above", next, REFUSED)
        done = importer.write(actor=actor, reason=reason)
    rows = [{"id": id, "result": result} for ids, result in ((done.ids, "imported"), (done.held, "held")) for id in ids]
    out.rows(rows[: len(done)] if out.form == "ids" else rows, (Column("id"), Column("result")), id="id")
    told = [f"{len(done):,} imported"]
    if done.held:
        told.append(f"{len(done.held):,} held: in the store already, or their unique key is")
    if looked.bad:
        told.append(f"{looked.bad:,} damaged")
    note("; ".join(told))
    if len(done):
        note(f"they are dead here too: {onward('dlq list')}")
    return DONE if not done.held and not looked.bad else PARTIAL if len(done) else FAILED


def _tell_damaged(looked: Looked) -> None:
    for each in looked.damaged[:DAMAGED_SHOWN]:
        note(f"line {each.line}: {each.why}")
    if looked.bad > DAMAGED_SHOWN:
        note(f"and {looked.bad - DAMAGED_SHOWN:,} more")


COMMANDS = (edit, discard, quarantine, readmit, export_, import_)
