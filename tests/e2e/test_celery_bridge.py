"""What a Celery producer sends is run here: taken from Redis and SQS, whole, and lost under no kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from celery import Celery
from redis import Redis
from tests.support.servers import RedisServer

from redrive import App, Idempotency, context
from redrive.contrib.celery import CeleryBridge
from redrive.contrib.celery import bridge as module
from redrive.errors import ConfigError
from redrive.message import Lane
from redrive.testing import ManualClock
from redrive.testing.sqs import SqsServer

LATER = datetime(2100, 1, 1, tzinfo=UTC)


class World:
    """A Celery app and ports of it, on a queue of their own. `ran` has the arguments of each run."""

    def __init__(self, redis: RedisServer, tmp_path: Path) -> None:
        self.queue, self.url, self._path = f"q{uuid4().hex}", redis.url, tmp_path / "work.db"
        self.redis: Any = Redis.from_url(redis.url)
        self.celery = Celery("shop", broker=redis.url, set_as_current=False)
        self.celery.conf.task_default_queue = self.queue
        self.ran: list[Any] = []
        self._bridges: list[CeleryBridge] = []
        self.bridge = self.port()
        self.app = self.bridge.app

    def port(self, broker: str | None = None, **options: Any) -> CeleryBridge:
        """A bridge as another process has it: it knows no more than the broker and the store do."""
        app = App(f"sqlite:///{self._path}")

        @app.task(name="shop.add", on_dead="shop.sorry")
        def add(x: int, y: int = 1) -> int:
            self.ran.append((x, y))
            return x + y

        @app.task(name="shop.sorry")
        def sorry(x: int, y: int = 1) -> None: ...

        @app.task(name="shop.keep")
        def keep(price: Decimal, at: datetime, id: UUID, raw: bytes) -> None:
            self.ran.append((price, at, id, raw, context().message.headers["tenant"]))

        queues = ["celery"] if broker else [self.queue]
        self._bridges.append(CeleryBridge(app, broker or self.url, queues=queues, **options))
        return self._bridges[-1]

    def sig(self, name: str, *args: Any, **options: Any) -> Any:
        return self.celery.signature(name, args=args, **options)

    def length(self, place: str = "") -> int:
        """How many messages Celery's list has, or that one of the bridge's."""
        return int(self.redis.llen(f"redrive:celery:{self.queue}{place}" if place else self.queue))

    def work(self) -> None:
        self.app.run_worker(drain=True)

    def close(self) -> None:
        for bridge in self._bridges:
            bridge.close()
            bridge.app.store.close()
        self.celery.close()
        self.redis.close()


@pytest.fixture
def world(redis_server: RedisServer, tmp_path: Path) -> Iterator[World]:
    made = World(redis_server, tmp_path)
    yield made
    made.close()


def test_a_task_comes_over_with_its_arguments_times_and_ids(world: World) -> None:
    price, at, id, raw = Decimal("12.30"), datetime(2026, 11, 22, tzinfo=UTC), uuid4(), b"\xff\x00"
    world.celery.send_task("shop.keep", (price, at, id, raw), headers={"tenant": "acme"}, task_id="one")
    world.celery.send_task("shop.add", (1,), {"y": 2}, eta=LATER, expires=LATER + timedelta(1), priority=3, retries=2,
                           root_id="root", parent_id="parent")  # fmt: skip
    moved = world.bridge.run(burst=True)
    assert (moved.taken, moved.parked, moved.known) == (2, 0, 0)
    later = next(m for m in world.app.store.peek(None).messages if m.task == "shop.add")
    assert (later.due_ms, later.deadline_ms) == (LATER.timestamp() * 1000, (LATER.timestamp() + 86400) * 1000)
    assert (later.priority, later.correlation_id) == (3, "root")
    assert later.headers["celery-retries"] == "2" and later.headers["celery-parent"] == "parent"
    world.app.run_worker(burst=True)
    assert world.ran == [(price, at, id, raw, "acme")]


@pytest.mark.parametrize("options", [{}, {"sep": ":"}])
def test_all_priorities_come_over_whatever_steps_and_separator_kombu_has(world: World, options: dict[str, str]) -> None:
    world.celery.conf.broker_transport_options = {"priority_steps": list(range(10)), **options}
    for priority in (9, 4, 1, 0):
        world.celery.send_task("shop.add", (priority,), priority=priority)
    bridge = world.port(**options)
    assert bridge.run(burst=True).taken == 4
    world.work()
    assert sorted(world.ran) == [(n, 1) for n in (0, 1, 4, 9)]
    assert [key for key in world.redis.keys(f"*{world.queue}*") if b"binding" not in key] == []


def test_links_and_chains_go_on_with_the_results(world: World) -> None:
    (world.sig("shop.add", 1, 1) | world.sig("shop.add", 10) | world.sig("shop.add", 7, 7, immutable=True)).apply_async(
        link=world.sig("shop.add", 100), countdown=0.01
    )
    assert world.bridge.run(burst=True).taken == 1
    world.work()
    assert world.ran == [(1, 1), (2, 10), (7, 7), (14, 100)]


def refused(world: World) -> dict[str, str]:
    """Send what cannot be run here; by a word of the reason, the rest of it."""
    send, sig = world.celery.send_task, world.sig
    send("shop.add", (1,), serializer="pickle")
    send("shop.add", (1,), compression="gzip")
    send("shop.ad", (1,))
    send("shop.add", ("one",))
    send("shop.add", (1,), link_error=sig("shop.other"))
    send("shop.add", (1,), chain=[{"task": "celery.map", "subtask_type": "xmap"}])
    send("shop.add", (1,), chord=dict(sig("shop.add")))
    send("celery.message", ("{}",))
    world.redis.lpush(world.queue, "no envelope")
    return {
        "x-python-serialize": "task_serializer='json'", "compressed": "no task_compression",
        "'shop.ad'": "did you mean 'shop.add'", "do not fit": "Expected `int`",
        "link_error='shop.other'": "on_dead='shop.sorry'", "leads to a xmap": "celery.map",
        "no place in its chord": "Celery 5", "envelope of kombu's": "JSON", "'celery.message'": "no task",
    }  # fmt: skip


def test_what_cannot_run_here_is_dead_whole_and_says_why(world: World) -> None:
    expected = refused(world)
    moved = world.bridge.run(burst=True)
    assert (moved.taken, moved.parked) == (len(expected), len(expected))
    dead = world.app.store.peek(Lane.DEAD).messages
    texts = [message.faults[-1].text for message in dead]
    for word, rest in expected.items():
        assert [text for text in texts if word in text and rest in text], (word, texts)
    assert all(message.reason == "rejected" and message.queue == "celery" for message in dead)
    assert world.bridge.run(burst=True).taken == 0
    assert world.ran == []


@pytest.mark.parametrize("name", ["once", "gathered"])
def test_a_task_that_could_not_enqueue_what_follows_it_is_refused_with_a_link_or_a_chain(
    world: World, name: str
) -> None:
    stored_or_gathered(world)
    (world.sig(f"shop.{name}", 1) | world.sig("shop.add")).apply_async()
    world.sig(f"shop.{name}", 1).apply_async(link=world.sig("shop.add"))
    world.sig("shop.add", 1).apply_async(link=world.sig(f"shop.{name}", link=[world.sig("shop.add")]))
    world.sig(f"shop.{name}", 2).apply_async()
    assert not_bridged(world, name) == 3
    assert world.ran == [(name, 2)]


def stored_or_gathered(world: World) -> None:
    @world.app.task(name="shop.once", idempotency=Idempotency(key=str))
    def once(x: int) -> int:
        world.ran.append(("once", x))
        return x

    @world.app.task(name="shop.gathered", gather=10)
    def gathered(x: list[int]) -> list[int]:
        world.ran.extend(("gathered", one) for one in x)
        return x


def not_bridged(world: World, name: str) -> int:
    """Move and run all; return how many messages are parked because of what follows this task."""
    world.bridge.run(burst=True)
    world.work()
    texts = [message.faults[-1].text for message in world.app.store.peek(Lane.DEAD).messages]
    assert all(f"task 'shop.{name}' has a link or a chain" in text for text in texts), texts
    return len(texts)


def test_a_parked_message_is_translated_again_when_it_is_redriven(world: World) -> None:
    world.celery.send_task("shop.new", (5,))
    assert world.bridge.run(burst=True).parked == 1
    [dead] = world.app.store.peek(Lane.DEAD).messages

    @world.app.task(name="shop.new")
    def new(x: int) -> None:
        world.ran.append(x)

    world.app.dlq.retry([dead.id])
    world.work()
    assert world.ran == [5]


def test_a_chain_whose_next_step_takes_another_result_says_so_and_is_not_run_again(world: World) -> None:
    (world.sig("shop.add", 1, 1) | world.sig("shop.keep", 1, 2, 3)).apply_async()
    world.bridge.run(burst=True)
    world.work()
    [dead] = world.app.store.peek(Lane.DEAD).messages
    assert (world.ran, dead.attempt, dead.reason) == ([(1, 1)], 1, "rejected")
    assert "cannot be enqueued" in dead.faults[-1].text


class Killed(BaseException):
    """Ends a bridge in the middle, as SIGKILL does."""


@pytest.mark.parametrize("where", ["put", "remove", "in remove"])
def test_a_bridge_that_is_killed_loses_nothing_and_puts_nothing_twice(world: World, where: str) -> None:
    for n in range(7):
        world.celery.send_task("shop.add" if n else "shop.unknown", (n,))
    killed = world.port()
    source, remove = killed.source, killed.source.remove

    def kill(*args: Any, **_: Any) -> Any:
        if where == "in remove":
            remove(args[0], args[1][1:3])
        raise Killed

    setattr(killed.app.store if where == "put" else source, where.removeprefix("in "), kill)
    with pytest.raises(Killed):
        killed.once()
    world.app.run_worker(burst=True)  # done meanwhile, so that only its key is left of each
    moved = world.bridge.run(burst=True)
    world.work()
    left = 5 if where == "in remove" else 7
    assert (moved.taken, moved.known) == (left, 0 if where == "put" else left)
    assert sorted(world.ran) == [(n, 1) for n in range(1, 7)]
    assert (world.app.counts().dead, world.length(":taken")) == (1, 0)


def test_an_id_that_is_sent_again_is_another_message(world: World) -> None:
    for n in (1, 2):
        world.celery.send_task("shop.add", (n,), task_id="again")
    assert world.bridge.run(burst=True).known == 0
    world.work()
    assert sorted(world.ran) == [(1, 1), (2, 1)]


def test_what_the_store_refuses_is_set_aside_and_the_rest_comes_over(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.celery.send_task("shop.add", (1,))
    world.celery.send_task(
        "shop.keep", ("1", "2026-01-01T00:00:00Z", str(uuid4()), "A" * 8000), headers={"tenant": "x"}
    )
    traits = type(world.app.store.traits)
    small = traits(
        **{f: getattr(world.app.store.traits, f) for f in traits.__struct_fields__} | {"body_bytes_max": 4000}
    )
    monkeypatch.setattr(world.app.store, "traits", small)
    moved = world.bridge.run(burst=True)
    assert (moved.taken, moved.refused) == (2, 1)
    assert (world.length(":refused"), world.length(":taken")) == (1, 0)
    assert "stays in the list" in caplog.text
    world.work()
    assert world.ran == [(1, 1)]


# -- real kills


def test_nothing_is_lost_or_put_twice_when_bridges_are_killed_at_random(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each is killed by SIGKILL once the broker has as few messages left as the seed says, at any of its steps."""
    rng, count, kills = random.Random(seed), 300, 12
    print(f"seed {seed}")
    monkeypatch.setattr(module, "BATCH", 5)  # small batches, so that a kill has many places to hit
    for n in range(count):
        world.celery.send_task("shop.add", (n,), {"y": 0})
    world.bridge.app.store.counts()  # the file is made before any child opens it
    found = []
    for left in sorted(rng.sample(range(10, count - 10), kills), reverse=True):
        child = os.fork()
        if child == 0:
            try:
                world.port().run()
            finally:
                os._exit(1)
        while world.length() > left:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(rng.uniform(0, 0.003))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        found.append(world.length(":taken"))
    moved = world.port().run(burst=True)
    world.work()
    print(f"left in the list of what is taken by {kills} kills: {found}; at last {moved}")
    assert sorted(world.ran) == [(n, 0) for n in range(count)], seed
    assert world.length(":taken") == 0


