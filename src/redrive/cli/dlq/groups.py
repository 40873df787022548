"""`redrive dlq group|note|own|mute|resolve|merge|unmerge|rule|audit`: annotate failure groups; who changed what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from ...audit import Audit
from ...batch import group_batches
from ...message import Filter
from ...present.audit import entry_record, entry_text
from ...present.commands import again, onward, typed
from ...present.failure import FAILED, USAGE, Failure
from ...present.formats import timestamp
from ...present.groups import annotation_record, batches_record, group_records, rule_record, task_group_record
from ...present.table import field_lines
from ...redact import joined
from ...triage.annotations import NOTHING, Annotation, Annotations, read_annotations
from ...triage.auto.rules import rules
from ...triage.group_states import family, held_counts, read_states
from ...triage.select.terms import as_node
from ..opening import OpenedStore, at_store
from ..selecting import confirmed, message_id, selection, signature, stated, understood
from ..terminal.output import Column, Output
from ..terminal.stderr import note
from ..terminal.types import DURATION, PAST

if TYPE_CHECKING:
    from ...flow.auto_redrive import AutoRedrive
    from ...message import FailureGroup

PREFIX_MIN = 4  # the fewest digits by which a fingerprint may be named
LAST = 10  # entries of the audit log that `dlq group` shows
_AUDIT = (
    Column("at"),
    Column("actor", shrinks=True),
    Column("claimed", shrinks=True),
    Column("action"),
    Column("count"),
    Column("about", shrinks=True),
    Column("reason", shrinks=True),
    Column("text", shrinks=True, spare=True),
)
_RULES = (
    Column("fingerprint"), Column("rule"), Column("by"), Column("at"), Column("reason", shrinks=True),
    Column("auto", shrinks=True, spare=True),
)  # fmt: skip
_BATCHES = (Column("batches"), Column("batches_at_least"))
_SAID = (
    Column("note", shrinks=True, spare=True), Column("owner", shrinks=True, spare=True), Column("rule"),
    Column("muted_until", "muted until", spare=True), Column("or_until", "or until", spare=True),
    Column("state"), Column("held"),
)  # fmt: skip


@click.command()
@click.argument("fingerprint")
@at_store()
def group(opened: OpenedStore, out: Output, fingerprint: str) -> None:
    """Show a failure group: its annotations, its messages, and what people did to it.

    The first four digits of FINGERPRINT are enough if they are unique.
    """
    fingerprint = _named(opened, fingerprint)
    about, now_ms = read_annotations(opened.store, [fingerprint]).get(fingerprint, NOTHING), opened.store.now_ms()
    groups = selection(opened, (), as_node(Filter(fingerprint=fingerprint))).groups(trend=True)
    merged = Annotations(opened.store).family(fingerprint)
    log = [e for _, e in zip(range(LAST), (e for e in Audit(opened.store) if e.about == fingerprint), strict=False)]
    record = {
        "fingerprint": fingerprint,
        "dead": sum(each.count for each in groups),
        **annotation_record(about, now_ms),
        "merged": list(merged[1:]),
        "by_task": [
            task_group_record(each) | batches_record(found)
            for each, found in zip(groups, group_batches(opened.store, groups, lambda _: merged), strict=True)
        ],
        "log": [entry_record(entry) for entry in log],
    }
    out.record(record, id="fingerprint", table=lambda: _lines(out.hidden(record), out))


@click.command("note")
@click.argument("fingerprint")
@click.argument("text", nargs=-1)
@click.option("--clear", is_flag=True, help="remove the note")
@signature(required=False)
@at_store()
def note_(
    opened: OpenedStore,
    out: Output,
    fingerprint: str,
    text: tuple[str, ...],
    clear: bool,
    actor: str | None,
    reason: str,
) -> None:
    """Write a note on a failure group: a ticket, a cause, a warning."""
    if bool(text) == clear:
        raise click.UsageError("give a TEXT, or --clear")
    fingerprint = _named(opened, fingerprint)
    about = Annotations(opened.store).note(fingerprint, " ".join(text), actor=actor, reason=reason)
    _write(opened, out, fingerprint, about)


@click.command()
@click.argument("fingerprint")
@click.argument("owner", required=False)
@click.option("--clear", is_flag=True, help="remove the owner")
@signature(required=False)
@at_store()
def own(
    opened: OpenedStore, out: Output, fingerprint: str, owner: str | None, clear: bool, actor: str | None, reason: str
) -> None:
    """Set the owner of a failure group: a person or a team."""
    if bool(owner) == clear:
        raise click.UsageError("give an OWNER, or --clear")
    fingerprint = _named(opened, fingerprint)
    _write(
        opened, out, fingerprint, Annotations(opened.store).own(fingerprint, owner or "", actor=actor, reason=reason)
    )


@click.command()
@click.argument("fingerprint")
@click.argument("for_", metavar="DURATION", type=DURATION, required=False)
@click.option("--until-rate", metavar="RATE", help="end the mute when this many died within a time: 10/m, 500/h")
@click.option(
    "--until-total", metavar="N", type=click.IntRange(1), help="end the mute when the group has this many dead messages"
)
@click.option("--off", is_flag=True, help="end the mute")
@signature(required=False)
@at_store()
def mute(
    opened: OpenedStore,
    out: Output,
    fingerprint: str,
    for_: float | None,
    until_rate: str | None,
    until_total: int | None,
    off: bool,
    actor: str | None,
    reason: str,
) -> None:
    """Mute alerts about a failure group for a while, such as 4h, or until it grows. Its messages are kept.

    Needs a --reason.
    """
    if (for_ is None and until_rate is None and until_total is None) != off:
        raise click.UsageError("give a DURATION, --until-rate or --until-total, or --off")
    fingerprint = _named(opened, fingerprint)
    reason = reason if off else stated(reason)
    span = 0 if off else "366d" if for_ is None else for_
    with understood():
        about = Annotations(opened.store).mute(
            fingerprint, span, until_rate=until_rate or "", until_total=until_total or 0, actor=actor, reason=reason
        )
    _write(opened, out, fingerprint, about)


@click.command()
@click.argument("fingerprint")
@click.option("--release", help="the release of the workers that have the fix, as in App(release=…)")
@click.option("--off", is_flag=True, help="take it back")
@signature(required=False)
@at_store()
def resolve(
    opened: OpenedStore, out: Output, fingerprint: str, release: str | None, off: bool, actor: str | None, reason: str
) -> None:
    """Mark a failure group as resolved. If a message dies of it again, it has regressed: `redrive status` and an alert
    report it.

    With --release only deaths in that release, and in releases that started later, count. The dead messages of the
    group stay: retry or discard them. Needs a --reason.
    """
    fingerprint, letters = _named(opened, fingerprint), Annotations(opened.store)
    if off:
        about = letters.reopen(fingerprint, actor=actor, reason=reason)
    else:
        about = letters.resolve(fingerprint, release=release or "", actor=actor, reason=stated(reason))
    _write(opened, out, fingerprint, about)


@click.command()
@click.argument("fingerprint")
@click.argument("into")
@signature(required=False)
@at_store()
def merge(opened: OpenedStore, out: Output, fingerprint: str, into: str, actor: str | None, reason: str) -> None:
    """Show and count a failure group with another one. The selectors, rule, mute and state of that one apply to both.

    Messages keep their fingerprints, so `unmerge` is exact. Needs a --reason.
    """
    fingerprint, into = _named(opened, fingerprint), _named(opened, into)
    about = Annotations(opened.store).merge(fingerprint, into, actor=actor, reason=stated(reason))
    _write(opened, out, fingerprint, about)


@click.command()
@click.argument("fingerprint")
@signature(required=False)
@at_store()
def unmerge(opened: OpenedStore, out: Output, fingerprint: str, actor: str | None, reason: str) -> None:
    """Show and count a merged failure group on its own again."""
    fingerprint = _named(opened, fingerprint)
    _write(opened, out, fingerprint, Annotations(opened.store).unmerge(fingerprint, actor=actor, reason=reason))


@click.command()
@click.argument("fingerprint", required=False)
@click.argument("kind", type=click.Choice(("hold", "auto", "discard", "none")), required=False)
@click.option("--base", type=DURATION, help="auto: the wait after a death before the first redrive [60s]")
@click.option("--factor", type=float, help="auto: the factor from one wait to the next [2]")
@click.option("--cap", type=DURATION, help="auto: the longest wait [15m]")
@click.option("--max-redrives", type=click.IntRange(1), help="auto: redrives after which a message is poison [5]")
@click.option("--attempts", type=click.IntRange(1), help="auto: attempts after each redrive (default: the policy's)")
@click.option("--rate", metavar="RATE", help="auto: the highest rate of redrives: 20/s, 600/m [10/s]")
@click.option("--jitter", type=float, help="auto: the share by which each wait is longer or shorter [0.2]")
@click.option("--yes", is_flag=True, help="discard: do not ask")
@signature(required=False)
@at_store()
def rule(
    opened: OpenedStore,
    out: Output,
    fingerprint: str | None,
    kind: str | None,
    yes: bool,
    actor: str | None,
    reason: str,
    **auto: Any,
) -> int | None:
    """Give a failure group a standing rule, or list the rules.

    `hold`: plans and bulk retries leave its messages out. `auto`: workers redrive them automatically, each wait longer
    than the last. `discard`: workers delete them, present and future ones. `none` removes the rule.
    Needs a --reason.
    """
    if fingerprint is None:
        _list_rules(opened, out)
        return None
    if kind is None:
        raise click.UsageError("give a rule: hold, auto, discard or none")
    fingerprint = _named(opened, fingerprint)
    stated(reason)
    settings = {name: value for name, value in auto.items() if value is not None}
    if settings and kind != "auto":
        raise click.UsageError(f"--{next(iter(settings)).replace('_', '-')} is for the rule auto")
    if kind == "discard":
        count = selection(opened, (), as_node(Filter(fingerprint=fingerprint))).count()
        dead = f"{count:,} dead {'message' if count == 1 else 'messages'}"
        asked = f"Let workers discard the {dead} of {fingerprint}, and all to come?"
        what = f"workers would discard {dead}, and all to come"
        if not confirmed(asked, what, yes):
            note("no rule was set")
            return FAILED
    with understood():
        made = _auto(settings) if kind == "auto" else None
    said = Annotations(opened.store)
    _write(
        opened, out, fingerprint,
        said.rule(fingerprint, None if kind == "none" else kind, auto=made, actor=actor, reason=reason),
    )  # fmt: skip
    return None


@click.command()
@click.option("--since", type=PAST, help="only since then: 6h, or 2026-01-31T15:04:05Z")
@click.option("--about", help="only entries about this selector, fingerprint or run")
@click.option("--id", help="only entries about this message")
@click.option("--actor", help="only entries of this person")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store()
def audit(
    opened: OpenedStore,
    out: Output,
    since: int | None,
    about: str | None,
    id: str | None,
    actor: str | None,
    limit: int | None,
) -> None:
    """List who changed what, when and why, the newest first."""
    id = None if id is None else message_id(opened, id)
    rows = (
        entry_record(entry)
        for entry in Audit(opened.store).entries(since_ms=since or 0)
        if (about is None or entry.about == about)
        and (id is None or id in entry.ids)
        and (actor is None or actor in (entry.actor, entry.claimed))
    )
    if not out.rows(rows, _AUDIT, limit=limit):
        note("nothing that was done matches" if since or about or id or actor else f"nothing was done in {opened.url}")


COMMANDS = (group, note_, own, mute, resolve, merge, unmerge, rule, audit)


def with_said(columns: Sequence[Column], rows: Sequence[dict[str, Any]], out: Output) -> tuple[Column, ...]:
    """Return the columns of a list of groups with those for annotations added, and for batches if any waits. A table
    gets the former only if a group has such an annotation, and before the columns that a narrow table leaves out."""
    if any(row.get("batches") for row in rows):
        columns = (*columns, *_BATCHES[: 1 if out.is_table else 2])
    if not out.is_table:
        return (*columns, *_SAID)
    some = [column for column in _SAID if any(row[column.name] for row in rows)]
    at = next((i for i, column in enumerate(columns) if column.spare and not column.shrinks), len(columns))
    return (*columns[:at], *some, *columns[at:])


def with_annotations(opened: OpenedStore, groups: Sequence[FailureGroup]) -> list[dict[str, Any]]:
    """Return failure groups as records with their annotations."""
    names = list(dict.fromkeys(group.fingerprint for group in groups if group.fingerprint))
    about, now_ms = read_annotations(opened.store, names), opened.store.now_ms()
    states = read_states(opened.store)
    waiting = group_batches(opened.store, groups, partial(family, states))
    rows = zip(group_records(groups, about, held_counts(opened.store, states), now_ms), waiting, strict=True)
    return [{**row, **batches_record(found)} for row, found in rows]


def _auto(settings: dict[str, Any]) -> AutoRedrive:
    from ...flow.auto_redrive import AutoRedrive

    return AutoRedrive(**settings)


def _list_rules(opened: OpenedStore, out: Output) -> None:
    rows = (
        {
            "fingerprint": fingerprint, "rule": each.kind, "by": each.by, "at": timestamp(each.at_ms),
            "reason": each.reason, "auto": rule_record(each),
        }
        for fingerprint, each in rules(opened.store).items()
    )  # fmt: skip
    if not out.rows(rows, _RULES, id="fingerprint"):
        note(f"no failure group has a standing rule in {opened.url}")


def _write(opened: OpenedStore, out: Output, fingerprint: str, about: Annotation) -> None:
    annotation = annotation_record(about, opened.store.now_ms())
    record = {
        "fingerprint": fingerprint,
        **{n: v for n, v in annotation.items() if v is not None or out.form != "table"},
    }
    out.record(record, id="fingerprint")


def _lines(record: dict[str, Any], out: Output) -> Iterator[str]:
    more = ("by_task", "log")
    shown = {name: value for name, value in record.items() if name not in more and value not in (None, [])}
    yield from field_lines(shown)
    for each in record["by_task"]:
        yield ""
        dead = f": {each['count']:,} dead, {each['first_at']} to {each['last_at']}"
        yield joined(f"{out.dim('task')} ", each["task"], dead)
        yield from (f"  {line}" for line in field_lines({"error": each["error"], "text": each["text"]}))
        yield f"  {out.dim('for example')} " + onward(f"dlq show {typed(each['sample_id'])}")
    for entry in record["log"]:
        yield from chain([""] if entry is record["log"][0] else [], [f"{out.dim(entry['at'])} {entry_text(entry)}"])


def _named(opened: OpenedStore, given: str) -> str:
    """Return the fingerprint that begins with the digits `given`. Raises Failure if none or several do."""
    given = given.strip().lower()
    if len(given) >= 16 or not given.isalnum():
        return given
    known = {each.fingerprint for each in opened.store.failure_groups()} | rules(opened.store).keys()
    known |= read_states(opened.store).keys()
    names = sorted(each for each in known if each.startswith(given) and each) if len(given) >= PREFIX_MIN else []
    if given in known or len(names) == 1:
        return given if given in known else names[0]
    if names:
        raise Failure(
            f"'{given}' names {len(names)} failure groups", ", ".join(names[:5]), again(typed(names[0])), USAGE
        )
    why = f"give at least {PREFIX_MIN} of its digits" if len(given) < PREFIX_MIN else "no dead message has such a one"
    raise Failure(f"there is no failure group '{given}'", why, onward("dlq groups"), USAGE)
