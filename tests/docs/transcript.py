"""Console blocks: the commands in one, and whether what they print is what the page shows.

`…` stands for anything in its line, a line of `…` for any lines. Message ids and fingerprints are samples: each stands
for the real one that is printed in its place, in later commands too. Points in time match any other; white space
matches white space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_SAMPLE = r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{16}\b"
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?|\b\d\d:\d\d:\d\d(?:\.\d+)?\b"
_PIECE = re.compile(rf"(?P<sample>{_SAMPLE})|(?P<time>{_TIME})|(?P<any>…)|(?P<space>\s+)")


class Command(NamedTuple):
    """One command of a block and the lines shown below it; `stop_after` that many of them, a line `^C` ends it."""

    text: str
    shown: tuple[str, ...]
    stop_after: int | None = None


def commands(text: str) -> list[Command]:
    """The commands of a block. Raises ValueError for one that starts with output."""
    return list(_commands(text.splitlines()))


def _commands(lines: list[str]) -> Iterator[Command]:
    if not lines or not lines[0].startswith("$ "):
        raise ValueError("a console block starts with a command: `$ …`")
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\") or (last + 1 < end and lines[last + 1].startswith("> ")):
            last += 1
        typed = [lines[start][2:], *(line.removeprefix("> ") for line in lines[start + 1 : last + 1])]
        below = lines[last + 1 : end]
        stop_after = below.index("^C") if "^C" in below else None
        yield Command("\n".join(typed), tuple(line for line in below if line != "^C"), stop_after)


def substituted(text: str, known: Mapping[str, str]) -> str:
    """The text with the real ids in place of the samples."""
    return re.sub(_SAMPLE, lambda found: known.get(found[0], found[0]), text)


def matched(shown: tuple[str, ...], printed: str, known: Mapping[str, str]) -> dict[str, str] | None:
    """What each sample stands for, if the page shows what was printed; None if it does not."""
    samples: list[str] = []
    pattern = "".join(_line(line, samples) for line in _trimmed(list(shown)))
    found = re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in _trimmed(printed.splitlines())))
    if found is None:
        return None
    bound = dict(known)
    for sample, real in zip(samples, found.groups(), strict=True):
        if bound.setdefault(sample, real) != real:
            return None
    return bound


def _trimmed(lines: list[str]) -> list[str]:
    """Without blank lines at the end."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def _line(line: str, samples: list[str]) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    pattern, at = "", 0
    for piece in _PIECE.finditer(line.rstrip()):
        pattern += re.escape(line[at : piece.start()]) + _pattern(piece, samples)
        at = piece.end()
    return pattern + re.escape(line.rstrip()[at:]) + r"\n"


def _pattern(piece: re.Match[str], samples: list[str]) -> str:
    match piece.lastgroup:
        case "sample":
            samples.append(piece[0])
            return f"({_SAMPLE})"
        case "time":
            return f"(?:{_TIME})"
        case "any":
            return r".*?"
        case _:
            return r"[^\S\n]+"
