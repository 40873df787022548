"""Batches on SQS: what kills, lost answers and redrives do to their counts, and what counting costs."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from tests.support.aws.places import REGION, Lasting, Ministack, Stand

from redrive import App, Context, Retry
from redrive.aws.dead_letters.sources import ingest_of, sources
from redrive.batch import follow
from redrive.errors import EnqueueError, StoreUnavailable, Unsupported
from redrive.message import (
    Ack,
    BatchCounts,
    BatchMark,
    Cell,
    ClaimRequest,
    DeadLetter,
    Delivery,
    Discard,
    Draft,
    Exchange,
    Lane,
    Redrive,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Swap,
)
from redrive.store import Cells
from redrive.stores.dynamodb.items import check
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs import batches
from redrive.stores.sqs.members import LIVES, Member, MemberPage
from redrive.stores.sqs.members import MemberMove as Move
from redrive.stores.sqs.members import MemberState as State
from redrive.stores.sqs.store import SqsStore
from redrive.testing import ManualClock
from redrive.testing.sqs import SqsServer

LEASE_MS = 30_000
ITEM_BYTES = 90  # what an item of `stores/dynamodb` has beside its key and value, and more


class Killed(BaseException):
    """The process is killed here."""


@pytest.fixture
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        yield stand


class Beside:
    """Cells that may be out, or refuse the swaps of keys that begin so."""

    def __init__(self, cells: Cells) -> None:
        self._cells, self.out = cells, False
        self.refuses: str | None = None
        self.requests = Counter[str]()

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        self._look(())
        return self._cells.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        self._look(swaps)
        return self._cells.swap(swaps, durable=durable)

    def _look(self, swaps: Sequence[Swap]) -> None:
        if self.out or (self.refuses is not None and any(swap.key.startswith(self.refuses) for swap in swaps)):
            raise StoreUnavailable("cells are out")

    def close(self) -> None: ...


class Place:
    """Stores on one prefix that outlive their processes."""

    def __init__(self, stand: Stand, cells: Any = None) -> None:
        self.stand, self.resting, self.cells = stand, Lasting(stand.clock), cells
        self.url = f"sqs://{REGION}/t{uuid4().hex[:8]}?poll=0&create=true&endpoint={stand.url}"
        self.opened: list[SqsStore] = []

    def open(self) -> SqsStore:
        self.opened.append(SqsStore(self.url, clock_ms=self.stand.clock, triage=self.resting, cells=self.cells))
        return self.opened[-1]

    def close(self) -> None:
        for store in self.opened:
            store.failpoint = lambda point: None
            store.close()


@pytest.fixture
def place(stand: Stand) -> Iterator[Place]:
    made = Place(stand)
    yield made
    made.close()


@pytest.fixture
def apart(stand: Stand) -> Iterator[Place]:
    """A place whose cells, which may be out, are not those of the triage store."""
    made = Place(stand, Beside(Lasting(stand.clock).cells))
    yield made
    made.close()


def claim(store: SqsStore, n: int = 100) -> list[Delivery]:
    return store.exchange([], [ClaimRequest("default", n, LEASE_MS, worker="w")]).deliveries


def settle(store: SqsStore, deliveries: Sequence[Delivery], how: Any = None, joins: int = 0) -> Exchange:
    more = tuple(Draft(task="more", batch="b") for _ in range(joins))
    return store.exchange([Settlement(d.receipt, how or Ack(), follow_ups=more) for d in deliveries], [])


def counts(store: SqsStore) -> BatchCounts:
    return store.batch_counts(["b"])[0]


def members(n: int, *, first: int = 0) -> list[Draft]:
    """Drafts as `batch/repeats.py` makes them: with ids that a repeated put gives again."""
    return [Draft(task="push", batch="b", id=f"01977420-dc00-7000-8000-{k:012x}") for k in range(first, first + n)]


def dies_at(store: SqsStore, nth: int, seen: list[str]) -> None:
    """Kill the process at its failpoint number `nth`; `seen` gets the names of those it reached."""

    def reach(point: str) -> None:
        seen.append(point)
        if len(seen) == nth + 1:
            raise Killed(point)

    store.failpoint = reach


def killed_everywhere(work: Callable[[int, list[str]], None]) -> set[str]:
    """Do the work with a kill at its first failpoint, at its second, and so on to the last; return their names."""
    names = set[str]()
    for nth in range(200):
        seen: list[str] = []
        work(nth, seen)
        names |= {*seen}
        if len(seen) <= nth:
            return names
    raise AssertionError("it has no end")


# -- the page of members


def page(*moves: Move) -> MemberPage:
    made = MemberPage(bytearray())
    for move in moves:
        made.move([move])
    return MemberPage.read(made.written())


def of(state: State, life: int = 0, *, forced: bool = False) -> Move:
    return Move(Member("b", 0), state, life, forced)


def test_done_wins_over_dead_in_any_order() -> None:
    moves = [
        of(State.OPEN),
        of(State.DEAD),
        of(State.OPEN, 1),
        of(State.DEAD, 1),
        of(State.DONE, 1),
        of(State.DONE),
    ]
    for order in permutations(moves):
        assert page(*order).counts().done == page(*order).counts().total == 1


def test_a_late_copy_of_an_earlier_life_changes_nothing() -> None:
    redriven = page(of(State.OPEN), of(State.DEAD), of(State.OPEN, 1), of(State.DEAD), of(State.OPEN))
    assert redriven.counts() == BatchCounts(open=1, opened=2, died=1)
    assert page(of(State.OPEN), of(State.DEAD), of(State.DEAD)).counts() == BatchCounts(dead=1, opened=1, died=1)
    lives = [of(state, life) for life in range(2 * LIVES + 3) for state in (State.OPEN, State.DEAD, State.OPEN)]
    assert page(*lives).counts() == BatchCounts(dead=1, opened=2 * LIVES + 3, died=2 * LIVES + 3)


def test_a_verdict_may_go_back_and_never_undoes_what_is_done() -> None:
    back = page(of(State.OPEN), of(State.DEAD), of(State.OPEN, 1), of(State.DEAD, forced=True))
    assert back.counts().dead == back.counts().total == 1
    assert page(of(State.OPEN), of(State.DONE), of(State.DISCARDED, 1, forced=True)).counts().done == 1


# -- kills


def test_an_ack_that_is_lost_twice_counts_once_and_is_named(place: Place) -> None:
    place.open().put(members(2))
    for _ in range(2):
        store = place.open()
        store.failpoint = lambda point: (_ for _ in ()).throw(Killed) if point == "end" else None
        with pytest.raises(Killed):  # merged, and not deleted
            settle(store, claim(store))
        assert counts(store) == BatchCounts(done=2, opened=2)
        place.stand.passes(LEASE_MS / 1000 + 1)
    store = place.open()
    assert store.changed_batches() == ["b"]  # what was killed did not follow it
    deliveries = claim(store)
    assert len(deliveries) == 2 and settle(store, deliveries).batches == ("b",)
    assert counts(store) == BatchCounts(done=2, opened=2) and claim(store) == []


def test_a_settlement_that_is_killed_anywhere_counts_once(stand: Stand) -> None:
    """A member that adds two, one that dies, and one that is done: killed at each step, and delivered again."""
    many = 0

    def work(nth: int, seen: list[str]) -> None:
        nonlocal many
        place = Place(stand)
        place.open().put(members(3))
        store = place.open()
        dies_at(store, nth, seen)
        try:
            adds, dies, ends = claim(store)
            more = tuple(Draft(task="more", batch="b") for _ in range(2))
            whole = [Settlement(adds.receipt, Ack(), follow_ups=more), Settlement(ends.receipt, Ack())]
            store.exchange([*whole, Settlement(dies.receipt, DeadLetter("permanent"))], [])
        except Killed:
            stand.passes(LEASE_MS / 1000 + 1)
        after = place.open()
        for delivery in claim(after):
            first = delivery.message.id[-1]
            how = DeadLetter("permanent") if first == "1" and delivery.message.task == "push" else Ack()
            joins = 2 if first == "0" and delivery.message.task == "push" else 0
            settle(after, [delivery], how, joins)
            assert counts(after).open or not joins  # those that joined are waited for
        while left := claim(after):
            settle(after, left)
        found = counts(after)
        many = max(many, found.done)
        assert (found.open, found.dead, found.died) == (0, 1, 1) and found.done in (4, 6)
        assert found.opened == found.total and after.changed_batches() == ["b"]
        place.close()

    names = killed_everywhere(work)
    assert {"send", "sent", "bury", "count", "news", "counted", "end"} <= names
    assert many == 6  # the follow-ups of a killed ack come twice, as everywhere on SQS, and are counted as they end


def test_a_put_that_is_killed_anywhere_and_repeated_counts_each_member_once(stand: Stand) -> None:
    def work(nth: int, seen: list[str]) -> None:
        place = Place(stand)
        place.open().put(members(2))
        store = place.open()
        dies_at(store, nth, seen)
        try:
            store.put(members(5, first=2))
        except Killed:
            assert counts(store).total in (2, 7)  # not yet known to be sent, or all of them
        again = place.open()
        again.put(members(5, first=2))
        assert counts(again) == BatchCounts(open=7, opened=7)
        sent = set[str]()
        while deliveries := claim(again):
            sent |= {delivery.message.id for delivery in deliveries}
            settle(again, deliveries)
        assert len(sent) == 7 and counts(again) == BatchCounts(done=7, opened=7)
        place.close()

    assert {"put", "acknowledge", "count", "counted"} <= killed_everywhere(work)


def test_members_that_were_never_sent_are_not_waited_for(place: Place) -> None:
    store = place.open()
    dies_at(store, 0, [])
    with pytest.raises(Killed):
        store.put(members(3))
    assert counts(store) == BatchCounts()
    place.open().put(members(2, first=7))
    store = place.open()
    settle(store, claim(store))
    assert counts(store) == BatchCounts(done=2, opened=2)


def test_a_put_whose_answer_was_lost_is_sent_again_under_the_same_indexes(place: Place) -> None:
    store = place.open()
    store.put([Draft(task="other")])  # so that the queue is there
    place.stand.server.faults.lose_answer("SendMessageBatch", 100)
    with pytest.raises(StoreUnavailable):
        store.put(members(3))
    place.stand.server.faults.clear()
    assert counts(store).total == 0
    store.put(members(3))
    assert counts(store) == BatchCounts(open=3, opened=3)
    deliveries = [d for d in claim(store) if d.message.batch]
    assert len(deliveries) >= 6
    settle(store, deliveries)
    assert counts(store) == BatchCounts(done=3, opened=3)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_killed_in_the_end_all_members_are_done_and_counted_once(place: Place, seed: int) -> None:
    """Producers, workers and redrives on three handles, each killed at a random step of a random call."""
    chance = Random(seed)

    def attempt(work: Callable[[SqsStore], object]) -> bool:
        store = place.open()
        dies_at(store, chance.randrange(30), [])
        try:
            work(store)
        except Killed:
            return False
        return True

    def settle_some(store: SqsStore) -> None:
        decisions = (Ack(), DeadLetter("permanent"), RetryAt(place.stand.clock()))
        settlements = [Settlement(d.receipt, chance.choice(decisions)) for d in claim(store, 4)]
        store.exchange(settlements, [])

    for first in (0, 6):
        while not attempt(lambda store, first=first: store.put(members(6, first=first))):  # type: ignore[misc]
            pass
    for _ in range(25):
        dead = place.resting.peek(Lane.DEAD).messages
        if dead and chance.random() < 0.3:
            attempt(lambda store, dead=dead: store.triage([row.handle for row in dead[:3]], Redrive()))  # type: ignore[misc]
        else:
            attempt(settle_some)
        if chance.random() < 0.3:
            place.stand.passes(LEASE_MS / 1000 + 1)
    store = place.open()
    for _ in range(30):
        place.stand.passes(120)
        dead = place.resting.peek(Lane.DEAD).messages
        store.triage([row.handle for row in dead], Redrive())
        settle(store, claim(store))
        found = counts(store)
        assert found.total == 12
        if found == BatchCounts(done=12, opened=found.opened, died=found.died) and not dead:
            break
    else:
        raise AssertionError(f"seed {seed}: {counts(store)}")
    assert store.changed_batches() == ["b"]


# -- the list of batches


@pytest.fixture
def one_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight batches or so fill it, of ids as they are."""
    monkeypatch.setattr(batches, "LIST_CELLS", 1)
    monkeypatch.setattr(batches, "LIST_BYTES_MAX", 400)


