"""Translate filters to SQL for the PostgreSQL store, and decode the results.

This module, not the planner, chooses the index for a page of dead letters: that of the filter's most selective field,
which it finds by counting index entries. It reads the messages with each value of the field from the index in the order
of rest, as many as the page needs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import psycopg

from ...message import (
    BEFORE_MS,
    DAMAGED,
    RESTING,
    TREND_MS,
    BatchCounts,
    Counts,
    DueCount,
    FailureGroup,
    Filter,
    Group,
    Ids,
    Lane,
    Message,
    Narrowing,
    Page,
)
from .. import lifecycle, validation
from ..counts import total
from ..validation import RESTED, begin, values_of
from . import batches
from .damage import readable, with_kept
from .database import PostgresDatabase
from .rows import COLUMNS, Array, cursor, ids, numbers, read_faults, texts

LOOKED = 10_000  # most index entries counted per value, to compare how selective fields are
_FIELDS = ("fingerprint", "batch", "error", "task", "reason", "queue")  # fields with an index, the most selective first
_LIVE = (Lane.READY, Lane.LEASED)
_DEAD, _LISTED = "m.lane = 'dead'", "m.lane between 'dead' and 'dead'"  # written as in the definitions of the indexes


class Path(NamedTuple):
    """An index path in the order of rest: a field, a condition with {} for a value of the field, and the values."""

    field: str
    by: str
    values: Array


class Clauses:
    """Conditions of a query, and its parameters, numbered in order."""

    def __init__(self) -> None:
        self._clauses: list[str] = []
        self.args: list[Any] = []

    def add(self, clause: str, *args: Any) -> None:
        """Add a condition; each {} in the clause becomes the number of the next of `args`."""
        self._clauses.append(clause.format(*[self.arg(arg) for arg in args]))

    def arg(self, value: Any) -> str:
        self.args.append(value)
        return f"${len(self.args)}"

    def __str__(self) -> str:
        return " and ".join(self._clauses) or "true"


def paths_of(where: Filter, lane: Lane | None) -> list[Path]:
    """Return the paths by which messages that match the filter can be read, as a rule the most selective first."""
    if where.ids is not None:
        return []
    paths: list[Path] = []
    fields = values_of(where, *_FIELDS)
    if lane is Lane.DEAD:
        paths += [
            Path(field, f"{_DEAD if field == 'fingerprint' else _LISTED} and m.{field} = {{}}", texts(values))
            for field, values in fields.items()
            if field not in ("queue", "batch")
        ]
    if lane in RESTING and "batch" in fields:
        batch = f"m.lane in ('dead', 'quarantine') and m.lane = '{lane}' and m.batch = {{}}"
        paths.append(Path("batch", batch, texts(fields["batch"])))
    if lane in RESTED and "queue" in fields:
        queue = f"m.rested_ms is not null and m.lane = '{lane}' and m.queue = {{}}"
        paths.append(Path("queue", queue, texts(fields["queue"])))
    return paths


def _counted(c: psycopg.Connection[Any], schema: str, paths: Sequence[Path]) -> list[int]:
    """Count the messages on each of these paths, at most LOOKED for each value of a path's field."""
    counted = []
    for n, path in enumerate(paths, 1):
        first = f"order by m.rested_ms, m.seq limit {LOOKED}"
        lies = f"select from {schema}.message m where {path.by.format('v.x')} {first}"
        counted.append(f"(select count(*) from unnest(${n}::text[]) v(x) cross join lateral ({lies}) m)")
    row = cursor(c).execute(f"select {', '.join(counted)}".encode(), [p.values for p in paths], binary=True).fetchone()
    assert row is not None
    return [*row]


def where_of(where: Filter, lane: Lane | None) -> Clauses:
    """Return all conditions of the filter and the lane, for a query without a path."""
    clauses = Clauses()
    if lane is Lane.LEASED:
        clauses.add("m.due_ms is not null and m.lane = 'leased'")
    elif lane is Lane.READY:
        clauses.add("m.rested_ms is null and m.lane = 'ready'")
    elif lane is Lane.DEAD and where.fingerprint is not None:
        clauses.add(_DEAD)  # not `at rest`: the planner could then use the index of all messages at rest
    elif lane is not None:
        clauses.add(f"m.rested_ms is not null and m.lane = '{lane.value}'")
    _add_fields(clauses, where, "{}")
    _add_times(clauses, where, "m.rested_ms" if lane in RESTED else "coalesce(m.rested_ms, m.enqueued_ms)")
    return clauses


