"""The schema of an SQLite file, brought up to date by numbered migrations when it is opened.

A migration is a part `migration_N` of statements.sql. One whose first line is `-- compatible from V` leaves the file to
every redrive that knows schema V or later, which goes on beside this one. The pragma user_version holds both: the
number, and above it, times SCALE, that V. Where it holds no V, only a redrive that knows the number uses the file.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.resources import files
from pathlib import Path

from ...errors import SchemaError
from ...message import SKIP_LOOKED
from .errors import store_error
from .rows import COLUMNS

MIGRATIONS = ("migration_1", "migration_2", "migration_3", "migration_4", "migration_5", "migration_6")
# What a redrive or an isolation takes from a message, as its column `before` keeps it: see `message.Before`.
_TAKEN = (
    *("lane", "redrives", "queue", "reason", "rested_ms", "attempt", "crashes", "crashes_alone", "suspect", "life_ms"),
    *("held_ms", "deadline_ms", "attempts_allowed", "fingerprint", "error", "run", "expires_ms"),
)
# The statements that look for what is due, once more: a word of a newer version's in `lane` is left alone, what is no
# word is looked at, and set aside.
_BY_LANE = ("claimable", "claimable_but", "due", "due_but", "next_due", "next_due_but")
_LEFT_ALONE = re.compile(r"due_ms (<= \?2|is not null)")
_OURS = """(lane in ('ready', 'leased', 'dead', 'quarantine', 'done') or typeof(lane) <> 'text' or length(lane) > 40
 or lane glob '[^a-z]*' or lane glob '*[^a-z0-9_-]*' or lane = '')"""
_SOUND = "(typeof(version) = 'integer' and version between 0 and 4611686018427387904)"  # the version of a cell
SCALE = 10_000
_PAIRS = [f"'{name}', {name}" for name in _TAKEN]
BEFORE = f"json_object({', '.join(_PAIRS)}, 'blocked', coalesce(turn = 0, 0))"


def statements() -> dict[str, str]:
    """The named parts of statements.sql."""
    text = (files(__package__) / "statements.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.M)[1:]
    words = {"{sound}": _SOUND, "{columns}": COLUMNS, "{skip_looked}": str(SKIP_LOOKED), "{before}": BEFORE}
    for word, meant in words.items():
        parts = [part.replace(word, meant) for part in parts]
    named = {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}
    return named | {f"{name}_by_lane": _LEFT_ALONE.sub(rf"\g<0> and {_OURS}", named[name]) for name in _BY_LANE}


def version(c: sqlite3.Connection) -> int:
    """The version that the file is at; 0 where there is nothing of ours."""
    return _versions(c)[0]


def require_known(c: sqlite3.Connection, path: Path) -> None:
    """Raises SchemaError for a file of a newer schema that says nothing of this one."""
    number, compatible_from = _versions(c)
    if compatible_from > len(MIGRATIONS):
        raise SchemaError(
            f"{path} has schema {number}, for redrive that knows {compatible_from} or later; this one knows up to "
            f"{len(MIGRATIONS)}; upgrade redrive"
        )


def _versions(c: sqlite3.Connection) -> tuple[int, int]:
    compatible_from, number = divmod(c.execute("pragma user_version").fetchone()[0], SCALE)
    return number, compatible_from or number


def _mark(number: int, sql: str) -> str:
    said = re.match(r"-- compatible from (\d+)\n", sql)
    return f"pragma user_version={number + (SCALE * int(said[1]) if said else 0)}"


def migrate(c: sqlite3.Connection, sql: Mapping[str, str], path: Path) -> None:
    """Run the migrations that are missing, in the transaction that is open. Raises SchemaError."""
    require_known(c, path)
    at = version(c)
    for number, name in enumerate(MIGRATIONS[at:], at + 1):
        for statement in _split(sql[name]):
            c.execute(statement)
        c.execute(_mark(number, sql[name]))


def version_of(path: Path) -> int:
    """The version of the file that is there, without changing it. Raises StoreError."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as c:
            return version(c)
    except sqlite3.Error as error:
        raise store_error(error, f"cannot read {path}") from error


def ddl() -> str:
    """All that is run on an empty file, to read: redrive makes and changes its file by itself."""
    sql = statements()
    steps = [
        f"begin;\n{sql[name]}\n{_mark(number, sql[name])};\ncommit;\n" for number, name in enumerate(MIGRATIONS, 1)
    ]
    return f"-- redrive: an SQLite file at schema {len(MIGRATIONS)}\npragma journal_mode=wal;\n\n" + "\n".join(steps)


def _split(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
