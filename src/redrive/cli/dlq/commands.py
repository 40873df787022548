"""`redrive dlq`: list, show, group and retry dead messages."""

from __future__ import annotations

from itertools import chain
from typing import Any

import click

from ...message import RESTING, Lane
from ...present.commands import onward
from ...present.failure import Failure
from ...present.formats import state_word
from ...present.messages import dead_message_row, reason_text
from ...triage.dlq import DeadLetters
from ...triage.select.terms import Node, as_node
from ..job import body_option, message_of, write_message
from ..opening import OpenedStore, at_store
from ..revealing import Reveal, reveal_option
from ..selecting import (
    chosen_words,
    filters,
    here,
    note_unread,
    selection,
    selector_argument,
    signature,
    write_result,
)
from ..subcommands import Subcommands
from ..terminal.output import Column, Output
from ..terminal.stderr import note
from ..terminal.types import DURATION
from . import actions, auto, edit, plan, sqs
from . import groups as group_commands

_COLUMNS = (
    Column("id"),
    Column("task", shrinks=True),
    Column("queue", shrinks=True),
    Column("reason", show=reason_text, spare=2),
    Column("attempt", spare=3),
    Column("redrives", spare=4),
    Column("fingerprint", spare=4),
    Column("error", shrinks=True, spare=3),
    Column("text", shrinks=True),
    Column("died_at", spare=1),
)
_GROUPS = (
    Column("count"),
    Column("trend"),
    Column("fingerprint"),
    Column("task", shrinks=True),
    Column("error", shrinks=True, spare=1),
    Column("text", shrinks=True),
    Column("last_at", "last died", spare=1),
    Column("sample_id", spare=3),
)


_SIGNS = {"rising": "↑", "steady": "→", "falling": "↓"}
_GROUPS_TSV = (*_GROUPS[:2], Column("recent"), Column("earlier"), *_GROUPS[2:])


@click.group(cls=Subcommands)
def dlq() -> None:
    """List, show, group, edit and retry dead messages; plan redrives and apply them."""


for each in (
    *plan.COMMANDS,
    *edit.COMMANDS,
    *actions.COMMANDS,
    *group_commands.COMMANDS,
    *auto.COMMANDS,
    *sqs.COMMANDS,
):
    dlq.add_command(each)


@dlq.command("list")
@selector_argument
@filters
@click.option(
    "--quarantine", is_flag=True, help="list quarantined messages instead, such as those that killed their worker"
)
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@reveal_option()
@at_store()
def list_(
    opened: OpenedStore,
    out: Output,
    selector: tuple[str, ...],
    chosen: Node,
    quarantine: bool,
    limit: int | None,
    reveal: Reveal,
) -> None:
    """List dead messages, the longest dead first. Secrets in their texts are hidden, unless --reveal is given.

    SELECTOR says which ones: `'queue:crm failed:<6h -error:*Timeout'`. Fields: task queue error reason fingerprint key
    group id text age failed attempt redrives crashes lane args.PATH."""
    lane = Lane.QUARANTINE if quarantine else Lane.DEAD
    matching = selection(opened, selector, chosen, as_node(lane=lane))
    if reveal.asked:
        reveal.of(opened, out, str(matching.node), count=matching.count())
    messages = iter(matching)
    first = next(messages, None)
    empty = here(opened).noted(matching, lane) if first is None else ""
    out.rows(
        (dead_message_row(m, matching.now_ms) for m in chain(() if first is None else (first,), messages)),
        _COLUMNS,
        id="id",
        limit=limit,
    )
    if first is None:
        note(empty)
        sqs.note_outside(opened)
    note_unread(matching)


@dlq.command()
@click.argument("id")
@body_option
@reveal_option()
@at_store()
def show(opened: OpenedStore, out: Output, id: str, body: bool, reveal: Reveal) -> None:
    """Show a dead message: its error, why it died, its body, its life, and the next commands.

    Secrets are hidden, unless --reveal is given. -v shows all fields and faults.
    """
    message = message_of(opened, id)
    if message.lane not in RESTING:
        state = state_word(message.state_at(opened.store.now_ms()))
        raise Failure(f"message {message.id} is not dead", f"it is {state}", onward(f"job show {message.id}"))
    reveal.of(opened, out, ids=[message.id])
    write_message(opened, out, message, body=body)


@dlq.command()
@selector_argument
@filters
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@reveal_option()
@at_store()
def groups(
    opened: OpenedStore, out: Output, selector: tuple[str, ...], chosen: Node, limit: int | None, reveal: Reveal
) -> None:
    """List failure groups: dead messages with the same failure, the largest group first. SELECTOR: as for `dlq list`.

    `trend` counts the deaths of the last hour, and compares its last ten minutes with the fifty before: ↑ rising, →
    steady, ↓ falling, – none. `batches` counts the batches with members among the oldest 2,000 of a group; + if it has
    more messages.
    """
    matching = selection(opened, selector, chosen)
    counted = matching.groups(trend=True)
    empty = "" if counted else here(opened).noted(matching)
    rows = group_commands.with_annotations(opened, counted)
    reveal.of(opened, out, f"groups of {matching.node}", count=len(rows))
    columns = group_commands.with_said(_GROUPS if out.is_table else _GROUPS_TSV, rows, out)
    if out.is_table:
        rows = [{**row, "trend": _trend(row), "batches": _batches(row)} for row in rows]
    if not out.rows(rows, columns, id="fingerprint", limit=limit):
        note(empty)
        sqs.note_outside(opened)
    note_unread(matching)


def _batches(row: dict[str, Any]) -> str | None:
    return f"{row['batches']:,}{'+' * row['batches_at_least']}" if row.get("batches") else None


def _trend(row: dict[str, Any]) -> str:
    sign = _SIGNS.get(row["trend"])
    return "–" if sign is None else f"{sign} {row['recent'] + row['earlier']:,}/h"


@dlq.command()
@click.argument("words", nargs=-1, metavar="[ID…|SELECTOR…]")
@click.option(
    "--all", "every", is_flag=True, help="every dead message that matches the filters; quarantined ones must be named"
)
@filters
@click.option("--to-queue", metavar="QUEUE", help="run it from this queue, not from its own")
@click.option("--delay", type=DURATION, default="0s", help="run no earlier than this from now")
@click.option("--attempts", type=click.IntRange(1), help="how many attempts the new life has (default: the policy's)")
@signature(required=False)
@at_store()
def retry(
    opened: OpenedStore,
    out: Output,
    words: tuple[str, ...],
    every: bool,
    chosen: Node,
    to_queue: str | None,
    delay: float,
    attempts: int | None,
    reason: str,
    actor: str | None,
) -> int:
    """Send dead messages back to their queues, with new attempts.

    Give ids, or a selector as for `dlq list`, or --all with filters. `-o ids` prints those that were sent back.
    Exit 5 if some had changed or were unknown, 1 if all had.
    """
    ids, matching = chosen_words(opened, words, every, chosen)
    letters = DeadLetters(opened.store)
    result = letters.retry(
        ids or None, select=matching, to_queue=to_queue, delay=delay, attempts=attempts, reason=reason, actor=actor
    )
    if matching is not None:
        note_unread(matching)
    if result.held:
        held = f"{result.held:,} that a standing rule holds"
        if not len(result):
            raise Failure(f"nothing was retried: {held} match, and no other", "name them by id", onward("dlq rule"))
        note(f"left out: {held} ({onward('dlq rule')}); name them by id")
    return write_result(opened, out, result, "retried", matching)