IDS = [f"01977420-dc00-7000-8000-{n:012x}" for n in range(30)]


@pytest.mark.usefixtures("one_short_list")
def test_a_full_list_leaves_out_the_batches_that_ended_first(place: Place) -> None:
    store = place.open()
    store.put([Draft(task="push", batch="waits")])
    [waits] = claim(store)
    for id in IDS:
        store.put([Draft(task="push", batch=id)])
        settle(store, claim(store))
        store.mark_batches([BatchMark(id, store.batch_counts([id])[0], keep_ms=3_600_000)])
        place.stand.passes(1)
    listed = store.batch_ids()
    assert listed[-1] == "waits" and 3 < len(listed) < 10 and listed[:-1] == IDS[-len(listed) + 1 :]
    assert {n.done for n in store.batch_counts(IDS)} == {1}  # what is not listed is counted all the same
    assert settle(store, [waits]).batches == ("waits",)


def begins(store: SqsStore, id: str) -> bool:
    with contextlib.suppress(EnqueueError):
        store.put([Draft(task="push", batch=id)])
        return True
    return False


@pytest.mark.usefixtures("one_short_list")
def test_a_batch_that_no_list_has_room_for_is_refused_and_holds_up_no_other_work(apart: Place) -> None:
    store = apart.open()
    store.put([Draft(task="push")])
    [first] = claim(store)
    full = next(id for id in IDS if not begins(store, id))
    with pytest.raises(EnqueueError, match=f"batch {full} cannot begin: its list, .* nothing was sent"):
        store.put([Draft(task="push", batch=full)])
    assert store.batch_counts([full]) == [BatchCounts()]
    joins = (Draft(task="more", batch=full),)
    apart.cells.out = True
    with pytest.raises(StoreUnavailable):
        store.exchange([Settlement(first.receipt, Ack(), follow_ups=joins)], [])
    apart.cells.out = False
    with pytest.raises(EnqueueError, match="cannot begin"):
        store.exchange([Settlement(first.receipt, Ack(), follow_ups=joins)], [])
    assert settle(store, [first], DeadLetter("permanent")).settled == [Settled.OK]
    done = claim(store)
    assert len(done) == IDS.index(full)
    settle(store, done)
    for id in IDS[:3]:
        store.mark_batches([BatchMark(id, store.batch_counts([id])[0], keep_ms=1000)])
    store.put([Draft(task="push", batch=full)])
    assert store.batch_counts([full]) == [BatchCounts(open=1, opened=1)]


