"""Rules of settling: each decision is one commit with its follow-ups and swaps; settle and claim are one call."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ...errors import Conflict, EnqueueError
from ...fault import Fault, Kind
from ...message import Ack, DeadLetter, Decision, Draft, Filter, Lane, Quarantine, RetryAt, Settled, Settlement, Swap
from ...store import Store
from ..clock import ManualClock
from .base import (
    LONGEST,
    Contract,
    ask,
    bury,
    claim,
    claim_one,
    claimed_ids,
    draft,
    fault,
    fresh_id,
    given,
    has_history,
    lanes,
    look,
    ordered,
    put,
    put_one,
    seen,
    settle,
    shown,
    values,
)
from .cells import ELSEWHERE, version
from .weaker import no_fence, takes


class SettleRules(Contract):
    def test_an_acked_message_is_gone(self, store: Store) -> None:
        ids = put(store, draft(), draft())
        delivery = claim_one(store, limit=1)
        assert ordered(store, [delivery.message.id]) == ids[:1] or not store.traits.priorities
        assert settle(store, delivery, Ack()) is Settled.OK
        assert store.find([delivery.message.id]) == [None]
        assert claimed_ids(store) == [id for id in ids if id != delivery.message.id]

    def test_a_retry_goes_back_to_its_queue_until_its_time(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, queue="q", priority=1, body=b"1")
        delivery = claim_one(store, queue="q")
        assert settle(store, delivery, RetryAt(clock() + 7000)) is Settled.OK
        if message := seen(store, id):
            assert (message.lane, message.due_ms, message.attempt) == (Lane.READY, clock() + 7000, 1)
            assert message.state_at(clock()) == "scheduled"
        clock.advance("6999ms")
        assert claim(store, "q") == []
        clock.advance("1ms")
        again = claim_one(store, queue="q").message
        assert (again.attempt, again.fence, again.crashes, again.priority, again.body) == (2, 2, 0, 1, b"1")

    @pytest.mark.parametrize(
        ("decision", "lane", "reason"),
        [
            (DeadLetter("exhausted"), Lane.DEAD, "exhausted"),
            (DeadLetter("permanent", "said so"), Lane.DEAD, "permanent"),
            (Quarantine("its worker died"), Lane.QUARANTINE, "crashed"),
            (Quarantine(reason="rejected"), Lane.QUARANTINE, "rejected"),
        ],
    )
    def test_what_died_rests_with_its_reason(
        self, store: Store, clock: ManualClock, decision: Decision, lane: Lane, reason: str
    ) -> None:
        id = put_one(store, body=b"kept")
        delivery = claim_one(store)
        clock.advance("3s")
        assert settle(store, delivery, decision, fault=fault()) is Settled.OK
        if message := seen(store, id, lane):
            assert (message.lane, message.reason, message.rested_ms, message.due_ms) == (lane, reason, clock(), None)
            assert (message.attempt, message.body, message.faults) == (1, b"kept", (fault(),))
        clock.advance("365d")
        assert claim(store) == []

    @takes("triages")
    def test_the_longest_reason_is_kept_and_found(self, store: Store) -> None:
        id = bury(store, reason=LONGEST)
        assert look(store, id).reason == LONGEST
        assert [m.id for m in store.peek(Lane.DEAD, where=Filter(reason=LONGEST)).messages] == [id]

    @pytest.mark.parametrize("kind", ["retry", "dead", "quarantine"])
    def test_a_decision_that_does_not_count_gives_the_attempt_back(
        self, store: Store, clock: ManualClock, kind: str
    ) -> None:
        id = put_one(store)
        settle(store, claim_one(store), RetryAt(clock()))
        decisions: dict[str, Decision] = {
            "retry": RetryAt(clock(), counts=False),
            "dead": DeadLetter("deadline", counts=False),
            "quarantine": Quarantine(counts=False),
        }
        delivery = claim_one(store)
        assert delivery.message.attempt == 2
        settle(store, delivery, decisions[kind])
        lane = {"retry": Lane.READY, "dead": Lane.DEAD, "quarantine": Lane.QUARANTINE}[kind]
        if message := seen(store, id, lane):
            assert (message.attempt, message.fence) == (1, 2)
        if kind == "retry":
            assert (again := claim_one(store).message).attempt == 2 and again.fence == 3

    def test_time_held_back_is_added_up(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        for hold_ms, held in ((3000, True), (500, False), (2000, True), (-9000, True)):
            settle(store, claim_one(store), RetryAt(clock() + hold_ms, counts=False, held=held))
            clock.advance("5s")
        assert given(store, id).held_ms == 5000

    def test_words_come_in_the_order_of_the_settlements(self, store: Store, clock: ManualClock) -> None:
        ids = put(store, *[draft() for _ in range(5)])
        acked, retried, dead, poison, again = claim(store)
        settlements = [
            Settlement(retried.receipt, RetryAt(clock() + 1)),
            Settlement(acked.receipt, Ack()),
            Settlement(acked.receipt, Ack()),
            Settlement(dead.receipt, DeadLetter("permanent")),
            Settlement(again.receipt, Ack("only half of it")),
            Settlement(poison.receipt, Quarantine()),
        ]
        settled = store.exchange(settlements, []).settled
        if store.traits.fenced:
            assert settled == ["ok", "ok", "stale", "ok", "ok", "ok"]
        else:
            assert [settled[n] for n in (0, 1, 3, 4, 5)] == ["ok"] * 5
        assert lanes(store, *ids) == shown(store, None, Lane.READY, Lane.DEAD, Lane.QUARANTINE, None)

    def test_one_call_settles_then_claims(self, store: Store, clock: ManualClock) -> None:
        ids = put(store, draft(), draft())
        delivery = claim_one(store, limit=1)
        first, second = sorted(ids, key=lambda id: id != delivery.message.id)
        result = store.exchange([Settlement(delivery.receipt, RetryAt(clock()))], [ask(limit=1), ask()])
        assert result.settled == [Settled.OK]
        # The message that was put off is due again in the same call.
        assert {d.message.id: d.message.attempt for d in result.deliveries} == {first: 2, second: 1}
        result = store.exchange([Settlement(d.receipt, Ack()) for d in result.deliveries], [ask()])
        assert (result.settled, result.deliveries) == ([Settled.OK] * 2, [])

    def test_an_empty_exchange_does_nothing(self, store: Store) -> None:
        id = put_one(store)
        result = store.exchange([], [])
        assert (result.settled, result.deliveries) == ([], [])
        assert lanes(store, id) == shown(store, Lane.READY)

    def test_a_follow_up_can_be_claimed_in_the_same_call(self, store: Store) -> None:
        put_one(store)
        delivery = claim_one(store)
        result = store.exchange([Settlement(delivery.receipt, Ack(), follow_ups=(draft("next"),))], [ask()])
        assert [d.message.task for d in result.deliveries] == ["next"]

    def test_follow_ups_commit_with_the_settlement(self, store: Store, clock: ManualClock) -> None:
        put_one(store)
        follow_ups = (
            draft("a", id=fresh_id(store), causation_id="c"),
            draft("b", delay_ms=1000),
            draft("d", queue="q"),
        )
        assert settle(store, claim_one(store), Ack(), follow_ups=follow_ups) is Settled.OK
        assert [d.message.task for d in claim(store)] == ["a"]
        assert look(store, follow_ups[0].id or "").causation_id == "c"
        assert [d.message.task for d in claim(store, "q")] == ["d"]
        if store.traits.finds:
            assert [m.task for m in store.peek(Lane.READY).messages] == ["b"]
        clock.advance((1000 + store.traits.tick_ms) / 1000)
        assert [d.message.task for d in claim(store)] == ["b"]

    def test_a_death_can_have_follow_ups(self, store: Store) -> None:
        put_one(store)
        settle(store, claim_one(store), DeadLetter("permanent"), follow_ups=(draft("compensate"),))
        assert [d.message.task for d in claim(store)] == ["compensate"]

    def test_a_stale_settlement_writes_nothing(self, store: Store) -> None:
        put(store, draft(), draft())
        gone, good = claim(store)
        settle(store, gone, Ack())
        if not store.traits.fenced:
            return no_fence(store)
        stale = Settlement(
            gone.receipt, DeadLetter("permanent"), fault(), (draft("ghost"),), swaps=(Swap("cell", 0, b"ghost"),)
        )
        settled = store.exchange([stale, Settlement(good.receipt, Ack(), follow_ups=(draft("real"),))], []).settled
        assert settled == [Settled.STALE, Settled.OK]
        assert [d.message.task for d in claim(store)] == ["real"]
        assert store.cells.read(["cell"]) == [None]

    @takes("unique")
    def test_a_follow_up_whose_key_is_held_is_dropped(self, store: Store) -> None:
        holder = put(store, draft("a", key="k", delay_ms=1000))[0]
        put_one(store)
        assert settle(store, claim_one(store), Ack(), follow_ups=(draft("a", key="k"), draft("b"))) is Settled.OK
        assert [d.message.task for d in claim(store)] == ["b"]
        assert look(store, holder).lane is Lane.READY

    @takes("unique")
    def test_a_message_can_be_followed_by_one_with_its_own_key(self, store: Store) -> None:
        first = put_one(store, key="k")
        settle(store, claim_one(store), Ack(), follow_ups=(draft(key="k"),))
        assert claim_one(store).message.id != first

    def test_a_follow_up_that_is_refused_refuses_the_whole_exchange(self, store: Store) -> None:
        ids = put(store, draft(), draft(), draft())
        first, second = claim(store, limit=2)
        (third,) = {*ids} - {first.message.id, second.message.id}
        for bad in (draft(id=first.message.id), draft(priority=9))[not store.traits.finds :]:
            settlements = [
                Settlement(first.receipt, RetryAt(store.now_ms()), fault()),
                Settlement(second.receipt, Ack(), follow_ups=(draft("ghost"), bad)),
            ]
            with pytest.raises(EnqueueError):
                store.exchange(settlements, [ask()])
            assert store.find([first.message.id, second.message.id]) == [first.message, second.message]
        assert claimed_ids(store) == [third]

    @takes("cells", "atomic_moves")
    def test_swaps_commit_with_the_settlement_or_neither_does(self, store: Store) -> None:
        id, other = put(store, draft(), draft())
        delivery, second = claim(store)
        swaps = (Swap("a", 0, b"1"), Swap("b", 5, b"2"))
        settlements = [
            Settlement(delivery.receipt, DeadLetter("permanent"), follow_ups=(draft("ghost"),), swaps=swaps),
            Settlement(second.receipt, Ack(), swaps=(Swap("c", 0, b"3"),)),
        ]
        assert store.exchange(settlements, []).settled == [Settled.STALE, Settled.OK]
        assert values(store, "a", "b", "c") == [None, None, b"3"]
        assert look(store, id) == delivery.message
        assert store.find([other]) == [None]
        assert claim(store) == []
        assert settle(store, delivery, Ack(), swaps=(Swap("a", 0, b"1"), Swap("b", 0, b"2"))) is Settled.OK
        assert values(store, "a", "b") == [b"1", b"2"]

    @takes("cells", "atomic_moves")
    def test_of_two_settlements_that_swap_one_cell_the_first_wins(self, store: Store) -> None:
        put(store, draft(), draft())
        first, second = claim(store)
        settlements = [
            Settlement(d.receipt, Ack(), swaps=(Swap("a", 0, d.message.id.encode()),)) for d in (first, second)
        ]
        assert store.exchange(settlements, []).settled == [Settled.OK, Settled.STALE]
        assert values(store, "a") == [first.message.id.encode()]

    @takes("cells")
    def test_a_conflict_undoes_the_whole_exchange(self, store: Store) -> None:
        ids = put(store, draft(), draft())
        delivery = claim_one(store, limit=1)
        (other,) = {*ids} - {delivery.message.id}
        settlement = Settlement(delivery.receipt, DeadLetter("permanent"), fault(), (draft("ghost"),))
        with pytest.raises(Conflict):
            store.exchange([settlement], [ask()], swaps=[Swap("a", 0, b"1"), Swap("b", 1, b"2")])
        assert look(store, delivery.message.id) == delivery.message
        assert store.cells.read(["a", "b"]) == [None, None]
        assert [(d.message.id, d.message.attempt) for d in claim(store)] == [(other, 1)]
        done = store.exchange([settlement], [], swaps=[Swap("a", 0, b"1")])
        assert done.settled == [Settled.OK]
        assert values(store, "a") == [b"1"]

    def test_every_part_of_a_fault_is_kept(self, store: Store) -> None:
        text = 'it\'s "quoted" ключ 🗝 \u2028 \\u0000 \x00 \x1b[31m [1,2] {}'
        whole = Fault(
            Kind.THROTTLED,
            "http.Error",
            text,
            "0123456789abcdef",
            ("http.Error", "Exception"),
            text * 50,
            1.5,
            "retry_after",
            1_750_000_000_123,
            7,
            "w1",
            2500,
        )
        id = put_one(store)
        settle(store, claim_one(store), RetryAt(store.now_ms()), fault=whole)
        if message := seen(store, id):
            assert message.faults == (whole,)
        assert has_history(store, claim_one(store).message, whole)

    def test_the_first_and_the_last_ten_faults_are_kept_in_order(self, store: Store) -> None:
        id = put_one(store)
        failures = [fault(f"failure {n}", attempt=n) for n in range(25)]
        for n in range(25):
            delivery = claim_one(store)
            assert has_history(store, delivery.message, *(failures[:n][:10] + failures[10:n][-10:]))
            settle(store, delivery, RetryAt(store.now_ms()), fault=failures[n])
        assert has_history(store, given(store, id), *failures[:10], *failures[15:])

    def test_a_settlement_without_a_fault_leaves_the_history(self, store: Store) -> None:
        id = put_one(store)
        settle(store, claim_one(store), RetryAt(store.now_ms()), fault=fault("a"))
        settle(store, claim_one(store), RetryAt(store.now_ms()))
        delivery = claim_one(store)
        assert has_history(store, delivery.message, fault("a"))
        settle(store, delivery, DeadLetter("deadline"))
        message = seen(store, id, Lane.DEAD)
        assert message is None or has_history(store, message, fault("a"))


class SettledSwapRules(Contract):
    @takes("cells", "atomic_moves")
    def test_a_conflict_makes_its_settlement_stale_and_no_other(self, store: Store) -> None:
        put(store, *[Draft(task="push") for _ in range(5)])
        store.cells.swap([Swap("there", 0, b"0")])
        at = version(store.cells, "there")
        swaps: Sequence[tuple[Swap, ...]] = (
            (Swap("a", 0, b"1"), Swap("there", at, b"1")),
            (Swap("b", 0, b"2"), Swap("there", at, b"2")),  # a version that is gone, so b is not written either
            (Swap("b", 0, b"3"),),
            (),
            (Swap("a", 0, b"5"), Swap("c", 0, b"5")),
        )
        held = claim(store)
        settlements = [Settlement(d.receipt, Ack(), swaps=mine) for d, mine in zip(held, swaps, strict=True)]
        expected = [Settled.OK, Settled.STALE, Settled.OK, Settled.OK, Settled.STALE]
        assert store.exchange(settlements, []).settled == expected
        assert values(store, "there", "a", "b", "c") == [b"1", b"1", b"3", None]
        again = store.exchange(
            [Settlement(held[1].receipt, Ack(), swaps=(Swap("b", version(store.cells, "b"), None),))], []
        )
        assert again.settled == [Settled.OK] and values(store, "b") == [None]

    @takes("cells", "fenced", "atomic_moves")
    def test_settlements_with_one_swap_are_told_apart_from_all_others(self, store: Store, clock: ManualClock) -> None:
        """A batch of a healthy queue: mostly acks, and each completes a record."""
        key = "k" if store.traits.unique else None
        put(store, *[Draft(task="push", key=key if n == 5 else None, group="g" if n == 6 else None) for n in range(12)])
        store.cells.swap([Swap("there", 0, b"0"), Swap("over", 0, b"0", ttl_ms=1000), Swap("other", 0, b"0")])
        clock.advance("1s")
        at, held = version(store.cells, "there"), {d.message.id: d for d in claim(store, limit=20)}
        ids = sorted(held)
        swaps: list[tuple[Swap, ...]] = [
            (Swap("there", at, b"1", ttl_ms=5000),),
            (Swap("new", 0, b"1"),),
            (Swap("over", 0, b"1", ttl_ms=5000),),
            (Swap("other", 0, b"1"),),  # the cell exists already
            (Swap("none", ELSEWHERE, b"1"),),  # the cell does not exist
            (Swap("keyed", 0, b"1"),),
            (Swap("grouped", 0, b"1"),),
            (Swap("late", 0, b"1"),),
            (Swap("two", 0, b"1"), Swap("twice", 0, b"1")),
            (Swap("again", 0, b"1"),),
            (),
            (),
        ]
        decisions = [RetryAt(clock()) if n in (9, 11) else Ack() for n in range(12)]
        late = held[ids[7]]
        assert store.exchange([Settlement(late.receipt, Ack())], []).settled == [Settled.OK]
        settlements = [
            Settlement(held[id].receipt, decision, swaps=mine)
            for id, decision, mine in zip(ids, decisions, swaps, strict=True)
        ]
        stale = {3, 4, 7}
        expected = [Settled.STALE if n in stale else Settled.OK for n in range(12)]
        assert store.exchange(settlements, []).settled == expected
        wrote = ["there", "new", "over", "keyed", "grouped", "two", "twice", "again"]
        assert values(store, *wrote) == [b"1"] * len(wrote)
        assert values(store, "other", "none", "late") == [b"0", None, None]
        left = [id for id, message in zip(ids, store.find(ids), strict=True) if message is not None]
        assert left == [ids[n] for n in (3, 4, 9, 11)]
        clock.advance("5s")
        assert values(store, "there", "new", "over") == [None, b"1", None]

    @takes("cells", "fenced", "atomic_moves")
    def test_a_stale_receipt_swaps_nothing(self, store: Store) -> None:
        put(store, Draft(task="push"), Draft(task="push"))
        first, second = claim(store)
        store.exchange([Settlement(first.receipt, Ack())], [])
        late = [Settlement(d.receipt, Ack(), swaps=(Swap("a", 0, d.message.id.encode()),)) for d in (first, second)]
        assert store.exchange(late, []).settled == [Settled.STALE, Settled.OK]
        assert values(store, "a") == [second.message.id.encode()]

    @pytest.mark.parametrize("many", [1, 300])
    @takes("cells", "atomic_moves")
    def test_every_settlement_of_a_batch_may_have_swaps(self, store: Store, many: int) -> None:
        put(store, *[Draft(task="push") for _ in range(many)])
        held = claim(store, limit=many)
        for ttl_ms in (60_000, None):
            at = [cell.version if cell else 0 for cell in store.cells.read([d.message.id for d in held])]
            swaps = [Swap(d.message.id, n, bytes([n % 256]), ttl_ms) for d, n in zip(held, at, strict=True)]
            if ttl_ms is None:
                settlements = [Settlement(d.receipt, Ack(), swaps=(one,)) for d, one in zip(held, swaps, strict=True)]
                assert store.exchange(settlements, []).settled == [Settled.OK] * many
            else:
                store.exchange([], [], swaps=swaps)
        assert values(store, *[d.message.id for d in held]) == [bytes([n % 256]) for n in at]
