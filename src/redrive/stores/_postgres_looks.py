"""Filters of the PostgreSQL store as SQL, and what they find as values."""

from __future__ import annotations

from typing import Any

import psycopg

from ..message import Counts, FailureGroup, Lane, Where
from ._door import RESTED, begin
from ._postgres_rows import COLUMNS, cursor, ids, read_faults, texts


class Clauses:
    """Conditions and their parameters, numbered as they come."""

    def __init__(self) -> None:
        self._clauses: list[str] = []
        self.args: list[Any] = []

    def add(self, clause: str, *args: Any) -> None:
        """Each {} stands for the next parameter."""
        numbers = [f"${n}" for n in range(len(self.args) + 1, len(self.args) + len(args) + 1)]
        self._clauses.append(clause.format(*numbers))
        self.args += args

    def __str__(self) -> str:
        return " and ".join(self._clauses) or "true"


def where_of(where: Where, lane: Lane | None) -> Clauses:
    found = Clauses()
    if lane is Lane.LEASED:
        found.add("due_ms is not null and lane = 'leased'")
    elif lane is Lane.READY:
        found.add("rested_ms is null and lane = 'ready'")
    elif lane is Lane.DEAD and where.fingerprint is not None:
        found.add("lane = 'dead'")  # not that it rests, which would let the planner take the index of all that does
    elif lane is not None:
        found.add(f"rested_ms is not null and lane = '{lane.value}'")
    wanted = {
        "queue": where.queue,
        "task": where.task,
        "reason": where.reason,
        "fingerprint": where.fingerprint,
        "error": where.error,
    }
    for column, value in wanted.items():
        if isinstance(value, tuple):
            found.add(f"{column} = any({{}}::text[])", texts(value))
        elif value is not None:
            found.add(f"{column} = {{}}::text", str(value))
    if where.redrives is not None:
        found.add("coalesce(redrives, 0) = {}::bigint", where.redrives)
    if where.run is not None:
        found.add("run = {}::text", where.run)
    if where.ids is not None:
        found.add("id = any({}::uuid[])", ids(where.ids))
    at = "rested_ms" if lane in RESTED else "coalesce(rested_ms, enqueued_ms)"
    for bound, sign in ((where.since_ms, ">="), (where.until_ms, "<")):
        if bound is not None:
            found.add(f"{at} {sign} {{}}::bigint", bound)
    return found


def page(
    c: psycopg.Connection[Any], schema: str, where: Where, lane: Lane | None, after: tuple[int, int], limit: int
) -> list[tuple[Any, ...]]:
    """Rows of COLUMNS with their place in the listing, oldest first."""
    where, after = begin(where, lane, after)
    found = where_of(where, lane)
    at = "rested_ms" if lane in RESTED else "coalesce(rested_ms, 0)"
    found.add(f"({at}, seq) > ({{}}::bigint, {{}}::bigint)", *after)
    bound = f"${len(found.args) + 1}::bigint"
    sql = f"select {COLUMNS}, m.seq, m.rested_ms from {schema}.message m where {found} order by {at}, seq limit {bound}"
    return cursor(c).execute(sql.encode(), [*found.args, limit], binary=True).fetchall()


def to_counts(rows: list[tuple[str, int, int | None]]) -> Counts:
    found = dict.fromkeys(("ready", "scheduled", "leased", "dead", "quarantine", "done"), 0)
    oldest_ms = 0
    for lane, count, age_ms in rows:
        found[lane] += count
        if lane == "ready":
            oldest_ms = age_ms or 0
    return Counts(**found, oldest_age_s=oldest_ms / 1000)


def to_failure_group(
    fingerprint: str, task: str, error: str | None, fault: str | None, count: int, first: int, last: int, sample: str
) -> FailureGroup:
    text = read_faults(fault)[-1].text if fault and error is not None else ""
    return FailureGroup(fingerprint, task, error or "", text, count, first, last, sample)