def test_a_batch_stays_news_until_its_end_is_listed(apart: Place) -> None:
    store = apart.open()
    store.put(members(1))
    settle(store, claim(store))
    mark = BatchMark("b", counts(store), keep_ms=1000)
    apart.cells.refuses = batches.LISTS
    with pytest.raises(StoreUnavailable):
        store.mark_batches([mark])
    assert store.changed_batches() == ["b"]
    apart.cells.refuses = None
    store.mark_batches([mark])
    assert store.changed_batches() == [] and store.batch_ids() == ["b"]
    apart.stand.passes(2)
    assert store.batch_ids() == []


def test_a_full_list_is_one_item_of_dynamodb() -> None:
    check([Swap(f"{batches.LISTS}63/{'p' * 80}", 1, b"x" * batches.LIST_BYTES_MAX)])


# -- dead members


@pytest.mark.parametrize("kills", range(12))
def test_a_member_that_is_redriven_is_open_and_then_done_wherever_the_redrive_is_killed(
    place: Place, kills: int
) -> None:
    store = place.open()
    store.put(members(2))
    one, two = claim(store)
    assert settle(store, [one], DeadLetter("permanent")).batches == ("b",)
    settle(store, [two])
    (row,) = place.resting.peek(Lane.DEAD).messages
    dying = place.open()
    dies_at(dying, kills, [])
    try:
        assert dying.triage([row.handle], Redrive()) == [True]
    except Killed:
        place.stand.passes(120)  # the claim of the outbox runs out
    after = place.open()
    if place.resting.peek(Lane.DEAD).messages:
        assert after.triage([row.handle], Redrive()) == [True]
    (delivery,) = claim(after)
    assert counts(after) == BatchCounts(open=1, done=1, opened=3, died=1)
    assert settle(after, [delivery]).batches == ("b",)
    assert counts(after) == BatchCounts(done=2, opened=3, died=1)


