"""Rules of reading without claiming: find, counts, peek with filters and cursors, failure groups."""

from __future__ import annotations

import pytest

from ...errors import Unsupported
from ...message import Ack, Counts, DeadLetter, DueCount, Filter, Ids, Isolate, Lane, Message, Page, RetryAt
from ...store import Store
from ..clock import ManualClock
from .base import Contract, bury, claim, claim_one, draft, fault, fresh_id, handle, look, put, put_one, settle
from .weaker import lacks, takes

BAD_CURSORS = ["", "x", "1", "1.", ".1", "1.2.3", "-1.5", "1.5 ", "1e3.5", "9" * 40 + ".1", "1." + "9" * 40, "²."]


class LookRules(Contract):
    def test_find_answers_in_the_order_asked(self, store: Store) -> None:
        a, b = put(store, draft("a"), draft("b"))
        if not store.traits.finds:
            assert store.traits.cancels or store.find([b, a]) == [None, None]
            claim(store)  # the store finds what its worker holds
        messages = store.find([b, fresh_id(store), a, b, 'it\'s "none"'])
        assert [message and message.task for message in messages] == ["b", None, "a", "b", None]
        assert store.find([]) == []

    def test_ids_from_a_beginning_on_are_sorted_and_bounded(self, store: Store) -> None:
        ids = [f"0199f30{n}-2a5b-7000-8000-00000000000{n}" for n in (3, 1, 2)]
        if store.traits.triages:
            for id in ids:
                bury(store, id=id)
        elif store.traits.finds:
            put(store, *(draft(id=id) for id in ids))
        known = tuple(sorted(ids)) if store.traits.triages or store.traits.finds else ()
        first, last = "0199f300-0000-0000-0000-000000000000", "0199f3ff-ffff-ffff-ffff-ffffffffffff"
        assert store.ids_from(first, last, limit=10) == Ids(known)
        assert store.ids_from(first, last, limit=2).found == known[:2]
        assert store.ids_from(first, f"{ids[1][:8]}-2a5b-ffff-ffff-ffffffffffff", limit=10).found == known[:1]
        assert store.ids_from(f"{first[:6]}99{first[8:]}", last, limit=10) == Ids()

    def test_what_comes_due_is_counted_between_bounds_without_what_runs(self, store: Store, clock: ManualClock) -> None:
        now = clock()
        bounds = [now, now + 10_000, now + 20_000, now + 40 * 60_000]
        if not store.traits.finds:
            with pytest.raises(Unsupported):
                store.due_counts("default", bounds)
            return
        put(store, draft(), draft(priority=0))
        again, running = claim(store, lease_ms=15_000)
        settle(store, again, RetryAt(now + 20_000))  # at the end of a span, which includes it
        put(store, draft(due_ms=now + 10_000), draft(due_ms=now + 10_001, priority=3), draft(queue="q", due_ms=now + 5))
        put(store, draft(due_ms=now + 20_001), draft(due_ms=now + 41 * 60_000), draft())
        assert store.due_counts("default", bounds) == [DueCount(1, 0), DueCount(2, 1), DueCount(1, 0)]
        assert store.due_counts("q", bounds) == [DueCount(1, 0), DueCount(0, 0), DueCount(0, 0)]
        assert store.due_counts("other", bounds) == [DueCount(0, 0)] * 3
        assert running.message.lane is Lane.LEASED

    def test_what_waits_outside_its_group_comes_due_too(self, store: Store, clock: ManualClock) -> None:
        if not (store.traits.finds and store.traits.widths):
            return
        now = clock()
        put(store, draft(group="g"), draft(group="g"))
        settle(store, claim_one(store), RetryAt(now + 15_000))
        put(store, draft(group="g", due_ms=now + 5000))
        due = store.due_counts("default", [now, now + 10_000, now + 20_000])
        assert due == [DueCount(1, 0), DueCount(1, 1)]

    def test_messages_are_counted_by_lane_and_queue(self, store: Store) -> None:
        assert store.counts() == Counts()
        bury(store)
        bury(store, Lane.QUARANTINE)
        bury(store, Lane.DEAD, queue="q")
        put(store, *[draft() for _ in range(6)], draft(delay_ms=1000), draft(queue="q"), draft(queue="q", delay_ms=1))
        a, b, c, _ = claim(store, limit=4)
        settle(store, a, Ack())
        settle(store, b, RetryAt(store.now_ms() + 1))
        if store.traits.finds:
            store.cancel([c.message.id])
        settle(store, c, RetryAt(store.now_ms()))
        counts = [store.counts(), store.counts("default"), store.counts("q"), store.counts("none")]
        if store.traits.exact_counts:
            assert counts[0] == Counts(ready=3, scheduled=3, leased=1, dead=2, quarantine=1, done=1)
            assert counts[1] == Counts(ready=2, scheduled=2, leased=1, dead=1, quarantine=1, done=1)
            assert counts[2] == Counts(ready=1, scheduled=1, dead=1)
            assert counts[3] == Counts()
        assert all(number >= 0 for count in counts for number in _numbers(count))

    def test_counts_by_queue_say_what_counts_says_of_each(self, store: Store, clock: ManualClock) -> None:
        if store.traits.exact_counts:
            assert store.counts_by_queue() == {}
        for lane in (Lane.DEAD, Lane.QUARANTINE):
            bury(store, lane)
            bury(store, lane, queue="q")
        put(store, draft(), draft(delay_ms=10), draft(queue="q"), draft(queue="later", delay_ms=60_000))
        put(store, draft(), draft(delay_ms=60_000))
        put(store, *[draft(queue="g", group="a") for _ in range(3)], draft(queue="g", group="b", delay_ms=60_000))
        a, b = claim(store, limit=2)
        settle(store, a, Ack(keep_ms=60_000))
        if store.traits.finds:
            store.cancel([b.message.id])
        if store.traits.cells:
            store.configure("quiet", paused=True)
        clock.advance("5s")
        counts = store.counts_by_queue()
        assert sorted(counts) == store.queues()
        if store.traits.exact_counts:
            assert counts == {queue: store.counts(queue) for queue in store.queues()}

    def test_scheduled_messages_become_ready_with_time(self, store: Store, clock: ManualClock) -> None:
        put(store, draft(due_ms=clock() + 1000), draft(due_ms=clock() + 2000))
        for ready in (0, 1, 2):
            counts = store.counts()
            if store.traits.exact_counts:
                assert (counts.ready, counts.scheduled) == (ready, 2 - ready)
            clock.advance("1s")

    def test_the_oldest_age_is_of_the_longest_due_message(self, store: Store, clock: ManualClock) -> None:
        assert store.counts().oldest_age_s == 0.0
        put(store, draft(priority=3), draft(queue="q", due_ms=clock() + 4000), draft(delay_ms=600_000))
        clock.advance("10s")
        put_one(store, priority=0)
        if store.traits.exact_counts:
            assert (store.counts().oldest_age_s, store.counts("q").oldest_age_s) == (10.0, 6.0)
            claim(store)
            assert (store.counts().oldest_age_s, store.counts("default").oldest_age_s) == (6.0, 0.0)

    @takes("triages")
    def test_peek_shows_a_lane_oldest_first_and_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        dead = []
        for _ in range(3):
            dead.append(bury(store))
            clock.advance("1s")
        poison = bury(store, Lane.QUARANTINE)
        leased, cancelled, ready, later = put(store, draft(), draft(), draft(), draft(delay_ms=9000))
        claim(store, limit=1)
        if store.traits.finds:
            store.cancel([cancelled])
        before = store.counts()
        assert _ids(store.peek(Lane.DEAD)) == dead
        assert _ids(store.peek(Lane.QUARANTINE)) == [poison]
        if store.traits.finds:
            assert _ids(store.peek(Lane.DONE)) == [cancelled]
            assert _ids(store.peek(Lane.READY)) == [ready, later]
            assert _ids(store.peek(Lane.LEASED)) == [leased]
            assert set(_ids(store.peek(None))) == {leased, ready, later, *dead, poison, cancelled}
        assert store.counts() == before

    @takes("triages")
    def test_a_peeked_message_is_the_stored_one(self, store: Store) -> None:
        id = bury(store, why=fault(), body=b"\xff", headers={"a": "b"})
        assert store.peek(Lane.DEAD).messages == [look(store, id)]

    @takes("triages")
    def test_every_filter_must_match(self, store: Store, clock: ManualClock) -> None:
        ids = []
        for task, queue, reason, error, text in (
            ("a", "q", "exhausted", "ValueError", "1"),
            ("b", "q", "permanent", "KeyError", "2"),
            ("a", "r", "exhausted", "KeyError", "2"),
        ):
            why = fault(text, error=error, fingerprint=text * 16)
            ids.append(bury(store, reason=reason, why=why, task=task, queue=queue))
            clock.advance("1s")
        a, b, c = ids
        start = clock() - 3000
        for where, expected in (
            (Filter(), ids),
            (Filter(task="a"), [a, c]),
            (Filter(queue="q"), [a, b]),
            (Filter(reason="exhausted"), [a, c]),
            (Filter(error="KeyError"), [b, c]),
            (Filter(fingerprint="2" * 16), [b, c]),
            (Filter(ids=(c, a, "none")), [a, c]),
            (Filter(ids=()), []),
            (Filter(since_ms=start + 1000), [b, c]),
            (Filter(until_ms=start + 1000), [a]),
            (Filter(since_ms=start + 1000, until_ms=start + 2000), [b]),
            (Filter(task="a", queue="r", error="KeyError"), [c]),
            (Filter(task="b", queue="r"), []),
            (Filter(task="a'; drop table message; --"), []),
        ):
            assert _ids(store.peek(Lane.DEAD, where=where)) == expected, where
            assert not store.traits.finds or _ids(store.peek(None, where=where)) == expected, where
            assert _ids(store.peek(Lane.QUARANTINE, where=where)) == [], where

    @takes("finds")
    def test_times_are_of_enqueue_where_a_message_never_rested(self, store: Store, clock: ManualClock) -> None:
        first = put_one(store)
        clock.advance("1s")
        second = put_one(store, delay_ms=9000)
        assert _ids(store.peek(Lane.READY, where=Filter(since_ms=clock()))) == [second]
        assert _ids(store.peek(Lane.READY, where=Filter(until_ms=clock()))) == [first]

    @pytest.mark.parametrize("lane", [Lane.DEAD, Lane.READY, None])
    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_cursors_lead_through_all_of_it_once(
        self, store: Store, clock: ManualClock, lane: Lane | None, limit: int
    ) -> None:
        if lacks(store, "triages" if lane is Lane.DEAD else "finds") or (lane is None and lacks(store, "triages")):
            return
        for n in range(7):
            bury(store, why=fault(), priority=0)
            if n % 3:
                clock.advance("1s")
        put(store, *[draft() for _ in range(5)])
        wanted = Filter(task="push")
        whole = _ids(store.peek(lane, where=wanted, limit=1000))
        seen: list[str] = []
        cursor: str | None = None
        for _ in range(20):
            page = store.peek(lane, where=wanted, limit=limit, cursor=cursor)
            assert len(page.messages) <= limit
            seen += _ids(page)
            cursor = page.cursor
            if cursor is None:
                break
        assert cursor is None
        assert seen == whole
        assert len(whole) == {Lane.DEAD: 7, Lane.READY: 5, None: 12}[lane]

    @takes("triages")
    def test_a_cursor_holds_its_place_while_messages_come_and_go(self, store: Store, clock: ManualClock) -> None:
        ids = []
        for _ in range(4):
            ids.append(bury(store))
            clock.advance("1s")
        page = store.peek(Lane.DEAD, limit=2)
        assert _ids(page) == ids[:2]
        store.triage([handle(store, ids[1]), handle(store, ids[2])], Isolate("away"))
        late = bury(store)
        assert _ids(store.peek(Lane.DEAD, cursor=page.cursor)) == [ids[3], late]

    @pytest.mark.parametrize("cursor", BAD_CURSORS)
    @takes("triages")
    def test_a_cursor_that_is_not_ours_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            store.peek(Lane.DEAD, cursor=cursor)

    @takes("triages")
    def test_dead_messages_are_grouped_by_fingerprint_and_task(self, store: Store, clock: ManualClock) -> None:
        start = clock()
        groups: dict[tuple[str, str], list[str]] = {}
        for name, task in (("x", "a"), ("y", "a"), ("x", "a"), ("y", "b"), ("x", "a"), ("y", "b")):
            why = fault(f"text {name}", error=f"Error{name}", fingerprint=name * 16)
            groups.setdefault((name, task), []).append(bury(store, why=why, task=task))
            clock.advance("1s")
        bury(store, Lane.QUARANTINE, why=fault(fingerprint="x" * 16), task="a")
        listed = store.failure_groups()
        assert [(g.fingerprint[0], g.task, g.count) for g in listed] == [("x", "a", 3), ("y", "b", 2), ("y", "a", 1)]
        assert [(g.first_ms - start, g.last_ms - start) for g in listed] == [(0, 4000), (3000, 5000), (1000, 1000)]
        assert [(g.error, g.text) for g in listed] == [("Errorx", "text x"), ("Errory", "text y"), ("Errory", "text y")]
        assert all(g.sample_id in groups[g.fingerprint[0], g.task] for g in listed)
        assert [g.count for g in store.failure_groups(where=Filter(task="b"))] == [2]

    @takes("triages")
    def test_the_sample_of_a_group_shows_the_text_of_the_group(self, store: Store) -> None:
        for text in ("9 of 10", "10 of 10", "1 of 10"):
            bury(store, why=fault(text))
        (group,) = store.failure_groups()
        assert look(store, group.sample_id).faults[-1].text == group.text

    @takes("triages")
    def test_messages_that_died_without_a_fault_are_a_group_too(self, store: Store) -> None:
        id = put_one(store)
        settle(store, claim_one(store), RetryAt(store.now_ms()), fault=fault())
        settle(store, claim_one(store), DeadLetter("deadline", counts=False))
        (group,) = store.failure_groups()
        assert (group.count, group.sample_id) == (1, id)
        if store.traits.atomic_moves:
            assert (group.fingerprint, group.error) == ("", "")
        else:  # the message may be stored as if imported: listed under its last fault
            assert (group.fingerprint, group.error) in [("", ""), ("f" * 16, "ValueError")]

    def test_a_doctor_says_what_is_wrong_in_lines_and_about_names_the_engine(self, store: Store) -> None:
        put_one(store)
        said = store.doctor()
        assert all(line.strip() == line != "" and "\n" not in line for line in said)
        about = store.info()
        assert about["engine"] and "" not in about.values()
        assert store.check() == []


def _ids(page: Page) -> list[str]:
    messages: list[Message] = page.messages
    return [message.id for message in messages]


def _numbers(counts: Counts) -> list[float]:
    return [getattr(counts, name) for name in Counts.__struct_fields__]
