"""Lay rows out as the lines of a screen: a table that fits its width, or text that is wrapped to it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..present.table import GAP, Column, table
from .screen import Screen, ScreenPage, ScreenRow
from .texts import line, shown
from .tones import TonedSpan

ROWS_MAX = 500  # the most rows of a table; a filter reaches the others


class LaidOutRows(NamedTuple):
    """The heading of a screen, its lines, and the row of each line. The parts of a wrapped line share a row. `spans`
    are the tones in each line, and `names` the columns that have room."""

    heading: str
    lines: Sequence[str]
    rows: Sequence[ScreenRow]
    note: str = ""
    spans: Sequence[Sequence[TonedSpan]] = ()
    names: Sequence[str] = ()


def laid_out(screen: Screen, page: ScreenPage, wide: int) -> LaidOutRows:
    """Lay out a page in at most `wide` cells, as far as its columns may shrink."""
    if not screen.columns:
        return _wrapped(screen, _kept(page.rows, "" if screen.asks_store else screen.filter), wide)
    rows = [{name: _safe(value) for name, value in row.items()} for row in _in_order(screen, page.rows)]
    kept = _kept(rows, "" if screen.asks_store else screen.filter)
    some = kept[:ROWS_MAX]
    if not some:
        return LaidOutRows("", [], [])
    made = table(some, _with_mark(screen, _filled(screen.columns, some)), wide, now_ms=screen.now_ms)
    heading, *lines = made.lines
    spans = [_spans(screen, row, made.names, line) for row, line in zip(some, made.grid[1:], strict=True)]
    notes = [made.left_out] if made.hidden else []
    if len(kept) > len(some):
        notes.append(f"the first {len(some):,} of {len(kept):,}")
    if len(kept) < len(rows):
        notes.append(f"{len(kept):,} of {len(rows):,} match the filter")
    return LaidOutRows(heading, lines, some, ", ".join(notes), spans, made.names)


def _spans(screen: Screen, row: ScreenRow, names: Sequence[str], cells: Sequence[str]) -> Sequence[TonedSpan]:
    tones, spans, start = screen.tones(row), [], 0
    for name, cell in zip(names, cells, strict=True):
        if name in tones:
            spans.append(TonedSpan(start, start + len(cell.rstrip()), tones[name]))
        start += len(cell) + len(GAP)
    return spans


def _in_order(screen: Screen, rows: Sequence[ScreenRow]) -> Sequence[ScreenRow]:
    """Return the rows in the order that the person chose: numbers and times from the largest, texts from A; rows
    without a value are last."""
    name = screen.sorted_by
    if not name:
        return rows
    known = [row for row in rows if row.get(name) not in (None, "")]
    numbers = all(isinstance(row[name], int | float) for row in known)
    down = numbers or Column(name).is_time
    known.sort(key=lambda row: row[name] if numbers else str(row[name]).casefold(), reverse=down != screen.is_inverted)
    return [*known, *(row for row in rows if row.get(name) in (None, ""))]


def _with_mark(screen: Screen, columns: Sequence[Column]) -> Sequence[Column]:
    """Return the columns that the person did not skip, with a mark on the one that sorts."""
    mark = "▲" if screen.is_inverted else "▼"
    kept = [*columns[:1], *columns[1 + min(screen.skipped, max(0, len(columns) - 2)) :]]
    return [c._replace(heading=f"{c.title}{mark}") if c.name == screen.sorted_by else c for c in kept]


def _filled(columns: Sequence[Column], rows: Sequence[ScreenRow]) -> Sequence[Column]:
    """Return the columns without the spare ones that are empty in all of these rows."""
    return [c for c in columns if not c.spare or any(row.get(c.name) not in (None, "") for row in rows)]


def _safe(value: Any) -> Any:
    return shown(value) if isinstance(value, str) else value


def _kept(rows: Sequence[ScreenRow], needle: str) -> Sequence[ScreenRow]:
    """Return the rows that contain this text in a field, in upper or lower case; all for an empty text."""
    if not needle:
        return rows
    needle = needle.casefold()
    return [row for row in rows if any(needle in str(value).casefold() for value in row.values() if value is not None)]


def _wrapped(screen: Screen, rows: Sequence[ScreenRow], wide: int) -> LaidOutRows:
    lines: list[str] = []
    of: list[ScreenRow] = []
    spans: list[Sequence[TonedSpan]] = []
    for row in rows:
        parts = _parts(row["line"], max(20, wide))
        tone = screen.tones(row).get("line")
        lines += parts
        of += [row] * len(parts)
        spans += [[TonedSpan(0, len(part), tone)] if tone is not None else () for part in parts]
    return LaidOutRows("", lines, of, spans=spans)


@lru_cache(maxsize=4096, typed=True)  # cached, as a story is laid out each second and few of its lines change
def _parts(text: str, wide: int) -> Sequence[str]:
    """Return the parts of a line wrapped to `wide` cells, with the continuation lines indented."""
    text = line(text)
    indent = len(text) - len(text.lstrip())
    again = " " * min(indent + 2, wide // 2)
    parts = textwrap.wrap(text, wide, subsequent_indent=again, drop_whitespace=False, break_on_hyphens=False)
    return tuple(part.rstrip() for part in parts) or ("",)
