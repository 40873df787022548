"""`redrive dlq discard|quarantine|readmit|export|import`: act on dead messages."""

from __future__ import annotations

import shlex
import sys
from typing import IO, Any

import click

from ...audit import signed
from ...message import Filter, Lane
from ...present.commands import again, command, onward
from ...present.failure import DONE, FAILED, PARTIAL, REFUSED, Failure
from ...triage.actions import Actions
from ...triage.export import Exported, Importer, Inspected, export
from ...triage.select.terms import Or, as_node
from ...triage.selection import Selection
from ..opening import OpenedStore, at_store
from ..revealing import REVEALS, Reveal
from ..selecting import chosen_words, confirmed, here, note_unread, signature, stated, write_result
from ..terminal.output import Column, Output, bar
from ..terminal.stderr import note

DAMAGED_SHOWN = 20
every_option = click.option(
    "--all",
    "every",
    is_flag=True,
    help="every dead message; quarantined ones only by id or lane:quarantine",
)
words_argument = click.argument("words", nargs=-1, metavar="[ID…|SELECTOR…]")


@click.command()
@words_argument
@every_option
@click.option("--yes", is_flag=True, help="do not ask")
@click.option(
    "--waive", is_flag=True, help="their batches count them as done, as you did the work by hand or do not need it"
)
@signature()
@at_store()
def discard(
    opened: OpenedStore, out: Output, words: tuple[str, ...], every: bool, yes: bool, waive: bool, **signed_by: Any
) -> int:
    """Delete dead messages. Their unique keys are free again.

    Give ids, or a selector as for `dlq list`, or --all. Asks first, and says how many. Each batch of 500 is one
    commit with its entry in the audit log; after a crash the same command does the rest.
    """
    stated(signed_by["reason"])
    ids, selected = chosen_words(opened, words, every)
    count = len(set(ids)) if selected is None else selected.count()
    if selected is not None:
        note_unread(selected)
    if selected is not None and not count:
        raise here(opened).matched(selected, "discarded")
    what = f"{count:,} dead messages would be discarded" if count > 1 else "a dead message would be discarded"
    asked = f"Discard {count:,} dead {'messages' if count > 1 else 'message'} of {opened.url} for good?"
    if not confirmed(asked, what, yes):
        note("nothing was discarded")
        return FAILED
    with bar(count, "discarding") as tick:
        done = Actions(opened.store).discard(ids or None, select=selected, tick=tick, waive=waive, **signed_by)
    return write_result(opened, out, done, "discarded", selected)


@click.command()
@words_argument
@every_option
@signature()
@at_store()
def quarantine(
    opened: OpenedStore, out: Output, words: tuple[str, ...], every: bool, actor: str | None, reason: str
) -> int:
    """Move dead messages to the quarantine lane, where bulk redrives skip them. `dlq readmit` brings them back."""
    stated(reason)
    ids, selected = chosen_words(opened, words, every)
    done = Actions(opened.store).quarantine(ids or None, select=selected, reason=reason, actor=actor)
    if selected is not None:
        note_unread(selected)
    return write_result(opened, out, done, "quarantined", selected)


@click.command()
@words_argument
@click.option("--all", "every", is_flag=True, help="every quarantined message")
@signature()
@at_store()
def readmit(
    opened: OpenedStore, out: Output, words: tuple[str, ...], every: bool, actor: str | None, reason: str
) -> int:
    """Move quarantined messages to the dead lane, from where they can be redriven.

    Give ids, or a selector, which applies to quarantined messages only, or --all.
    """
    stated(reason)
    ids, selected = chosen_words(opened, words, every, lane=Lane.QUARANTINE)
    done = Actions(opened.store).readmit(ids or None, select=selected, reason=reason, actor=actor)
    if selected is not None:
        note_unread(selected)
    return write_result(opened, out, done, "readmitted", selected, Lane.QUARANTINE)


