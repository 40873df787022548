"""Consumers of SQS that are killed: nothing is lost, and what comes twice is explained by a kill.

SQS is the stand-in, on the true clock, in this process; consumers are processes of their own, whose handlers write
down what they do in a file that survives them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pytest
from tests.support.aws.consumer import FAILS_EVERY, Orders, make_app
from tests.support.aws.places import REGION, Ministack
from tests.support.crash.ledger import RECORD_BYTES, Journal, Record, handled, read
from tests.support.turns import in_turn

from redrive.testing.sqs import SqsServer

PATIENCE_S = 300.0  # for a child to come so far


@pytest.fixture
def server() -> Iterator[SqsServer]:
    with SqsServer(region=REGION) as server:
        yield server


def url_of(server: SqsServer, mode: str, **options: str) -> str:
    parts = {"mode": mode, "endpoint": server.url, "create": "true", "poll": "1"} | options
    return f"sqs://{REGION}/shop?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in parts.items())


class Consumer:
    """A running consumer. As a context manager it leaves no process behind."""

    def __init__(self, orders: Orders) -> None:
        self.place = Path(orders.place)
        with (self.place / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.aws.consumer", msgspec.json.encode(orders).decode()],
                cwd=Path(__file__).parents[2],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "REDRIVE_STATE_DIR": str(self.place / "s")},
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Fails when it ends before, or never comes so far."""
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end_s:
                said = (self.place / "stderr").read_text()[-3000:]
                pytest.fail(f"never happened: {what}; exit code {self.process.poll()}; stderr: {said}")
            time.sleep(0.02)

    def ends(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, (self.place / "stderr").read_text()[-3000:]


class Books:
    """What the handlers of a place wrote down."""

    def __init__(self, place: Path) -> None:
        self._path, self._size = handled(place), 0
        self.starts: dict[str, list[Record]] = defaultdict(list)
        self.effects: dict[int, list[Record]] = defaultdict(list)  # by order, with the process that had each
        self.done = Counter[str]()
        self.up, self.exits = set[int](), set[int]()

    def read(self) -> Books:
        """What was written since it was read last, too."""
        news = read(self._path, self._size)
        self._size += len(news) * RECORD_BYTES
        for record in news:
            match record.what:
                case "start":
                    self.starts[record.id].append(record)
                case "effect":
                    self.effects[int(record.note)].append(record)
                case "end" if record.note == "ok":
                    self.done[record.id] += 1
                case "up":
                    self.up.add(record.pid)
                case "exit":
                    self.exits.add(record.pid)
        return self

    @property
    def killed(self) -> set[int]:
        return self.up - self.exits

    def unexplained(self, numbers: dict[str, int]) -> list[str]:
        """Messages that ran oftener than planned and once more for each of their consumers that was killed."""
        found = []
        for id, starts in self.starts.items():
            planned = 2 if numbers[id] % FAILS_EVERY == 0 else 1
            hits = sum(r.pid in self.killed for r in starts)
            if len(starts) > planned + hits:
                found.append(f"order {numbers[id]} ran {len(starts)} times: {hits} of its consumers were killed")
        return found

    def paid_twice(self) -> list[int]:
        """Orders with a second effect, though the consumer that had the one before it lived."""
        killed = self.killed
        return [n for n, all in self.effects.items() if any(record.pid not in killed for record in all[:-1])]


def enqueue(orders: Orders, count: int, times: int = 1) -> dict[str, int]:
    """Each order so many times, one after another; the number of each, by the id of its message."""
    journal = Journal(handled(Path(orders.place)))
    app = make_app(orders, journal)
    drafts = [app.tasks["pay"].draft(n) for _ in range(times) for n in range(count)]
    ids = [ref.id for at in range(0, len(drafts), 1000) for ref in app.enqueue_many(drafts[at : at + 1000])]
    app.store.close()
    journal.close()
    return {id: n % count for n, id in enumerate(ids)}


def left_in(server: SqsServer, queue: str) -> int:
    counts = server.account.named(queue).counts(time.time_ns() // 1_000_000)
    return sum(int(count) for count in counts.values())


def kill_and_work(orders: Orders, count: int, kills: int, rng: random.Random, done: Callable[[], bool]) -> Books:
    """Kill a consumer at a random moment, several times; then let one work until it is `done`."""
    books = Books(Path(orders.place))
    for n in range(kills):
        with Consumer(orders) as consumer:
            share = (n + rng.uniform(0.2, 0.9)) / (kills + 1)
            consumer.until(f"kill {n + 1}", lambda share=share: len(books.read().effects) >= share * count)  # type: ignore[misc]
            consumer.kill()
    with Consumer(orders) as consumer:
        consumer.until("all is done", done)
        consumer.ends()
    return books.read()


def _amounts() -> list[Any]:
    """The small one in one of the modes in every run, turning with the seed; the large one in `make soak`."""
    modes = ["visibility", "requeue", "tracked"]
    small = [pytest.param(m, 600, 3, marks=in_turn(n, of=len(modes))) for n, m in enumerate(modes)]
    return [*small, *(pytest.param(mode, 5000, 8, marks=pytest.mark.soak) for mode in modes)]


@pytest.mark.fault("kill -9 of workers and producers at random", store="sqs")
@pytest.mark.parametrize(("mode", "count", "kills"), _amounts())
def test_a_consumer_killed_again_and_again_loses_nothing(
    server: SqsServer,
    tmp_path: Path,
    seed: int,
    mode: str,
    count: int,
    kills: int,
    record_property: pytest.RecordProperty,
) -> None:
    record_property("kills", kills)
    tracked = {"track": "true", "cells": f"sqlite:///{tmp_path / 'cells.db'}"} if mode == "tracked" else {}
    orders = Orders(place=str(tmp_path), url=url_of(server, "visibility" if tracked else mode, **tracked))
    numbers = enqueue(orders, count)
    books = kill_and_work(orders, count, kills, random.Random(seed), lambda: left_in(server, "shop-default") == 0)
    assert books.done.keys() == numbers.keys(), "lost"
    assert books.unexplained(numbers) == []
    twice = sum(len(all) > 1 for all in books.effects.values())
    tell(f"seed {seed}, {mode}: {count} messages, {kills} kills, none lost, {twice} run twice", server)


@pytest.mark.fault("kill -9 of a worker in a handler with an idempotency key", store="sqs")
@pytest.mark.parametrize(
    ("count", "kills"),
    [pytest.param(100, 2, id="100", marks=pytest.mark.slow), pytest.param(2500, 8, id="2500", marks=pytest.mark.soak)],
)
def test_with_keys_on_dynamodb_an_order_that_was_settled_has_no_second_effect(
    server: SqsServer,
    ministack: Ministack,
    tmp_path: Path,
    seed: int,
    count: int,
    kills: int,
    record_property: pytest.RecordProperty,
) -> None:
    """Each order is sent twice. What a kill cut off between its effect and its settlement is all that has two."""
    record_property("kills", kills)
    cells = f"dynamodb://cells-{uuid4().hex}?region={REGION}&endpoint={ministack.url}&create=true"
    orders = Orders(
        place=str(tmp_path), url=url_of(server, "visibility", cells=cells), once=True, concurrency=4, prefetch=4
    )
    enqueue(orders, count, times=2)
    books = kill_and_work(orders, count, kills, random.Random(seed), lambda: left_in(server, "shop-default") == 0)
    assert books.effects.keys() == set(range(count)), "lost"
    assert books.paid_twice() == []
    twice = sum(len(all) > 1 for all in books.effects.values())
    most = kills * (orders.concurrency + orders.prefetch)
    assert twice <= most
    tell(f"seed {seed}: {count} orders twice each, {kills} kills, one effect each but {twice} cut off by them", server)


POINTS = ["send", "sent", "keep", "kept", "end", "ended"]


def _turning(cases: list[tuple[str, str, bool]]) -> list[Any]:
    return [pytest.param(*case, marks=in_turn(n, of=len(cases))) for n, case in enumerate(cases)]


@pytest.mark.fault("kill -9 of a worker at each named point of the store", store="sqs")
@pytest.mark.parametrize(
    ("mode", "point", "once"),
    _turning(
        [("visibility", point, True) for point in POINTS[2:]]
        + [("visibility", point, False) for point in POINTS[2:]]
        + [("requeue", point, False) for point in (*POINTS[:2], *POINTS[4:])]
    ),
)
def test_a_consumer_killed_between_two_steps_of_settling(
    server: SqsServer, tmp_path: Path, seed: int, mode: str, point: str, once: bool
) -> None:
    """With a key an order whose completion was written has one effect, also if its message was not deleted."""
    place, count = str(tmp_path), 12
    cells = {"cells": f"sqlite:///{tmp_path / 'cells.db'}"} if mode == "visibility" else {}
    orders = Orders(place=place, url=url_of(server, mode, **cells), once=once, concurrency=1, prefetch=0)
    enqueue(orders, count)
    books = Books(tmp_path)
    dying = msgspec.structs.replace(orders, kill_point=point, kill_at=1 + seed % 2)
    with Consumer(dying) as consumer:
        assert consumer.process.wait(PATIENCE_S) == -signal.SIGKILL
    with Consumer(orders) as consumer:
        consumer.until("all is done", lambda: left_in(server, "shop-default") == 0)
        consumer.ends()
    books.read()
    assert books.effects.keys() == set(range(count)), "lost"
    effects = sum(map(len, books.effects.values()))
    if once and point != "keep":
        assert effects == count
    else:
        assert effects <= count + 1


def tell(text: str, server: SqsServer) -> None:
    print(f"{text}; {dict(server.requests)}")