def test_a_redrive_that_is_taken_back_and_a_discard_are_counted(place: Place) -> None:
    store = place.open()
    store.put(members(2))
    settle(store, claim(store), DeadLetter("permanent"))
    one, two = place.resting.peek(Lane.DEAD).messages
    assert store.triage([one.handle], Redrive(run="r", delay_ms=60_000)) == [True]
    assert (counts(store).open, counts(store).dead) == (1, 1)
    (waits,) = place.resting.find([one.id])
    assert waits is not None and store.triage([waits.handle], Return("r")) == [True]
    assert counts(store).dead == 2
    assert store.triage([two.handle, waits.handle], Discard("gone")) == [True, False]  # the second is dead again
    assert (counts(store).discarded, counts(store).dead, counts(store).total) == (1, 1, 2)


def test_a_copy_that_dies_after_its_message_was_redriven_and_done_changes_nothing(place: Place) -> None:
    store = place.open()
    store.put(members(1))
    (late,) = claim(store)
    place.stand.passes(LEASE_MS / 1000 + 1)
    other = place.open()
    settle(other, claim(other), DeadLetter("permanent"))
    (row,) = place.resting.peek(Lane.DEAD).messages
    other.triage([row.handle], Redrive())
    assert counts(other) == BatchCounts(open=1, opened=2, died=1)
    settle(store, [late], DeadLetter("permanent"))  # of the life before
    assert counts(other) == BatchCounts(open=1, opened=2, died=1)
    settle(other, claim(other))
    assert counts(other) == BatchCounts(done=1, opened=2, died=1)