def _add_fields(clauses: Clauses, where: Filter, said: str, but: str = "") -> None:
    """Add the filter's fields except `but`, the field of a path. `said` is the form of a condition, with {} for it."""
    for field, values in values_of(where, *_FIELDS).items():
        if field != but:
            one = len(values) == 1
            fits = f"m.{field} = {{}}::text" if one else f"m.{field} = any({{}}::text[])"
            clauses.add(said.replace("{}", fits), values[0] if one else texts(values))
    if where.redrives is not None:
        clauses.add(said.replace("{}", "coalesce(m.redrives, 0) = {}::bigint"), where.redrives)
    if where.run is not None:
        clauses.add(said.replace("{}", "m.run = {}::text"), where.run)
    if where.ids is not None:
        clauses.add("m.id = any({}::uuid[])", ids(where.ids))


def _add_times(clauses: Clauses, where: Filter, at: str) -> None:
    for bound, sign in ((where.since_ms, ">="), (where.until_ms, "<")):
        if bound is not None:
            clauses.add(f"{at} {sign} {{}}::bigint", bound)


def page(
    c: psycopg.Connection[Any], schema: str, where: Filter, lane: Lane | None, after: tuple[int, int], limit: int
) -> list[tuple[Any, ...]]:
    """Return rows of COLUMNS of a page, oldest first, each with its position for a cursor."""
    where, after = begin(where, lane, after)
    paths = paths_of(where, lane)
    if paths:
        counts = _counted(c, schema, paths) if len(paths) > 1 else [0]
        path = paths[counts.index(min(counts))]
        return _page_by(c, schema, path, where, after, limit)
    if lane in _LIVE and isinstance(where.queue, str):
        narrowing = where.narrowing if lane is Lane.READY else None
        if where == Filter(queue=where.queue, narrowing=where.narrowing):
            return _page_of_queue(c, schema, where.queue, lane, after, limit, narrowing or Narrowing())
    clauses = where_of(where, lane)
    at = "m.rested_ms" if lane in RESTED else "coalesce(m.rested_ms, 0)"
    clauses.add(f"({at}, m.seq) > ({{}}::bigint, {{}}::bigint)", *after)
    sql = f"select {COLUMNS}, m.seq, m.rested_ms from {schema}.message m where {clauses} order by {at}, m.seq limit "
    return cursor(c).execute(f"{sql}{clauses.arg(limit)}::bigint".encode(), clauses.args, binary=True).fetchall()


def _page_by(
    c: psycopg.Connection[Any], schema: str, path: Path, where: Filter, after: tuple[int, int], limit: int
) -> list[tuple[Any, ...]]:
    clauses = _on(path, where)
    clauses.add("(m.rested_ms, m.seq) > ({}::bigint, {}::bigint)", *after)
    order = "order by m.rested_ms, m.seq"
    first = f"{order} limit {clauses.arg(limit)}::bigint"
    of_each = f"select * from {schema}.message m where {clauses} {first}"
    sql = f"""select {COLUMNS}, m.seq, m.rested_ms from (
 select m.* from unnest($1::text[]) v(x) cross join lateral ({of_each}) m {first}) m {order}"""
    return cursor(c).execute(sql.encode(), clauses.args, binary=True).fetchall()


def _page_of_queue(
    c: psycopg.Connection[Any],
    schema: str,
    queue: str,
    lane: Lane,
    after: tuple[int, int],
    limit: int,
    narrowing: Narrowing,
) -> list[tuple[Any, ...]]:
    """A page of the queue's waiting or running messages in the order of puts, for which there is no index. Their seqs
    come from other indexes (with a due time, waiting to join a group, parked), so only the page's rows are read."""
    if after[0] > 0:  # the cursor is from a page of messages at rest
        return []
    args: list[Any] = [queue, after[1], limit]
    between = line = ""
    if narrowing.due_ms is not None:
        args += narrowing.due_ms
        between = "between $4::bigint and $5::bigint"
        line = f"wake_ms {between} and "
    if narrowing.group is not None and narrowing.parked is not False:
        args.append(narrowing.group)
        line += f"grp = ${len(args)}::text and "
    ranged, first = between or "is not null", "seq > $2::bigint order by seq limit $3::bigint"
    parts: list[str] = []
    if not narrowing.parked:
        due = f"queue = $1::text and due_ms {ranged} and lane = '{lane.value}' and {first}"
        parts.append(f"""select m.* from (select priority, due_ms, lane, seq from {schema}.message where {due}) f
 join {schema}.message m using (priority, due_ms, lane, seq) where m.queue = $1::text""")
    if lane is Lane.READY and not narrowing.parked:
        later = f"queue = $1::text and wake_ms {ranged} and turn is null and {first}"
        parts.append(f"""select m.* from (select wake_ms, seq from {schema}.message where {later}) f
 join {schema}.message m using (wake_ms, seq) where m.queue = $1::text and m.turn is null""")
    if lane is Lane.READY and narrowing.parked is not False:
        parts.append(
            f"select m.* from {schema}.message m where queue = $1::text and turn is not null and {line}{first}"
        )
    union = " union all ".join(f"({part})" for part in parts)
    sql = f"select {COLUMNS}, m.seq, m.rested_ms from ({union}) m order by m.seq limit $3::bigint"
    return cursor(c).execute(sql.encode(), args, binary=True).fetchall()


