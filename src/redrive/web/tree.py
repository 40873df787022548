"""Render JSON as a tree that folds without scripts, with every digit and repeated name as written."""

from __future__ import annotations

from typing import Any

import msgspec
from markupsafe import Markup

from ..redact import in_json, many_lines, one_line
from . import exact

DEPTH_MAX, PARTS_MAX = 20, 1000  # levels that are drawn as a tree, and parts of all levels that are shown
OPEN_PARTS = 50  # an object with at most so many parts is open at first
LEAF_MAX = 10_000  # the most characters of one value


def tree(value: object) -> Markup:
    """Return the tree of a value, or of undecoded JSON, as HTML."""
    raw = bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)
    try:
        return _Tree().of(exact.read(raw), DEPTH_MAX)
    except (ValueError, RecursionError):  # the value is too deep for a tree
        return Markup("<pre>{}</pre>").format(many_lines(raw.decode("utf-8", "replace")[:LEAF_MAX]))


class _Tree:
    def __init__(self) -> None:
        self._left = PARTS_MAX

    def of(self, value: Any, depth: int) -> Markup:
        """Return the tree of a decoded value, with at most `depth` levels."""
        if isinstance(value, exact.Pairs) and value and depth:
            return self._list(value, "field", depth)
        if isinstance(value, list) and value and depth:
            return self._list([(str(n), part) for n, part in enumerate(value)], "element", depth)
        text = in_json(exact.write(value))
        more = "" if len(text) <= LEAF_MAX else f"… {len(text) - LEAF_MAX:,} more characters"
        return Markup("<code>{}</code>{}").format(text[:LEAF_MAX], more)

    def _list(self, parts: list[tuple[str, Any]], what: str, depth: int) -> Markup:
        shown = parts[: max(0, self._left)]
        self._left -= len(shown)
        lines = Markup("").join(
            Markup('<li><span class="name">{}</span> {}</li>').format(one_line(name), self.of(part, depth - 1))
            for name, part in shown
        )
        if more := len(parts) - len(shown):
            lines += Markup('<li class="quiet">and {} more</li>').format(f"{more:,}")
        count = f"{len(parts):,} {what}{'' if len(parts) == 1 else 's'}"
        is_open = Markup(" open") if len(parts) <= OPEN_PARTS else Markup("")
        return Markup('<details class="tree"{}><summary>{}</summary><ul>{}</ul></details>').format(
            is_open, count, lines
        )
