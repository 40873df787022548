"""Idempotent tasks of an app on SQS whose keys lie on DynamoDB."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote
from uuid import uuid4

import pytest
from tests.support.aws.places import REGION, Ministack
from tests.support.idempotency_rules import (  # noqa: F401
    test_a_failed_run_frees_the_key_and_runs_again_at_once,
    test_of_two_in_one_batch_one_runs_and_the_other_is_put_off_not_acked,
)
from tests.support.idempotent_tasks import kept

from redrive import App, Idempotency
from redrive.testing.sqs import SqsServer


@pytest.fixture
def url(ministack: Ministack) -> Iterator[str]:
    with SqsServer(region=REGION) as server:
        cells = f"dynamodb://flow-{uuid4().hex}?region={REGION}&endpoint={ministack.url}&create=true"
        yield f"sqs://{REGION}/flow?create=true&poll=0&endpoint={server.url}&cells={quote(cells, safe='')}"


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App(url)
    yield made
    made.store.close()


def test_of_the_same_order_one_is_paid_also_by_another_program(app: App, url: str) -> None:
    ran: list[int] = []
    other = App(url)
    for program in (app, other):

        @program.task(name="charge", idempotency=Idempotency(lambda order: f"order-{order}"))
        def charge(order: int) -> str:
            ran.append(order)
            return "paid"

    for order in (7, 8, 7):
        charge.enqueue(order)
    app.run_worker(burst=True)
    for order in (7, 8, 9):
        charge.enqueue(order)
    other.run_worker(burst=True)
    assert sorted(ran) == [7, 8, 9]
    for order in ran:
        record = kept(app, "charge", f"order-{order}")
        assert record is not None and record.done and record.result == b'"paid"'
    other.store.close()
