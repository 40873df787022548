"""The statements of statements.sql for one schema, with fragments put in for the names in braces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from ..batches import FIELDS
from .rows import BEFORE, BEYOND, CLAIMED, COLUMNS
from .schema import statements


class Numbered:
    """A fragment of SQL with numbered parameters: `fragment[5]` is its text with $5 as the first parameter."""

    def __init__(self, spell: Callable[[int], str]) -> None:
        self._spell = spell

    def __getitem__(self, number: int) -> str:
        return self._spell(number)


NOW = Numbered(lambda n: f"(select coalesce(${n}::bigint, floor(extract(epoch from now()) * 1000)::bigint))")
# What a message is to its batch: the name of the count.
STATE = """case when m.lane in ('dead', 'quarantine') then m.lane when m.lane <> 'done' then 'open'
 when m.reason = 'cancelled' then 'cancelled' else 'done' end"""
# Changes of the counts of a batch, added up: for each count the members that came to it, without those that left it.
_SUMS = [
    f"coalesce(sum(n) filter (where now = '{field}'), 0) - coalesce(sum(n) filter (where was = '{field}'), 0) {field}"
    for field in FIELDS[:-2]
] + [
    "coalesce(sum(n) filter (where now = 'open'), 0) opened",
    "coalesce(sum(n) filter (where was = 'open' and now in ('dead', 'quarantine')), 0) died",
]
FRAGMENTS: dict[str, str | Numbered | dict[str, str]] = {
    "now": NOW,
    "state": STATE,
    "fields": ", ".join(FIELDS),
    "sums": ", ".join(_SUMS),
    "totals": ", ".join(f"coalesce(b.{field}, 0) + d.{field}" for field in FIELDS),
    "added": ", ".join(f"{field} = b.{field} + excluded.{field}" for field in FIELDS),
    "columns": COLUMNS,
    "before": BEFORE,
    "beyond": BEYOND,
    "free": "(lane <> 'leased' or due_ms <= $7::bigint)",
    # Assignments of a claim. For a message whose lease ran out, a claim counts a crash, not an attempt.
    "lease": f"""due_ms = {NOW[5]} + $3::bigint, worker = $4::text, fence = fence + 1, lane = 'leased',
  attempt = case when lane = 'leased' then attempt else attempt + 1 end,
  crashes = case when lane = 'leased' then coalesce(crashes, 0) + 1 else crashes end,
  crashes_alone = case when lane = 'leased' and suspect = 2 then coalesce(crashes_alone, 0) + 1 else crashes_alone end,
  suspect = case when lane = 'leased' then 1 else suspect end""",
}
# Fragments for statements that read the whole due index, for each priority.
WHOLE: dict[str, str | Numbered | dict[str, str]] = {
    "parts": Numbered(lambda n: "(values (0::smallint), (1::smallint), (2::smallint), (3::smallint)) p(priority)"),
    "due": f"due_ms <= {NOW[5]}",
    "coming": "due_ms is not null",
    "woken": Numbered(lambda n: ""),
    "member": {"gone": "", "moved": ""},
    "counted": {"gone": "", "moved": ""},
    "batches": "",
    "of_batches": "",
}
# Fragments for statements that read only parts of the due index, and messages waiting to join from a due time on.
_FROM_LOW = "(due_ms, lane, seq) >= (p.low_ms, p.low_lane, p.low_seq)"
ABOVE: dict[str, str | Numbered | dict[str, str]] = {
    "parts": Numbered(
        lambda n: (
            f"""unnest(${n}::int[], ${n + 1}::bigint[], ${n + 2}::text[], ${n + 3}::bigint[], ${n + 4}::bigint[])
 p(priority, low_ms, low_lane, low_seq, until_ms)"""
        )
    ),
    "due": f"{_FROM_LOW} and due_ms <= least(p.until_ms, {NOW[5]})",
    "coming": f"{_FROM_LOW} and due_ms <= p.until_ms",
    "woken": Numbered(lambda n: f" and wake_ms >= ${n}::bigint"),
    # and of statements for messages some of them members of batches
    "member": {"gone": ", m.batch, 'open' was, 'done' now", "moved": f", m.batch, 'open' was, {STATE} now"},
    "batches": """, (select array_agg(batch) from counted),
 (select array_agg(batch) from counted where now in ('dead', 'quarantine'))""",
    "of_batches": " where batch = any($2::text[])",
}
# Count the members among the messages that a statement removes (`gone`) or writes (`moved`).
_COUNT = """,
counted as (
  insert into {s}.batch_delta(batch, was, now, n) select batch, was, now, count(*) from {source}
  where batch is not null and was is distinct from now group by batch, was, now returning batch, now)"""


def prepared(schema: str) -> dict[str, str]:
    """Return all statements by name, with the fragments and the schema put in."""
    count = {source: _COUNT.format(s=schema, source=source) for source in ("gone", "moved")}
    common = FRAGMENTS | {"s": schema, "claimed": CLAIMED.format(s=schema), "count": count}
    return {
        name: f"-- name: {name}\n" + sql.format(**common, **fragments)
        for names, sql in statements().items()
        for name, fragments in zip(names.split(", "), (WHOLE, ABOVE | {"counted": count}), strict=False)
    }


AnyConnection = psycopg.Connection[Any]


Cursor = psycopg.RawCursor[tuple[Any, ...]]


class Statements:
    """Runs the statements of statements.sql by name. `now` is None for the server's clock, unless a test sets one."""

    by_server: bool

    def __init__(
        self, sql: dict[str, str], now_ms: Callable[[], int], clock_ms: Callable[[], int] | None = None
    ) -> None:
        self.sql: dict[str, bytes] = {name: statement.encode() for name, statement in sql.items()}
        self.now_ms: Callable[[], int] = clock_ms or now_ms
        self._clock_ms, self.by_server = clock_ms, clock_ms is None

    def now(self) -> int | None:
        return None if self._clock_ms is None else self._clock_ms()

    def do(self, c: AnyConnection, name: str, *args: Any) -> Cursor:
        made: Cursor = psycopg.RawCursor(c, row_factory=tuple_row)
        made.execute(self.sql[name], args, binary=True)
        return made

    def rows(self, c: AnyConnection, name: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.do(c, name, *args).fetchall()
