"""Celery's groups, chords and chains, in each other, have the effects here that they have in Celery, each once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group
from msgspec.structs import replace
from redis import Redis
from tests.support.servers import RedisServer

from redrive import App, Backoff, Context, Idempotency, Retry
from redrive.contrib.celery import CeleryBridge, translation
from redrive.contrib.celery import bridge as module
from redrive.message import Lane

NAMES = ("a", "b", "c", "d", "in", "total", "x", "y", "z")


class Shop:
    """A Celery app, the port of its tasks, and what each of both did. Every task returns its own call, as text."""

    def __init__(self, redis: RedisServer, path: Path, store: str = "") -> None:
        self.queue, self.url, self.path = f"q{uuid4().hex}", redis.url, path
        self.store = store or f"sqlite:///{path}/work.db"
        self.redis: Any = Redis.from_url(redis.url)
        self.celery = Celery("shop", broker=redis.url, backend=redis.url, set_as_current=False)
        self.celery.conf.task_default_queue = self.queue
        self.celery.backend.result_consumer.consume_from = lambda *_: None  # it would wait for results on a socket
        self.wanted: list[str] = []
        self.broken: set[str] = set()
        self.fails: dict[str, int] = {}
        self.ran = 0
        for name in NAMES:
            self.celery.task(name=f"shop.{name}", shared=False)(self._in_celery(name))
        self._bridges: list[CeleryBridge] = []
        self.bridge = self.port()
        self.app = self.bridge.app

    def _in_celery(self, name: str) -> Callable[..., str]:
        def run(*args: Any) -> str:
            self.wanted.append(call(name, args))
            return self.wanted[-1]

        return run

    def port(self, **options: Any) -> CeleryBridge:
        """A bridge, with its app, as another process has them."""
        app = App(self.store)

        def task(name: str) -> None:
            @app.task(name=f"shop.{name}", ctx=True, retry=Retry(max_attempts=1))
            def run(ctx: Context, first: Any = None, second: Any = None) -> str:
                made = call(name, [one for one in (first, second) if one is not None])
                self.ran += 1
                if name in self.broken or self.fails.get(name, 0):
                    self.fails[name] = self.fails.get(name, 1) - 1
                    raise ValueError(f"{name} is broken")
                with (self.path / "did").open("a") as file:
                    file.write(json.dumps([made, ctx.message_id]) + "\n")
                return made

        for name in NAMES:
            task(name)
        options = {"queues": [self.queue], "results": self.url} | options
        self._bridges.append(CeleryBridge(app, self.url, **options))
        return self._bridges[-1]

    def sig(self, name: str, *args: Any, **options: Any) -> Any:
        return self.celery.signature(f"shop.{name}", args=args, **options)

    def did(self) -> list[str]:
        """The calls, sorted: one for each message, as a message may run again after a kill."""
        lines = {tuple(json.loads(line)) for line in (self.path / "did").read_text().splitlines()}
        return sorted(made for made, _ in lines)

    def expect(self, canvas: Any) -> list[str]:
        """The calls that Celery itself makes for it, sorted."""
        self.wanted.clear()
        canvas.apply()
        return sorted(self.wanted)

    def work(self) -> None:
        self.app.run_worker(drain=True)

    def close(self) -> None:
        for bridge in self._bridges:
            bridge.close()
            bridge.app.store.close()
        self.celery.backend.client.connection_pool.disconnect()
        self.celery.close()
        self.redis.close()


def call(name: str, args: Any) -> str:
    return f"{name}({', '.join(json.dumps(one) if isinstance(one, list) else str(one) for one in args)})"


@pytest.fixture
def shop(redis_server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(redis_server, tmp_path)
    yield made
    made.close()


def canvases(s: Callable[..., Any]) -> dict[str, Any]:
    return {
        "group": group(s("a", 1), s("b", 2)),
        "chord": chord([s("a", 1), s("b", 2), s("a", 3)], s("total")),
        "chord of one": chord([s("a", 1)], s("total")),
        "chord, then a task": chord([s("a", 1), s("b")], s("total")) | s("z") | s("y", immutable=True),
        "chord of chains": chord([s("a", 1) | s("b") | s("c"), s("c", 2)], s("total")),
        "chord of a chain to a group": chord([s("a", 1) | group(s("x"), s("y")), s("c", 2)], s("total")),
        "empty chord in a chord": chord([chain(s("a", 1), chord([], s("in")), s("x")), s("d")], s("total")),
        "chord in a chord": chord([s("a", 1), chord([s("b", 1), s("c", 2)], s("in")), s("d")], s("total")),
        "three deep": chord([chord([chord([s("a", 1), s("b")], s("x")), s("c")], s("in")), s("d")], s("total")),
        "chord as body": chord([s("a", 1), s("b")], chord([s("x"), s("y", immutable=True)], s("total"))),
        "group as body": chord([s("a", 1), s("b")], group([s("x"), s("y")])),
        "group as body, then": chord([s("a", 1), s("b")], group([s("x"), s("y")])) | s("z"),
        "chain with a chord": chain(s("a", 1), group(s("b"), s("c", immutable=True)), s("total"), s("z")),
        "chain with two": chain(s("a", 1), group(s("b"), s("c")), s("total"), group(s("x"), s("y")), s("z")),
        "chain to a group": chain(s("a", 1), group(s("b"), s("c"))),
        "chain to a nested chord": chain(s("a"), chord([s("b"), chord([s("x"), s("y")], s("in"))], s("total")), s("z")),
        "group of chords": group(chord([s("a")], s("in")), chord([s("b", 1)], s("total")) | s("z")),
        "chain with a chord in a chord": chord(
            [chain(s("a", 1), group(s("b"), s("c")), s("in"), s("x")), s("d")], s("total")
        ),
        "link to a group": s("a", 1).clone(),
    }


@pytest.mark.parametrize("name", canvases(lambda *_, **__: Celery().signature("t")))
def test_a_canvas_has_the_effects_that_it_has_in_celery(shop: Shop, name: str) -> None:
    canvas = canvases(shop.sig)[name]
    expected = shop.expect(canvas.clone())
    if name == "link to a group":
        canvas.link(group(shop.sig("x"), shop.sig("y")))
        expected += ["x(a(1))", "y(a(1))"]
    canvas.apply_async()
    assert shop.bridge.run(burst=True).parked == 0
    shop.work()
    dead = [message.faults[-1].text for message in shop.app.store.peek(Lane.DEAD).messages]
    assert (dead, shop.did()) == ([], expected)
    assert {info.state.value for info in shop.app.batches()} <= {"done"}


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_all_canvases_have_their_effects_on_other_stores(
    engine: str, redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = redis_server if engine == "redis" else request.getfixturevalue("postgres_server")
    part = "namespace" if engine == "redis" else "schema"
    with contextlib.closing(Shop(redis_server, tmp_path, f"{server.url}?{part}=t{uuid4().hex}")) as shop:
        made = canvases(shop.sig)
        expected = sorted(call for canvas in made.values() for call in shop.expect(canvas.clone()))
        for canvas in made.values():
            canvas.apply_async()
        assert shop.bridge.run(burst=True).parked == 0
        shop.work()
        assert shop.did() == expected
        assert {info.state.value for info in shop.app.batches()} == {"done"}


def test_the_key_prefix_of_celerys_result_backend_is_heeded(shop: Shop) -> None:
    chord([shop.sig("a")], shop.sig("total")).apply_async()
    for key in shop.redis.keys("celery-taskset-meta-*"):
        shop.redis.rename(key, b"shop_" + key)
    shop.port(results_prefix="shop").run(burst=True)
    shop.work()
    assert shop.did() == ["a()", 'total(["a()"])']


# -- what becomes of a chord when something fails


def states(shop: Shop) -> dict[str, str]:
    return {info.name: info.state.value for info in shop.app.batches()}


def test_the_body_runs_after_a_header_task_that_is_retried(shop: Shop) -> None:
    """celery#1401, celery#4207."""
    task = shop.app.tasks["shop.b"]
    task.policy = replace(task.policy, retry=Retry(max_attempts=3, backoff=Backoff.fixed("1ms")))
    shop.fails["b"] = 2
    chord([shop.sig("a"), shop.sig("b")], shop.sig("total")).apply_async()
    shop.bridge.run(burst=True)
    shop.work()
    assert shop.did() == ["a()", "b()", 'total(["a()", "b()"])']


