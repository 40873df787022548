"""Lay out a table for a terminal: choose the columns that fit and their widths."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..duration import parse_time
from ..ids import is_id
from ..redact import one_line
from .formats import middle

NARROWEST = 8  # the least width of a column that may shrink
_NAME_CELLS, _TEXT_CELLS = 12, 24  # cells kept for a name, and for the longest text, before spare columns are added
_WEIGHT = 16  # further cells kept for that text, per degree of a column's `spare`
_ID_CELLS = 23  # characters of a shortened id: the millisecond and 26 random bits
GAP = "  "
_UNITS = ((60, "s", 1), (3600, "m", 60), (172_800, "h", 3600), (float("inf"), "d", 86_400))  # (below s, unit, its s)
_encode = msgspec.json.Encoder().encode

Row = Mapping[str, Any]


class Column(NamedTuple):
    """A column of a table or TSV: its field, its heading, and how a table formats its values."""

    name: str
    heading: str | None = None
    show: Callable[[Any], str] | None = None
    shrinks: bool = False
    spare: int = 0  # columns with the highest number are left out first if texts have too little room

    @property
    def title(self) -> str:
        return self.heading or self.name.replace("_", " ")

    @property
    def is_time(self) -> bool:
        return self.show is None and (self.name in ("at", "until") or self.name.endswith(("_at", "_until")))

    @property
    def ends_first(self) -> bool:
        """True if a text that is too long is cut in front, as the end of such a name differs, and not its module."""
        return self.name in ("dependency", "error", "host", "queue", "task")

    @property
    def is_worker(self) -> bool:
        """True if a text that is too long is cut in its middle, as names of workers differ at both ends."""
        return self.name in ("name", "worker")

    @property
    def is_id(self) -> bool:
        return self.show is None and (self.name in ("id", "run", "about") or self.name.endswith("_id"))


class Table(NamedTuple):
    """The lines of a table, the heading first; the number of hidden columns; True in `cut` if texts are cut. `grid` has
    the padded cells of each line, GAP apart, and `names` are the fields of its columns."""

    lines: list[str]
    hidden: int
    cut: bool
    grid: Sequence[Sequence[str]] = ()
    names: Sequence[str] = ()

    @property
    def left_out(self) -> str:
        """A note on hidden columns and cut texts; empty if there are none."""
        count = self.hidden
        parts = [f"{count} column{'s' if count > 1 else ''} hidden"] if count else []
        return ", ".join([*parts, *(["texts cut"] if self.cut else [])])


def table(rows: Sequence[Row], columns: Sequence[Column], wide: int, *, now_ms: int | None = None) -> Table:
    """Lay out rows in at most `wide` cells, as far as columns may shrink or be left out. With `now_ms`, times are
    relative and ids shortened."""
    if now_ms is not None:
        columns = [_brief(rows, column, now_ms) for column in columns]
    grid = {c: [c.title, *(one_line(cell(row.get(c.name), c)) for row in rows)] for c in columns}
    wanted = {c: max(map(cells, texts)) for c, texts in grid.items()}
    kept = _kept(columns, wanted, wide)
    widths = _widths({c: wanted[c] for c in kept}, wide)
    right = {c: _is_number([row.get(c.name) for row in rows]) for c in kept}
    padded = list(zip(*([_pad(text, widths[c], right[c], c) for text in grid[c]] for c in kept), strict=True))
    lines = [GAP.join(line).rstrip() for line in padded]
    cut = any(widths[c] < wanted[c] for c in kept)
    return Table(lines, len(columns) - len(kept), cut, padded, [c.name for c in kept])


def cell(value: Any, column: Column) -> str:
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


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def relative(at: str, now_ms: int) -> str:
    """Return an RFC 3339 time relative to now: `3m ago`, `in 2h`. Any other text is returned as it is.

    >>> relative("2026-01-31T15:00:00Z", 1769871790000), relative("2026-01-31T15:05:00Z", 1769871790000)
    ('3m ago', 'in 1m')
    """
    try:
        ahead_s = round(parse_time(at).timestamp() - now_ms / 1000)
    except ValueError:
        return at
    far_s = abs(ahead_s)
    unit, size_s = next((unit, size_s) for most_s, unit, size_s in _UNITS if far_s < most_s)
    count = far_s // size_s
    return f"in {count}{unit}" if ahead_s > 0 else f"{count}{unit} ago" if count else "now"


def _brief(rows: Sequence[Row], column: Column, now_ms: int) -> Column:
    """Return the column with relative times, or with ids shortened if they stay unique in these rows."""
    if column.is_time:
        return column._replace(show=lambda value: relative(value, now_ms) if value else cell(value, Column("")))
    if not column.is_id:
        return column
    ids = {value for row in rows if isinstance(value := row.get(column.name), str) and is_id(value)}
    if len({id[:_ID_CELLS] for id in ids}) < len(ids):
        return column
    return column._replace(show=lambda value: value[:_ID_CELLS] if value in ids else cell(value, Column("")))


def _kept(columns: Sequence[Column], wanted: Mapping[Column, int], wide: int) -> list[Column]:
    """Return the columns that leave enough room for texts in `wide` cells; those that are not spare are always kept."""
    longest = _longest(wanted)

    def least(c: Column, text: int) -> int:
        return min(wanted[c], (text if c is longest else _NAME_CELLS) if c.shrinks else wanted[c])

    kept = list(columns)
    for c in sorted(columns, key=lambda c: (-c.spare, -columns.index(c))):
        text = max(_TEXT_CELLS, _WEIGHT * c.spare)
        if c.spare and sum(least(k, text) + len(GAP) for k in kept) - len(GAP) > wide:
            kept.remove(c)
    return kept


def _widths(wanted: Mapping[Column, int], wide: int) -> dict[Column, int]:
    """Return the width of each column, so that all fit in `wide` cells. Names are cut only while they are wider than
    half the text."""
    widths, longest = dict(wanted), _longest(wanted)
    weight = {c: 1 if c is longest else 2 for c in wanted}
    over = sum(widths.values()) + len(GAP) * (len(widths) - 1) - wide
    for _ in range(max(over, 0)):
        some = [c for c in widths if c.shrinks and widths[c] > NARROWEST]
        if not some:
            break
        widths[max(some, key=lambda c: widths[c] * weight[c])] -= 1
    return widths


def _longest(wanted: Mapping[Column, int]) -> Column | None:
    """Return the widest of the columns that may shrink, which has the longest texts; None without such a column."""
    return max((c for c in wanted if c.shrinks), key=lambda c: wanted[c], default=None)


def _is_number(values: Sequence[Any]) -> bool:
    some = [value for value in values if value is not None]
    return bool(some) and all(isinstance(value, int | float) for value in some)


def _pad(text: str, width: int, right: bool, column: Column) -> str:
    ends_first = column.ends_first
    if cells(text) > width and column.is_worker and text.isascii():
        text = middle(text, width)
    elif cells(text) > width:
        kept = ""
        for character in reversed(text) if ends_first else text:
            if cells(kept + character) >= width:
                break
            kept += character
        text = "…" + kept[::-1] if ends_first else kept + "…"
    space = " " * (width - cells(text))
    return space + text if right else text + space


def field_lines(record: Row) -> list[str]:
    """Return one record as lines of field and value, aligned."""
    wide = max(len(name) for name in record)
    return [f"{name:<{wide}}  {one_line(cell(value, Column(name)))}" for name, value in record.items()]
