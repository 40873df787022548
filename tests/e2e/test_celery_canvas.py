"""Celery's groups, chords and chains, in each other, have the effects here that they have in Celery, each once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group
from redis import Redis
from tests.support.servers import RedisServer

from redrive import App, Context, Retry
from redrive.contrib.celery import CeleryBridge
from redrive.message import Lane

NAMES = ("a", "b", "c", "d", "in", "total", "x", "y", "z")


class Shop:
    """A Celery app, the port of its tasks, and what each of both did. Every task returns its own call, as text."""

    def __init__(self, redis: RedisServer, path: Path) -> None:
        self.queue, self.url, self.path = f"q{uuid4().hex}", redis.url, path
        self.redis: Any = Redis.from_url(redis.url)
        self.celery = Celery("shop", broker=redis.url, backend=redis.url, set_as_current=False)
        self.celery.conf.task_default_queue = self.queue
        self.wanted: list[str] = []
        self.broken: set[str] = set()
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
        app = App(f"sqlite:///{self.path}/work.db")

        def task(name: str) -> None:
            @app.task(name=f"shop.{name}", ctx=True, retry=Retry(max_attempts=1))
            def run(ctx: Context, first: Any = None, second: Any = None) -> str:
                made = call(name, [one for one in (first, second) if one is not None])
                if name in self.broken:
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
        self.celery.backend.result_consumer.stop()
        self.celery.backend.client.close()
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
