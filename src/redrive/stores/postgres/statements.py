"""The statements of statements.sql for one schema, with fragments put in for the names in braces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from .rows import BEFORE, BEYOND, CLAIMED, COLUMNS
from .schema import statements


class Numbered:
    """A fragment of SQL with numbered parameters: `fragment[5]` is its text with $5 as the first parameter."""

    def __init__(self, spell: Callable[[int], str]) -> None:
        self._spell = spell

    def __getitem__(self, number: int) -> str:
        return self._spell(number)


NOW = Numbered(lambda n: f"(select coalesce(${n}::bigint, floor(extract(epoch from now()) * 1000)::bigint))")
FRAGMENTS = {
    "now": NOW,
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
WHOLE = {
    "parts": Numbered(lambda n: "(values (0::smallint), (1::smallint), (2::smallint), (3::smallint)) p(priority)"),
    "due": f"due_ms <= {NOW[5]}",
    "coming": "due_ms is not null",
    "woken": Numbered(lambda n: ""),
}
# Fragments for statements that read only parts of the due index, and messages waiting to join from a due time on.
_FROM_LOW = "(due_ms, lane, seq) >= (p.low_ms, p.low_lane, p.low_seq)"
ABOVE = {
    "parts": Numbered(
        lambda n: (
            f"""unnest(${n}::int[], ${n + 1}::bigint[], ${n + 2}::text[], ${n + 3}::bigint[], ${n + 4}::bigint[])
 p(priority, low_ms, low_lane, low_seq, until_ms)"""
        )
    ),
    "due": f"{_FROM_LOW} and due_ms <= least(p.until_ms, {NOW[5]})",
    "coming": f"{_FROM_LOW} and due_ms <= p.until_ms",
    "woken": Numbered(lambda n: f" and wake_ms >= ${n}::bigint"),
}


def prepared(schema: str) -> dict[str, str]:
    """Return all statements by name, with the fragments and the schema put in."""
    claimed = CLAIMED.format(s=schema)
    return {
        name: f"-- name: {name}\n" + sql.format(s=schema, claimed=claimed, **FRAGMENTS, **reading)
        for names, sql in statements().items()
        for name, reading in zip(names.split(", "), (WHOLE, ABOVE), strict=False)
    }


AnyConnection = psycopg.Connection[Any]


Cursor = psycopg.RawCursor[tuple[Any, ...]]


class Statements:
    """Runs the statements of statements.sql by name. `now` is None for the server's clock, unless a test sets one."""

    def __init__(
        self, sql: dict[str, str], now_ms: Callable[[], int], clock_ms: Callable[[], int] | None = None
    ) -> None:
        self.sql = {name: statement.encode() for name, statement in sql.items()}
        self.now_ms, self._clock_ms, self.by_server = clock_ms or now_ms, clock_ms, clock_ms is None

    def now(self) -> int | None:
        return None if self._clock_ms is None else self._clock_ms()

    def do(self, c: AnyConnection, name: str, *args: Any) -> Cursor:
        made: Cursor = psycopg.RawCursor(c, row_factory=tuple_row)
        made.execute(self.sql[name], args, binary=True)
        return made

    def rows(self, c: AnyConnection, name: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.do(c, name, *args).fetchall()
