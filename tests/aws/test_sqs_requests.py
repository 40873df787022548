"""What a message costs: requests to SQS by the server's own log. Counts, not times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from benchmarks.sqs import per_message
from benchmarks.sqs_roles import our_app, ours_at

from redrive import App
from redrive.stores.sqs import SqsStore
from redrive.testing.sqs import SqsServer

MESSAGES = 1000


@pytest.fixture
def server() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server


def work(app: App, concurrency: int, messages: int, done: list[int]) -> None:
    async def until_done() -> None:
        async with app.worker({"default": concurrency}):
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
    assert app.store.processed >= MESSAGES
    return per_message(server.requests, MESSAGES)


def test_a_message_takes_a_third_of_a_request_in_steady_state(server: SqsServer) -> None:
    assert 0.3 <= asked(server, "noop") <= 0.32


def test_with_a_fifth_retried_it_takes_less_than_0_42_in_visibility_mode(server: SqsServer) -> None:
    assert 0.34 <= asked(server, "failing") <= 0.42


def test_a_retry_by_a_copy_costs_a_send_more(server: SqsServer) -> None:
    assert 0.36 <= asked(server, "failing", mode="requeue") <= 0.44
