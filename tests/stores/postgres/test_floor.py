"""PostgreSQL with a floor always kept: the contract holds there as well, and what lies below the floor is found."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
from tests.support.floors import always  # noqa: F401
from tests.support.schemas import (
    schema,  # noqa: F401
)
from tests.support.servers import PostgresServer
from tests.support.turns import in_turn

from redrive.errors import StoreUnavailable
from redrive.message import Ack, ClaimRequest, DeadLetter, Draft, Handle, Lane, Redrive, RetryAt, Settlement
from redrive.store import Store
from redrive.stores.postgres import floor
from redrive.stores.postgres.floors import Floors, SentLook
from redrive.stores.postgres.notifications import DueSpan, payload, read
from redrive.stores.postgres.store import PostgresStore
from redrive.testing import ManualClock, StoreContract


@in_turn(0, of=2)  # the other is Redis Cluster: an engine that differs from a whole one in a single trait
@pytest.mark.usefixtures("always")
class TestPostgresWithFloors(StoreContract):
    """Nothing is looked for behind the floor: all that comes there is told."""

    @pytest.fixture(autouse=True)
    def _schema(self, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self.stores = schema, list[PostgresStore]()
        monkeypatch.setattr(floor, "SHARE", 0.0)
        monkeypatch.setattr(floor, "SAVED_MS", 0.0)

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        store = PostgresStore(self.url, clock_ms=clock)
        self.stores.append(store)

        def tell_all(queue: str, spots: object) -> None:  # as notifications do, after a while
            for one in self.stores:
                one._floors.expect(queue, spots)  # type: ignore[arg-type]

        store._link.on_late = tell_all
        return store


# -- what lies below the floor

ASK = ClaimRequest("default", 10, 600_000, worker="w")
MINUTE_S = 60


class Fleet:
    """Stores on one schema that stand for processes: each has a floor of its own, and hears of others by notifications.
    All go by one clock."""

    def __init__(self, url: str) -> None:
        self.clock, self._url, self._stores = ManualClock(), url, list[PostgresStore]()

    def store(self, **options: str) -> PostgresStore:
        url = "".join([self._url, *(f"&{name}={value}" for name, value in options.items())])
        self._stores.append(PostgresStore(url, clock_ms=self.clock))
        return self._stores[-1]

    def worker(self, **options: str) -> PostgresStore:
        """One that listens, and whose floor lies half a second ago from now on."""
        store = self.store(**options)
        store._listener._listen(inf)
        self.pass_by(store)
        return store

    def pass_by(self, *stores: PostgresStore, s: float = MINUTE_S) -> None:
        """That much time goes by, and floors rise to its end."""
        self.clock.advance(s)
        for store in stores:
            assert store.exchange([], [ASK]).deliveries == []
            assert store.exchange([], [ASK]).deliveries == []
            low_ms = place_of(store)[0]
            assert low_ms == self.clock() - floor.LATE_MS, (low_ms, self.clock())

    def close(self) -> None:
        for store in self._stores:
            store.close()


def place_of(store: PostgresStore, priority: int = 2) -> floor.IndexPlace:
    return store._floors._queues["default"][priority].place


def woken(store: PostgresStore, ask: ClaimRequest = ASK) -> list[str]:
    """What it claims once it was told that there is something."""
    while not (deliveries := store.exchange([], [ask]).deliveries):
        store.wait([ask], timeout_ms=30_000)
    return [delivery.message.id for delivery in deliveries]


def looking(store: PostgresStore, ask: ClaimRequest = ASK) -> list[str]:
    """What it claims by looking alone."""
    while not (deliveries := store.exchange([], [ask]).deliveries):
        pass
    return [delivery.message.id for delivery in deliveries]


@pytest.fixture
def fleet(schema: str, always: None) -> Iterator[Fleet]:
    """Of processes that keep floors always."""
    fleet = Fleet(schema)
    yield fleet
    fleet.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks behind: what is found was told."""
    monkeypatch.setattr(floor, "SHARE", 0.0)
    monkeypatch.setattr(floor, "SAVED_MS", 0.0)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told anything: what is found was looked for."""
    monkeypatch.setattr(Floors, "expect", lambda *_: None)
    monkeypatch.setattr(floor, "BEHIND_EVERY_S", 0.0)


class Way(Protocol):
    def __call__(self, store: PostgresStore, ask: ClaimRequest = ASK) -> list[str]: ...


@pytest.fixture(params=["told", "looked for"])
def way(request: pytest.FixtureRequest) -> Way:
    """Both ways by which a process comes to what lies below its floor, each without the other."""
    request.getfixturevalue("told" if request.param == "told" else "silent")
    return woken if request.param == "told" else looking


def test_what_a_transaction_commits_long_after_it_began_is_claimed(
    fleet: Fleet, postgres_server: PostgresServer, way: Way
) -> None:
    """It is due since then, and every floor has passed it."""
    worker, producer = fleet.worker(), fleet.store()
    with psycopg.connect(postgres_server.url) as c:
        late = [Draft(task="t"), Draft(task="t", delay_ms=5000), Draft(task="t", due_ms=fleet.clock() - 100_000)]
        first, second, third = [put.id for put in producer.put(late, tx=c)]
        fleet.pass_by(worker)
        c.commit()
    found: list[str] = []
    while len(found) < 3:
        found += way(worker)
    assert found == [third, first, second]


def test_what_is_due_in_the_past_is_claimed(fleet: Fleet, way: Way) -> None:
    worker, producer = fleet.worker(), fleet.store()
    ids = [put.id for put in producer.put([Draft(task="t", due_ms=ms) for ms in (0, fleet.clock() - 10_000)])]
    found = way(worker)
    assert (found + way(worker) if len(found) < 2 else found) == ids


@pytest.mark.parametrize("started", [False, True], ids=["given back", "lapsed"])
def test_what_a_dead_worker_held_is_claimed_by_others(fleet: Fleet, way: Way, started: bool) -> None:
    """It is due since it was enqueued, an hour ago."""
    worker, dead, other = fleet.worker(), fleet.store(), fleet.store()
    put = other.put([Draft(task="t")])[0]
    dead.exchange([], [ClaimRequest("default", 1, 7_200_000, worker="dead")])
    fleet.pass_by(worker, s=3600)
    assert other.reclaim("dead", None if started else []) == ((0, 1) if started else (1, 0))
    assert way(worker) == [put.id]


def test_what_is_redriven_is_claimed(fleet: Fleet, way: Way) -> None:
    worker, other = fleet.worker(), fleet.store()
    put = other.put([Draft(task="t")])[0]
    (delivery,) = other.exchange([], [ASK]).deliveries
    other.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    fleet.pass_by(worker)
    assert other.triage([Handle(put.id, 0, Lane.DEAD)], Redrive()) == [True]
    assert way(worker) == [put.id]


def test_a_retry_that_was_asked_for_at_a_time_in_the_past_is_claimed(fleet: Fleet, way: Way) -> None:
    worker, other = fleet.worker(), fleet.store()
    put = other.put([Draft(task="t")])[0]
    (delivery,) = other.exchange([], [ASK]).deliveries
    fleet.pass_by(worker)
    other.exchange([Settlement(delivery.receipt, RetryAt(fleet.clock() - 30_000))], [])
    assert way(worker) == [put.id]


def test_a_lease_that_ends_is_claimed(fleet: Fleet, way: Way) -> None:
    worker, other = fleet.worker(), fleet.store()
    put = other.put([Draft(task="t")])[0]
    other.exchange([], [ClaimRequest("default", 1, 90_000, worker="other")])
    fleet.pass_by(worker)
    fleet.clock.advance(31)
    assert way(worker) == [put.id]


def test_the_next_of_a_group_is_claimed(fleet: Fleet, way: Way) -> None:
    worker, other = fleet.worker(), fleet.store()
    first, second = [put.id for put in other.put([Draft(task="t", group="g"), Draft(task="t", group="g")])]
    (delivery,) = other.exchange([], [ASK]).deliveries
    assert delivery.message.id == first
    fleet.pass_by(worker)
    other.exchange([Settlement(delivery.receipt, Ack())], [])
    assert way(worker) == [second]


def test_one_of_a_group_whose_time_came_before_its_commit_is_woken(
    fleet: Fleet, postgres_server: PostgresServer, way: Way
) -> None:
    worker, producer = fleet.worker(), fleet.store()
    producer.put([Draft(task="t", group="other", delay_ms=3_600_000)])  # so that exchanges go on waking groups
    with psycopg.connect(postgres_server.url) as c:
        (late,) = producer.put([Draft(task="t", group="g", delay_ms=5000)], tx=c)
        fleet.pass_by(worker)
        c.commit()
    assert way(worker) == [late.id]


def test_a_higher_priority_is_claimed_first(fleet: Fleet, postgres_server: PostgresServer, way: Way) -> None:
    worker, producer = fleet.worker(), fleet.store()
    with psycopg.connect(postgres_server.url) as c:
        (urgent,) = producer.put([Draft(task="t", priority=0)], tx=c)
        fleet.pass_by(worker)
        producer.put([Draft(task="t") for _ in range(50)])
        c.commit()
    found = way(worker)
    while urgent.id not in found:
        found += way(worker)
    first = found.index(urgent.id)
    assert first % 10 == 0  # it came first in its claim


def test_a_claim_that_skips_finds_it_too(fleet: Fleet, postgres_server: PostgresServer, way: Way) -> None:
    worker, producer = fleet.worker(), fleet.store()
    skip = ClaimRequest("default", 10, 600_000, frozenset({"held"}), "w")
    with psycopg.connect(postgres_server.url) as c:
        _, wanted = producer.put([Draft(task="held"), Draft(task="t")], tx=c)
        fleet.pass_by(worker)
        c.commit()
    assert way(worker, skip) == [wanted.id]


def test_a_claim_that_takes_retries_first_finds_it_too(fleet: Fleet, way: Way) -> None:
    worker, other = fleet.worker(), fleet.store()
    put = other.put([Draft(task="t")])[0]
    (delivery,) = other.exchange([], [ASK]).deliveries
    fleet.pass_by(worker)
    other.exchange([Settlement(delivery.receipt, RetryAt(fleet.clock() - 30_000))], [])
    assert way(worker, ClaimRequest("default", 3, 600_000, worker="w", retries=2)) == [put.id]


# -- what holds a floor down


def test_no_floor_rises_above_what_another_process_has_claimed_and_not_committed(
    fleet: Fleet, postgres_server: PostgresServer, told: None
) -> None:
    """It may never be committed: then the message is as it was, and nobody tells of that."""
    worker, producer = fleet.worker(), fleet.store()
    (put,) = producer.put([Draft(task="t")])
    with psycopg.connect(postgres_server.url) as c:
        c.execute(f"update {producer._link.schema}.message set lane = 'leased', due_ms = due_ms + 60000".encode())
        for _ in range(3):
            fleet.clock.advance(10)
            assert worker.exchange([], [ASK]).deliveries == []
        c.rollback()
    assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [put.id]


def test_no_floor_rises_by_an_exchange_that_was_not_committed(fleet: Fleet, told: None) -> None:
    worker, producer = fleet.worker(), fleet.store()
    (put,) = producer.put([Draft(task="t")])
    fleet.clock.advance(10)
    before = place_of(worker)

    def fail(point: str) -> None:
        if point == "commit":
            raise RuntimeError("cut off")

    worker.failpoint = fail
    with pytest.raises(RuntimeError, match="cut off"):
        worker.exchange([], [ASK])
    worker.failpoint = lambda point: None
    assert place_of(worker) == before
    assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [put.id]


def test_no_floor_rises_over_a_queue_that_is_paused(fleet: Fleet, told: None) -> None:
    worker, producer = fleet.worker(), fleet.store()
    producer.configure("default", paused=True)
    (put,) = producer.put([Draft(task="t")])
    for _ in range(3):
        fleet.clock.advance(10)
        assert worker.exchange([], [ASK]).deliveries == []
    producer.configure("default", paused=False)
    assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [put.id]


def test_a_clock_that_is_set_back_hides_nothing(fleet: Fleet, told: None) -> None:
    worker, producer = fleet.worker(), fleet.store()
    fleet.pass_by(worker, s=3600)
    fleet.clock._now_ms -= 1_800_000
    (put,) = producer.put([Draft(task="t")])
    assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [put.id]


# -- a process that begins


def test_a_process_looks_before_its_first_claim(fleet: Fleet, told: None) -> None:
    """Where a snapshot has been held for long, the claim would pass all that was deleted, and a look after it again."""
    worker, producer = fleet.store(), fleet.store()
    fleet.clock.advance(MINUTE_S)
    (put,) = producer.put([Draft(task="t", due_ms=1)])
    sent: list[str] = []
    do = worker._st.do

    def watched(c: object, name: str, *args: object) -> object:
        sent.append(name)
        return do(c, name, *args)  # type: ignore[arg-type]

    worker._st.do = watched  # type: ignore[assignment, method-assign]
    assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [put.id]
    assert sent[:2] == ["look_behind", "claim_above"]


def test_where_that_takes_too_long_it_begins_near_the_end_and_finds_the_rest(fleet: Fleet, silent: None) -> None:
    worker, producer = fleet.store(timeout="6"), fleet.store()
    (old,) = producer.put([Draft(task="t")])
    fleet.clock.advance(3600)
    (new,) = producer.put([Draft(task="t")])
    elapsed_s = [0.0]

    def give_up(look: SentLook) -> None:
        elapsed_s[0] += 3.1
        raise StoreUnavailable("no answer within 6 s")

    worker._floors._at_s = lambda: time.monotonic() + elapsed_s[0]
    worker._floors._read = give_up  # type: ignore[method-assign]
    assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [new.id]
    assert looking(worker) == [old.id]


def test_a_first_look_that_fails_at_once_is_told_and_made_again(fleet: Fleet, told: None) -> None:
    worker, producer = fleet.store(), fleet.store()
    (put,) = producer.put([Draft(task="t")])
    right = worker._floors._read

    def fail(look: SentLook) -> None:
        worker._floors._read = right  # type: ignore[method-assign]
        raise StoreUnavailable("nobody there")

    worker._floors._read = fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="nobody there"):
        worker.exchange([], [ASK])
    assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [put.id]


# -- hearing of it


def test_a_commit_that_is_told_of_while_the_first_look_is_under_way_is_not_passed(
    fleet: Fleet, postgres_server: PostgresServer, told: None
) -> None:
    """The look came too early to see it, and the floor that it makes did not lie there yet when it was told of."""
    worker, producer = fleet.store(), fleet.store()
    worker._listener._listen(inf)
    right, expect, heard = worker._floors._read, worker._floors.expect, list[str]()

    def hear(queue: str, spots: Sequence[DueSpan]) -> None:
        expect(queue, spots)
        heard.append(queue)

    worker._link.on_late = hear
    with psycopg.connect(postgres_server.url) as c:
        (late,) = producer.put([Draft(task="t")], tx=c)
        fleet.clock.advance(MINUTE_S)

        def slow(look: SentLook) -> None:
            right(look)
            c.commit()
            while not heard:
                worker._listener._tend()

        worker._floors._read = slow  # type: ignore[method-assign]
        assert [d.message.id for d in worker.exchange([], [ASK]).deliveries] == [late.id]


def test_a_worker_that_never_waits_hears_of_late_commits(
    fleet: Fleet, postgres_server: PostgresServer, told: None
) -> None:
    """It has always something to do, so nobody but the listener's own thread takes what is notified."""
    worker, producer = fleet.store(), fleet.store()
    fleet.pass_by(worker)
    while not worker._listener.listening:
        worker.exchange([], [ASK])
    with psycopg.connect(postgres_server.url) as c:
        (late,) = producer.put([Draft(task="t")], tx=c)
        fleet.pass_by(worker)
        c.commit()
    assert looking(worker) == [late.id]


