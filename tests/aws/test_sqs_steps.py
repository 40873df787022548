"""A consumer of SQS that dies between two steps of settling, or whose calls fail: nothing is lost, nothing comes early,
and what comes twice is told apart from what is new.

On the stand-in and a clock of the tests. Who dies here is a store whose calls all fail from a named point on; the
processes that are really killed are in test_sqs_crash.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.support.aws.places import REGION, lay
from tests.support.turns import in_turn

from redrive.errors import StoreError, StoreUnavailable
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Lane,
    LeaseStatus,
    Quarantine,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from redrive.stores.cells import CellsOfStore
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing import ManualClock
from redrive.testing.sqs import SqsServer

LEASE_MS = 30_000
HOUR_S = 3600
FAULT = Fault(kind=Kind.TRANSIENT, error="ConnectionError", text="refused", fingerprint="a" * 16)
ACTIONS = ("SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch", "ReceiveMessage")
MODES = ["visibility with cells", "visibility without", "requeue"]


class Killed(BaseException):
    """No step further."""


class Shop:
    """A stand-in with the queue `work`, and stores on it that share cells and, maybe, a triage store."""

    def __init__(self, mode: str, *, triage: bool = False, fifo: bool = False) -> None:
        self.clock = ManualClock()
        self.server = SqsServer(self.clock, region=REGION)
        self.mode, self.queue = mode, "work.fifo" if fifo else "work"
        self.beside = MemoryStore(self.clock)
        self.resting = MemoryStore(self.clock) if triage else None
        self.stores: list[SqsStore] = []

    def __enter__(self) -> Shop:
        self.server.__enter__()
        lay(self.server, "shop-work")
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.faults.clear()
        for store in self.stores:
            store.close()
        self.server.close()

    def open(self) -> SqsStore:
        mode = "requeue" if self.mode == "requeue" else "visibility"
        url = f"sqs://{REGION}/shop?create=true&poll=0&mode={mode}&endpoint={self.server.url}"
        cells = CellsOfStore(self.beside) if self.mode == "visibility with cells" else None
        self.stores.append(SqsStore(url, clock_ms=self.clock, cells=cells, triage=self.resting))
        return self.stores[-1]

    def kill(self, store: SqsStore) -> None:
        """From now on its calls do nothing, as those of a process that is gone."""

        def call(action: str, **parameters: Any) -> Any:
            raise StoreUnavailable("killed")

        store._sqs.call = call  # type: ignore[method-assign]

    def claim(self, store: SqsStore, limit: int = 10) -> list[Delivery]:
        return store.exchange([], [ClaimRequest(self.queue, limit, LEASE_MS)]).deliveries

    def claim_all(self, store: SqsStore) -> list[Delivery]:
        found: list[Delivery] = []
        while some := self.claim(store):
            found += some
        return found

    def lying(self, name: str) -> list[Any]:
        """What a queue of SQS holds, visible or not."""
        queue = self.server.account.queues.get(name)
        return [] if queue is None else [*queue.messages.values()]

    @property
    def dead_name(self) -> str:
        return "shop-work-dlq.fifo" if self.queue.endswith(".fifo") else "shop-work-dlq"


@pytest.fixture(params=[pytest.param(mode, marks=in_turn(n, of=len(MODES))) for n, mode in enumerate(MODES)])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def failpoint(shop: Shop, store: SqsStore, at: int, points: list[str]) -> Callable[[str], None]:
    """Ends it at the call with that number of the store's named points."""

    def reached(point: str) -> None:
        points.append(point)
        if len(points) == at:
            shop.kill(store)
            raise Killed(point)

    return reached


def every_point(
    make: Callable[[], Shop], decide: Callable[[Shop], Decision], swaps: bool = False, **parts: Any
) -> Iterator[tuple[Shop, str, list[str]]]:
    """Three messages are settled so, in worlds of their own: the settling ends at each of its points, and once not at
    all. Yields the shop, the point (empty: it went through), and the ids."""
    at = 0
    while True:
        at += 1
        with make() as shop:
            store = shop.open()
            ids = [put.id for put in store.put([Draft(task="push", queue=shop.queue) for _ in range(3)])]
            deliveries = shop.claim_all(store)
            assert sorted(d.message.id for d in deliveries) == sorted(ids)
            points: list[str] = []
            store.failpoint = failpoint(shop, store, at, points)
            settlements = [
                Settlement(d.receipt, decide(shop), swaps=(Swap(d.message.id, 0, b"paid"),) if swaps else (), **parts)
                for d in deliveries
            ]
            try:
                assert store.exchange(settlements, []).settled == [Settled.OK] * 3
            except Killed:
                yield shop, points[-1], ids
            else:
                yield shop, "", ids
                return