def test_a_body_waits_for_a_dead_header_task_and_runs_once_when_that_is_redriven_however_late(shop: Shop) -> None:
    shop.broken.add("b")
    s = shop.sig
    chord([s("a"), s("b"), s("c") | s("d")], s("total")).apply_async()
    shop.bridge.run(burst=True)
    shop.work()
    assert (shop.did(), states(shop)) == (["a()", "c()", "d(c())"], {"chord shop.total": "partial"})
    with contextlib.closing(
        sqlite3.connect(shop.path / "work.db", isolation_level=None)
    ) as db:  # as the store itself does
        assert db.execute("delete from message where expires_ms is not null").rowcount == 2
    shop.broken.clear()
    [info] = shop.app.batches()
    shop.app.dlq.retry([message.id for message in shop.app.batch_ref(info.id).members("dead")])
    shop.work()
    assert shop.did() == ["a()", "b()", "c()", "d(c())", 'total(["a()", "b()", "d(c())"])']
    assert states(shop) == {"chord shop.total": "done"}


def test_a_dead_task_in_a_nested_chord_or_later_in_a_chain_holds_all_around_it_up_until_it_is_redriven(
    shop: Shop,
) -> None:
    s = shop.sig
    shop.broken.add("b")
    canvas = chord([s("a"), chord([chain(s("c"), s("b")), s("d")], s("in"))], s("total")) | s("z")
    expected = shop.expect(canvas.clone())
    canvas.apply_async()
    shop.bridge.run(burst=True)
    shop.work()
    assert states(shop) == {"chord shop.in": "partial", "chord shop.total": "filling"}
    shop.broken.clear()
    shop.app.dlq.retry([message.id for message in shop.app.store.peek(Lane.DEAD).messages])
    shop.work()
    assert (shop.did(), states(shop)) == (expected, {"chord shop.in": "done", "chord shop.total": "done"})


