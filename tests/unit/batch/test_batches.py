"""Batches end to end on the memory store: members, callbacks, episodes, keys, cancels, and members that add members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Backoff, Context, Gates, Keys, Retry, context
from redrive.errors import BatchNotDone, ConfigError, Conflict
from redrive.message import BatchCounts

ONCE = Retry(max_attempts=1)


class Shop:
    """An app with a task that fails for the numbers in `bad`, and callbacks that write down when they run."""

    def __init__(self, url: str, **options: Any) -> None:
        self.app = app = App(url, **options)
        self.ran: list[int] = []
        self.heard: list[tuple[str, str, BatchCounts]] = []
        self.bad: set[int] = set()

        @app.task(name="push", retry=ONCE)
        def push(n: int) -> None:
            self.ran.append(n)
            if n in self.bad:
                raise ValueError(f"no room for {n}")

        @app.task(name="tell", ctx=True)
        def tell(ctx: Context, word: str) -> None:
            assert ctx.batch is not None and ctx.message.priority == 0
            self.heard.append((word, ctx.batch.id, ctx.batch.counts))

        self.push, self.tell = push, tell

    @property
    def callbacks(self) -> Any:
        return {f"on_{word}": self.tell.draft(word) for word in ("success", "complete", "death")}

    @property
    def words(self) -> list[str]:
        return [word for word, _, _ in self.heard]

    def work(self) -> None:
        self.app.run_worker(drain=True)


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    made = Shop("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db")
    yield made
    made.app.store.close()


def test_a_batch_that_succeeds_calls_on_complete_and_on_success_once(shop: Shop) -> None:
    ref = shop.app.batch((shop.push.draft(n) for n in range(10)), name="sync", **shop.callbacks).enqueue()
    assert ref.state == "running" and ref.counts.open == 10
    shop.work()
    assert sorted(shop.ran) == list(range(10)) and sorted(shop.words) == ["complete", "success"]
    assert ref.state == "done" and ref.wait() == BatchCounts(done=10, opened=10)
    assert {id for _, id, _ in shop.heard} == {ref.id}
    assert all(counts.total == counts.done == 10 for _, _, counts in shop.heard)


def test_what_died_is_redriven_weeks_later_and_the_batch_goes_on(shop: Shop) -> None:
    shop.bad = {3, 7}
    ref = shop.app.batch((shop.push.draft(n) for n in range(10)), name="sync", **shop.callbacks).enqueue()
    shop.work()
    assert sorted(shop.words) == ["complete", "death"] and ref.state == "partial"
    with pytest.raises(BatchNotDone, match="2 of 10 members failed"):
        ref.wait()
    assert sorted(message.task for message in ref.members("dead")) == ["push", "push"]
    shop.bad, shop.heard[:] = {7}, []
    ids = [message.id for message in ref.members("dead")]
    shop.app.dlq.retry(ids=ids)
    shop.work()
    assert sorted(shop.words) == ["complete", "death"] and ref.counts == BatchCounts(done=9, dead=1, opened=12, died=3)
    shop.bad, shop.heard[:] = set(), []
    shop.app.dlq.retry(ids=ids)
    shop.work()
    assert sorted(shop.words) == ["complete", "success"] and ref.state == "done"
    assert ref.info().episode == 4


def test_a_discard_ends_a_batch_that_tolerates_it(shop: Shop) -> None:
    shop.bad = {0, 1}
    drafts = [shop.push.draft(n) for n in range(20)]
    ref = shop.app.batch(drafts, name="sync", tolerate="5%", **shop.callbacks).enqueue()
    shop.work()
    assert sorted(shop.words) == ["complete", "death"] and ref.state == "partial"
    one, _ = (message.id for message in ref.members("dead"))
    shop.bad = {1}
    shop.app.dlq.discard(ids=[one], reason="paid by hand")
    assert ref.state == "partial"  # a discard is a failure, too: two of twenty are more than 5 %
    shop.bad = set()
    shop.app.dlq.retry(ids=[message.id for message in ref.members("dead")])
    shop.work()
    assert ref.state == "done" and shop.words.count("success") == 1 and ref.counts.discarded == 1


def test_an_empty_batch_succeeds_at_once_and_so_does_one_of_duplicates(shop: Shop) -> None:
    empty = shop.app.batch(name="sync", **shop.callbacks).enqueue()
    assert empty.state == "done" and empty.counts == BatchCounts()
    shop.push.using(key="k").enqueue(1)
    twice = shop.app.batch([shop.push.using(key="k").draft(1)] * 2, name="sync", **shop.callbacks).enqueue()
    assert twice.state == "done" and twice.counts == BatchCounts(duplicate=2)
    shop.work()
    assert sorted(shop.words) == ["complete"] * 2 + ["success"] * 2 and shop.ran == [1]


def test_members_add_members_at_two_levels(shop: Shop) -> None:
    @shop.app.task(name="crawl", ctx=True, retry=Retry(max_attempts=3, backoff=Backoff.fixed("1ms")))
    def crawl(ctx: Context, depth: int) -> None:
        assert ctx.batch is not None
        ctx.batch.add(*(crawl.draft(depth - 1) for _ in range(3 if depth else 0)))
        if ctx.attempt == 1:
            raise ValueError("this attempt fails after it added, so it adds nothing")

    ref = shop.app.batch([crawl.draft(2)], name="crawl", **shop.callbacks).enqueue()
    shop.work()
    assert ref.counts == BatchCounts(done=13, opened=13) and sorted(shop.words) == ["complete", "success"]


def test_a_block_streams_members_and_its_end_seals_the_batch(shop: Shop) -> None:
    with shop.app.batch(name="sync", **shop.callbacks) as b:
        for n in range(2500):
            b.add(shop.push.draft(n))
        shop.work()
        assert b.ref.state == "filling" and b.ref.counts.done == 2000 and shop.words == []
    assert b.ref.state == "running" and b.ref.counts.total == 2500
    shop.work()
    assert b.ref.state == "done" and sorted(shop.words) == ["complete", "success"]
    with pytest.raises(ConfigError, match="sealed"):
        b.add(shop.push.draft(1))


def test_a_producer_that_was_killed_goes_on_where_it_stood(shop: Shop) -> None:
    b = shop.app.batch(name="sync", key="0922", **shop.callbacks)

    def fill() -> None:
        with b:
            b.add(*(shop.push.draft(n) for n in range(1700)))
            shop.bad = {500}
            shop.work()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert b.ref.state == "filling" and b.ref.counts.total == 1000 and shop.words == ["death"]
    drafts = [shop.push.draft(n) for n in range(2300)]
    ref = shop.app.batch(drafts, name="sync", key="0922", **shop.callbacks).enqueue()
    assert ref.id == b.ref.id and not ref.duplicate and ref.counts.total == 2300
    shop.work()
    assert sorted(shop.ran) == list(range(2300)) and ref.state == "partial"
    again = shop.app.batch(drafts, name="sync", key="0922", **shop.callbacks).enqueue()
    assert again.id == ref.id and again.duplicate and again.counts.total == 2300
    assert shop.app.batch(name="sync", key="0923").enqueue().id != ref.id


def test_two_producers_with_one_key_do_not_mix(shop: Shop) -> None:
    one = shop.app.batch(name="sync", key="k")
    other = shop.app.batch(name="sync", key="k")
    drafts = [shop.push.draft(n) for n in range(1000)]
    with one:
        other.__enter__()
        one.add(*drafts)
        with pytest.raises(Conflict, match="another producer"):
            other.add(*drafts)
    with pytest.raises(Conflict, match="another producer"):
        other.seal()
    assert one.ref.counts.total == 1000


def test_a_death_while_it_is_filled_disturbs_no_producer(shop: Shop) -> None:
    shop.bad = {1}
    with shop.app.batch(name="sync", **shop.callbacks) as b:
        b.add(*(shop.push.draft(n) for n in range(1000)))
        shop.work()
        b.add(*(shop.push.draft(n) for n in range(1000)))
    assert b.ref.counts.total == 2000
    shop.work()
    assert shop.words.count("death") == 1 and shop.words.count("complete") == 1


def test_a_cancelled_batch_ends_what_waits(shop: Shop) -> None:
    drafts = [shop.push.using(delay="1h").draft(n) for n in range(700)]
    ref = shop.app.batch(drafts, name="sync", **shop.callbacks).enqueue()
    assert ref.cancel(reason="wrong list", actor="ada") == 700
    assert ref.state == "cancelled" and ref.counts.cancelled == 700
    shop.work()
    assert shop.words == ["complete"]
    (entry,) = (entry for entry in shop.app.audit if entry.about == f"batch/{ref.id}")
    assert (entry.action, entry.reason) == ("cancel", "wrong list")
    with pytest.raises(BatchNotDone, match="cancelled"):
        ref.wait()


def test_a_partial_batch_is_given_up_and_one_that_is_done_stays_done(shop: Shop) -> None:
    shop.bad = {1}
    done, partial = (shop.app.batch([shop.push.draft(n)], name="sync").enqueue() for n in (0, 1))
    shop.work()
    assert done.cancel(reason="too late") == partial.cancel(reason="given up") == 0
    assert (done.state, partial.state) == ("done", "cancelled") and partial.counts.dead == 1
    assert not [entry for entry in shop.app.audit if entry.about == f"batch/{done.id}"]


def test_an_edited_member_stays_a_member(shop: Shop) -> None:
    shop.bad = {1}
    ref = shop.app.batch([shop.push.draft(1)], name="sync", **shop.callbacks).enqueue()
    shop.work()
    (dead,) = ref.members("dead")
    shop.app.dlq.edit(dead.id, body={"n": 2}, reason="wrong number")
    shop.work()
    assert ref.state == "done" and shop.words.count("success") == 1 and ref.counts.total == 1


def test_a_batch_of_an_encrypting_app_hides_its_callbacks() -> None:
    shop = Shop("memory://", encrypt=Keys({"k1": b"0" * 32}))
    ref = shop.app.batch([shop.push.draft(1)], name="sync", on_success=shop.tell.draft("secret-word")).enqueue()
    (cell,) = shop.app.store.cells.read([f"batch/{ref.id}"])
    assert cell is not None and b"secret" not in cell.value and b"c2VjcmV0" not in cell.value
    shop.work()
    assert shop.words == ["secret-word"]
    shop.app.store.close()


@pytest.mark.parametrize("wrong", [-1, "5", "101%", "x%", True, 1.5])
def test_a_tolerance_that_is_none_is_refused(shop: Shop, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="tolerate="):
        shop.app.batch(name="sync", tolerate=wrong)


@pytest.mark.parametrize(
    ("name", "key", "why"),
    [
        ("", None, "expected a text"),
        (7, None, "expected a text"),
        ("n" * 256, None, "256 characters, expected at most 255"),
        ("sync", "k" * 1025, "its key has 1,025 bytes, expected at most 1,024"),
        ("sync", "ü" * 513, "its key has 1,026 bytes"),
        ("a\0b", "k", "NUL"),
        ("sync", "a\0b", "NUL"),
        ("sync", "\ud800", "UTF-8"),
        ("sync", "", "key="),
    ],
    ids=["empty", "number", "long name", "long key", "long in bytes", "NUL name", "NUL key", "surrogate", "empty key"],
)
def test_a_name_or_a_key_that_no_batch_can_have_is_refused_at_once(shop: Shop, name: Any, key: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        shop.app.batch(name=name, key=key)
    assert shop.app.batch(name="n" * 255, key="k" * 1024).enqueue().state == "done"


def test_who_is_no_member_has_no_batch(shop: Shop) -> None:
    seen = []

    @shop.app.task(name="plain")
    def plain() -> None:
        seen.append(context().batch)

    plain.enqueue()
    shop.work()
    assert seen == [None]
    with pytest.raises(ConfigError, match="unknown"):
        shop.app.batch_ref("0199f3a1-0000-7000-8000-000000000000").info()


def test_an_episode_ends_with_the_redrive_and_not_in_its_gaps(shop: Shop) -> None:
    shop.bad = set(range(6))
    ref = shop.app.batch((shop.push.draft(n) for n in range(10)), name="sync", tolerate=2, **shop.callbacks).enqueue()
    shop.work()
    assert sorted(shop.words) == ["complete", "death"]
    shop.bad = {5}
    shop.app.dlq.select(f"batch:{ref.id}").plan(canary=1, slow_start=False, rate="8/s").start(reason="there is room")
    shop.work()
    assert sorted(shop.words[2:]) == ["complete", "death", "success"], "each once, though all but one were gaps"
    done = {word: counts.done for word, _, counts in shop.heard[2:]}
    assert done["success"] == done["complete"] == 9, "the report has the figures of the whole redrive"
    assert ref.state == "done" and shop.app.store.changed_batches() == []


def test_a_run_that_waits_for_an_approval_withholds_no_end_of_an_episode(shop: Shop) -> None:
    shop.bad = {0, 1}
    ref = shop.app.batch([shop.push.draft(0), shop.push.draft(1)], name="sync", **shop.callbacks).enqueue()
    shop.work()
    run = shop.app.dlq.select(f"batch:{ref.id}").plan(gates=Gates(approval="ann")).start(reason="perhaps")
    shop.work()
    assert run.view().why and shop.words.count("complete") == 1
    shop.bad = {1}
    shop.app.dlq.retry([next(ref.members()).id])
    shop.work()
    assert shop.words.count("complete") == 2 and ref.counts.done == 1


@pytest.mark.parametrize("own", [False, True])
def test_only_a_run_that_may_have_members_to_move_withholds_the_end_of_an_episode(shop: Shop, own: bool) -> None:
    """The run waits for the end of its canary, which is in a queue of its own."""

    @shop.app.task(name="other", queue="other", retry=ONCE)
    def other() -> None:
        raise ValueError("no room")

    shop.app.enqueue_many([other.draft() for _ in range(2)])
    shop.work()  # the canary is one of these, which died first
    shop.bad = {0, 1}
    drafts = [shop.push.draft(0), shop.push.draft(1), other.draft()]
    ref = shop.app.batch(drafts if own else drafts[:2], name="sync", **shop.callbacks).enqueue()
    shop.work()
    run = shop.app.dlq.select("task:other").plan(canary=1).start(reason="there is room")
    shop.app.run_worker(["default"], burst=True)
    assert run.view().phase == "canary" and shop.words.count("complete") == 1
    shop.bad = {1}
    shop.app.dlq.retry([next(m.id for m in ref.members() if m.task == "push")])
    shop.app.run_worker(["default"], burst=True)
    assert (ref.counts.open, ref.counts.done) == (0, 1) and shop.words.count("complete") == (1 if own else 2)