@click.command("export")
@words_argument
@every_option
@click.option("-f", "--file", metavar="FILE", help="write to this file, all or nothing (default: stdout)")
@click.option("--reveal", is_flag=True, help=REVEALS)
@signature(required=False)
@at_store()
def export_(
    opened: OpenedStore,
    out: Output,
    words: tuple[str, ...],
    every: bool,
    file: str | None,
    reveal: bool,
    actor: str | None,
    reason: str,
) -> int:
    """Write dead messages as JSON lines, with everything that the store keeps of them.

    They stay in the store, and the audit log records who exported them.

    Secrets are hidden, and a message that held one is marked: it can be read, but not imported. --reveal writes the
    secrets too.
    """
    ids, selected = chosen_words(opened, words, every)
    chosen = selected if selected is not None else _of_any_lane(opened, ids)
    if reveal:
        Reveal(reveal, reason, actor).note(opened, "" if ids else str(chosen), ids=ids, count=chosen.count())
    if file in (None, "-"):
        done = export(opened.store, chosen, sys.stdout.buffer, reveal=reveal, actor=actor, reason=reason)
    else:
        try:
            done = export(opened.store, chosen, str(file), reveal=reveal, actor=actor, reason=reason)
        except OSError as error:
            what = f"{file} cannot be written: {error.strerror or error}"
            raise Failure(what, "nothing was exported", f"{command()} --help") from error
    note_unread(chosen)
    if selected is not None and not done.count and not done.unread:
        raise here(opened).matched(selected, "exported")
    note(f"{done.count:,} exported" + (f" to {file}" if file not in (None, "-") else ""))
    if done.hidden:
        note(f"{done.hidden:,} of them with secrets hidden: they cannot be imported; --reveal writes them as they are")
    return _export_verdict(done, len(set(ids)))


def _of_any_lane(opened: OpenedStore, ids: tuple[str, ...]) -> Selection:
    where = Filter(ids=tuple(dict.fromkeys(ids)))
    return Selection(opened.store, Or((as_node(where), as_node(where, Lane.QUARANTINE))))


def _export_verdict(done: Exported, named: int) -> int:
    if done.unread:
        more = f"{len(done.unread):,} carry a reference: their bodies lie in blob storage and could not be read"
        note(f"{more}, such as {done.unread[0]}")
    if named > done.count:
        what = f"{named - done.count:,} of {named:,} were not exported" if named > 1 else "it was not exported"
        code = PARTIAL if done.count else FAILED
        raise Failure(what, "no message has that id, or it is not dead", onward("dlq list"), code)
    return PARTIAL if done.unread else DONE


@click.command("import")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--skip-damaged", is_flag=True, help="import the other lines if some are damaged (default: import nothing)"
)
@signature()
@at_store(create=True)
def import_(
    opened: OpenedStore, out: Output, file: IO[bytes], skip_damaged: bool, actor: str | None, reason: str
) -> int:
    """Import dead messages that `dlq export` wrote: FILE, or '-' for stdin.

    They keep their ids and histories, and stay dead until you retry them here. Skips messages that the store already
    has, and those whose unique key another message holds. Exit 5 if some were not imported.
    """
    actor, reason = signed(actor, stated(reason), "import")
    with Importer(opened.store, file) as importer:
        looked = importer.inspect()
        _tell_damaged(looked)
        if looked.bad and not skip_damaged:
            what = f"{looked.bad:,} of {looked.bad + looked.count:,} lines of {importer.name} are damaged"
            next = again(shlex.join([importer.name, "--reason", reason, "--skip-damaged"]))
            raise Failure(f"{what}; nothing was imported", "each is named above", next, REFUSED)
        if not looked.count and not looked.bad:
            raise Failure(
                f"{importer.name} holds no messages; nothing was imported",
                "`dlq export` writes such files",
                onward("dlq list"),
            )
        done = importer.write(actor=actor, reason=reason)
    rows = [{"id": id, "result": result} for ids, result in ((done.ids, "imported"), (done.held, "held")) for id in ids]
    out.rows(rows[: len(done)] if out.form == "ids" else rows, (Column("id"), Column("result")), id="id")
    parts = [f"{len(done):,} imported"]
    if done.held:
        parts.append(f"{len(done.held):,} held: in the store already, or their unique key is")
    if looked.bad:
        parts.append(f"{looked.bad:,} damaged")
    note("; ".join(parts))
    if len(done):
        note(f"they are dead here too: {onward('dlq list')}")
    return DONE if not done.held and not looked.bad else PARTIAL if len(done) else FAILED


def _tell_damaged(looked: Inspected) -> None:
    for each in looked.damaged[:DAMAGED_SHOWN]:
        note(f"line {each.line}: {each.why}")
    if looked.bad > DAMAGED_SHOWN:
        note(f"and {looked.bad - DAMAGED_SHOWN:,} more")


COMMANDS = (discard, quarantine, readmit, export_, import_)