def test_a_body_without_all_results_is_dead_and_says_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "RESULTS_FOR", "0s")
    chord([shop.sig("a"), shop.sig("b")], shop.sig("total")).apply_async()
    shop.bridge.run(burst=True)
    shop.work()
    [dead] = shop.app.store.peek(Lane.DEAD).messages
    assert (dead.task, shop.did()) == ("celery.canvas", ["a()", "b()"])
    assert "2 of 2 results of its chord are gone" in dead.faults[-1].text


def test_a_chord_whose_producer_was_killed_while_it_sent_it_is_filling_and_costs_nothing(shop: Shop) -> None:
    """celery#1700."""
    chord([shop.sig("a"), shop.sig("b"), shop.sig("c")], shop.sig("total")).apply_async()
    shop.redis.lpop(shop.queue)  # the last one that was sent, before which Celery writes the size
    for key in shop.redis.keys("celery-taskset-meta-*.s"):
        shop.redis.delete(key)
    shop.bridge.run(burst=True)
    shop.work()
    assert (shop.did(), states(shop)) == (["a()", "b()"], {"chord shop.total": "filling"})
    assert shop.app.counts().ready == 0


def test_the_members_of_chained_chords_do_not_carry_what_comes_later(shop: Shop) -> None:
    """celery#5000."""
    s = shop.sig
    canvas = group(s("a"), s("b"))
    for _ in range(8):
        canvas = canvas | s("total") | group(s("a", immutable=True), s("b", immutable=True))
    (canvas | s("z")).apply_async()
    shop.bridge.run(burst=True)
    [*first] = shop.app.store.peek(Lane.READY).messages
    assert len(first) == 2
    assert all("shop." not in f"{message.body!r}{message.headers}" for message in first)
    shop.work()
    calls = shop.did()
    assert (len(calls), sum(one.startswith("z(") for one in calls)) == (9 * 2 + 8 + 1, 1)