def _on(path: Path, where: Filter) -> Clauses:
    """Return the conditions for messages on this path; its values are parameter 1."""
    clauses = Clauses()
    clauses.arg(path.values)
    clauses.add(path.by.format("v.x"))
    _add_others(clauses, where, path.field)
    return clauses


def _add_others(clauses: Clauses, where: Filter, but: str = "") -> None:
    """Add the filter's conditions except those on `but`, in a form for which the planner uses no other index."""
    _add_fields(clauses, where, "({}) is true", but)
    for bound, sign in ((where.since_ms, ">="), (where.until_ms, "<")):
        if bound is not None:
            clauses.add(f"(m.rested_ms, m.seq) {sign} ({{}}::bigint, -1)", bound)


# -- failure groups


def find_groups(
    c: psycopg.Connection[Any], schema: str, sql: str, where: Filter, lately: tuple[int | None] | None
) -> list[tuple[Any, ...]]:
    """Return rows for `to_failure_group`, from the statement `failure_groups`. `lately`: a tuple of the time (None: the
    server's) if the trend is wanted. The index of failures has all data to group many messages; few messages, or those
    with one fingerprint, are read by a path."""
    paths = paths_of(where, Lane.DEAD)
    counts = _counted(c, schema, paths) if paths else [LOOKED]
    few = min(counts) < LOOKED
    path = paths[counts.index(min(counts))] if few else next((p for p in paths if p.field == "fingerprint"), None)
    if path is not None:
        clauses = _on(path, where)
        of_each = f"select m.fingerprint, m.task, m.rested_ms, m.id from {schema}.message m where {clauses} offset 0"
        source = f"unnest($1::text[]) v(x) cross join lateral ({of_each}) m"
    else:
        clauses = Clauses()
        clauses.add(_DEAD)
        _add_others(clauses, where)
        source = f"{schema}.message m where {clauses}"
    trend = "0::bigint, 0::bigint"
    if lately is not None:
        now = f"coalesce({clauses.arg(lately[0])}::bigint, floor(extract(epoch from now()) * 1000)::bigint)"
        since = f"(select {now} - {TREND_MS})"
        trend = f"""count(*) filter (where m.rested_ms >= {since}),
 count(*) filter (where m.rested_ms >= {since} - {BEFORE_MS} and m.rested_ms < {since})"""
    asked = sql.replace("{source}", source).replace("{trend}", trend)
    return cursor(c).execute(asked.encode(), clauses.args, binary=True).fetchall()


def to_failure_group(
    fingerprint: str,
    task: str,
    error: str | None,
    faults: str | None,
    count: int,
    first: int,
    last: int,
    sample: str,
    recent: int,
    earlier: int,
) -> FailureGroup:
    text = ""
    try:
        listed = read_faults(faults)
    except ValueError:  # the row of this message is damaged, while the others of its group are readable
        listed = ()
    if fingerprint and (died_of := lifecycle.died_of(listed, fingerprint, error)) is not None:
        text = died_of.text
    return FailureGroup(fingerprint, task, error or "", text, count, first, last, sample, recent, earlier)


def to_counts(rows: list[tuple[str, int, int | None]]) -> Counts:
    numbers = dict.fromkeys(("ready", "scheduled", "parked", "leased", "dead", "quarantine", "done"), 0)
    oldest_ms = 0
    for lane, count, age_ms in rows:
        if lane in numbers:  # a newer version of redrive may store more lanes
            numbers[lane] += count
        if lane == "ready":
            oldest_ms = max(oldest_ms, age_ms or 0)
    return Counts(**numbers, oldest_age_s=oldest_ms / 1000)


