"""Read and write the flow state that all workers share.

A guard is this process's copy of the state of one dependency, or of one key of it; the fleet shares the state in a
cell. Tokens are taken by compare-and-set before messages run; counts are written a few times a second. While the cells
cannot be reached, each worker uses its copies alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ...decide import Refusal
from ...duration import show
from ...errors import StoreError, StoreUnavailable
from ...flow import calls
from ...flow import dependency as flow
from ...flow.dependency import DependencyState, PendingEvidence
from ...message import Swap, decoded, version_of
from .local_state import LimitState, LimitStates
from .transitions import Transition, note

if TYPE_CHECKING:
    from ...store import Store

FRESH_MS = 250  # age in ms from which a copy of a cell is read again; also the ms between two writes of counts
NAMES = "flow"  # the key of the cell that lists the dependencies' names
names_of: Callable[[bytes | str], list[str]] = msgspec.json.Decoder(list[str]).decode
LOCAL_MS = 1000  # ms for which a worker uses only its copies after the cells could not be reached
TRIES = 20  # tries of a swap that other workers win each time, after which the worker uses its copy
EXHAUSTED_EVERY_MS = 60_000  # ms between two notices of one worker that a dependency's budget is spent
_NOTICES = {
    "open": "breaker_opened",
    "forced_open": "breaker_opened",
    "half_open": "breaker_half_open",
    "closed": "breaker_closed",
    "forced_closed": "breaker_closed",
}


class SharedState:
    """Reads and writes the states of a worker's guards. `notice(name, text, about)` reports transitions."""

    flush_ms: float
    last_ms: int

    def __init__(self, guards: LimitStates, store: Store, worker: str, notice: Callable[[str, str, str], None]) -> None:
        self._guards, self._store, self._worker, self._notice = guards, store, worker, notice
        self.dirty: set[LimitState] = set()  # guards with unwritten evidence
        self.urgent: set[LimitState] = set()  # guards to write at the next tick
        self._turned: list[tuple[str, Transition]] = []  # transitions that are not in the breakers' logs yet
        self.flush_ms = 0.0  # the store's time of the next write of counts
        self.last_ms = 0  # the store's time when `now_ms` last read it
        self._local_until_ms = 0.0  # until then only the copies are used
        self._listed = False

    def now_ms(self) -> int:
        """Return the store's time. If the clock was set back, forget when each copy was read."""
        now_ms = self._store.now_ms()
        if now_ms < self.last_ms - FRESH_MS:
            self.flush_ms = 0.0
            self._local_until_ms = min(self._local_until_ms, now_ms)
            for guard in self._guards:
                guard.read_ms, guard.taken_ms, guard.exhausted_ms = -math.inf, 0.0, 0
        self.last_ms = now_ms
        return now_ms

    def with_seen(self, guard: LimitState, now_ms: int) -> DependencyState:
        """Return the guard's state with the local evidence applied, as `write` would write it."""
        return calls.apply(guard.state, guard.d, guard.seen, now_ms, self._worker) if guard.seen else guard.state

    def be_heard(self, guard: LimitState, now_ms: int) -> None:
        """Let the next write register this worker for its share of adaptive concurrency, if due, also in long calls."""
        if guard.d.concurrency is not None and flow.unheard(guard.state, self._worker, now_ms):
            guard.seen.here = True
            self.dirty.add(guard)

    def put_back(self, guard: LimitState) -> None:
        """Let the next write return the guard's unused tokens."""
        if guard.pool:
            if guard.d.rate is not None and guard.d.rate.cost is not None:
                guard.seen.spent -= guard.pool * guard.each
            else:
                guard.seen.unused += guard.pool
            guard.pool = 0
            self.dirty.add(guard)

    def flush(self, guards: Iterable[LimitState], now_ms: int) -> None:
        """Write the evidence of these guards, and try again for guards that other workers changed meanwhile."""
        for _ in range(TRIES):
            lost = [guard for guard in guards if guard.seen]
            self.dirty.difference_update(guard for guard in guards if not guard.seen)
            if not lost:
                return
            self._read([guard for guard in lost if guard.version is None], now_ms)
            if not self.write([(guard, self.with_seen(guard, now_ms)) for guard in lost], now_ms):
                return

    def write(self, changes: Sequence[tuple[LimitState, DependencyState]], now_ms: int) -> set[LimitState]:
        """Write these states, which include the evidence, in one swap. Returns the guards that other workers changed
        meanwhile, after reading them again."""
        swaps = [Swap(g.cell, g.version or 0, flow.encode(state), flow.ttl_ms(state)) for g, state in changes]
        try:
            if now_ms < self._local_until_ms:
                raise StoreUnavailable("not tried again yet")
            won = self._store.cells.swap(swaps, durable=False)
            lost = [guard for (guard, _), written in zip(changes, won, strict=True) if not written]
        except StoreError as error:
            self._alone(error, now_ms)
            for guard, state in changes:
                self._changed(guard, state)
                guard.state, guard.seen = state, PendingEvidence()
            return set()
        self._together()
        for (guard, state), written in zip(changes, won, strict=True):
            if written:
                self._changed(guard, state)
                guard.wrote(state, now_ms)
        self._read(lost, now_ms)
        return set(lost)

    def refresh(self, guards: Iterable[LimitState], now_ms: int) -> None:
        """Read those of the guards whose copies are old, or whose versions are unknown since this worker wrote them."""
        self._read([guard for guard in guards if guard.version is None or guard.read_ms <= now_ms - FRESH_MS], now_ms)

    def _read(self, guards: Sequence[LimitState], now_ms: int) -> None:
        if not guards or now_ms < self._local_until_ms:
            return
        try:
            cells = self._store.cells.read([guard.cell for guard in guards])
        except StoreError as error:
            self._alone(error, now_ms)
            return
        self._together()
        for guard, cell in zip(guards, cells, strict=True):
            guard.saw(cell, now_ms)

    def list_names(self, now_ms: int) -> None:
        """Add the app's dependencies to the cell that lists them, once, so that commands know them without the app."""
        if self._listed or now_ms < self._local_until_ms:
            return
        mine = self._guards.names()
        try:
            for _ in range(TRIES):
                (cell,) = self._store.cells.read([NAMES])
                known = {*decoded(cell, names_of, [])}
                if mine <= known:
                    break
                value = msgspec.json.encode(sorted(known | mine))
                if self._store.cells.swap([Swap(NAMES, version_of(cell), value)])[0]:
                    break
        except StoreError:
            return  # `list_names` is called again with the next flush
        self._listed = True

    def _changed(self, guard: LimitState, state: DependencyState) -> None:
        """Report a breaker's change of status, if writing `state` for this guard made one."""
        before, after = guard.state.breaker, state.breaker
        if guard.d.breaker is None or before.status == after.status:
            return
        about, now_ms = guard.about, self._store.now_ms()
        why = calls.why_turned(guard.state, guard.d, guard.seen, now_ms) if after.status == "open" else ""
        lasts = f", for {show(max(0, after.until_ms - now_ms) / 1000)}" if after.status == "open" else ""
        text = f"{before.status} to {after.status}{lasts}" + (f": {why}" if why else "")
        self._notice(_NOTICES[after.status], text.replace("_", "-"), about)
        if self._local_until_ms:
            return
        self._turned.append((about, Transition(now_ms, before.status, after.status, why)))

    def note_turns(self) -> None:
        """Add the latest transitions to the breakers' logs, in one batch: an outage of a provider may change the
        breakers of a thousand keys."""
        turned, self._turned = self._turned, []
        if turned and not self._local_until_ms:
            with contextlib.suppress(StoreError):  # a log is only for people, so an error is ignored
                note(self._store.cells, turned, durable=False)

    def exhausted(self, guard: LimitState, refusals: Sequence[Refusal | None], now_ms: int) -> None:
        """Report, at most once a minute, that retries wait or die because the guard's budget is spent."""
        denied = [r for r in refusals if r is not None and r.deferral.why == "budget"]
        if denied and now_ms >= guard.exhausted_ms:
            guard.exhausted_ms = now_ms + EXHAUSTED_EVERY_MS
            wait_s = (max(r.at_ms for r in denied) - now_ms) / 1000
            what = "are dead" if denied[0].dead else f"wait, the last for {show(wait_s)}"
            text = f"no token left for {len(denied)} retries at once: they {what}"
            self._notice("budget_exhausted", text, guard.about)

    def _alone(self, error: StoreError, now_ms: int) -> None:
        if now_ms < self._local_until_ms:
            return
        if not self._local_until_ms:
            self._notice("flow_local", f"breakers and limits go by this process's own copies: {error}", "")
        self._local_until_ms = now_ms + LOCAL_MS

    def _together(self) -> None:
        if self._local_until_ms:
            self._local_until_ms = 0.0
            self._notice("flow_shared", "breakers and limits are shared with the other workers again", "")