def test_an_empty_header_runs_its_body_with_an_empty_list(shop: Shop) -> None:
    """celery, PR #4443."""
    s = shop.sig
    chord([], s("total")).apply_async()
    chain(s("a", 1), chord([], s("in")), s("z")).apply_async()
    shop.bridge.run(burst=True)
    shop.work()
    assert shop.did() == sorted(["total([])", "a(1)", "in([])", "z(in([]))"])


@pytest.mark.parametrize("again", ["at once", "after the move", "after the end"])
def test_header_tasks_that_the_broker_delivers_twice_run_once_and_so_does_the_body(shop: Shop, again: str) -> None:
    """django-celery-results#397."""
    chord([shop.sig("a"), shop.sig("b")], shop.sig("total")).apply_async()
    sent = shop.redis.lrange(shop.queue, 0, -1)
    if again != "at once":
        shop.bridge.run(burst=True)
    if again == "after the end":
        shop.work()
    shop.redis.lpush(shop.queue, *sent)
    moved = shop.port().run(burst=True)
    assert (moved.known, moved.parked) == (2, 0)
    shop.work()
    assert shop.did() == ["a()", "b()", 'total(["a()", "b()"])']
    assert shop.ran == 3
    [info] = shop.app.batches()
    assert (info.counts.done, info.counts.total, info.state.value) == (2, 2, "done")


def test_a_chord_that_is_sent_again_with_its_ids_is_refused_and_kept(shop: Shop) -> None:
    twice = chord([shop.sig("a", task_id="one"), shop.sig("b", task_id="two")], shop.sig("total"), task_id="group")
    for expected in (0, 2):
        twice.apply_async()
        assert shop.bridge.run(burst=True).parked == expected
        shop.work()
    assert shop.did() == ["a()", "b()", 'total(["a()", "b()"])']
    texts = [message.faults[-1].text for message in shop.app.store.peek(Lane.DEAD).messages]
    assert all("came before: the chord was sent again" in text for text in texts), texts