def test_members_that_sqs_moved_away_itself_are_counted_as_they_are_ingested(place: Place) -> None:
    place.url += "&max_receives=3"
    store = place.open()
    store.put(members(3))
    for _ in range(4):
        url = store.sqs_queues.of("default").url
        store.sqs.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=1)
        place.stand.passes(2)
    assert counts(store).open == 3
    for source in sources(store, ["default"]):
        ingest_of(store).drain(source)
    assert counts(store) == BatchCounts(dead=3, opened=3, died=3)


# -- an app


class Shop:
    """An app with members that add members, and callbacks that write down when they ran."""

    def __init__(self, url: str) -> None:
        self.app = app = App(url)
        self.ran: list[int] = []
        self.heard: list[tuple[str, str, BatchCounts]] = []
        self.bad: set[int] = set()

        @app.task(name="push", retry=Retry(max_attempts=1), ctx=True)
        def push(ctx: Context, n: int) -> None:
            if n in self.bad:
                raise ValueError(f"no room for {n}")
            self.ran.append(n)
            if 0 < n < 4:
                ctx.batch.add(push.draft(10 * n), push.draft(10 * n + 1))

        @app.task(name="tell", ctx=True)
        def tell(ctx: Context, word: str) -> None:
            self.heard.append((word, ctx.message.id, ctx.batch.counts))

        self.push, self.tell = push, tell

    def fill(self, numbers: Sequence[int], **options: Any) -> Any:
        callbacks = {f"on_{word}": self.tell.draft(word) for word in ("success", "complete", "death")}
        return self.app.batch([self.push.draft(n) for n in numbers], name="sync", **callbacks, **options)

    @property
    def words(self) -> list[str]:
        return sorted(word for word, _, _ in self.heard)

    def work(self) -> None:
        self.app.run_worker(drain=True)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with SqsServer(region=REGION) as server:
        dead = quote(f"sqlite:///{tmp_path}/dead.db", safe="")
        yield f"sqs://{REGION}/shop?create=true&poll=0&endpoint={server.url}&triage={dead}"


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    made = Shop(url)
    yield made
    made.app.store.close()


def test_a_batch_whose_members_add_members_ends_with_the_last_of_them(shop: Shop) -> None:
    ref = shop.fill(range(5)).enqueue()
    assert ref.counts == BatchCounts(open=5, opened=5)
    shop.work()
    assert sorted(shop.ran) == [0, 1, 2, 3, 4, 10, 11, 20, 21, 30, 31]
    assert shop.words == ["complete", "success"] and ref.state == "done"
    assert all(counts == BatchCounts(done=11, opened=11) for _, _, counts in shop.heard)
    assert [info.id for info in shop.app.batches()] == [ref.id]


