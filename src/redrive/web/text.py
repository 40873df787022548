"""Render records as HTML: every text is escaped, with invisible characters as escapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup, escape

from ..duration import show
from ..fault.libraries import is_library
from ..present.confirm import CONFIRM_ABOVE
from ..present.formats import DASH, middle, milliseconds, number, pace, seconds, share, size, state_word
from ..redact import many_lines
from ..triage.select.terms import exactly
from .charts import bars, ranges, spark, timeline
from .forms import filled, refused
from .outside import code
from .tree import tree

_LIST = re.compile(r"(?P<head><table data-rows\b[^>]*>.*?</thead>\s*<tbody>)(?P<rows>.*?)(?=</tbody>)", re.DOTALL)
_NAME, _CELL = re.compile(r"<th\b.*?>(.*?)</th>", re.DOTALL), re.compile(r"(?=<t[dh]\b)")
_EMPTY = re.compile(r"<t[dh]\b[^>]*>(?:0|0s|–|)</t[dh]>")
_FRAME = re.compile(r'(?<=^  )File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9})', re.MULTILINE)


def clean(value: Any) -> Any:
    """Return a value as templates show it: a text without characters that act on the page, None as a dash."""
    if value is None:
        return DASH
    if isinstance(value, Undefined | Markup):
        return value
    return many_lines(value) if isinstance(value, str) else value


def moment(at: str | None, now_ms: int, *, absent: str = DASH) -> Markup | str:
    """Format the time `at` as `14:50 · 3m ago`, with the day if it is another one, and with the whole time in UTC as
    title. A script keeps the distance true, and changes the zone if the reader wants that."""
    if at is None:
        return absent
    time = datetime.fromisoformat(at).astimezone(UTC)
    left_s = time.timestamp() - now_ms / 1000
    distance = show(abs(round(left_s)))
    distance = "now" if abs(left_s) < 1 else f"in {distance}" if left_s > 0 else f"{distance} ago"
    same_day = time.date() == datetime.fromtimestamp(now_ms / 1000, UTC).date()
    spot = time.strftime("%H:%M" if same_day else "%d %b %H:%M")
    shape = '<time datetime="{}" title="{}"><span>{}</span> · <span>{}</span></time>'
    return Markup(shape).format(at, time.strftime("%Y-%m-%d %H:%M:%S UTC"), spot, distance)


def second(at: str) -> str:
    """Format a time of today, to the second.

    >>> second("2026-11-23T14:50:07.250Z")
    '14:50:07 UTC'
    """
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%H:%M:%S UTC")


def rise(share: float) -> str:
    """Format a change against the time before.

    >>> rise(0.124), rise(-0.5), rise(0.001)
    ('▲ 12 %', '▼ 50 %', 'as before')
    """
    part = round(abs(share) * 100)
    return "as before" if not part else f"{'▲' if share > 0 else '▼'} {part:,} %"


def pretty(value: Any) -> str:
    """Format a value as indented JSON; the digits of undecoded JSON stay as written."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.format(bytes(value), indent=2).decode()
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def short(id: str | None) -> str:
    """Return the end of an id, by which ids differ; a dash for None."""
    return DASH if not id else id if len(id) <= 12 else f"…{id[-10:]}"


def front(path: str, parts: int = 3) -> str:
    """Return a path without its beginning, as its end tells files apart.

    >>> front("/srv/app/shop/orders/tasks.py"), front("tasks.py")
    ('…/shop/orders/tasks.py', 'tasks.py')
    """
    kept = re.split(r"(?<=[^/\\])[/\\]", path)
    return path if len(kept) <= parts else "…/" + "/".join(kept[-parts:])


def linked(traceback: str) -> Markup:
    """Return a traceback in which the frames of own code stand out. Frames link to their code, if the setting
    `code_url` is set."""
    parts, at = list[Markup](), 0
    for frame in _FRAME.finditer(traceback):
        to = code(frame["file"], int(frame["line"]))
        shown = Markup('<a href="{}" rel="noreferrer">{}</a>').format(to, frame[0]) if to else escape(frame[0])
        if not is_library(frame["file"]):
            shown = Markup("<strong>{}</strong>").format(shown)
        parts += [escape(traceback[at : frame.start()]), shown]
        at = frame.end()
    return Markup("").join([*parts, escape(traceback[at:])])


@cache
def environment() -> Environment:
    """Return the Jinja environment with our filters. A missing name in a template is an error, not a gap."""
    made = Environment(
        loader=PackageLoader("redrive.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "second": second,
        "number": number,
        "share": share,
        "rise": rise,
        "pace": pace,
        "took": milliseconds,
        "lasts": seconds,
        "size": size,
        "pretty": pretty,
        "short": short,
        "tree": tree,
        "front": front,
        "linked": linked,
        "filled": filled,
        "term": lambda name, field: str(exactly(field, str(name))),  # the name as a term of a selector
        "title_of": lambda text: state_word(str(text)).replace("_", " "),
        "worker": lambda name: middle(name, 24),
    }
    made.globals |= {
        "bars": bars,
        "ranges": ranges,
        "spark": spark,
        "timeline": timeline,
        "confirm_above": CONFIRM_ABOVE,
        "refused": refused,
    }
    return made


def page(template: str, record: Mapping[str, Any], **others: Any) -> str:
    """Render a record as the HTML of this template. `many_lines` also covers texts from charts and trees, which `clean`
    does not see."""
    html = environment().get_template(f"{template}.html").render(page=record, **others)
    return many_lines(_LIST.sub(_labelled, html))


def _labelled(table: re.Match[str]) -> str:
    """Return a list with the name of its column on each cell, which phones show beside the value."""
    names = [escape(Markup(name).striptags()) for name in _NAME.findall(table["head"])]
    rows = (
        "".join(
            part if not n else f'{cell} data-label="{name}"{_nothing(part)}{part[3:]}'
            for n, (part, cell, name) in enumerate(_cells(row, names))
        )
        for row in table["rows"].split("<tr")
    )
    return table["head"] + "<tr".join(rows)


def _nothing(cell: str) -> str:
    """Return a mark for a cell that says 0 or nothing: a phone leaves it out."""
    return " data-nothing" if _EMPTY.match(cell) else ""


def _cells(row: str, names: list[Markup]) -> Iterator[tuple[str, str, Markup]]:
    """Yield the parts of a row, each from the start of a cell, with that start and the name of its column; first, what
    is before the first cell."""
    first, *cells = _CELL.split(row)
    yield first, "", Markup("")
    for cell, name in zip(cells, [*names, *([Markup("")] * len(cells))], strict=False):
        yield cell, cell[:3], name