def done_by_another(shop: Shop, *, after_ms: int = LEASE_MS) -> list[Delivery]:
    """What another consumer claims, and acks, once this time has passed."""
    store = shop.open()
    assert shop.claim_all(store) == [], "it came before the lease ended"
    shop.clock.advance(after_ms / 1000)
    found = shop.claim_all(store)
    store.exchange([Settlement(d.receipt, Ack()) for d in found], [])
    return found


def test_acks_cut_short_come_again_and_follow_ups_are_never_lost(mode: str) -> None:
    seen = []
    for shop, point, ids in every_point(
        lambda: Shop(mode), lambda shop: Ack(), follow_ups=(Draft(task="mail", queue="mails"),)
    ):
        seen.append(point)
        again = [d.message for d in done_by_another(shop)]
        deleted = point in ("", "ended")
        assert sorted(m.id for m in again) == ([] if deleted else sorted(ids))
        assert {(m.attempt, m.crashes) for m in again} <= {(2, 0) if mode == "visibility without" else (1, 1)}
        assert len(shop.lying("shop-mails")) == (0 if point == "send" else 3)
        assert shop.lying("shop-work") == []
    assert seen == ["send", "sent", "end", "ended", ""]


def test_what_an_ack_swaps_is_swapped_before_it_is_deleted() -> None:
    seen = []
    for shop, point, ids in every_point(lambda: Shop("visibility with cells"), lambda shop: Ack(), swaps=True):
        seen.append(point)
        written = [cell is not None for cell in shop.beside.cells.read(ids)]
        assert written == [point != "keep"] * 3
        assert len(done_by_another(shop)) == (3 if point in ("keep", "kept", "end") else 0)
    assert seen == ["keep", "kept", "end", "ended", ""]


