"""One call after another, and a look at everything after each."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from tests.support.store_model import draws
from tests.support.store_model.calls import Calls
from tests.support.store_model.draws import Pool
from tests.support.store_model.looks import Looks
from tests.support.store_model.world import Draw, OpenStore

from redrive.message import Lane

ROOMS = Pool((5, 12, 3))  # how many messages a world holds before no call puts: in a small one the calls meet sooner
WEIGHTS = {
    "put": 4,
    "claim": 3,
    "settle": 3,
    "settle_and_claim": 7,
    "advance": 4,
    "extend": 2,
    "checkpoint": 2,
    "crash": 2,
    "cancel": 1,
    "triage": 8,
    "replace": 1,
    "carry": 2,
    "configure": 2,
    "configure_group": 2,
    "retain": 1,
    "swap_cells": 1,
    "mark": 1,
    "peek": 3,
    "wait": 1,
    "next_day": 1,
    "reopen": 1,
    "use_another_handle": 1,
}


class Walk(Calls, Looks):
    """A world in which a next call can be made."""

    room: int | None = None

    def call(self, draw: Draw) -> None:
        if self.room is None:
            self.room, start = draw(ROOMS), draw(draws.starts)
            self.set_rules("q", start)
        can = tuple(kind for kind in WEIGHTS if self._can(kind))
        getattr(self, draw(_kinds(can)))(draw)

    def _can(self, kind: str) -> bool:
        match kind:
            case "put":
                return len(self.plain.kept) < (self.room or 0)
            case "claim" | "cancel":
                return bool(self.plain.kept)
            case "crash":
                return any(k.lane is Lane.LEASED for k in self.plain.kept.values())
            case "settle" | "settle_and_claim" | "extend" | "checkpoint":
                return any(self.plain.held(given) for given in self.given)
            case "triage":
                return any(k.rested_ms is not None or k.run is not None for k in self.plain.kept.values())
            case "replace":
                return bool(self._resting())
            case "carry":
                return any(m.id not in self.plain.kept for m in self.carried) or bool(self._resting())
            case "mark":
                return bool(self.plain.batches.looked)
            case "reopen":
                return self.traits.durable
            case "use_another_handle":
                return self.traits.shared
            case _:
                return True


@cache
def _kinds(kinds: tuple[str, ...]) -> Pool[str]:
    return Pool([kind for kind in kinds for _ in range(WEIGHTS[kind])])


def take_walk(open_store: OpenStore, seed: str, steps: int) -> None:
    """A walk of this seed. What goes wrong is raised with the calls that led to it."""
    rng, said = random.Random(seed), list[Callable[[], str]]()
    walk = Walk(open_store, said.append)
    try:
        for _ in range(steps):
            walk.call(lambda pool: rng.choice(pool.items))
            walk.agrees_with_the_model()
            walk.nothing_is_lost_and_nothing_is_in_two_places()
    except Exception as error:
        error.add_note("\n".join([f"in the walk of seed {seed!r}, after these calls:", *[words() for words in said]]))
        raise
    finally:
        walk.close()
