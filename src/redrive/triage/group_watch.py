"""Watch the failure groups that a person resolved, or muted until they grow: write down what has become of them."""

from __future__ import annotations

import time

from ..events import Notify
from ..registry import Registry
from ..worker import Service
from .group_states import States, begin_release, changing, now_true, read_states, root

LOOK_S = 1.0  # seconds between two looks, while messages die
ALL_S = 300.0  # seconds between two looks at all groups: a worker may be killed right after a death
ALL_MAX = 100  # groups that are looked at then, the last that were resolved


class GroupWatch(Service):
    """Looks at the groups whose messages died in this worker, once a second, and at all groups when the worker starts.
    The first to see that a group has regressed writes it down, and reports the notice `regressed`."""

    def __init__(self, app: Registry, owner: str, notice: Notify) -> None:
        self._app, self._notice = app, notice
        self._next_s = self._all_s = 0.0
        self._begun = not app.release

    def look(self, *, now: bool = False) -> None:
        now_s, died = time.monotonic(), self._app.events.died
        if not (died and (now or now_s >= self._next_s)) and now_s < self._all_s:
            return
        store, every = self._app.store, now_s >= self._all_s
        self._next_s, self._all_s = now_s + LOOK_S, now_s + ALL_S if every else self._all_s
        if not self._begun:
            begin_release(store, self._app.release)
            self._begun = True
        states = read_states(store)
        newest = sorted(states, key=lambda each: -states[each].resolved_ms)[:ALL_MAX]
        for fingerprint in newest if every else {root(states, each) for each in died} & states.keys():
            if not states[fingerprint].into:
                self._look_at(fingerprint, states)
        died.clear()

    def finish(self) -> None:
        self.look(now=True)

    def _look_at(self, fingerprint: str, states: States) -> None:
        """Write what has become of a group, if no other worker was first."""
        before, after = states[fingerprint], now_true(self._app.store, states, fingerprint)
        if after == before:
            return
        fields = {"regressed_ms": after.regressed_ms, "grown_ms": after.grown_ms}
        swaps = changing(self._app.store, fingerprint, fields, before)
        if swaps and all(self._app.store.cells.swap(swaps)) and after.regressed_ms != before.regressed_ms:
            self._notice("regressed", f"failure group {fingerprint} {after.story}", fingerprint)
