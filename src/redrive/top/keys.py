"""The keys, and the lines that list them. Lower case is safe; upper case changes something, and asks first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..present.table import cells
from .tones import Tone, TonedSpan

if TYPE_CHECKING:
    from .screen import Screen

# How far a key moves the cursor: in lines, or in pages for a key in PAGES.
MOVES: Mapping[str, int] = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "pageup": -1,
    "pagedown": 1,
    "home": -(10**9),
    "end": 10**9,
}
PAGES = ("pageup", "pagedown")
LETTERS = "ougrmwf"  # keys of the screens: overview, queUes, groups, runs, messages, workers, flow
SCREENS: Mapping[str, int] = {
    **{str(n + 1): n for n in range(7)},
    **{letter: n for n, letter in enumerate(LETTERS)},
}
NAMES: Mapping[str, str] = {
    "tab": "next",
    "shift+tab": "before",
    "enter": "look",
    "escape": "back",
    "backspace": "back",
    "p": "plan",
    "?": "help",
    " ": "pause",
    "ctrl+l": "again",
    "/": "filter",
    "s": "sort",
    "i": "invert",
    "right": "right",
    "left": "left",
    "q": "quit",
}


def tabs(names: Sequence[str], chosen: str, trail: Sequence[str] = ()) -> str:
    """Return a line with the names of the screens, the chosen one in brackets; with a `trail`, the chosen one and the
    titles of the screens opened from it."""
    words = [f"[{n} {name}]" if name == chosen else f" {n} {name} " for n, name in enumerate(names, 1)]
    return " > ".join([words[names.index(chosen)], *trail]) if trail else "".join(words)


def letters(line: str) -> Sequence[TonedSpan]:
    """Return the spans of the letters that are keys of screens, in a line that `tabs` returned."""
    found = (re.search(rf"(?:^|[\[ ]){n} \S*?({letter})", line) for n, letter in enumerate(LETTERS, 1))
    return [TonedSpan(*each.span(1), Tone.KEY) for each in found if each is not None]


def hints(screen: Screen, wide: int, *, deep: bool) -> str:
    """Return a line of the screen's keys, as many as fit; help lists all. `deep`: Esc leads back to another screen."""
    words = ["?:help", "q:quit", *(f"{act.key}:{act.word}" for act in screen.acts)]
    words += [f"{key}:{word}" for key, word in screen.shifts.items()]
    words += ["p:plan"] if screen.plans else []
    words += ["esc:back"] if deep else []
    words += ["enter:look"] if screen.leads else []
    words += ["/:filter", *(["s:sort"] if screen.columns else []), "space:pause"]
    line = ""
    for each in words:
        if len(line) + len(each) + 2 > wide:
            break
        line += f" {each} "
    return line


def ends(left: str, right: str, wide: int) -> str:
    """Join two texts at the two ends of a line of `wide` cells; the left one is cut to fit."""
    room = max(0, wide - cells(right))
    return left[:room].ljust(room) + right
