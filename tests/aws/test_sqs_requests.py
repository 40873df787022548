"""What a message costs: requests to SQS by the server's own log. Counts, not times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.sqs import per_message
from benchmarks.sqs_roles import our_app, ours_at

from redrive import App
from redrive.stores.sqs.store import SqsStore
from redrive.testing.sqs import SqsServer

MESSAGES = 1000


@pytest.fixture
def server() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server


def work(app: App, concurrency: int, messages: int, done: list[int], **options: Any) -> None:
    async def until_done() -> None:
        async with app.worker({"default": concurrency}, **options):
            while len(done) < messages:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(until_done())
    app.store.close()


def asked(server: SqsServer, task: str, *, mode: str = "visibility") -> float:
    done: list[int] = []
    app = our_app(ours_at(server.url, "q", mode), lambda i: done.append(i) if i >= 0 else None)
    app.enqueue_many([app.tasks[task].draft(i) for i in range(MESSAGES)])
    work(app, 500, MESSAGES, done)
    assert sorted(done) == list(range(MESSAGES))
    assert not any(queue.messages for queue in server.account.queues.values())
    assert isinstance(app.store, SqsStore)
    unanswered = app.store.requests - server.requests  # polls that were under way when the worker ended
    assert set(unanswered) <= {"ReceiveMessage"} and not server.requests - app.store.requests
    assert app.store.processed == MESSAGES
    return per_message(server.requests, MESSAGES)


def test_a_message_takes_a_third_of_a_request_in_steady_state(server: SqsServer) -> None:
    assert 0.3 <= asked(server, "noop") <= 0.32


def test_with_a_fifth_retried_it_takes_less_than_0_42_in_visibility_mode(server: SqsServer) -> None:
    assert 0.34 <= asked(server, "failing") <= 0.42


def test_a_retry_by_a_copy_costs_a_send_more(server: SqsServer) -> None:
    assert 0.36 <= asked(server, "failing", mode="requeue") <= 0.44


def test_an_ordinary_worker_receives_in_tens_too(server: SqsServer) -> None:
    """Ten at once, and each free place asked for by itself would be a request for each message."""
    done: list[int] = []
    app = App(ours_at(server.url, "q", "visibility"))

    @app.task(name="short")
    async def short(i: int) -> None:
        await asyncio.sleep(0.01 + i % 7 / 500)
        done.append(i)

    app.enqueue_many([short.draft(i) for i in range(200)])
    work(app, 10, 200, done)
    received = [request.entries for request in server.log if request.action == "ReceiveMessage" and request.entries]
    assert sum(received) == 200 and len(received) <= 40


def test_a_place_that_stays_free_is_filled_though_there_is_room_for_one(server: SqsServer) -> None:
    """Nine that take long do not keep the tenth place from what else there is."""
    done, over = list[int](), asyncio.Event()
    app = App(ours_at(server.url, "q", "visibility"))

    @app.task(name="some")
    async def some(i: int) -> None:
        if i < 9:
            await over.wait()
        done.append(i)
        if len(done) == 3:
            over.set()

    app.enqueue_many([some.draft(i) for i in range(12)])
    work(app, 10, 12, done, prefetch=0)
    assert sorted(done[:3]) == [9, 10, 11]