def test_steps_of_a_workflow_follow_each_other_and_a_redrive_resumes_it(shop: Shop) -> None:
    shop.bad = {5}
    w = shop.app.workflow(name="order", key="7", on_success=shop.tell.draft("success"))
    first = w.step(shop.push, 4)
    second = w.map(shop.push, [5, 6, 7]).after(first)
    w.step(shop.push, 8).after(second)
    ref = w.enqueue()
    shop.work()
    assert shop.ran[0] == 4 and sorted(shop.ran[1:]) == [6, 7] and ref.state == "partial"
    shop.bad.clear()
    shop.app.dlq.retry(ids=[message.id for message in ref.members("dead")])
    shop.work()
    assert shop.ran[3:] == [5, 8] and ref.state == "done" and shop.words == ["success"]
    assert ref.counts == BatchCounts(done=5, opened=6, died=1)


def test_batches_in_batches_end_one_after_the_other(shop: Shop) -> None:
    inner = shop.app.batch([shop.push.draft(n) for n in (4, 5)], name="inner", on_success=shop.tell.draft("inner"))
    outer = shop.app.batch([shop.push.draft(6), inner], name="outer", on_success=shop.tell.draft("outer"))
    ref = outer.enqueue()
    shop.work()
    assert ref.state == "done" and ref.counts == BatchCounts(done=3, opened=3) and shop.words == ["inner", "outer"]


def test_a_step_that_takes_a_result_is_refused_as_sqs_keeps_none(shop: Shop) -> None:
    w = shop.app.workflow(name="order")
    w.step(shop.push, w.step(shop.push, 4).result)
    with pytest.raises(Unsupported, match="keeps no results"):
        w.enqueue()
    assert shop.app.store.counts().ready == 0


def test_a_partial_batch_goes_on_when_its_dead_member_is_redriven(shop: Shop) -> None:
    shop.bad = {2}
    ref = shop.fill(range(5)).enqueue()
    shop.work()
    assert ref.state == "partial" and shop.words == ["complete", "death"]
    assert ref.counts == BatchCounts(done=8, dead=1, opened=9, died=1)
    shop.bad, shop.heard[:] = set(), []
    shop.app.dlq.select(f"batch:{ref.id}").plan(canary=0, rate="100/s").start(reason="mended")
    shop.work()
    assert ref.state == "done" and shop.words == ["complete", "success"]
    assert ref.counts == BatchCounts(done=11, opened=12, died=1)


