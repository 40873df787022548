"""Write data to stdout: a table on a terminal, TSV into a pipe; JSON, JSON lines or ids for programs."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from ...duration import show
from ...redact import in_json, one_line, redact, redact_bytes, redact_value
from .failure import USAGE, Failure, note, program

TABLE_ROWS = 50  # rows a table shows where no --limit is given; pipes and files get all
_NARROWEST = 8  # cells that a column which may shrink keeps
_GAP = "  "
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_OURS = re.compile("(\x1b\\[[012]m)")  # what may steer a terminal in a line of a table
_THEIRS = frozenset(("body", "headers", "result", "progress"))  # of a message: its fields' names tell, too
_encode = msgspec.json.Encoder().encode

Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column of a table or TSV: its field, its heading, and how a table shows its values."""

    name: str
    heading: str | None = None
    show: Callable[[Any], str] | None = None
    shrinks: bool = False
    spare: bool = False  # left out of a table that is too wide


class Output:
    """Writes the data of a command. `auto` is a table on a terminal and TSV elsewhere.

    Secrets are hidden in all that is written, until `reveal` is set; and nothing can act on the terminal.
    """

    def __init__(self, form: str) -> None:
        self.reveal = False
        self.terminal = sys.stdout.isatty()
        self.form = form if form != "auto" else "table" if self.terminal else "tsv"
        self.colour = self.terminal and not os.environ.get("NO_COLOR")

    @property
    def is_table(self) -> bool:
        return self.form == "table"

    def rows(
        self, rows: Iterable[Row], columns: Sequence[Column], *, id: str | None = None, limit: int | None = None
    ) -> int:
        """Write rows; returns how many. `-o ids` prints the field `id`. `limit`: None depends on the form, 0 is all."""
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
        """Write one record: field by field in a table and TSV, or as the lines that `table` returns."""
        record = self.hidden(record)
        match self.form:
            case "table":
                self.lines(table() if table is not None else fields(record))
            case "tsv":
                _write(f"{name}\t{_tsv_cell(value)}\n" for name, value in record.items())
            case "json":
                _write([in_json(msgspec.json.format(_encode(record), indent=2).decode()) + "\n"])
            case "jsonl":
                _write([_json(record) + "\n"])
            case _:
                _write([f"{one_line(str(record[self._id(id)]))}\n"])

    def lines(self, lines: Iterable[str]) -> None:
        """Write lines for people."""
        _write(f"{self._line(line)}\n" for line in lines)

    def hidden(self, record: Row) -> dict[str, Any]:
        """The record without secrets in its texts; in the fields of a message also by their names."""
        if self.reveal:
            return dict(record)
        return {name: _theirs(value) if name in _THEIRS else _texts(value) for name, value in record.items()}

    def _line(self, text: str) -> str:
        text = text if self.reveal else redact(text)
        return "".join(part if n % 2 and self.colour else one_line(part) for n, part in enumerate(_OURS.split(text)))

    def dim(self, text: str) -> str:
        return f"{_DIM}{text}{_PLAIN}" if self.colour else text

    def _id(self, id: str | None) -> str:
        if id is None:
            raise Failure("-o ids is not for this command", "its rows have no id", f"{program()} … -o json", USAGE)
        return id

    def _some(self, rows: Iterable[Row], limit: int | None) -> tuple[Iterator[Row], Callable[[], bool]]:
        """The rows to write, and a function that says afterwards whether there were more."""
        if limit is None:
            limit = TABLE_ROWS if self.is_table else 0
        rest = iter(rows)
        end = object()
        return islice(rest, limit or None), lambda: bool(limit) and next(rest, end) is not end

    def _table(self, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        wide = shutil.get_terminal_size((100, 24)).columns if self.terminal or "COLUMNS" in os.environ else 10_000
        if not rows:
            return
        head, *lines = table(rows, columns, wide)
        _write([f"{_BOLD}{head}{_PLAIN}\n" if self.colour else f"{head}\n", *(f"{line}\n" for line in lines)])


def _texts(value: Any) -> Any:
    """The value without the secrets of its texts; field names are not changed."""
    match value:
        case str():
            return redact(value)
        case Mapping():
            return {redact(name) if isinstance(name, str) else name: _texts(each) for name, each in value.items()}
        case list() | tuple():
            return [_texts(each) for each in value]
        case _:
            return redact_value(value)


def _theirs(value: Any) -> Any:
    """A payload as JSON, or `{"base64": …}` if it is not JSON."""
    match value:
        case {"base64": str(text)} if len(value) == 1:
            return {"base64": base64.b64encode(redact_bytes(base64.b64decode(text))).decode()}
        case _:
            return redact_value(value)


def table(rows: Sequence[Row], columns: Sequence[Column], wide: int) -> list[str]:
    """The lines of a table, heading first, at most `wide` cells if columns that may shrink or be left out allow it."""
    columns = _spared(rows, columns, wide)
    grid = [[c.heading or c.name.replace("_", " ") for c in columns]]
    grid += [[one_line(_table_cell(row.get(c.name), c)) for c in columns] for row in rows]
    widths = [max(cells(line[i]) for line in grid) for i in range(len(columns))]
    right = [bool(rows) and all(isinstance(r.get(c.name), int | float | None) for r in rows) for c in columns]
    _shrink(widths, columns, wide)
    lines = (_GAP.join(_pad(cell, w, r) for cell, w, r in zip(line, widths, right, strict=True)) for line in grid)
    return [line.rstrip() for line in lines]


def fields(record: Row) -> list[str]:
    """One record as aligned lines."""
    wide = max(len(name) for name in record)
    return [f"{name:<{wide}}{_GAP}{one_line(_table_cell(value, Column(name)))}" for name, value in record.items()]


def cells(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def age(seconds: float | None) -> str:
    return "–" if seconds is None else show(seconds) if seconds else "0s"


def _spared(rows: Sequence[Row], columns: Sequence[Column], wide: int) -> list[Column]:
    """The columns that fit at their narrowest, or all that are required."""
    kept = list(columns)

    def least(c: Column) -> int:
        widest = max((cells(_table_cell(row.get(c.name), c)) for row in rows), default=0)
        wanted = max(widest, cells(c.heading or c.name))
        return min(wanted, _NARROWEST) if c.shrinks else wanted

    needs = {c: least(c) + len(_GAP) for c in columns}
    for c in [c for c in reversed(columns) if c.spare]:
        if sum(needs[k] for k in kept) - len(_GAP) > wide:
            kept.remove(c)
    return kept


def _shrink(widths: list[int], columns: Sequence[Column], wide: int) -> None:
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - wide
    while over > 0:
        widest = max((i for i, c in enumerate(columns) if c.shrinks), key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1
        over -= 1


def _pad(text: str, width: int, right: bool) -> str:
    if cells(text) > width:
        kept = ""
        for character in text:
            if cells(kept + character) >= width:
                break
            kept += character
        text = kept + "…"
    space = " " * (width - cells(text))
    return space + text if right else text + space


def _table_cell(value: Any, column: Column) -> str:
    if column.show is not None:
        return column.show(value)
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    return _encode(value).decode()


def _tsv(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[str]:
    yield "\t".join(c.name for c in columns) + "\n"
    for row in rows:
        yield "\t".join(_tsv_cell(row.get(c.name)) for c in columns) + "\n"


def _tsv_cell(value: Any) -> str:
    """Empty for none; tabs, line breaks and other control characters are written as in Python text."""
    if value is None:
        return ""
    return one_line((value if isinstance(value, str) else _encode(value).decode()).replace("\\", "\\\\"))


def _write_json(rows: Iterable[Row]) -> int:
    """Write an array row by row, so that a million rows need no memory."""
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
    """A progress bar on stderr if that is a terminal; yields the function that advances it."""
    if not sys.stderr.isatty() or not total:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda count: progress.advance(task, count)
