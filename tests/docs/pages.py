"""Pages and their fenced blocks: what each is, and why one is not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RUN = ("python", "console", "output", "toml", "json", "ini", "yaml", "dockerfile")
PROSE = ("text",)  # drawings and formulas; they may hold no command and no code
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)$")
_MARKER = re.compile(r"<!-- not run: (?P<why>.+?) -->")
_TITLE = re.compile(r'title="(?P<name>[^"]+)"')
_COMMENT_TITLE = re.compile(r"^# (?P<name>[\w/.-]+\.(?:py|toml))$")


class Block(NamedTuple):
    """A fenced block. `file` is the name it is written under; `why_not` says why it is not run."""

    page: str
    line: int
    language: str
    text: str
    file: str | None = None
    why_not: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """README.md and every page of the site, as paths from the root; docs/history stays as it was written."""
    found = (path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *sorted(str(path) for path in found if path.parts[1] != "history")]


def blocks(page: str) -> list[Block]:
    return list(_blocks(page, (ROOT / page).read_text(encoding="utf-8").splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            at += 1
            continue
        start, indent = at, len(opened["indent"])
        at += 1
        while at < len(lines) and lines[at].strip() != opened["ticks"]:
            at += 1
        if at == len(lines):
            raise ValueError(f"{page}:{start + 1}: this block is never closed")
        inside = [line[indent:] for line in lines[start + 1 : at]]
        yield _block(page, start, opened["info"].strip(), inside, _marker(lines, start))
        at += 1


def _block(page: str, start: int, info: str, inside: list[str], why_not: str | None) -> Block:
    language = info.partition(" ")[0]
    titled = _TITLE.search(info) or (_COMMENT_TITLE.match(inside[0]) if inside else None)
    text = "\n".join(inside) + "\n"
    return Block(page, start + 1, language, text, titled["name"] if titled else None, why_not)


def _marker(lines: list[str], start: int) -> str | None:
    """The reason given in a comment on the line before the block, blank lines between them allowed."""
    above = next((line for line in reversed(lines[:start]) if line.strip()), "")
    found = _MARKER.fullmatch(above.strip())
    return found["why"] if found else None