def test_a_producer_that_was_killed_goes_on_with_the_same_members(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.batch.fill.COMMIT_MAX", 10)
    killed = set[str]()
    for nth in range(1, 200):
        shop, seen = Shop(url), list[str]()
        store = shop.app.store
        assert isinstance(store, SqsStore)
        dies_at(store, nth, seen)
        try:
            shop.fill([0] * 25, key=str(nth)).enqueue()
        except Killed:
            killed.add(seen[-1])
        store.failpoint = lambda point: None
        ref = shop.fill([0] * 25, key=str(nth)).enqueue()
        shop.work()
        assert ref.counts == BatchCounts(done=25, opened=25) and ref.state == "done"
        assert shop.words == ["complete", "success"]
        store.close()
        if len(seen) <= nth:
            break
    assert {"put", "acknowledge", "count", "counted"} <= killed


def test_a_callback_that_is_put_twice_has_one_id(shop: Shop) -> None:
    """The worker is killed after it sent the callbacks, and before the batch's state says so."""
    ref = shop.fill([0]).enqueue()
    store = shop.app.store
    assert isinstance(store, SqsStore)
    (delivery,) = claim(store)
    assert settle(store, [delivery]).batches == (ref.id,)
    store.failpoint = lambda point: (_ for _ in ()).throw(Killed) if point == "acknowledge" else None
    with pytest.raises(Killed):
        follow(shop.app, [ref.id], lambda id, why: None)
    store.failpoint = lambda point: None
    assert store.changed_batches() == [ref.id]
    shop.work()
    assert shop.words == ["complete", "complete", "success", "success"]
    assert len({id for _, id, _ in shop.heard}) == 2
    assert store.changed_batches() == []


def test_an_open_batch_is_not_cancelled_and_a_partial_one_is_given_up(shop: Shop) -> None:
    shop.bad = {0}
    ref = shop.fill([0, 4]).enqueue()
    with pytest.raises(Unsupported, match="2 are open"):
        ref.cancel()
    shop.work()
    assert ref.state == "partial" and ref.cancel(reason="given up") == 0 and ref.state == "cancelled"


def test_a_rule_that_stops_a_batch_is_refused_as_no_member_that_waits_is_listed(shop: Shop) -> None:
    with pytest.raises(Unsupported, match=r"batch 'sync': stop_if="):
        shop.fill([1], stop_if="dead>0").enqueue()
    assert shop.app.counts().ready == 0 and shop.app.batches() == []


def test_without_cells_a_batch_is_refused_as_it_is_put() -> None:
    with SqsServer(region=REGION) as server:
        shop = Shop(f"sqs://{REGION}/bare?create=true&poll=0&endpoint={server.url}")
        with pytest.raises(Unsupported, match=r"batch 'sync'.*cells="):
            shop.fill([1]).enqueue()
        with pytest.raises(Unsupported, match=r"member of batch 'b'.*cells="):
            shop.app.put(members(1))
        assert server.requests["SendMessageBatch"] == 0
        shop.app.store.close()


def test_cells_of_dynamodb_count_a_batch(ministack: Ministack, tmp_path: Path) -> None:
    with SqsServer(region=REGION) as server:
        table = f"dynamodb://batches-{uuid4().hex}?region={REGION}&endpoint={ministack.url}&create=true"
        dead = f"sqlite:///{tmp_path}/dead.db"
        shop = Shop(
            f"sqs://{REGION}/shop?create=true&poll=0&endpoint={server.url}"
            f"&triage={quote(dead, safe='')}&cells={quote(table, safe='')}"
        )
        shop.bad = {2}
        ref = shop.fill(range(30)).enqueue()
        shop.work()
        assert ref.state == "partial" and ref.counts == BatchCounts(done=33, dead=1, opened=34, died=1)
        shop.bad = set()
        shop.app.dlq.retry(ids=[message.id for message in ref.members()])
        shop.work()
        assert ref.state == "done" and shop.words == ["complete", "complete", "death", "success"]
        shop.app.store.close()


# -- what it costs


class MeteredCells:
    """Cells that count the write units which DynamoDB bills: one for each KiB of an item, also of a refused write."""

    def __init__(self, inner: Cells) -> None:
        self.inner, self.units, self.requests = inner, 0, dict[str, int]()

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return self.inner.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        for swap in swaps:
            self.units += math.ceil((ITEM_BYTES + len(swap.key.encode()) + len(swap.value or b"")) / 1024)
        return self.inner.swap(swaps, durable=durable)

    def connect(self) -> None: ...

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        raise NotImplementedError

    def doctor(self) -> list[str]:
        return []

    def close(self) -> None: ...


def cost(batch: str | None, members: int) -> tuple[float, dict[str, int]]:
    """Put members by the thousand, settle them in tens, a hundredth of them dead; return the write units of a member,
    and the requests to SQS."""
    with Stand() as stand:
        cells = MeteredCells(MemoryStore(ManualClock()).cells)
        place = Place(stand, cells)
        store = place.open()
        for _ in range(members // 1000):
            store.put([Draft(task="push", batch=batch) for _ in range(1000)])
        left, at = members, 0
        while left:
            deliveries = claim(store, 10)
            done = [Settlement(d.receipt, Ack()) for d in deliveries]
            if at % 10 == 0:
                done[0] = Settlement(deliveries[0].receipt, DeadLetter("permanent"))
            store.exchange(done, [])
            left, at = left - len(deliveries), at + 1
        if batch is not None:
            assert (
                store.batch_counts([batch])[0].total == members and store.batch_counts([batch])[0].dead > members / 200
            )
        requests = dict(stand.server.requests)
        place.close()
        return cells.units / members, requests


def test_a_member_costs_a_fifth_of_a_write_unit_and_no_request_to_sqs() -> None:
    plain, plain_requests = cost(None, 10_000)
    units, requests = cost("b" * 36, 10_000)
    print(f"{units - plain:.3f} write units for a member; requests to SQS {requests}, without a batch {plain_requests}")
    assert units - plain <= 0.2
    assert requests == plain_requests
