"""What an app declares of its queues: how groups are served, and what is kept of what is over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import Heard, store_in

from redrive import App, Draft, Reject, Retention
from redrive.errors import ConfigError, StoreUnavailable
from redrive.events import Notice
from redrive.message import Ack, ClaimRequest, GroupOrder, Keep, Lane, OnDead
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import Kit, ManualClock


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = store_in(tmp_path, request.param)
    yield made
    made.close()


def at_once(store: Store, group: str = "g") -> int:
    """How many of a group's messages are let in at once."""
    store.put([Draft(task="t", queue="q", group=group)] * 10)
    return len(store.exchange([], [ClaimRequest("q", 10, 60_000)]).deliveries)


# -- groups


@pytest.mark.parametrize(
    "declared, most",
    [
        ({}, 1),
        ({"group_width": 4}, 4),
        ({"group_width": 4, "group_order": "turns"}, 4),
        ({"group_order": "strict"}, 1),
        ({"group_order": "strict", "group_width": 1, "on_dead": "block"}, 1),
    ],
)
def test_declared_settings_are_told_to_the_store_when_it_is_first_used(
    store: Store, declared: dict[str, Any], most: int
) -> None:
    app = App(store=store)
    app.queue("q", **declared)
    assert at_once(app.store) == most


def test_they_are_told_for_a_queue_declared_later_too(store: Store) -> None:
    app = App(store=store)
    app.store.counts()
    app.queue("q", group_width=3)
    assert at_once(app.store) == 3


@pytest.mark.parametrize(
    "first, then, most",
    [
        ({"group_order": "strict", "on_dead": "block"}, {"group_width": 3}, 3),
        ({"group_order": "strict", "on_dead": "block"}, {"group_order": "turns"}, 1),
        ({"group_width": 3}, {"group_order": "strict"}, 1),
        ({"group_width": 3}, {"concurrency": 7}, 3),
    ],
)
def test_a_later_declaration_wins_and_what_it_leaves_out_stays(
    store: Store, first: dict[str, Any], then: dict[str, Any], most: int
) -> None:
    for declared in (first, then):
        app = App(store=store)
        app.queue("q", **declared)
        app.store.counts()
    assert at_once(store) == most


def test_a_dead_head_blocks_its_strict_group(store: Store) -> None:
    app, ran = App(store=store), []
    app.queue("q", group_order="strict", on_dead="block")

    @app.task(queue="q")
    def step(n: int, group: str) -> None:
        ran.append((group, n))
        if (group, n) == ("a", 1):
            raise Reject("bad")

    app.enqueue_many([step.using(group=g).draft(n, g) for n in range(3) for g in ("a", "b")])
    app.run_worker(burst=True)
    assert [n for g, n in ran if g == "a"] == [0, 1] and [n for g, n in ran if g == "b"] == [0, 1, 2]
    [blocked] = [group for group in store.groups("q") if group.name == "a"]
    assert blocked.parked == 1 and blocked.blocked_by == next(iter(app.dlq)).id


def test_the_store_is_told_again_where_it_could_not_be_told() -> None:
    class Down(MemoryStore):
        down = True

        def configure(self, queue: str, **settings: Any) -> None:
            if self.down:
                raise StoreUnavailable("for a moment")
            super().configure(queue, **settings)

    store = Down()
    app = App(store=store)
    app.queue("q", group_width=3)
    with pytest.raises(StoreUnavailable):
        _ = app.store
    store.down = False
    assert at_once(app.store) == 3


def test_a_kit_is_told_as_any_store(store: Store) -> None:
    app = App(store=store)
    app.queue("q", group_width=3)
    app.store.counts()
    with Kit(app):
        assert at_once(app.store) == 3
    assert at_once(app.store) == 3


