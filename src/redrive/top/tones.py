"""Tones: the colours of words that say a state. Each word is readable without its colour."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class Tone(StrEnum):
    """ACT: red, a person must act; WAIT: amber, it waits for a person; QUIET: grey, it is in order or of less use;
    KEY: underlined, the letter is a key."""

    ACT = "act"
    WAIT = "wait"
    QUIET = "quiet"
    KEY = "key"


class TonedSpan(NamedTuple):
    """Some characters of a line, from `start` up to `end`, and their tone."""

    start: int
    end: int
    tone: Tone


_ACT = ("hung", "gone", "silent", "stopped", "failed", "open")
_WAIT = ("paused", "half open", "forced open", "forced closed", "waiting", "rising", "new")
_QUIET = ("done", "closed", "falling", "cancelled", "undone")
_WORDS: Mapping[str, Tone] = {
    **dict.fromkeys(_ACT, Tone.ACT),
    **dict.fromkeys(_WAIT, Tone.WAIT),
    **dict.fromkeys(_QUIET, Tone.QUIET),
}


def tone_of(word: object) -> Tone | None:
    """Return the tone of a state, by its part before a colon; None if it has none.

    >>> tone_of("HUNG"), tone_of("running: canary")
    (<Tone.ACT: 'act'>, None)
    """
    return _WORDS.get(str(word).partition(":")[0].strip().lower().replace("_", " "))
