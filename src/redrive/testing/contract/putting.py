"""Rules of enqueueing: messages arrive unchanged, bad ones are refused, and stored ones outlive the handle."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from ...errors import Conflict, EnqueueError, StoreError, TooLarge, Unsupported
from ...ids import is_id
from ...message import Ack, Counts, Draft, Lane, LeaseStatus, PutResult, Settled, Settlement, Swap
from ...store import Store
from ..clock import ManualClock
from .base import (
    Contract,
    OpenStore,
    another,
    claim,
    claim_one,
    claimed_ids,
    draft,
    fresh_id,
    given,
    in_threads,
    look,
    ordered,
    put,
    put_one,
    seen,
    values,
)
from .weaker import takes

HOSTILE_BODIES = {
    "empty": b"",
    "nul": b"\0",
    "nul inside": b'{"a":"\0"}',
    "not utf-8": b"\xff\xfe\x00\xc3\x28",
    "not json": b"{'a': nan,",
    "lone surrogate": b'"\xed\xa0\x80"',
    "quotes": b"'\"`;--\\u0000\\",
    "every byte": bytes(range(256)),
    "deep": b"[" * 100_000,
    "one MB": random.Random(1).randbytes(1_000_000),
}
HOSTILE_TEXT = "ключ 🗝 \u202e \x7f '\"\\ %s {} \u2028 \r\n\t"
REFUSED: dict[str, dict[str, Any]] = {
    "an id of another form": {"id": "42"},
    "an id in upper case": {"id": "0197716A-5800-7ABC-8DEF-0123456789AB"},
    "a priority too high": {"priority": -1},
    "a priority too low": {"priority": 4},
    "a negative delay": {"delay_ms": -1},
    "a time beyond 64 bits": {"due_ms": 2**63},
    "a lone surrogate in its group": {"group": "\ud800"},
    "a lone surrogate in a header": {"headers": {"a": "\udfff"}},
    "a NUL in its queue": {"queue": "a\0b"},
    "a NUL in a header's name": {"headers": {"a\0b": ""}},
    "no queue": {"queue": ""},
    "a task of 256 characters": {"task": "t" * 256},
    "a queue of 256 characters": {"queue": "q" * 256},
    "a group of 256 characters": {"group": "g" * 256},
    "a key of 1,025 bytes": {"key": "é" * 512 + "k"},
    "a correlation id of 1,025 bytes": {"correlation_id": "c" * 1025},
    "a producer of 1,025 bytes": {"producer": "p" * 1025},
    "101 headers": {"headers": {f"h{n}": "" for n in range(101)}},
    "headers of more than 64 KiB": {"headers": {"h": "v" * 65_536}},
}


def full_draft(store: Store) -> Draft:
    return Draft(
        task="crm.push",
        queue="crm",
        body=b'{"a":1}',
        content="raw",
        id=fresh_id(store),
        due_ms=store.now_ms() - 5,
        priority=1,
        key="order-42",
        group="tenant-7",
        deadline_ms=store.now_ms() + 60_000,
        version=3,
        headers={"x-a": "1", HOSTILE_TEXT: HOSTILE_TEXT},
        correlation_id=fresh_id(store),
        causation_id=fresh_id(store),
        producer=HOSTILE_TEXT,
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )


class PutRules(Contract):
    def test_every_part_of_a_draft_arrives(self, store: Store) -> None:
        sent = full_draft(store)
        if not store.traits.unique:
            sent = replace(sent, key=None)
        put(store, sent)
        got = claim_one(store, queue="crm").message
        for part in set(Draft.__struct_fields__) - {"delay_ms", "due_ms", "key_for_ms", "waiting", "replace"}:
            assert getattr(got, part) == getattr(sent, part), part
        assert (got.enqueued_ms, got.life_ms) == (store.now_ms(), store.now_ms())

    def test_a_plain_draft_has_the_defaults(self, store: Store) -> None:
        id = put_one(store)
        assert is_id(id)
        if got := seen(store, id):
            assert (got.lane, got.fence, got.attempt, got.worker) == (Lane.READY, 0, 0, None)
        got = got or claim_one(store).message
        assert (got.task, got.queue, got.priority) == ("push", "default", 2)
        assert (got.crashes, got.redrives, got.cancel) == (0, 0, False)
        assert (got.correlation_id, got.causation_id, got.headers, got.faults) == (id, None, {}, ())
        assert (got.progress, got.result, got.reason, got.rested_ms) == (None, None, None, None)

    @pytest.mark.parametrize("body", HOSTILE_BODIES.values(), ids=HOSTILE_BODIES)
    def test_a_body_arrives_byte_for_byte(self, store: Store, body: bytes) -> None:
        body = body[: store.traits.body_bytes_max]
        id = put_one(store, body=body, content="raw")
        assert given(store, id).body == body
        if store.traits.finds:
            assert claim_one(store).message.body == body
            assert store.peek(Lane.LEASED).messages[0].body == body

    def test_puts_say_what_became_of_each_draft(self, store: Store) -> None:
        now = store.now_ms()
        puts = store.put([draft(), draft(delay_ms=1), draft(due_ms=now), draft(due_ms=now + 1)])
        assert [done.state for done in puts] == ["ready", "scheduled", "ready", "scheduled"]
        assert len({done.id for done in puts}) == 4
        assert not any(done.duplicate for done in puts)
        assert store.put([]) == []

    def test_a_delay_is_never_cut_short(self, store: Store, clock: ManualClock) -> None:
        first, second = put(store, draft(delay_ms=1500), draft(due_ms=clock() + 1500))
        if waiting := seen(store, second):
            assert waiting.due_ms == clock() + 1500
            # The clock shows whole milliseconds: the one in which the message was put does not count.
            assert look(store, first).due_ms in (clock() + 1500, clock() + 1501)
        clock.advance("1499ms")
        assert claim(store) == []
        clock.advance((1 + store.traits.tick_ms) / 1000)
        assert claimed_ids(store) == (ordered(store, [first, second]) if store.traits.tick_ms > 1 else [second, first])

    def test_delays_reach_as_far_as_the_store_says(self, store: Store) -> None:
        most_ms = store.traits.delay_ms_max
        if most_ms is None:
            due_ms = store.now_ms() + 3 * 365 * 86_400_000
            waiting = seen(store, put_one(store, delay_ms=3 * 365 * 86_400_000))
            assert waiting is None or (waiting.due_ms or 0) >= due_ms
            assert claim(store) == []
        else:
            put_one(store, delay_ms=most_ms)
            with pytest.raises(EnqueueError):
                put_one(store, delay_ms=most_ms + 1)

    def test_a_full_batch_is_put_claimed_and_settled_in_one_call_each(self, store: Store) -> None:
        size = store.traits.batch_max
        ids = put(store, *[draft(body=str(n).encode()) for n in range(size)])
        deliveries = claim(store, limit=size)
        assert [d.message.id for d in deliveries] == ids
        assert [d.message.body for d in deliveries] == [str(n).encode() for n in range(size)]
        assert store.extend([d.receipt for d in deliveries], lease_ms=1000) == [LeaseStatus.HELD] * size
        settled = store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], []).settled
        assert settled == [Settled.OK] * size
        assert store.find(ids) == [None] * size

    @pytest.mark.parametrize("parts", REFUSED.values(), ids=REFUSED)
    def test_a_draft_that_cannot_be_kept_is_refused_and_nothing_is_written(
        self, store: Store, parts: dict[str, Any]
    ) -> None:
        if "key" in parts and not store.traits.unique:
            parts = parts | {"correlation_id": parts["key"], "key": None}  # no key: bound another id
        with pytest.raises(EnqueueError):
            store.put([draft(), draft(**parts)], swaps=[Swap("cell", 0, b"1")] if store.traits.cells else [])
        assert store.counts() == Counts() and claim(store) == []
        assert store.cells.read(["cell"]) == [None]

    def test_names_and_headers_at_their_bounds_arrive(self, store: Store) -> None:
        headers = {f"{n:03}": "v" * 652 for n in range(100)}  # 65,500 bytes
        room = (store.traits.names_bytes_max or 10_000) - 255  # bytes for the names of task and key together
        key = "k" * min(room, 1024) if store.traits.unique else None
        put_one(store, task="t" * 255, correlation_id="c" * 1024, headers=headers, key=key)
        got = claim_one(store).message
        assert (got.task, got.correlation_id, got.headers, got.key) == ("t" * 255, "c" * 1024, headers, key)

    def test_a_body_over_the_limit_is_refused(self, store: Store) -> None:
        with pytest.raises(TooLarge):
            store.put([draft(), draft(body=bytes(store.traits.body_bytes_max + 1))])
        assert store.counts() == Counts()

    def test_a_transaction_that_is_none_is_refused(self, store: Store) -> None:
        with pytest.raises(Unsupported):
            store.put([draft()], tx=object())

    def test_an_id_is_stored_once(self, store: Store) -> None:
        id, other = fresh_id(store), fresh_id(store)
        for batch in ([draft(id=id), draft(id=other), draft(id=id)], [draft(id=other), draft(id=id), draft(id=id)]):
            with pytest.raises(EnqueueError):
                store.put(batch)
        assert store.find([id, other]) == [None, None]
        put_one(store, id=id, body=b"1")
        if store.traits.finds:
            with pytest.raises(EnqueueError):
                store.put([draft(id=other), draft(id=id, body=b"2")])
            assert look(store, id).body == b"1"
            assert store.find([other]) == [None]
        else:  # one put does not notice the other, but the first message is not lost
            assert [(d.message.id, d.message.body) for d in claim(store)] == [(id, b"1")]

    @takes("unique")
    def test_the_same_id_under_the_same_key_is_a_duplicate(self, store: Store) -> None:
        id = put_one(store, key="k", body=b"1")
        assert store.put([draft(id=id, key="k", body=b"2")]) == [PutResult(id, True, "ready")]
        assert given(store, id).body == b"1"

    @takes("cells")
    def test_swaps_commit_with_the_put_or_neither_does(self, store: Store) -> None:
        put_done = store.put([draft()], swaps=[Swap("a", 0, b"1"), Swap("b", 0, b"2")])
        before = store.cells.read(["a", "b"])
        assert values(store, "a", "b") == [b"1", b"2"] and before[0] is not None
        with pytest.raises(Conflict):
            store.put([draft()], swaps=[Swap("a", before[0].version, b"3"), Swap("b", 10**12, b"4")])
        assert store.cells.read(["a", "b"]) == before
        assert claimed_ids(store) == [done.id for done in put_done]

    def test_what_was_put_outlives_the_handle_if_the_store_is_durable(
        self, store: Store, open_store: OpenStore
    ) -> None:
        id = put_one(store, body=b"kept")
        if store.traits.cells:
            store.cells.swap([Swap("cell", 0, b"1")])
            store.configure("slow", paused=True)
        store.close()
        again = open_store()
        if store.traits.durable:
            if store.traits.cells:
                assert values(again, "cell") == [b"1"]
                assert again.paused() == {"slow"}
            assert [(d.message.id, d.message.body) for d in claim(again)] == [(id, b"kept")]
        else:
            assert again.find([id]) == [None]
            assert again.counts() == Counts()

    def test_other_handles_see_it_if_the_store_is_shared(self, store: Store, open_store: OpenStore) -> None:
        other = another(store, open_store)
        if other is None:
            return
        id = put_one(store)
        if store.traits.cells:
            store.configure("slow", paused=True)
        if store.traits.shared:
            assert claimed_ids(other) == [id]
            assert claimed_ids(store) == []
            assert other.paused() == ({"slow"} if store.traits.cells else frozenset())
        else:
            assert claimed_ids(other) == []
            assert claimed_ids(store) == [id]

    def test_a_closed_store_refuses_and_closes_again(self, store: Store) -> None:
        store.close()
        for call in (lambda: store.put([draft()]), lambda: store.put([draft()]), lambda: store.find([])):
            with pytest.raises(StoreError):
                call()
        store.close()

    def test_concurrent_puts_all_arrive(self, store: Store) -> None:
        ids: list[str] = []

        def put_on() -> None:
            for _ in range(25):
                ids.extend(put(store, draft(), draft()))

        in_threads(*[put_on] * 4)
        assert len(set(ids)) == 200
        assert sorted(claimed_ids(store, limit=1000)) == sorted(ids)

    def test_an_error_of_one_thread_is_not_an_error_of_another(self, store: Store) -> None:
        taken = put_one(store)
        bad = draft(id=taken) if store.traits.finds else draft(priority=9)
        refused: list[int] = []

        def put_taken() -> None:
            for n in range(25):
                with pytest.raises(EnqueueError):
                    store.put([draft(), bad])
                refused.append(n)

        in_threads(put_taken, *[lambda: [put_one(store) for _ in range(25)]] * 3)
        assert len(refused) == 25
        assert len(claimed_ids(store, limit=1000)) == 76
