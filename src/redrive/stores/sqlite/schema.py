"""The schema of an SQLite file, migrated in numbered steps when the file is opened.

`user_version` is the version that a program must know to use the file; the first releases read nothing else. A
migration whose first line is `-- older programs go on beside it` does not change it: it affects only speed, may run
again, and its number is in the table `schema_at`.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import SchemaError
from ...message import PRIORITIES, SKIP_LOOKED
from .errors import store_error
from .rows import COLUMNS

MIGRATIONS = (5, 6, 7)  # the first one creates the schema: no release had an older one
# The columns that a redrive or an isolation overwrites, kept in the column `before`: see `message.Before`.
_TAKEN = (
    *("lane", "redrives", "queue", "reason", "rested_ms", "attempt", "crashes", "crashes_alone", "suspect", "life_ms"),
    *("held_ms", "deadline_ms", "attempts_allowed", "fingerprint", "error", "run", "expires_ms"),
)
_EACH, _END = "  -- each priority\n", "  -- end\n"
_BESIDE_OLDER = "-- older programs go on beside it\n"
_SET_AT = """create table if not exists schema_at (version integer not null);
delete from schema_at;
insert into schema_at values (%d);
"""
_OURS = """(lane in ('ready', 'leased', 'dead', 'quarantine', 'done') or typeof(lane) <> 'text' or length(lane) > 40
 or lane glob '[^a-z]*' or lane glob '*[^a-z0-9_-]*' or lane = '')"""
_SOUND = "(typeof(version) = 'integer' and version between 0 and 4611686018427387904)"  # true for valid cell versions
# The batches whose counts are not those of the members that are stored, or no numbers.
_MISCOUNTED = """select b.id, (done || cancelled || discarded || duplicate || opened || died) glob '*[^0-9-]*' odd,
  b.open, coalesce(m.open, 0) open_stored, b.dead, coalesce(m.dead, 0) dead_stored,
  b.quarantine, coalesce(m.quarantine, 0) quarantine_stored
from batch b left join (select batch, sum(lane not in ('dead', 'quarantine', 'done')) open,
    sum(lane = 'dead') dead, sum(lane = 'quarantine') quarantine from message where batch is not null group by batch) m
  on m.batch = b.id
where odd or (b.open, b.dead, b.quarantine) <> (open_stored, dead_stored, quarantine_stored)"""
_PAIRS = [f"'{name}', {name}" for name in _TAKEN]
BEFORE = f"json_object({', '.join(_PAIRS)}, 'blocked', coalesce(turn = 0, 0))"


def statements() -> dict[str, str]:
    """Return the statements of statements.sql by name."""
    text = (files(__package__) / "statements.sql").read_text()
    parts = re.split(r"^-- name: (\w+(?:, \w+)?)\n", text, flags=re.M)[1:]
    return {
        name: _spelled(sql.strip(), ours)
        for names, sql in zip(parts[::2], parts[1::2], strict=True)
        for name, ours in zip(names.split(", "), ("", f" and {_OURS}"), strict=False)
    }


def _spelled(sql: str, ours: str) -> str:
    while _EACH in sql:
        head, _, rest = sql.partition(_EACH)
        one, _, tail = rest.partition(_END)
        sql = head + "  union all\n".join(one.replace("{priority}", str(priority)) for priority in PRIORITIES) + tail
    words = {"sound": _SOUND, "columns": COLUMNS, "skip_looked": str(SKIP_LOOKED), "before": BEFORE, "ours": ours}
    words["miscounted"] = _MISCOUNTED
    for word, meant in words.items():
        sql = sql.replace(f"{{{word}}}", meant)
    return sql


SchemaQuery = Callable[[str], Iterable[tuple[Any, ...]]]  # takes a query, returns rows


def needed(ask: SchemaQuery) -> int:
    """Return the version that a program must know to use the file; 0 if the file has no schema of redrive."""
    ((at,),) = ask("pragma user_version")
    return int(at)


def version(ask: SchemaQuery) -> int:
    """Return the file's version, with migrations that older programs ignore; 0 if it has no schema of redrive."""
    at = needed(ask)
    if not list(ask("select 1 from sqlite_master where name = 'schema_at' and type = 'table'")):
        return at
    ((beyond,),) = ask("select max(version) from schema_at where typeof(version) = 'integer'")
    return max(at, beyond or 0)


def require_known(ask: SchemaQuery, path: Path) -> None:
    """Raise SchemaError for a file that this redrive must not use: of a newer version, or older than any release."""
    at, first, last = needed(ask), MIGRATIONS[0], MIGRATIONS[-1]
    if at > last:
        raise SchemaError(f"{path} has schema {at}, this redrive knows up to {last}; upgrade redrive")
    if 0 < at < first:
        raise SchemaError(
            f"{path} has schema {at}, which no release had, this redrive knows {first} and later; let the redrive that "
            "made it work what is in it, and name a new file"
        )


def migrate(c: sqlite3.Connection, sql: Mapping[str, str], path: Path) -> None:
    """Run the migrations that the file lacks, in the open transaction. Raises SchemaError as `require_known` does."""
    require_known(c.execute, path)
    at = version(c.execute)
    for number in MIGRATIONS:
        if number > at:
            for statement in _split(_step(sql, number)):
                c.execute(statement)


def _step(sql: Mapping[str, str], number: int) -> str:
    """Return the SQL of a migration, with the statement that records its number."""
    migration = sql[f"migration_{number}"]
    note = _SET_AT % number if migration.startswith(_BESIDE_OLDER) else f"pragma user_version={number};\n"
    return f"{migration}\n{note}"


def version_of(path: Path) -> int:
    """Read the version of an existing file, without changing the file. Raises StoreError."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as c:
            return version(c.execute)
    except sqlite3.Error as error:
        raise store_error(error, f"cannot read {path}") from error


def ddl() -> str:
    """Return the DDL of an empty file, for information: redrive creates and migrates its file itself."""
    sql = statements()
    steps = [f"begin;\n{_step(sql, number)}commit;\n" for number in MIGRATIONS]
    return f"-- redrive: an SQLite file at schema {MIGRATIONS[-1]}\npragma journal_mode=wal;\n\n" + "\n".join(steps)


def _split(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
