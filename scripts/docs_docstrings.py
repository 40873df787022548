"""A Griffe extension for the reference: what Markdown would misread in docstrings, and what stands beside fields.

Examples become blocks of code, as Markdown would take `>>>` for a quotation. The comment behind a field of a value,
such as `delay_ms: int = 0  # until it is due`, becomes its description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^.+\n?)*", re.MULTILINE)  # up to the next empty line
_COMMENT = re.compile(r"  # (?P<text>.+)$")


class Docstrings(griffe.Extension):
    """Fences around examples, and comments for descriptions."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.labels -= {"class-attribute", "instance-attribute"}  # of no use to readers
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class and attr.lineno is not None:
            found = _COMMENT.search(_line(attr.filepath, attr.lineno))
            if found:
                attr.docstring = griffe.Docstring(found["text"], parent=attr)


def _line(path: Path | list[Path], number: int) -> str:
    return path.read_text(encoding="utf-8").splitlines()[number - 1] if isinstance(path, Path) else ""


def fenced(docstring: str) -> str:
    """The docstring with a fence around each example."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", docstring).rstrip()
