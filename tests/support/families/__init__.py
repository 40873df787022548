"""Families of failures: one line of code each, raised with many values. Their names are their true groups.

They were written before the rules for templates were; a third, by a hash of the names, is for the score alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FAMILIES: dict[str, Callable[[Any], Any]] = {}

WORDS = (
    "acme", "globex", "Initech", "umbrella", "hooli", "Stark Industries", "wayne", "o'neil & sons", "soylent", "Zoë",
    "x", "delta-9", "K-17", "north_west", "Li Wei", "beta", "42", "vandelay", "9f8e7d", "piedPiper", "is", "not",
    "locked",
)  # fmt: skip


def family(name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register what raises the family's failure, given a value."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        assert name not in FAMILIES
        FAMILIES[name] = function
        return function

    return register
