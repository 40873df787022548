"""How an idle worker waits on Redis: woken by every put, by nothing else, and whatever happens to its connection."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

from redrive.errors import StoreUnavailable
from redrive.message import Ack, ClaimRequest, Draft, RetryAt, Settlement
from redrive.stores.redis.store import RedisStore
from redrive.stores.redis.wake import RedisWaiter

Open = Callable[..., RedisStore]
LONG_MS = 60_000


@pytest.fixture(scope="module")
def fragile() -> Iterator[RedisServer]:
    """A server that tests of this module break; each leaves it running."""
    with RedisServer(appendonly=True) as server:
        yield server


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    stores: list[RedisStore] = []

    def open_store(server: RedisServer | FaultProxy, options: str = "") -> RedisStore:
        stores.append(RedisStore(f"{server.url}?namespace={tmp_path.name}&{options}"))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def store(redis_server: RedisServer, open_store: Open) -> RedisStore:
    return open_store(redis_server)


def ask(queue: str = "default") -> ClaimRequest:
    return ClaimRequest(queue, 1, LONG_MS)


def listening(store: RedisStore) -> int:
    """How many threads of the store are subscribed: what is put before that is not announced to them."""
    with store._wake._lock:
        return sum(bool(waiter._channels) for waiter in store._wake._waiters)


class Waiting:
    """A thread that waits again and again; `woken` counts its returns."""

    def __init__(self, store: RedisStore, *queues: str) -> None:
        self.woken = 0
        self._store, self._asks = store, [ask(queue) for queue in queues or ("default",)]
        self._stop = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop:
            try:
                self._store.wait(self._asks, timeout_ms=LONG_MS)
            except StoreUnavailable:
                time.sleep(0.05)
            self.woken += 1

    def until(self, true: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 20
        while not true():
            assert time.monotonic() < end_s
            time.sleep(0.002)

    def __enter__(self) -> Waiting:
        others = listening(self._store)
        self._thread.start()
        self.until(lambda: listening(self._store) > others)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._store.nudge()
        self._thread.join(20)
        assert not self._thread.is_alive()


def later() -> Draft:
    """What changes nothing about what is due: so only the word of it can end a wait."""
    return Draft(task="t", delay_ms=3_600_000)


def test_every_put_of_another_process_is_heard(store: RedisStore, redis_server: RedisServer, open_store: Open) -> None:
    other, claimed = open_store(redis_server), threading.Semaphore(0)

    def work() -> None:
        for _ in range(200):
            while not (deliveries := store.exchange([], [ask()]).deliveries):
                store.wait([ask()], timeout_ms=LONG_MS)
            claimed.release()
            store.exchange([Settlement(deliveries[0].receipt, Ack())], [])

    working = threading.Thread(target=work, daemon=True)
    working.start()
    for n in range(200):
        other.put([Draft(task="t")])
        assert claimed.acquire(timeout=20), f"put {n} was not heard"
        time.sleep(n % 5 / 1000)  # so that a put meets it at another step each time
    working.join(20)


def test_a_put_between_the_look_and_the_sleep_is_heard(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    hears = RedisWaiter.hears

    def late(self: RedisWaiter, channels: set[bytes], timeout_s: float) -> bool:
        store.put([later()])
        return hears(self, channels, timeout_s)

    monkeypatch.setattr(RedisWaiter, "hears", late)
    start_s = time.monotonic()
    store.wait([ask()], timeout_ms=20_000)
    assert time.monotonic() - start_s < 15


def test_other_queues_do_not_end_a_wait(store: RedisStore, redis_server: RedisServer, open_store: Open) -> None:
    other = open_store(redis_server)
    store.wait([ask("loud")], timeout_ms=0)  # so that this store has heard of it
    with Waiting(store, "quiet") as waiting:
        for _ in range(20):
            other.put([Draft(task="t", queue="loud")])
        time.sleep(0.2)
        assert waiting.woken <= 1


def test_a_busy_worker_is_not_told_of_puts(redis_server: RedisServer, open_store: Open) -> None:
    with FaultProxy(redis_server) as proxy:
        busy, other = open_store(proxy), open_store(redis_server)
        busy.wait([ask()], timeout_ms=1)
        busy.put([Draft(task="t")])
        assert busy.exchange([], [ask()]).deliveries
        busy.find([])  # its answer came after that of whatever was sent before
        before = proxy.response_bytes
        for _ in range(20):
            other.put([later()])
        time.sleep(0.1)
        assert proxy.response_bytes - before < 200  # what was on its way


def test_a_retry_that_another_could_take_sooner_is_heard(store: RedisStore) -> None:
    store.put([Draft(task="t")])
    (delivery,) = store.exchange([], [ask()]).deliveries
    with Waiting(store) as waiting:
        before = waiting.woken
        store.exchange([Settlement(delivery.receipt, RetryAt(store.now_ms() + 3_600_000))], [])
        waiting.until(lambda: waiting.woken > before)


def test_a_message_that_comes_due_ends_a_wait_in_time_and_never_early(store: RedisStore) -> None:
    for _ in range(20):
        due_ms = store.now_ms() + 30
        store.put([Draft(task="t", due_ms=due_ms)])
        while not (deliveries := store.exchange([], [ask()]).deliveries):
            store.wait([ask()], timeout_ms=LONG_MS)
        assert store.now_ms() >= due_ms - 1
        store.exchange([Settlement(deliveries[0].receipt, Ack())], [])


def test_several_threads_of_a_store_are_all_woken(store: RedisStore) -> None:
    with Waiting(store) as one, Waiting(store) as two, Waiting(store) as three:
        before = [waiting.woken for waiting in (one, two, three)]
        store.put([later()])
        for n, waiting in enumerate((one, two, three)):
            waiting.until(lambda n=n, waiting=waiting: waiting.woken > before[n])  # type: ignore[misc]


def test_a_waiter_ends_with_its_thread(store: RedisStore, redis_server: RedisServer) -> None:
    def connections() -> int:
        return len(redis_server.command("CLIENT", "LIST", "TYPE", "pubsub").splitlines())

    before = connections()
    with Waiting(store), Waiting(store):
        assert connections() == before + 2
    end_s = time.monotonic() + 20
    while connections() > before:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_no_nudge_is_lost_wherever_it_meets_a_wait(store: RedisStore) -> None:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Waiting(store) as waiting:
            for _ in range(500):
                before = waiting.woken
                store.nudge()
                waiting.until(lambda before=before: waiting.woken > before)  # type: ignore[misc]
    finally:
        sys.setswitchinterval(before_s)


def test_a_nudge_speaks_to_nobody_and_does_not_wait(fragile: RedisServer, open_store: Open) -> None:
    store = open_store(fragile)
    with Waiting(store) as waiting:
        time.sleep(0.1)  # it has looked by now what is due; if not, it has no answer before its timeout of 10 s
        before = waiting.woken
        fragile.pause()
        start_s = time.monotonic()
        store.nudge()
        nudged_s = time.monotonic()
        waiting.until(lambda: waiting.woken > before)
        fragile.resume()
        assert nudged_s - start_s < 1


def test_a_wait_goes_on_listening_when_its_connection_is_killed(
    store: RedisStore, redis_server: RedisServer, open_store: Open
) -> None:
    other = open_store(redis_server)
    with Waiting(store) as waiting:
        for _ in range(5):
            waiting.until(lambda: listening(store) > 0)
            before = waiting.woken
            redis_server.command("CLIENT", "KILL", "TYPE", "pubsub")
            waiting.until(lambda before=before: waiting.woken > before)  # type: ignore[misc]
            waiting.until(lambda: listening(store) > 0)
            before = waiting.woken
            other.put([later()])
            waiting.until(lambda before=before: waiting.woken > before)  # type: ignore[misc]


def test_a_wait_goes_on_listening_when_the_server_comes_back(fragile: RedisServer, open_store: Open) -> None:
    store, other = open_store(fragile), open_store(fragile)
    with Waiting(store) as waiting:
        before = waiting.woken
        fragile.kill()
        waiting.until(lambda: waiting.woken > before)
        fragile.start()
        other.put([Draft(task="t", queue="any")])
        waiting.until(lambda: listening(store) > 0)
        before = waiting.woken
        other.put([later()])
        waiting.until(lambda: waiting.woken > before)


def test_a_wait_on_a_silent_server_says_so_in_time(fragile: RedisServer, open_store: Open) -> None:
    store = open_store(fragile, "timeout=300ms")
    store.wait([ask()], timeout_ms=0)
    fragile.pause()
    try:
        start_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match="no answer"):
            store.wait([ask()], timeout_ms=LONG_MS)
        assert time.monotonic() - start_s < 5
    finally:
        fragile.resume()


def test_a_wait_for_nothing_speaks_to_nobody(fragile: RedisServer, open_store: Open) -> None:
    store = open_store(fragile)
    fragile.pause()
    try:
        store.wait([], timeout_ms=20)
    finally:
        fragile.resume()


def test_a_forked_child_waits_on_a_connection_of_its_own(store: RedisStore) -> None:
    store.wait([ask()], timeout_ms=1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.wait([ask()], timeout_ms=LONG_MS)
            code = 0
        finally:
            os._exit(code)
    time.sleep(0.3)
    with Waiting(store) as waiting:
        store.put([later()])
        waiting.until(lambda: waiting.woken > 0)
    end_s = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end_s:
        store.put([later()])  # it may have been slow to begin
        time.sleep(0.05)
    assert ended[0] == pid and os.waitstatus_to_exitcode(ended[1]) == 0


def test_an_idle_wait_takes_next_to_no_time(store: RedisStore) -> None:
    store.wait([ask()], timeout_ms=10)
    before_s = time.thread_time()
    store.wait([ask()], timeout_ms=300)
    assert time.thread_time() - before_s < 0.1