@pytest.mark.slow
def test_what_a_killed_celery_worker_held_is_taken_over(world: World, tmp_path: Path) -> None:
    for n in range(3):
        world.celery.send_task("shop.add", (n,), eta=LATER)
    (tmp_path / "old.py").write_text(
        f"from celery import Celery\napp = Celery('old', broker={world.url!r})\n\n"
        "@app.task(name='shop.add')\ndef add(x): ...\n"
    )
    argv = [sys.executable, "-m", "celery", "-A", "old", "worker", "-P", "solo", "-Q", world.queue]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with (
        (tmp_path / "log").open("ab") as log,
        subprocess.Popen([*argv, "--without-gossip", "--without-mingle"], env=env, stdout=log, stderr=log) as worker,
    ):
        ends = time.monotonic() + 60
        while world.redis.hlen("unacked") < 3 and time.monotonic() < ends:
            time.sleep(0.02)
        worker.kill()
    assert world.bridge.run(burst=True).taken == 0
    assert world.bridge.take_held("1h") == 0
    assert world.bridge.take_held(0) == 3
    assert world.bridge.run(burst=True).taken == 3
    assert world.app.counts().scheduled == 3
    assert world.bridge.take_held(0) == 0


@pytest.mark.parametrize("options", [{}, {"sep": ":"}])
def test_held_messages_are_taken_over_whatever_their_routing_keys_and_the_others_are_named(
    world: World, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    """kombu names the exchange and the routing key of a held message, which only by default are its queue's name."""
    other, prefix = f"other{world.queue}", f"{world.queue}-"
    routes = [
        {"exchange": "direct", "routing_key": "media.video"},
        {"exchange": "topic", "routing_key": "feed.import.rss"},
        {"exchange": "direct", "routing_key": "media.audio"},
        {"queue": world.queue},
    ]
    world.celery.conf.broker_transport_options = {"global_keyprefix": prefix, **options}
    with world.celery.connection_for_write() as link:
        held = link.channel()
        for exchange, key, queue in (
            ("direct", "media.video", world.queue),
            ("topic", "feed.#", world.queue),
            ("direct", "media.audio", other),
        ):
            held.exchange_declare(exchange, type=exchange)
            held.queue_declare(queue)
            held.queue_bind(queue, exchange, key)
        for n, route in enumerate(routes):
            world.celery.send_task("shop.add", (n,), connection=link, **route)
        for queue in (world.queue, other):
            while held.basic_get(queue) is not None:
                pass
        assert world.redis.hlen(f"{prefix}unacked") == len(routes)
        bridge = world.port(prefix=prefix, **options)
        assert bridge.take_held(0) == 3
        assert bridge.run(burst=True).taken == 3
        world.work()
        assert sorted(world.ran) == [(0, 1), (1, 1), (3, 1)]
        assert "1 held messages of other queues are left; their routing keys: 'media.audio'" in caplog.text
        assert world.redis.hlen(f"{prefix}unacked") == 1


# -- SQS


def test_messages_that_kombu_sent_to_sqs_are_taken_and_known_when_they_come_again(world: World) -> None:
    clock = ManualClock()
    with SqsServer(clock) as server:
        broker = f"sqs://key:secret@{server.url.removeprefix('http://')}"
        options = {"region": "eu-central-1", "is_secure": False}
        with Celery("shop", broker=broker, broker_transport_options=options, set_as_current=False) as sender:
            for n in range(12):
                sender.send_task("shop.add" if n else "shop.unknown", (n,))
        bridge = world.port(f"sqs://eu-central-1?endpoint={server.url}")
        server.faults.fail_entries("DeleteMessageBatch", 3)
        moved = bridge.run(burst=True)
        assert (moved.taken, moved.known, moved.parked) == (12, 0, 1)
        world.work()
        clock.advance("3m")
        moved = bridge.run(burst=True)
        assert (moved.taken, moved.known) == (3, 3)
        clock.advance("3m")
        assert bridge.run(burst=True).taken == 0
    world.work()
    assert sorted(world.ran) == [(n, 1) for n in range(1, 12)]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqs://eu-central-1/shop?endpoint=http://127.0.0.1:9", "keeps no unique keys"),
        ("memory://", "loses what it has"),
    ],
)
def test_a_bridge_to_a_store_that_could_lose_or_repeat_messages_is_refused(world: World, url: str, why: str) -> None:
    world.celery.send_task("shop.add", (1,))
    app = App(url)
    with pytest.raises(ConfigError, match=why):
        CeleryBridge(app, world.url, queues=[world.queue]).once()
    app.store.close()
    assert world.length() == 1


def test_other_brokers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"broker='amqp://\S*': expected redis://"):
        CeleryBridge(App("memory://"), "amqp://guest:guest@localhost//")
