"""Write data to stdout: a table on a terminal, TSV into a pipe; JSON, JSON lines or ids for programs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import click
import msgspec

from ...present.commands import program
from ...present.failure import USAGE, Failure
from ...present.table import Column as Column
from ...present.table import Row, field_lines, relative, table
from ...redact import in_json, one_line, redact, redact_record
from .stderr import note

TABLE_ROWS = 50  # rows of a table without --limit; pipes and files get all rows
VERBOSE = "redrive.verbose"  # the key in a click context that is set if -v was given
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_OURS = re.compile("(\x1b\\[[012]m)")  # the escape sequences that a line of a table may contain
_encode = msgspec.json.Encoder().encode


class Output:
    """Writes the data of a command. `auto` is a table on a terminal and TSV elsewhere.

    Secrets are hidden unless `reveal` is set; control characters are always escaped.
    """

    terminal: bool | Any
    form: str
    colour: Any | bool
    verbose: bool

    def __init__(self, form: str) -> None:
        self.reveal = False
        self.terminal = sys.stdout.isatty()
        self.form = form if form != "auto" else "table" if self.terminal else "tsv"
        self.colour = self.terminal and not os.environ.get("NO_COLOR")
        context = click.get_current_context(silent=True)
        self.verbose = context is not None and VERBOSE in context.meta
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    @property
    def is_brief(self) -> bool:
        """True at a terminal without -v, where times are relative and ids are shortened."""
        return self.terminal and not self.verbose

    @property
    def is_table(self) -> bool:
        return self.form == "table"

    def rows(
        self, rows: Iterable[Row], columns: Sequence[Column], *, id: str | None = None, limit: int | None = None
    ) -> int:
        """Write rows and return how many. `-o ids` prints only the field `id`. `limit`: 0 writes all rows, None as many
        as the output format has by default."""
        some, cut = self._some(map(self.hidden, rows), limit)
        match self.form:
            case "table":
                listed = list(some)
                self._table(listed, columns)
                count = len(listed)
            case "tsv":
                count = _write(_tsv(some, columns)) - 1
            case "json":
                count = _write_json(some)
            case "jsonl":
                count = _write(_json(row) + "\n" for row in some)
            case _:
                count = _write(f"{one_line(str(row[self._id(id)]))}\n" for row in some)
        if cut():
            note(f"the first {count} are shown; --limit 0 shows all")
        return count

    def record(self, record: Row, *, id: str | None = None, table: Callable[[], Iterable[str]] | None = None) -> None:
        """Write one record: field by field in TSV and a table, which instead has the lines that `table` returns, if
        given."""
        record = self.hidden(record)
        match self.form:
            case "table":
                self.lines(table() if table is not None else field_lines(record))
            case "tsv":
                _write(f"{name}\t{_tsv_cell(value)}\n" for name, value in record.items())
            case "json":
                _write([in_json(msgspec.json.format(_encode(record), indent=2).decode()) + "\n"])
            case "jsonl":
                _write([_json(record) + "\n"])
            case _:
                _write([f"{one_line(str(record[self._id(id)]))}\n"])

    def lines(self, lines: Iterable[str]) -> None:
        """Write lines of text."""
        _write(f"{self._line(line)}\n" for line in lines)

    def hidden(self, record: Row) -> dict[str, Any]:
        """Return the record without secrets, which are found in texts and by names of message fields; unchanged with
        --reveal."""
        if self.reveal:
            return dict(record)
        return redact_record(record)

    def _line(self, text: str) -> str:
        text = text if self.reveal else redact(text)
        return "".join(part if n % 2 and self.colour else one_line(part) for n, part in enumerate(_OURS.split(text)))

    def when(self, at: str | None) -> str:
        """Return a time as this reader gets it: `3m ago` at a terminal without -v, else unchanged; empty for None."""
        return relative(at, self.now_ms()) if at and self.is_brief else at or ""

    def dim(self, text: str) -> str:
        return f"{_DIM}{text}{_PLAIN}" if self.colour else text

    def _id(self, id: str | None) -> str:
        if id is None:
            raise Failure("-o ids is not for this command", "its rows have no id", f"{program()} … -o json", USAGE)
        return id

    def _some(self, rows: Iterable[Row], limit: int | None) -> tuple[Iterator[Row], Callable[[], bool]]:
        """Return the rows to write, and a function that returns True if there are more; call it after these are
        written."""
        if limit is None:
            limit = TABLE_ROWS if self.is_table else 0
        rest = iter(rows)
        end = object()
        return islice(rest, limit or None), lambda: bool(limit) and next(rest, end) is not end

    def _table(self, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        bounded = not self.verbose and (self.terminal or "COLUMNS" in os.environ)
        wide = shutil.get_terminal_size((100, 24)).columns if bounded else 10_000
        if not rows:
            return
        made = table(rows, columns, wide, now_ms=self.now_ms() if self.is_brief else None)
        head, *lines = made.lines
        _write([f"{_BOLD}{head}{_PLAIN}\n" if self.colour else f"{head}\n", *(f"{line}\n" for line in lines)])
        if made.left_out:
            sys.stdout.flush()
            note(f"{made.left_out}; -v shows all")


def _tsv(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[str]:
    yield "\t".join(c.name for c in columns) + "\n"
    for row in rows:
        yield "\t".join(_tsv_cell(row.get(c.name)) for c in columns) + "\n"


def _tsv_cell(value: Any) -> str:
    """Return a value as a cell of TSV: None is empty; tabs, line breaks and other control characters are escaped as in
    Python."""
    if value is None:
        return ""
    return one_line((value if isinstance(value, str) else _encode(value).decode()).replace("\\", "\\\\"))


def _write_json(rows: Iterable[Row]) -> int:
    """Write rows as a JSON array, one by one, so that a million rows need little memory; return their number."""
    count = 0
    for count, row in enumerate(rows, 1):
        sys.stdout.write(("[\n  " if count == 1 else ",\n  ") + _json(row))
    sys.stdout.write("\n]\n" if count else "[]\n")
    return count


def _json(row: Row) -> str:
    return in_json(_encode(row).decode())


def _write(texts: Iterable[str]) -> int:
    count = 0
    for text in texts:
        sys.stdout.write(text)
        count += 1
    return count


@contextlib.contextmanager
def bar(total: int, doing: str) -> Iterator[Callable[[int], object]]:
    """Show a progress bar for `total` steps if stderr is a terminal; yield the function that advances it."""
    if not sys.stderr.isatty() or not total:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda count: progress.advance(task, count)
