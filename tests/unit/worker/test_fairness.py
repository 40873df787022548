"""A tenant with 10,000 waiting does not starve the others: their waits in virtual time, beside their waits alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.message import Ack, ClaimRequest, Delivery, Draft, GroupOrder, RetryAt, Settlement
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock

BIG, SMALL, EACH, WAITING = "big", [f"tenant-{n}" for n in range(9)], 10, 10_000
SMALLER = 2_000  # where less shows it as well
ROUND_MS = 1000  # how long every run takes
WANTED = 3.0
STARVED = 10.0  # without groups it is worse than this
LEASE_MS = 1_000_000_000

MakeStore = Callable[[ManualClock, Path], Store]
STORES: dict[str, MakeStore] = {
    "memory": lambda clock, place: MemoryStore(clock),
    "sqlite": lambda clock, place: SqliteStore(place / "work.db", synchronous="normal", clock_ms=clock),
}


class Worker:
    """Claims as the worker does: `concurrency` run, as many more are held for them, what ended is settled with the next
    claim. Each run takes one round; `fails` says which ends in a retry after half a round."""

    def __init__(self, store: Store, clock: ManualClock, concurrency: int, fails: Callable[[Delivery], bool]) -> None:
        self._store, self._clock, self._concurrency, self._fails = store, clock, concurrency, fails
        self._running: list[Delivery] = []
        self._prefetched: deque[Delivery] = deque()
        self.started_ms: dict[str, int] = {}  # first starts, by id
        self.most_at_once: dict[str | None, int] = {}

    def round(self) -> None:
        """Start all that may start now, and let it run to its end."""
        settlements = [Settlement(d.receipt, self._end_of(d)) for d in self._running]
        free = 2 * self._concurrency - len(self._prefetched)
        found = self._store.exchange(settlements, [ClaimRequest("default", free, LEASE_MS)]).deliveries
        assert len(found) <= free
        self._prefetched.extend(found)
        self._running = [self._prefetched.popleft() for _ in range(min(self._concurrency, len(self._prefetched)))]
        counted: dict[str | None, int] = {}
        for d in self._running:
            self.started_ms.setdefault(d.message.id, self._clock())
            counted[d.message.group] = counted.get(d.message.group, 0) + 1
        for group, count in counted.items():
            self.most_at_once[group] = max(count, self.most_at_once.get(group, 0))
        self._clock.advance(ROUND_MS / 1000)

    def _end_of(self, delivery: Delivery) -> Ack | RetryAt:
        return RetryAt(self._clock() + ROUND_MS // 2) if self._fails(delivery) else Ack()


class Scene:
    """A store, its queue's settings and one worker."""

    def __init__(
        self,
        make: MakeStore,
        place: Path,
        concurrency: int,
        *,
        width: int | None = 1,
        order: GroupOrder | None = None,
        fails: Callable[[Delivery], bool] = lambda delivery: False,
    ) -> None:
        self.clock, self.grouped = ManualClock(), width is not None
        self.store = make(self.clock, place)
        if width is not None:
            self.store.configure("default", group_width=width, group_order=order)
        self.worker = Worker(self.store, self.clock, concurrency, fails)

    def put(self, tenant: str, count: int) -> list[str]:
        drafts = [Draft(task="push", group=tenant if self.grouped else None) for _ in range(count)]
        return [put.id for at in range(0, count, 1000) for put in self.store.put(drafts[at : at + 1000])]

    def p99_wait_s(self, *, beside: int, rounds_before: int = 0) -> float:
        """From the enqueue to the first start of the nine tenants' messages, beside so many of the big one's."""
        self.put(BIG, beside)
        for _ in range(rounds_before):
            self.worker.round()
        since_ms, ids = self.clock(), [id for tenant in SMALL for id in self.put(tenant, EACH)]
        while any(id not in self.worker.started_ms for id in ids):
            assert self.clock() - since_ms < 2 * ROUND_MS * (beside + 90), "they never run"
            self.worker.round()
        waits_ms = sorted(self.worker.started_ms[id] - since_ms for id in ids)
        self.store.close()
        return waits_ms[int(0.99 * len(waits_ms))] / 1000


@pytest.fixture(params=STORES)
def make(request: pytest.FixtureRequest) -> MakeStore:
    return STORES[request.param]


@pytest.mark.parametrize(
    "concurrency, width, rounds_before", [(1, 1, 0), (10, 10, 0), (10, 10, 20), (10, 1, 20), (10, 20, 20), (45, 45, 3)]
)
def test_ten_thousand_waiting_of_one_tenant_hold_nine_others_to_three_times_their_wait_alone(
    concurrency: int, width: int, rounds_before: int, make: MakeStore, tmp_path: Path
) -> None:
    alone = Scene(make, _folder(tmp_path, "alone"), concurrency, width=width)
    beside = Scene(make, _folder(tmp_path, "beside"), concurrency, width=width)
    alone_s = alone.p99_wait_s(beside=0)
    beside_s = beside.p99_wait_s(beside=WAITING, rounds_before=rounds_before)
    print(f"p99 wait: {alone_s:g} s alone, {beside_s:g} s beside {WAITING}")
    assert 0 < alone_s <= beside_s <= WANTED * alone_s
    assert beside.worker.most_at_once[BIG] == min(width, concurrency)


@pytest.mark.parametrize("concurrency", [1, 10])
def test_strict_groups_take_turns_too(concurrency: int, make: MakeStore, tmp_path: Path) -> None:
    waits_s = [
        Scene(make, _folder(tmp_path, str(beside)), concurrency, order=GroupOrder.STRICT).p99_wait_s(beside=beside)
        for beside in (0, SMALLER)
    ]
    assert 0 < waits_s[0] <= waits_s[1] <= WANTED * waits_s[0]


@pytest.mark.parametrize("order", GroupOrder)
def test_a_big_tenant_that_keeps_failing_gains_nothing(order: GroupOrder, make: MakeStore, tmp_path: Path) -> None:
    alone = Scene(make, _folder(tmp_path, "alone"), 4, order=order)
    failing = Scene(make, _folder(tmp_path, "failing"), 4, order=order, fails=lambda d: d.message.group == BIG)
    assert failing.p99_wait_s(beside=SMALLER, rounds_before=20) <= WANTED * alone.p99_wait_s(beside=0)


def test_without_groups_the_nine_starve(make: MakeStore, tmp_path: Path) -> None:
    waits_s = [
        Scene(make, _folder(tmp_path, str(beside)), 10, width=None).p99_wait_s(beside=beside) for beside in (0, SMALLER)
    ]
    assert waits_s[1] > STARVED * waits_s[0]


def _folder(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir()
    return folder