@pytest.mark.parametrize(
    "declared, text",
    [
        ({"group_width": 0}, "group_width=0; expected 1 or more"),
        ({"group_width": 2, "group_order": "strict"}, "group_width=2; expected 1 where"),
        ({"group_width": "2"}, "group_width='2'; expected a whole number"),
        ({"concurrency": None}, "concurrency=None; expected a whole number"),
        ({"weight": 1.5}, "weight=1.5; expected a whole number"),
        ({"retention": "7d"}, "retention='7d'; expected a Retention"),
        ({"group_order": "fifo"}, "group_order='fifo'; expected one of 'turns', 'strict'"),
        ({"on_dead": "stop"}, "on_dead='stop'; expected one of 'skip', 'block'"),
        ({"on_dead": "block"}, "on_dead='block' holds a group"),
        ({"on_dead": "block", "group_order": "turns"}, "on_dead='block' holds a group"),
        ({"retry_share": 1.1}, "retry_share=1.1; expected a share of the claims from 0 to 1"),
        ({"retry_share": -0.1}, "retry_share=-0.1; expected a share of the claims from 0 to 1"),
        ({"retry_share": float("nan")}, "retry_share=nan; expected a share of the claims from 0 to 1"),
        ({"retry_share": "0.2"}, "retry_share='0.2'; expected a number from 0 to 1"),
        ({"retry_share": True}, "retry_share=True; expected a number from 0 to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(declared: dict[str, Any], text: str) -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match=f"queue 'q': {text}"):
        app.queue("q", **declared)
    assert app.queues == {}


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_queue_name_is_text(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"queue name=.*: expected text that is not empty"):
        App("memory://").queue(name)


def test_a_workers_own_concurrency_changes_nothing_else(store: Store) -> None:
    app = App(store=store)
    declared = app.queue("q", weight=2, group_order="strict", on_dead="block", retention=Retention.emails)
    assert (declared.group_order, declared.on_dead) == (GroupOrder.STRICT, OnDead.BLOCK)
    [worked] = app.worker({"q": 7}).queues
    assert (worked.concurrency, worked.weight, worked.retention) == (7, 2, Retention.emails)


# -- retention


def done_bodies(store: Store) -> list[bytes]:
    return [message.body for message in store.peek(Lane.DONE).messages]


def test_done_messages_are_kept_by_count(store: Store) -> None:
    app = App(store=store)
    heard = Heard(app)
    app.queue("q", concurrency=1, retention=Retention(keep_done=3))

    @app.task(queue="q")
    async def task(n: int) -> None: ...

    @app.task(queue="other")
    async def other() -> None: ...

    app.enqueue_many([task.draft(n) for n in range(10)] + [other.draft()])
    app.run_worker(burst=True)
    assert done_bodies(store) == [b'{"n":%d}' % n for n in (7, 8, 9)]
    assert [event.text for event in heard.events if isinstance(event, Notice) and event.name == "removed"] == [
        "7 done and 0 dead messages of queue q, by its retention"
    ]


def test_done_messages_are_kept_by_age() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock_ms=clock.now_ms))
    app.queue("q", retention=Retention(keep_done_for="1h"))

    @app.task(queue="q")
    async def task() -> None: ...

    for _ in range(3):
        task.enqueue()
        app.run_worker(burst=True)
        clock.advance("25m")
    assert app.counts("q").done == 3
    app.run_worker(burst=True)
    assert app.counts("q").done == 2


def test_dead_messages_are_removed_only_where_retention_says_so(store: Store) -> None:
    app = App(store=store)
    app.queue("bounded", concurrency=1, retention=Retention(keep_dead=2))
    app.queue("unbounded", retention=Retention(keep_done=2))

    def fails(n: int) -> None:
        raise Reject(str(n))

    tasks = [app.task(name=queue, queue=queue)(fails) for queue in ("bounded", "unbounded")]
    app.enqueue_many([task.draft(n) for n in range(5) for task in tasks])
    app.run_worker(burst=True)
    assert (app.counts("bounded").dead, app.counts("unbounded").dead) == (2, 5)
    assert [message.body for message in app.dlq if message.queue == "bounded"] == [b'{"n":3}', b'{"n":4}']


def test_more_than_one_call_removes_is_removed_by_several(store: Store) -> None:
    app = App(store=store, park_for=0)
    app.queue("q", retention=Retention(keep_dead=1))
    store.put([Draft(task="unknown", queue="q")] * 2500)
    app.run_worker(burst=True)
    assert app.counts("q").dead == 1


def test_a_result_is_kept_as_long_as_the_longer_of_both_says() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock_ms=clock.now_ms))
    app.queue("q", retention=Retention(keep_done_for="10m"))

    @app.task(queue="q")
    def one() -> int:
        return 1

    longer, shorter = one.using(keep_result="1h").enqueue(), one.using(keep_result="1s").enqueue()
    app.run_worker(burst=True)
    clock.advance("5m")
    app.store.exchange([], [])
    assert (longer.wait(0), shorter.wait(0)) == (1, 1)


def test_a_retention_says_how_to_ack_and_what_to_keep() -> None:
    days = Retention(keep_done_for=timedelta(days=1), keep_dead=5, keep_dead_for="90d")
    assert (days.ack, days.done, days.dead) == (
        Ack(keep_ms=86_400_000),
        Keep(None, 86_400_000),
        Keep(5, 90 * 86_400_000),
    )
    assert Retention.payments.ack == Ack(keep_ms=None) and Retention().ack == Ack(keep_ms=0)
    presets = [(r.keep_done, r.keep_dead) for r in (Retention.emails, Retention.webhooks, Retention.payments)]
    assert presets == [(100, 500), (500, 1_000), (1_000, 5_000)]
    assert repr(days) == "Retention(keep_done_for=datetime.timedelta(days=1), keep_dead=5, keep_dead_for='90d')"


@pytest.mark.parametrize(
    "bounds",
    [{"keep_done": 0}, {"keep_dead": -1}, {"keep_done": 1.5}, {"keep_done": True}, {"keep_dead_for": 0}],
)
def test_bounds_that_cannot_be_meant_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(bounds))} is .*; expected"):
        Retention(**bounds)
