"""Tasks that gather messages, on SQS: a call takes what several claims bring, and one message of a FIFO group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from redrive import App, Backoff, Retry
from redrive.testing.sqs import SqsServer

NUMBERS = count(1)
SOON = Retry(max_attempts=3, backoff=Backoff.fixed("1s"))


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, os.environ.get(name, "test"))
    with SqsServer() as server:
        yield f"sqs://eu-central-1/g{next(NUMBERS)}?endpoint={server.url}&create=true&poll=0"


def test_a_call_takes_what_several_claims_bring(url: str) -> None:
    app, lists = App(url), list[list[int]]()

    @app.task(name="push", gather=25, linger="3s", retry=SOON)
    async def push(items: list[int]) -> list[Exception | None]:
        lists.append(items)
        return [ConnectionError("down") if n == 3 and len(lists) == 1 else None for n in items]

    app.enqueue_many([push.draft(n) for n in range(25)])
    app.run_worker(drain=True, concurrency=2)
    app.store.close()
    assert sorted(lists[0]) == [*range(25)] and lists[1:] == [[3]]


def test_a_call_has_one_message_of_a_fifo_group_and_keeps_the_order(url: str) -> None:
    app, lists = App(url), list[list[int]]()

    @app.task(name="push", queue="q.fifo", gather=10)
    async def push(items: list[int]) -> None:
        lists.append(items)

    app.enqueue_many([push.using(group=f"g{n % 2}").draft(n) for n in range(8)])
    app.run_worker(burst=True)
    app.store.close()
    for group in (0, 1):
        assert [n for some in lists for n in some if n % 2 == group] == [group, 2 + group, 4 + group, 6 + group]
        assert max(sum(n % 2 == group for n in some) for some in lists) == 1
