"""Rules of waiting: until something may be due, a put, a nudge or the timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ...message import ClaimRequest
from ...store import Store
from ..clock import ManualClock
from .base import PATIENCE_S, Contract, OpenStore, another, ask, claim, claim_one, draft, in_threads, put, put_one
from .weaker import takes

FAR_MS = 3 * int(PATIENCE_S) * 1000
SHORT_MS = 40
EARLY_RETURNS_MAX = 5  # false alarms that a wait may have, so that a store that returns again and again fails


class WaitRules(Contract):
    def test_what_is_due_ends_a_wait_at_once(self, store: Store) -> None:
        put(store, draft(), draft(queue="q", delay_ms=9000))
        assert returns(lambda: store.wait([ask("q"), ask()], timeout_ms=FAR_MS))

    def test_a_lapsed_lease_ends_a_wait_at_once(self, store: Store, clock: ManualClock) -> None:
        put_one(store)
        claim_one(store, lease_ms=1000)
        clock.advance("1s")
        assert returns(lambda: store.wait([ask()], timeout_ms=FAR_MS))

    @pytest.mark.parametrize("parts", [{"delay_ms": 60_000}, {"delay_ms": 60_000, "priority": 3}])
    def test_a_wait_ends_when_something_comes_due(
        self, store: Store, clock: ManualClock, parts: dict[str, int]
    ) -> None:
        put_one(store, **parts)
        put_one(store, delay_ms=600_000, priority=0)

        def advance() -> None:
            clock.advance(60 + store.traits.tick_ms / 1000)

        assert ends_by(store, advance)
        assert len(claim(store)) == 1

    def test_a_put_in_another_thread_ends_a_wait(self, store: Store) -> None:
        put_one(store, delay_ms=600_000)
        assert ends_by(store, lambda: put_one(store))

    def test_a_put_through_another_handle_ends_a_wait(self, store: Store, open_store: OpenStore) -> None:
        other = another(store, open_store)
        if other is None:
            return
        if store.traits.shared:
            assert ends_by(store, lambda: put_one(other))
        else:
            put_one(other)
            assert waits_out(store, ask())

    @takes("cells")
    def test_resuming_a_queue_ends_a_wait(self, store: Store) -> None:
        store.configure("default", paused=True)
        put_one(store)
        assert ends_by(store, lambda: store.configure("default", paused=False))

    def test_a_nudge_ends_a_wait(self, store: Store) -> None:
        assert ends_by(store, store.nudge)

    def test_a_nudge_ends_every_wait(self, store: Store) -> None:
        ended: list[bool] = []
        waits = [lambda: ended.append(returns(lambda: store.wait([ask()], timeout_ms=FAR_MS)))] * 3
        nudging = threading.Timer(SHORT_MS / 1000, store.nudge)
        nudging.start()
        in_threads(*waits)
        nudging.join()
        assert ended == [True] * 3

    def test_a_nudge_with_nobody_waiting_ends_the_next_wait(self, store: Store) -> None:
        store.nudge()
        assert returns(lambda: store.wait([ask()], timeout_ms=FAR_MS))

    def test_a_wait_lasts_until_its_timeout(self, store: Store) -> None:
        assert waits_out(store, ask())
        store.wait([], timeout_ms=1)
        store.wait([ask()], timeout_ms=0)

    def test_a_wait_ignores_what_its_asks_cannot_get(self, store: Store) -> None:
        put(store, draft("a"), draft(queue="paused"), draft(queue="other"), draft(delay_ms=60_000))
        asks = [ask(limit=0), ask("none")]
        if store.traits.skips:
            asks.append(ask(skip=["a"]))
        if store.traits.cells:
            store.configure("paused", paused=True)
            asks.append(ask("paused"))
        for one in asks:
            assert waits_out(store, one), one

    @takes("skips")
    def test_a_skipped_task_does_not_hide_another(self, store: Store, clock: ManualClock) -> None:
        put(store, draft("a"), draft("b", due_ms=clock() + 1000, priority=3))
        assert waits_out(store, ask(skip=["a"]))
        clock.advance("1s")
        assert returns(lambda: store.wait([ask(skip=["a"])], timeout_ms=FAR_MS))


def waits_out(store: Store, one: ClaimRequest) -> bool:
    """Return True if waits on this request last until their timeouts, apart from a few false alarms."""
    end_s = time.monotonic() + SHORT_MS / 1000
    returned = 0
    while (left_s := end_s - time.monotonic()) > 0:
        store.wait([one], timeout_ms=int(left_s * 1000) + 1)
        returned += 1
    return returned <= EARLY_RETURNS_MAX


def returns(call: Callable[[], object]) -> bool:
    """Return True if the call returns long before its own timeout."""
    start_s = time.monotonic()
    call()
    return time.monotonic() - start_s < PATIENCE_S


def ends_by(store: Store, act: Callable[[], object]) -> bool:
    """Return True if a wait in another thread lasts until `act` is called, and then ends."""
    going, ended = threading.Event(), threading.Event()

    def wait() -> None:
        going.set()
        while not ended.is_set() and not acted.is_set():  # a false alarm before the act proves nothing
            store.wait([ask()], timeout_ms=FAR_MS)
        ended.set()

    acted = threading.Event()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert going.wait(PATIENCE_S)
    assert not ended.wait(SHORT_MS / 1000), "the wait ended with nothing to claim"
    acted.set()
    act()
    done = ended.wait(PATIENCE_S)
    if done:
        thread.join(PATIENCE_S)
    return done