def test_a_wait_looks_behind_by_itself(fleet: Fleet, postgres_server: PostgresServer, silent: None) -> None:
    worker, producer = fleet.worker(listen="off"), fleet.store()
    with psycopg.connect(postgres_server.url) as c:
        (late,) = producer.put([Draft(task="t")], tx=c)
        fleet.pass_by(worker)
        c.commit()
    worker.wait([ASK], timeout_ms=60_000)
    assert looking(worker) == [late.id]


def test_programs_of_before_read_what_is_notified_and_are_read(fleet: Fleet, told: None) -> None:
    said = payload("0a1b2c3d", "two words", 5_000, [(1, 2), (30, 30)])
    assert said == "0a1b2c3d;4900-;1-2;30-30 two words"
    assert said.partition(" ")[2] == "two words"  # as they do
    assert read(said, lambda: 7000) == ("0a1b2c3d", "two words", [(4900, 7000), (1, 2), (30, 30)])
    assert read("0a1b2c3d two words", lambda: 7000) == ("0a1b2c3d", "two words", [])
    for odd in ("tx;-5-6 q", "tx;;x-y;²-3 q", "tx;5 q"):
        assert read(odd, lambda: 7000)[1:] in (("q", []), ("q", [(5, 7000)]))


def test_a_commit_of_many_queues_is_told_as_one_of_any(fleet: Fleet, told: None) -> None:
    worker, producer = fleet.worker(), fleet.store()
    many = [Draft(task="t", queue=f"q{n}", due_ms=1) for n in range(20)]
    put = producer.put([*many, Draft(task="t", due_ms=fleet.clock() - 40_000)])[-1]
    assert woken(worker) == [put.id]


def test_a_forked_child_goes_on_with_the_floors(fleet: Fleet, told: None) -> None:
    worker = fleet.worker()
    read_end, write_end = os.pipe()
    with worker._floors._lock:  # another thread holds it
        child = os.fork()
        if child == 0:
            try:
                put = worker.put([Draft(task="t", due_ms=1)])[0]
                found = [d.message.id for d in worker.exchange([], [ASK]).deliveries]
                os.write(write_end, b"1" if found == [put.id] else b"0")
            finally:
                os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 1) == b"1"
    os.close(read_end)
    os.close(write_end)
