"""Standing rules for the messages of failure groups, by fingerprint. A rule applies until a person removes it.

All rules are in the cell `rules`, so one read returns all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ...flow.auto_redrive import AutoRedrive
from ...message import decoded, required, version_of
from ...store import Store
from ..group_states import family, read_states, root

RULES = "rules"
RuleKind = Literal["hold", "auto", "discard"]


class Rule(Struct, frozen=True, omit_defaults=True):
    """A standing rule. `hold` leaves the messages out of plans and bulk retries; `auto` redrives them automatically,
    with the settings in `auto`; `discard` removes them as they die."""

    kind: RuleKind
    by: str
    at_ms: int
    reason: str
    auto: AutoRedrive | None = None


Versioned = tuple[int, dict[str, Rule]]
_decode = msgspec.json.Decoder(dict[str, Rule]).decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def rules(store: Store) -> dict[str, Rule]:
    """Read all standing rules by fingerprint, in one read. Raises StoreError."""
    return read_rules(store)[1]


def read_rules(store: Store, known: Versioned | None = None) -> Versioned:
    """Read all standing rules and their version, 0 without rules. Returns the same object `known` if its version is
    still the stored one. Raises StoreError, Unreadable."""
    (cell,) = store.cells.read([RULES])
    if known is not None and version_of(cell) == known[0]:
        return known
    return version_of(cell), required(RULES, cell, _decode, {})


def readable_rules(store: Store) -> dict[str, Rule]:
    """Read all standing rules for a display: none if the cell is unreadable. Raises StoreError."""
    return decoded(store.cells.read([RULES])[0], _decode, {})


def held_fingerprints(store: Store) -> set[str]:
    """Read the fingerprints with the rule `hold`: no bulk action moves their messages. Raises StoreError."""
    held = families(store, {name: rule for name, rule in rules(store).items() if rule.kind == "hold"})
    return {fingerprint for names in held.values() for fingerprint in names}


def families(store: Store, standing: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return for each group with a rule the fingerprints under it: its own, and those merged into it. A group that is
    itself merged into another is left out, as its rule holds again once it is unmerged. Raises StoreError."""
    names = [*standing]
    states = read_states(store) if names else {}
    return {name: family(states, name) for name in names if root(states, name) == name}
