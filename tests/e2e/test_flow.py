"""Flow control with real workers and a real dependency on loopback, counted where the calls arrive."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer
from tests.support.shop import DOWN, UP, Call, Reply, Scene, Shop, most_within, scene

pytestmark = pytest.mark.slow

ENGINES = ("memory", "sqlite", "postgres", "redis")
SOAK = pytest.mark.soak


def engines(gate: tuple[str, ...], soak: tuple[str, ...] = ENGINES) -> list[object]:
    rest = [name for name in soak if name not in gate]
    return [*gate, *(pytest.param(name, marks=SOAK) for name in rest)]


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    def make(engine: str) -> str:
        if engine == "memory":
            return "memory://"
        if engine == "sqlite":
            return f"sqlite:///{tmp_path}/work.db"
        server: PostgresServer | RedisServer = request.getfixturevalue(f"{engine}_server")
        own = "schema" if engine == "postgres" else "namespace"
        return f"{server.url}?{own}=flow_{os.urandom(4).hex()}"

    return make


Url = Callable[[str], str]


# (a) A dependency that is down while new messages keep coming


class Outage:
    """`per_s` new messages a second from `before_s` before an outage until `after_s` after; then all of it drains."""

    def __init__(self, it: Scene, *, before_s: float, down_s: float, after_s: float, per_s: int) -> None:
        it.start(2)
        it.until(lambda: len(it.notices("started")) == 2)  # processes take their time
        self.per_s, start_s = per_s, time.monotonic()
        self.from_s, self.to_s = start_s + before_s, start_s + before_s + down_s
        it.shop.answer = lambda shop: DOWN if self.from_s <= time.monotonic() < self.to_s else UP
        end_s, sent, began_s = self.to_s + after_s, 0, time.monotonic()
        while time.monotonic() < end_s:
            due = int((time.monotonic() - began_s) * per_s)
            it.put(due - sent)
            sent = due
            time.sleep(0.05)
        it.until(lambda: it.left() == 0, 900)
        self.done_s = time.monotonic()
        self.sent, self.calls = sent, it.shop.of("call")
        self.down = it.shop.between(self.from_s, self.to_s)
        self.counts = it.counts()

    @property
    def retries(self) -> list[Call]:
        return [call for call in self.down if call.attempt > 1]

    @property
    def firsts(self) -> int:
        """First calls while it was down."""
        return sum(call.attempt == 1 and self.from_s <= call.at_s < self.to_s for call in self.calls)


SMALL_BUDGET = {"ratio": 0.2, "life": "1s", "floor": 40}
SMALL_BREAKER = {"window": "1s", "open_for": "500ms", "max_open": "1s", "probes": 60, "min_calls": 20}
SMALL = {"before_s": 0.2, "down_s": 1.5, "after_s": 0.2, "per_s": 100}
FULL = {"before_s": 5.0, "down_s": 60.0, "after_s": 10.0, "per_s": 100}


def check_outage(it: Scene, o: Outage) -> None:
    budget, breaker = it.plan.budget, it.plan.breaker
    assert (o.counts.dead, o.counts.quarantine) == (0, 0)  # nothing died of it
    assert len(it.shop.served) == o.sent  # and everything succeeded
    assert set(it.shop.served.values()) == {1}
    if budget is not None:
        life_s = float(str(budget.get("life", "10s")).removesuffix("s"))
        floor = float(budget.get("floor", 10))
        bound = 0.2 * o.firsts + floor * (o.to_s - o.from_s) + floor * life_s
        assert len(o.retries) <= bound
        if breaker is None:
            if o.firsts >= 0.5 * o.per_s * (o.to_s - o.from_s):  # a busy machine makes fewer calls
                assert len(o.retries) >= 0.5 * bound  # what is allowed is used: the bound bounds something
            # A retry that was denied is claimed twice: when it was, and at its token's time.
            assert max(call.fence - 2 * call.attempt + 1 for call in o.calls) <= 0
    if breaker is not None:
        opened = len(it.notices("breaker_opened"))
        window_s = float(str(breaker.get("window", "10s")).removesuffix("s"))
        if most_within(o.down, window_s / 2) >= 2 * breaker.get("min_calls", 20):  # a busy machine makes fewer calls
            assert opened >= (2 if o.to_s - o.from_s > 30 else 1)  # a probe in a short outage may come too late to fail
        # Before it opened first: as many as succeeded in the window before, and what was under way or claimed by then.
        succeeded = len(it.shop.between(o.from_s - window_s, o.from_s))
        noticing = succeeded + breaker.get("min_calls", 20) + 4 * it.plan.concurrency + o.per_s
        assert len(o.down) <= noticing + (opened + 1) * breaker.get("probes", 3)


@pytest.mark.parametrize("controls", ["budget", "breaker", "both"])
@pytest.mark.parametrize("engine", engines(("memory",)))
def test_an_outage_gets_no_more_retries_than_its_controls_allow(
    engine: str, controls: str, url_of: Url, tmp_path: Path
) -> None:
    budget = None if controls == "breaker" else SMALL_BUDGET
    breaker = None if controls == "budget" else SMALL_BREAKER
    with scene(tmp_path, url_of(engine), budget=budget, breaker=breaker) as it:
        o = Outage(it, **SMALL)  # type: ignore[arg-type]
        check_outage(it, o)


@SOAK
@pytest.mark.timeout(900)
@pytest.mark.parametrize("controls", ["budget", "breaker", "both"])
@pytest.mark.parametrize("engine", ["sqlite"])
def test_an_outage_of_a_minute_with_the_defaults(engine: str, controls: str, url_of: Url, tmp_path: Path) -> None:
    budget: dict[str, object] | None = None if controls == "breaker" else {}
    breaker: dict[str, object] | None = None if controls == "budget" else {}
    with scene(tmp_path, url_of(engine), budget=budget, breaker=breaker, base=2, cap=60) as it:
        o = Outage(it, **FULL)  # type: ignore[arg-type]
        print(
            f"{controls}: {o.sent} sent, {len(o.down)} calls while down, {len(o.retries)} of them retries, "
            f"drained {o.done_s - o.to_s:.0f} s after"
        )
        check_outage(it, o)


# (b) The war story: webhooks that one customer's outage held do not knock its endpoint over when it returns


class Frail:
    """An endpoint that serves `capacity` calls a second. Above that it says 429; above 1.1 times that it falls over
    for five seconds."""

    def __init__(self, capacity: int, delay_s: float) -> None:
        self.capacity, self.delay_s = capacity, delay_s
        self.up_s = float("inf")
        self.fell: list[float] = []
        self._times: list[float] = []

    def __call__(self, shop: Shop) -> Reply:
        now = time.monotonic()
        if now < self.up_s:
            return DOWN
        self._times = [at_s for at_s in self._times if now - at_s < 1] + [now]
        if len(self._times) > 1.1 * self.capacity:
            self.fell.append(now)
            self.up_s, self._times = now + 5, []
            return DOWN
        return Reply(429 if len(self._times) > self.capacity else 204, delay_s=self.delay_s)


def war_story(it: Scene, frail: Frail, messages: int) -> None:
    it.start(2)
    it.put(messages, group="customer")
    it.until(lambda: it.notices("breaker_opened"))
    time.sleep(1)
    assert len(it.shop.calls) < messages / 2  # held back, most of them never tried
    frail.up_s = time.monotonic()
    it.until(lambda: it.left() == 0, 900)
    assert not frail.fell
    assert it.counts().dead == 0 and len(it.shop.served) == messages
    assert most_within(it.shop.between(frail.up_s), 1.0) <= 1.1 * frail.capacity


def test_what_an_outage_held_comes_back_without_knocking_the_endpoint_over(url_of: Url, tmp_path: Path) -> None:
    frail = Frail(capacity=60, delay_s=0.005)
    breaker = {"min_calls": 5, "open_for": "500ms", "max_open": "500ms", "window": "2s", "probes": 25}
    plan = {"budget": {"floor": 100, "life": "1s"}, "breaker": breaker, "aimd": {"start": 2}, "width": 5}
    with scene(tmp_path, url_of("memory"), frail, **plan) as it:
        war_story(it, frail, 180)


@SOAK
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_war_story_at_a_tenth_of_its_size(engine: str, url_of: Url, tmp_path: Path) -> None:
    frail = Frail(capacity=100, delay_s=0.02)  # five at a time come to 250 a second
    with scene(tmp_path, url_of(engine), frail, budget={}, breaker={}, aimd={}, width=5, base=2, cap=60) as it:
        war_story(it, frail, 4500)


@SOAK
def test_without_these_controls_the_war_story_knocks_it_over(url_of: Url, tmp_path: Path) -> None:
    frail = Frail(capacity=100, delay_s=0.02)
    with scene(tmp_path, url_of("sqlite"), frail, width=5) as it:
        it.start(2)
        it.put(1000, group="customer")
        it.until(lambda: len(it.shop.calls) > 20)
        frail.up_s = time.monotonic()
        it.until(lambda: frail.fell)


# (c) Transitions that many workers cause at once, and probes that are killed


@pytest.mark.parametrize("engine", engines(("sqlite",), ("sqlite", "postgres", "redis")))
def test_eight_processes_that_cross_the_threshold_at_once_make_one_transition(
    engine: str, url_of: Url, tmp_path: Path
) -> None:
    breaker = {"min_calls": 40, "open_for": "100s"}
    with scene(tmp_path, url_of(engine), lambda shop: DOWN, breaker=breaker, concurrency=10, cap=0.1) as it:
        it.app.store.configure("default", paused=True)
        it.put(200)
        it.start(8)
        it.until(lambda: len(it.notices("started")) == 8)
        it.app.store.configure("default", paused=False)
        it.until(lambda: it.notices("breaker_opened"))
        time.sleep(1)
        assert len(it.notices("breaker_opened")) == 1
        assert it.left() == 200
        before = len(it.shop.calls)
        time.sleep(0.5)
        assert len(it.shop.calls) == before  # and all of them know


@pytest.mark.parametrize("engine", engines(("sqlite",), ("sqlite", "postgres", "redis")))
def test_probes_that_are_killed_never_leave_the_breaker_stuck(engine: str, url_of: Url, tmp_path: Path) -> None:
    breaker = {"min_calls": 5, "open_for": "300ms", "max_open": "300ms", "probes": 4, "probe_lease": "1s"}
    with scene(tmp_path, url_of(engine), lambda shop: DOWN, breaker=breaker, lease=2.0) as it:
        it.put(12)
        it.start()
        it.until(lambda: it.notices("breaker_opened"))
        it.shop.answer = lambda shop: Reply(204, delay_s=60)
        it.start()  # not before: it could claim the retries in the quarter of a second until it knows of this
        it.until(lambda: it.shop.now == 4)
        it.kill()
        it.shop.answer = lambda shop: UP
        it.start(2)
        it.until(lambda: it.left() == 0)
        assert it.counts().dead == 0
        assert it.notices("breaker_closed")


# (d) Retry-After


@pytest.mark.parametrize("engine", engines(("memory",)))
def test_one_429_holds_the_others(engine: str, url_of: Url, tmp_path: Path) -> None:
    with scene(tmp_path, url_of(engine), concurrency=2) as it:

        def answer(shop: Shop) -> Reply:
            return Reply(429, "2") if len(shop.calls) == 10 else UP

        it.shop.answer = answer
        it.put(10)
        it.start(2)
        it.until(lambda: len(it.shop.calls) == 10)
        it.put(1)
        it.until(lambda: len(it.shop.calls) == 11)
        told_s = it.shop.calls[-1].at_s
        time.sleep(0.5)  # until every worker's copy is fresh
        it.put(20)
        it.until(lambda: it.left() == 0)
        later = it.shop.calls[11:]
        assert min(call.at_s for call in later) - told_s >= 2.0
        assert Counter(call.status for call in it.shop.calls) == {204: 31, 429: 1}


# (e) A rate


@pytest.mark.parametrize("engine", engines(("sqlite",)))
def test_a_rate_is_kept_by_two_processes_on_one_store(engine: str, url_of: Url, tmp_path: Path) -> None:
    with scene(tmp_path, url_of(engine), rate="50/s") as it:
        it.app.store.configure("default", paused=True)
        it.put(150)
        it.start(2)
        it.until(lambda: len(it.notices("started")) == 2)
        it.app.store.configure("default", paused=False)
        it.until(lambda: it.left() == 0)
        calls = it.shop.calls
        assert calls[-1].at_s - calls[0].at_s >= (150 - 5) / 50 - 0.5
        # A call may come late, and so nearer to the next one, by as much as the machine holds it up.
        assert most_within(calls, 1.0) <= 50 + 5 + 10
        assert len(calls) == 150


# (f) Others on the queue


@pytest.mark.parametrize("engine", engines(("memory", "sqlite")))
def test_other_tasks_of_the_queue_go_on_behind_thousands_that_wait_for_an_open_breaker(
    engine: str, url_of: Url, tmp_path: Path
) -> None:
    breaker = {"min_calls": 5, "open_for": "100s", "max_open": "100s"}
    with scene(tmp_path, url_of(engine), lambda shop: DOWN, breaker=breaker) as it:
        it.put(40)
        it.start(1)
        it.until(lambda: it.notices("breaker_opened"))
        time.sleep(0.3)  # what was let in before that still runs
        it.shop.answer = lambda shop: UP
        it.put(5000)
        calls = len(it.shop.of("call"))
        it.put(100, "other")
        it.until(lambda: len(it.shop.of("other")) == 100, 30)
        assert len(it.shop.of("call")) == calls
        it.until(lambda: it.left() == 5040)


# (g) The store is down


@SOAK
def test_while_the_store_is_down_what_is_claimed_runs_and_afterwards_all_is_shared_again(tmp_path: Path) -> None:
    with RedisServer(appendonly=True) as server:
        plan = {"budget": {}, "breaker": {"open_for": "500ms", "max_open": "1s", "probes": 20}, "rate": "200/s"}
        slow = lambda shop: Reply(204, delay_s=0.3)  # noqa: E731
        with scene(tmp_path, server.url, slow, concurrency=5, **plan) as it:
            it.put(100)
            it.start(2)
            it.until(lambda: len(it.shop.calls) >= 20)
            time.sleep(0.1)  # until the next ones are claimed
            server.kill()
            before = len(it.shop.calls)
            time.sleep(1)
            assert len(it.shop.calls) >= before + 5  # what was claimed runs
            server.restart()
            it.until(lambda: it.left() == 0)
            assert len(it.shop.served) == 100 and it.counts().dead == 0
            it.shop.answer = lambda shop: DOWN
            it.put(100)
            it.until(lambda: it.notices("breaker_opened"))  # it is shared again, and still works
            it.shop.answer = lambda shop: UP
            it.until(lambda: it.left() == 0)
            assert len(it.shop.served) == 200 and it.counts().dead == 0