def test_any_number_of_bridges_fill_one_chord(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    chord([shop.sig("a", n) for n in range(40)], shop.sig("total")).apply_async()
    bridges = [shop.port() for _ in range(3)]
    for bridge in bridges:
        bridge.app.store.counts()
    threads = [threading.Thread(target=bridge.run, kwargs={"burst": True}) for bridge in bridges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shop.work()
    [total] = [one for one in shop.did() if one.startswith("total")]
    assert total == call("total", [[f"a({n})" for n in range(40)]])
    assert states(shop) == {"chord shop.total": "done"}


# -- what is refused


def test_a_chord_is_refused_without_a_way_to_know_its_size_and_moves_when_there_is_one(shop: Shop) -> None:
    chord([shop.sig("a"), shop.sig("b")], shop.sig("total")).apply_async()
    assert shop.port(results=None).run(burst=True).parked == 2
    dead = shop.app.store.peek(Lane.DEAD).messages
    assert all("results='redis://" in message.faults[-1].text for message in dead)
    shop.app.dlq.retry([message.id for message in dead])
    shop.work()
    assert shop.did() == ["a()", "b()", 'total(["a()", "b()"])']


def test_celery_before_5_1_writes_the_size_into_the_body(shop: Shop) -> None:
    body = {"task": "shop.total", "chord_size": 2}
    for n in range(2):
        shop.celery.send_task("shop.a", (n,), chord=body, group_id="group", group_index=n)
    assert shop.port(results=None).run(burst=True).parked == 0
    shop.work()
    assert shop.did() == ["a(0)", "a(1)", 'total(["a(0)", "a(1)"])']


@pytest.mark.parametrize(
    ("canvas", "why"),
    [
        (lambda s: chord([s("a")], s("none")), "no task 'shop.none' is registered here"),
        (lambda s: chord([s("a")], chord([s("b")], s("none"))), "no task 'shop.none' is registered here"),
        (lambda s: s("a") | group(s("b"), s("none")), "no task 'shop.none' is registered here"),
        (lambda s: chord([s("a")], s("total").on_error(s("z"))), "link_error='shop.z'"),
        (lambda s: chord([s("a")], s("celery.canvas")), "no task 'shop.celery.canvas'"),
    ],
)
def test_a_canvas_that_could_not_go_on_here_is_refused_before_anything_runs(
    shop: Shop, canvas: Callable[..., Any], why: str
) -> None:
    canvas(shop.sig).apply_async()
    assert shop.bridge.run(burst=True).parked == 1
    [dead] = shop.app.store.peek(Lane.DEAD).messages
    assert why in dead.faults[-1].text


@pytest.mark.parametrize("name", ["once", "gathered"])
@pytest.mark.parametrize(
    ("canvas", "refused"),
    [
        (lambda s, odd: s("a") | odd | s("c"), True),
        (lambda s, odd: s("a", link=s("b") | odd | s("c")), True),
        (lambda s, odd: s("a") | group(s("b"), odd | s("c")), True),
        (lambda s, odd: s("a") | group(s("b"), s("c")) | odd | s("x"), True),
        (lambda s, odd: chord([s("a"), s("b") | odd | s("c")], s("total")), True),
        (lambda s, odd: chord([s("a")], odd) | s("x"), True),
        (lambda s, odd: s("a") | s("b") | odd, False),
        (lambda s, odd: s("a") | group(odd, s("b")) | s("total"), False),
        (lambda s, odd: chord([s("a"), s("b") | odd], odd), False),
    ],
)
def test_a_step_that_cannot_enqueue_what_follows_is_refused_wherever_it_is(
    shop: Shop, canvas: Callable[..., Any], refused: bool, name: str
) -> None:
    @shop.app.task(name="shop.once", idempotency=Idempotency(key=str))
    def once(x: Any) -> None: ...

    @shop.app.task(name="shop.gathered", gather=10)
    def gathered(x: list[Any]) -> None: ...

    canvas(shop.sig, shop.sig(name)).apply_async()
    moved = shop.bridge.run(burst=True)
    texts = [message.faults[-1].text for message in shop.app.store.peek(Lane.DEAD).messages]
    assert moved.parked == len(texts) and (moved.parked > 0) == refused, texts
    assert all(f"task 'shop.{name}' has a link or a chain" in text for text in texts), texts


# -- kills


def killed(shop: Shop, work: str, at: int, *, after: bool) -> int:
    """Run a bridge or a worker in a child that kills itself at this call of the store or the broker, before or after
    it; return the child's exit code, 0 if it did all its work before that."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            bridge = shop.port()
            calls = itertools.count(1)

            def hook(owner: Any, name: str) -> None:
                called = getattr(owner, name)

                def call(*args: Any, **options: Any) -> Any:
                    is_last = next(calls) == at
                    if is_last and not after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    result = called(*args, **options)
                    if is_last:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return result

                setattr(owner, name, call)

            for owner, names in (
                (bridge.source, ("take", "remove")),
                (bridge.app.store, ("put", "exchange", "mark_batches")),
                (bridge.app.store.cells, ("swap",)),
            ):
                for name in names:
                    hook(owner, name)
            if work == "bridge":
                bridge.run(burst=True)
            else:
                bridge.app.run_worker(drain=True, lease="1s", concurrency=2, prefetch=2)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_canvas_has_its_effects_once_when_bridges_and_workers_are_killed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each of them is killed at a call that the seed says, and the next one goes on, until all is done."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    monkeypatch.setattr(module, "BATCH", 3)  # small batches, so that a kill has many places to hit
    made = canvases(shop.sig)
    expected = sorted(call for canvas in made.values() for call in shop.expect(canvas.clone()))
    for canvas in made.values():
        canvas.apply_async()
    shop.port().app.store.counts()  # the file is made before any child opens it
    codes = list[int]()
    for work, calls in (("bridge", 12), ("worker", 40)) * 6:
        codes.append(killed(shop, work, rng.randint(1, calls), after=rng.random() < 0.5))
    print(f"exit codes of bridges and workers in turn: {codes}")
    assert codes.count(-signal.SIGKILL) > 5 and set(codes) <= {0, -signal.SIGKILL}, seed
    shop.bridge.run(burst=True)
    shop.app.run_worker(drain=True, lease="1s")
    assert shop.did() == expected, seed
    assert shop.app.counts().dead == shop.app.counts().quarantine == 0, seed
    assert {info.state.value for info in shop.app.batches()} == {"done"}
    assert shop.app.store.check() == []
