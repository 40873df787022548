"""What a selection must answer."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from tests.support.selecting import LANES, World, expected, selectors

from redrive.triage.selection import Selection


def check_selection(world: World, draw: st.DataObject) -> None:
    """A selection yields what brute force finds; its count, ids and groups say the same."""
    asked = draw.draw(selectors(world))
    ones = expected(world, asked)
    selection = Selection(world.store, asked.text, world.now_ms)
    found = list(selection)
    assert sorted(m.id for m in found) == sorted(o.message.id for o in ones), asked.text
    order = [(LANES.index(m.lane), m.rested_ms) for m in found]
    assert order == sorted(order)
    assert selection.count() == len(ones) and list(selection.ids()) == [m.id for m in found]
    assert all(selection.matches(o.message, o.fault) == (o in ones) for o in world.ones)
    groups = selection.groups()
    assert {(g.fingerprint, g.task): g.count for g in groups} == Counter(
        (o.fault.fingerprint if o.fault else "", o.message.task) for o in ones
    )
    again = Selection(world.store, str(selection), world.now_ms)
    assert again.node == selection.node and [m.id for m in again] == [m.id for m in found]
