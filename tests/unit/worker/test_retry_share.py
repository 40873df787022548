"""Retries that are due share a worker's claims with the backlog that came due before them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.workers import store_in

from redrive import App, Backoff, Retry
from redrive.message import ClaimRequest, Delivery, Message, Receipt
from redrive.registry import Queue
from redrive.store import Store
from redrive.worker.capacity import Capacity

BACKLOG = 400
LEASE_MS = 60_000


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = store_in(tmp_path, request.param)
    yield made
    made.close()


def order_of_runs(store: Store, share: float, fail: int = 20) -> list[tuple[int, int]]:
    """(number, attempt) of each run of a backlog, of which the first `fail` fail once and are due again at once."""
    app, ran = App(store=store), list[tuple[int, int]]()
    app.queue("q", concurrency=5, retry_share=share)

    @app.task(name="t", queue="q", ctx=True, retry=Retry(max_attempts=3, backoff=Backoff.fixed("1ms")))
    async def work(ctx: object, number: int) -> None:
        attempt = ctx.attempt  # type: ignore[attr-defined]
        ran.append((number, attempt))
        await asyncio.sleep(0.002)
        if number < fail and attempt == 1:
            raise ConnectionError(number)

    app.enqueue_many([work.draft(number) for number in range(BACKLOG)])
    app.run_worker(drain=True)
    assert len(ran) == BACKLOG + fail
    return ran


def test_a_retry_waits_for_its_delay_and_not_for_the_whole_backlog(store: Store) -> None:
    ran = order_of_runs(store, 0.2)
    last = max(at for at, (_, attempt) in enumerate(ran) if attempt == 2)
    assert last < 20 * 5 + 60  # twenty retries at a fifth of the claims, and what was claimed or prefetched by then


def test_with_no_share_retries_wait_their_turn(store: Store) -> None:
    ran = order_of_runs(store, 0)
    first = min(at for at, (_, attempt) in enumerate(ran) if attempt == 2)
    assert first > BACKLOG - 30


def test_no_more_than_the_share_of_a_backlogs_claims_goes_to_retries(store: Store) -> None:
    ran = order_of_runs(store, 0.2, fail=BACKLOG // 2)
    firsts_end = max(at for at, (_, attempt) in enumerate(ran) if attempt == 1)
    before = [attempt for _, attempt in ran[:firsts_end]]
    assert before.count(2) <= 0.2 * len(before) + 10


# -- how many capacity of an ask are theirs


def delivered(count: int) -> list[Delivery]:
    message = Message("m", "t", "q", b"{}", "m")
    return [Delivery(message, Receipt("m", 1), 0)] * count


def asked(capacity: Capacity, given: int | None = None) -> ClaimRequest:
    """One round: what is asked for, and that it gave so many, all of them by default."""
    [ask] = capacity.asks(Counter(), [], LEASE_MS, "w")
    capacity.note([ask], delivered(ask.limit if given is None else given), frozenset())
    return ask


@pytest.mark.parametrize(
    ("share", "limit", "of_20"), [(0.2, 1, 4), (0.2, 4, 16), (0.5, 3, 30), (1.0, 2, 40), (0.0, 5, 0)]
)
def test_they_have_their_share_of_many_claims_however_small_each_is(share: float, limit: int, of_20: int) -> None:
    capacity = Capacity([Queue("q", concurrency=limit, retry_share=share)], limit, 0, 1000)
    asked(capacity)  # the first one finds out that there is a backlog
    assert sum(asked(capacity).retries for _ in range(20)) == pytest.approx(of_20, abs=1)


def test_where_the_last_claim_was_short_there_is_no_backlog_to_share() -> None:
    capacity = Capacity([Queue("q", concurrency=10, retry_share=1.0)], 10, 0, 1000)
    assert [asked(capacity).retries, asked(capacity, given=9).retries] == [0, 10]
    capacity.waited()
    assert asked(capacity).retries == 0