DUE_EXACT = 30_000  # how many messages are counted exactly by due time: takes 10 ms
SAMPLED_BLOCKS = 300  # how many blocks of the message table an estimate reads: takes 10 ms


class PostgresQueries(PostgresDatabase):
    """The queries of the PostgreSQL store."""

    _sampled: tuple[Sequence[int], float, dict[tuple[str, int], DueCount]] = (), 0.0, {}

    def find(self, ids_: Sequence[str]) -> list[Message | None]:
        rows = {row[0]: row for row in self._look("find", ids(ids_))}
        messages = dict(zip(rows, self._readable([*rows.values()]), strict=True))
        return [messages.get(id) for id in ids_]

    def ids_from(self, first: str, last: str, *, limit: int) -> Ids:
        return Ids(tuple(row[0] for row in self._look("ids_from", first, last, limit)))

    def _readable(self, rows: Sequence[tuple[Any, ...]]) -> list[Message]:
        messages = [readable(row) for row in rows]
        aside = [message.id for message in messages if message.reason == DAMAGED and message.damage is None]
        if not aside:
            return messages
        kept = dict(self._look("kept_before", ids(aside)))
        return [with_kept(message, kept[message.id]) if message.id in kept else message for message in messages]

    def counts(self, queue: str | None = None) -> Counts:
        if queue is not None:
            return to_counts(self._look("counts", queue, self._st.now()))
        return total(self.counts_by_queue().values())

    def due_counts(self, queue: str, bounds_ms: Sequence[int]) -> list[DueCount]:
        """Count up to the first DUE_EXACT messages exactly, and estimate the rest: an index has the rows between
        bounds, not their number, so a count reads each row."""
        guesses = self._due_sample(queue, bounds_ms)
        near = sum(so_far <= DUE_EXACT for so_far in accumulate(guess.all for guess in guesses))
        rows = self._look("due_counts", queue, numbers(bounds_ms[: near + 1])) if near else []
        return [DueCount(every, retries) for every, retries in rows] + guesses[near:]

    def _due_sample(self, queue: str, bounds_ms: Sequence[int]) -> list[DueCount]:
        """Estimate from a sample of the table's blocks. One sample covers all queues, and is kept for a second for a
        caller that asks for each queue. A small table is not sampled."""
        asked, until_s, sample = self._sampled
        if asked != bounds_ms or time.monotonic() > until_s:
            blocks, sample = self._look("blocks")[0][0], {}
            if blocks > 2 * SAMPLED_BLOCKS:
                share = SAMPLED_BLOCKS / blocks
                for of, at, every, retries in self._look("due_sample", numbers(bounds_ms), share * 100):
                    sample[of, at] = DueCount(round(every / share), round(retries / share), exact=False)
            self._sampled = bounds_ms, time.monotonic() + 1, sample
        none = DueCount(0, 0, exact=False)
        return [sample.get((queue, at), none) for at in range(len(bounds_ms) - 1)]

    def counts_by_queue(self) -> dict[str, Counts]:
        rows = self._look("counts_by_queue", self._st.now())
        return {
            queue: Counts(*map(int, lanes), oldest_age_s=age_ms / 1000, parked=int(parked))  # type: ignore[misc]
            for queue, age_ms, *lanes, parked in rows
        }

    def queues(self) -> list[str]:
        return sorted(row[0] for row in self._look("queues"))

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        since, after = validation.read_cursor(cursor)
        rows = self._link.read(lambda c: page(c, self._link.schema, where, lane, (since, after), limit))
        more = f"{rows[-1][16] or 0}.{rows[-1][15]}" if rows and len(rows) == limit else None
        return Page(self._readable(rows), more)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        sql, lately = self._st.sql["failure_groups"].decode(), (self._st.now(),) if trend else None
        rows = self._link.read(lambda c: find_groups(c, self._link.schema, sql, where, lately))
        return [to_failure_group(*row) for row in rows]

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        return batches.counts(self._link, self._st, ids)

    def batch_ids(self, *, after: str = "", limit: int = 100, failed: bool = False) -> list[str]:
        return [id for (id,) in self._look("failed_batches" if failed else "batch_ids", after, limit)]

    def changed_batches(self, *, after: str = "", limit: int = 100) -> list[str]:
        return [id for (id,) in self._look("changed_batches", after, limit)]

    def groups(self, queue: str) -> list[Group]:
        width = self._look("group_settings", queue)[0][0]
        return [Group(queue, *row) for row in self._look("groups", queue, width)]

    def paused(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._look("paused"))
