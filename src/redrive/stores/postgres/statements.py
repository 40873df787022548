"""The statements of statements.sql, made ready for one schema: the parts in braces are spelt out here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg

from .rows import (
    BEFORE,
    BEYOND,
    CLAIMED,
    COLUMNS,
    LEASE,
    cursor,
)
from .schema import statements

ABOVE = "_above"  # at the end of a statement's name: as it reads where floors are kept
_NOW = r"(select coalesce(\1::bigint, floor(extract(epoch from now()) * 1000)::bigint))"
_ALL = "(values (0::smallint), (1::smallint), (2::smallint), (3::smallint)) p(priority)"
_PARTS = """unnest(${}::int[], ${}::bigint[], ${}::text[], ${}::bigint[], ${}::bigint[])
 p(priority, low_ms, low_lane, low_seq, until_ms)"""


def prepared(schema: str) -> dict[str, str]:
    """All of them, by name."""
    texts: dict[str, str] = {}
    for name, sql in statements().items():
        texts[name] = _spelt(_whole(sql), schema)
        if "{parts" in sql:
            texts[name + ABOVE] = _spelt(_above(sql), schema)
    return texts


def _whole(sql: str) -> str:
    """To read each priority from its first message on."""
    for pattern, meant in (
        (r"\{parts \$\d+\}", _ALL),
        (r"\{due \w+ (\$\d+)\}", r"due_ms <= {now \1}"),
        (r"\{due \w+\}", "due_ms is not null"),
        (r" ?\{woken \$\d+\}", ""),
    ):
        sql = re.sub(pattern, meant, sql)
    return sql


def _above(sql: str) -> str:
    """To read parts of the due index."""
    from_low = r"(due_ms, lane, seq) >= (\1.low_ms, \1.low_lane, \1.low_seq)"
    for pattern, meant in (
        (r"\{due (\w+) (\$\d+)\}", from_low + r" and due_ms <= least(\1.until_ms, {now \2})"),
        (r"\{due (\w+)\}", from_low + r" and due_ms <= \1.until_ms"),
        (r"\{woken (\$\d+)\}", r"and wake_ms >= \1::bigint"),
    ):
        sql = re.sub(pattern, meant, sql)
    return re.sub(r"\{parts \$(\d+)\}", _parts, sql)


def _parts(match: re.Match[str]) -> str:
    first = int(match[1])
    return _PARTS.format(*range(first, first + 5))


def _spelt(sql: str, schema: str) -> str:
    sql = re.sub(r"\{free (\$\d+)\}", r"(lane <> 'leased' or due_ms <= \1::bigint)", sql)
    named = {
        "{beyond}": BEYOND,
        "{lease}": LEASE,
        "{claimed}": CLAIMED,
        "{s}": schema,
        "{columns}": COLUMNS,
        "{before}": BEFORE,
    }
    for word, meant in named.items():
        sql = sql.replace(word, meant)
    return re.sub(r"\{now (\$\d+)\}", _NOW, sql)


AnyConnection = psycopg.Connection[Any]


Cursor = psycopg.RawCursor[tuple[Any, ...]]


class Statements:
    """Runs the statements of statements.sql by their names. Their `now` is null, so that the server says what time it
    is, unless tests give a clock."""

    def __init__(
        self, sql: dict[str, str], now_ms: Callable[[], int], clock_ms: Callable[[], int] | None = None
    ) -> None:
        self.sql = {name: statement.encode() for name, statement in sql.items()}
        self.now_ms, self._clock_ms, self.by_server = clock_ms or now_ms, clock_ms, clock_ms is None

    def now(self) -> int | None:
        return None if self._clock_ms is None else self._clock_ms()

    def do(self, c: AnyConnection, name: str, *args: Any) -> Cursor:
        made = cursor(c)
        made.execute(self.sql[name], args, binary=True)
        return made

    def rows(self, c: AnyConnection, name: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.do(c, name, *args).fetchall()