@pytest.mark.parametrize("wait_s", [5, *(pytest.param(s, marks=pytest.mark.soak) for s in (901, HOUR_S, 13 * HOUR_S))])
def test_a_retry_cut_short_is_never_lost_and_once_written_never_early(mode: str, wait_s: int) -> None:
    seen = []
    for shop, point, ids in every_point(
        lambda: Shop(mode), lambda shop: RetryAt(shop.clock() + wait_s * 1000), fault=FAULT
    ):
        seen.append(point)
        due_ms = shop.clock() + wait_s * 1000
        store, came = shop.open(), Counter[str]()
        while shop.clock() < due_ms + 2 * LEASE_MS:
            shop.clock.advance(min(max(1, wait_s // 6), 900))
            for delivery in shop.claim_all(store):
                message = delivery.message
                came[message.id] += 1
                early = shop.clock() < due_ms
                # Cut off before the wait was written it comes back as after a crash, when its lease ends. So does one
                # whose copy was sent, which is then there twice.
                assert not early or message.crashes or mode == "visibility without", (point, message)
                assert not early or point not in ("kept", "ended", ""), (point, message)
                assert message.attempt <= 2
                store.exchange([Settlement(delivery.receipt, Ack())], [])
        assert sorted(came) == sorted(ids), (point, "lost")
        twice = point in ("sent", "end") and came.total() == 6
        assert set(came.values()) == ({2} if twice else {1}), (point, came)
        assert shop.lying("shop-work") == []
    steps = {"requeue": ["send", "sent"], "visibility with cells": ["keep", "kept"]}.get(mode, [])
    if mode == "visibility without" and wait_s > 12 * HOUR_S:
        steps = ["send", "sent"]
    assert seen == [*steps, "end", "ended", ""]


@pytest.mark.parametrize("verdict", [DeadLetter("permanent"), Quarantine(reason="poison")])
def test_the_dead_cut_short_are_one_row_each_in_the_triage_store(mode: str, verdict: Decision) -> None:
    seen = []
    for shop, point, ids in every_point(lambda: Shop(mode, triage=True), lambda shop: verdict, fault=FAULT):
        seen.append(point)
        assert shop.resting is not None
        lane = Lane.DEAD if isinstance(verdict, DeadLetter) else Lane.QUARANTINE
        rows = [m.id for m in shop.resting.peek(lane).messages]
        assert sorted(rows) == ([] if point == "bury" else sorted(ids))
        store = shop.open()
        shop.clock.advance(LEASE_MS / 1000)
        again = shop.claim_all(store)
        assert len(again) == (0 if point in ("ended", "") else 3)
        store.exchange([Settlement(d.receipt, verdict, fault=FAULT) for d in again], [])
        assert sorted(m.id for m in shop.resting.peek(lane).messages) == sorted(ids)
        assert shop.lying("shop-work") == shop.lying("shop-work-dlq") == shop.lying("shop-work-poison") == []
    assert seen == ["bury", "buried", "end", "ended", ""]


@pytest.mark.parametrize("fifo", [False, True])
def test_the_dead_cut_short_lie_in_the_dead_letter_queue_and_on_fifo_once(mode: str, fifo: bool) -> None:
    if fifo and mode == "requeue":
        return  # it is refused: a copy would lose its place
    seen = []
    for shop, point, ids in every_point(lambda: Shop(mode, fifo=fifo), lambda shop: DeadLetter("no"), fault=FAULT):
        seen.append(point)
        store = shop.open()
        shop.clock.advance(LEASE_MS / 1000)
        again = shop.claim_all(store)
        assert len(again) == (0 if point in ("ended", "") else 3)
        store.exchange([Settlement(d.receipt, DeadLetter("no"), fault=FAULT) for d in again], [])
        lying = shop.lying(shop.dead_name)
        twice = point in ("sent", "end") and not fifo
        assert len(lying) == (6 if twice else 3)
        assert all(sum(id in m.body for m in lying) == (2 if twice else 1) for id in ids)
    assert seen == ["send", "sent", "end", "ended", ""]


# -- calls that fail


def fail_often(shop: Shop, kind: str, action: str) -> None:
    """More often than a call is tried."""
    faults = shop.server.faults
    if kind == "fail_entries":
        faults.fail_entries(action, 200)
    else:
        getattr(faults, kind)(action, 30)


def settled(shop: Shop, store: SqsStore, settlements: Sequence[Settlement]) -> None:
    """As a worker does it: a call that fails is made again, later."""
    for _ in range(5):
        try:
            store.exchange(settlements, [])
            return
        except StoreError:
            shop.server.faults.clear()
    pytest.fail("it fails without a fault")


def test_one_that_cannot_be_sent_holds_no_other_up(mode: str) -> None:
    with Shop(mode) as shop:
        store = shop.open()
        store.put([Draft(task="push", queue="work") for _ in range(10)])
        held = shop.claim_all(store)
        dead = held[3].message.id
        shop.server.faults.fail("SendMessageBatch", 30)
        fates: list[Decision] = [Ack()] * 10
        fates[3] = DeadLetter("no")
        settlements = [Settlement(d.receipt, fate, fault=FAULT) for d, fate in zip(held, fates, strict=True)]
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.exchange(settlements, [])
            assert [dead in m.body for m in shop.lying("shop-work")] == [True]
            assert store.extend([d.receipt for d in held], lease_ms=LEASE_MS) == [LeaseStatus.HELD] * 10
        shop.server.faults.clear()
        assert store.exchange(settlements, []).settled == [Settled.OK] * 10
        assert shop.lying("shop-work") == [] and [dead in m.body for m in shop.lying(shop.dead_name)] == [True]
        assert store.exchange(settlements, []).settled == [Settled.STALE] * 10


KINDS = [
    "fail",
    "lose_answer",
    "fail_entries",
    *(pytest.param(k, marks=pytest.mark.soak) for k in ("throttle", "lose_call")),
]


@pytest.mark.fault("calls are refused, throttled, lost, or fail in part", store="sqs")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", ACTIONS[:3])
def test_whatever_call_fails_in_whatever_way_every_message_comes_to_its_end(mode: str, action: str, kind: str) -> None:
    with Shop(mode, triage=True) as shop:
        store = shop.open()
        ids = [put.id for put in store.put([Draft(task="push", queue="work") for _ in range(12)])]
        held = {d.message.id: d for d in shop.claim_all(store)}
        wait_ms = 60_000
        decisions: dict[str, Decision] = {
            id: (Ack(), RetryAt(shop.clock() + wait_ms), DeadLetter("permanent"))[n % 3] for n, id in enumerate(ids)
        }
        due_ms = shop.clock() + wait_ms
        fail_often(shop, kind, action)
        follow = (Draft(task="mail", queue="mails"),)
        settled(
            shop,
            store,
            [
                Settlement(held[id].receipt, decision, fault=FAULT, follow_ups=follow if n % 3 == 0 else ())
                for n, (id, decision) in enumerate(decisions.items())
            ],
        )
        shop.server.faults.clear()
        came: list[tuple[str, int]] = []
        for _ in range(12):
            shop.clock.advance(10)
            for delivery in shop.claim_all(store):
                came.append((delivery.message.id, shop.clock()))
                again = decisions[delivery.message.id]
                final = again if isinstance(again, DeadLetter) else Ack()
                store.exchange([Settlement(delivery.receipt, final, fault=FAULT)], [])
        retried = {id for id, decision in decisions.items() if isinstance(decision, RetryAt)}
        assert {id for id, _ in came} >= retried, "lost"
        hides = "DeleteMessageBatch" if mode == "requeue" else "ChangeMessageVisibilityBatch"
        if action != hides:  # where that failed all along, it comes again when its lease ends
            assert all(at_ms >= due_ms for id, at_ms in came if id in retried)
        assert shop.resting is not None
        assert sorted(m.id for m in shop.resting.peek(Lane.DEAD).messages) == sorted(ids[2::3])
        mails = Counter(m.body for m in shop.lying("shop-mails"))
        assert len(mails) == 4, "a follow-up is lost"
        assert shop.lying("shop-work") == []


# -- a walk at random


def test_whatever_happens_nothing_is_lost_or_early(mode: str, seed: int, soak: bool) -> None:
    for n in range(60 if soak else 1):
        walk(mode, random.Random(f"{seed}/{n}"), f"TEST_SEED={seed}, walk {n}")


def walk(mode: str, rng: random.Random, name: str) -> None:
    Walk(mode, rng, name, calm=rng.random() < 0.4).go()


class Walk:
    """Consumers claim, settle, hang, die at named points, and meet faults of every kind, on a clock that jumps.

    What is known of a message is held against each of its deliveries, until a fault or a death blurs it. `calm`:
    nothing fails and nobody dies, so that attempts and crashes are known too.
    """

    def __init__(self, mode: str, rng: random.Random, name: str, *, calm: bool) -> None:
        self.mode, self.rng, self.name, self.calm = mode, rng, name, calm
        self.due_ms: dict[str, int] = {}  # before which it may not come
        self.counts: dict[str, tuple[int, int]] = {}  # attempts and crashes that its next delivery tells
        self.blurred = set[str]()  # nobody knows how far they came, and of these there may be copies
        self.copied = set[str]()  # of these too, all of which wait for the same time
        self.acked, self.buried = set[str](), set[str]()

    def go(self) -> None:
        rng = self.rng
        with Shop(self.mode, triage=rng.random() < 0.5) as shop:
            store = shop.open()
            ids = {put.id for put in store.put([Draft(task="push", queue="work") for _ in range(rng.randint(1, 15))])}
            self.counts = dict.fromkeys(ids, (1, 0))
            for _ in range(40):
                if not self.calm:
                    self._trouble(shop)
                shop.clock.advance(rng.choice([0, 1, 5, 29, 31, 300, 1000, 4 * HOUR_S]))
                store = self._turn(shop, store)
            shop.server.faults.clear()
            store = shop.open()
            for _ in range(8):
                shop.clock.advance(10 * HOUR_S)
                while found := shop.claim(store):
                    self._check(shop, found)
                    store.exchange([Settlement(d.receipt, Ack()) for d in found], [])
                    self.acked |= {d.message.id for d in found}
            dead = {m.id for m in shop.resting.peek(Lane.DEAD).messages} if shop.resting else set()
            dead |= {id for id in ids for m in shop.lying(shop.dead_name) if id in m.body}
            assert self.acked | dead == ids, f"{self.name}: lost {ids - self.acked - dead}"
            assert self.buried - self.blurred <= dead, f"{self.name}: lost on the way to the dead"

    def _trouble(self, shop: Shop) -> None:
        faults, rng = shop.server.faults, self.rng
        if rng.random() < 0.15:
            kind = rng.choice(["throttle", "fail", "lose_call", "lose_answer"])
            getattr(faults, kind)(rng.choice(ACTIONS), rng.choice([1, 1, 4]))
        if rng.random() < 0.1:
            faults.fail_entries(rng.choice(ACTIONS[:3]), rng.choice([1, 3, 30]))

    def _is_troubled(self, shop: Shop) -> bool:
        return bool(shop.server.faults._next) or any(shop.server.faults._entries.values())

    def _turn(self, shop: Shop, store: SqsStore) -> SqsStore:
        """Claim some, and settle them at once, or not at all; the store to go on with."""
        rng = self.rng
        if self._is_troubled(shop):  # a long wait goes on as a copy when it is claimed: who sent that may not know it
            self.copied |= self.due_ms.keys()
        try:
            found = shop.claim(store, rng.randint(1, 10))
            store._deletes.flush()  # what lingers does so on the true clock
        except StoreError:
            return store
        self._check(shop, found)
        if rng.random() < 0.15:  # it hangs, until its leases are over
            for delivery in found:
                message = delivery.message
                tells = store.traits.counts_crashes  # the cells of a triage store serve too
                self.counts[message.id] = message.attempt + (not tells), message.crashes + tells
            shop.clock.advance(LEASE_MS / 1000 + 1)
            return store
        settlements = [Settlement(d.receipt, self._decision(shop), fault=FAULT) for d in found]
        dies = not self.calm and rng.random() < 0.15
        if dies:
            store.failpoint = failpoint(shop, store, rng.randint(1, 6), [])
        sure = not dies and not self._is_troubled(shop)
        words: list[Settled] = []
        try:
            words = store.exchange(settlements, []).settled
            store._deletes.flush()
        except StoreError:
            pass  # nobody knows how far it came
        except Killed:
            store = shop.open()
        store.failpoint = lambda point: None
        for n, (delivery, settlement) in enumerate(zip(found, settlements, strict=True)):
            self._settled(delivery, settlement.decision, sure=sure and bool(words) and words[n] is Settled.OK)
        return store

    def _decision(self, shop: Shop) -> Decision:
        at_ms = shop.clock() + self.rng.choice([0, 1, 50, 901, HOUR_S, 13 * HOUR_S, 20 * HOUR_S]) * 1000
        decisions: list[Decision] = [
            Ack(), RetryAt(at_ms), RetryAt(at_ms, why="open", counts=False), DeadLetter("permanent"),
        ]  # fmt: skip
        return self.rng.choices(decisions, [3, 5, 2, 1])[0]

    def _settled(self, delivery: Delivery, decision: Decision, *, sure: bool) -> None:
        message = delivery.message
        if not sure:
            self.blurred.add(message.id)
        if isinstance(decision, RetryAt):
            if sure:
                self.due_ms[message.id] = decision.at_ms
                self.counts[message.id] = message.attempt + decision.counts, message.crashes
        elif isinstance(decision, Ack):
            self.acked.add(message.id)
        else:
            self.buried.add(message.id)

    def _check(self, shop: Shop, found: Sequence[Delivery]) -> None:
        for delivery in found:
            message = delivery.message
            due_ms = self.due_ms.pop(message.id, 0)
            if message.id in self.blurred:
                continue
            assert message.id not in self.acked | self.buried, f"{self.name}: {message.id} came again without a fault"
            assert shop.clock() >= due_ms, f"{self.name}: {message.id} came {due_ms - shop.clock()} ms early"
            if message.id in self.copied:  # the others come while this one is worked
                self.blurred.add(message.id)
            if self.calm:
                told = message.attempt, message.crashes
                assert told == self.counts[message.id], f"{self.name}: {told}, not {self.counts[message.id]}"
