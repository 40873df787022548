"""Who is alive on SQS: told in the cells that the URL names, and not kept without."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import quote
from uuid import uuid4

import pytest
from tests.support.aws.places import REGION, Ministack
from tests.support.workers import until

from redrive import SLO, App, Reject
from redrive.errors import Unsupported
from redrive.program.main import run
from redrive.testing.sqs import SqsServer

NOT_KEPT = "not kept: name cells="


@pytest.fixture
def url() -> Iterator[str]:
    with SqsServer(region=REGION) as server:
        yield f"sqs://{REGION}/fleet?create=true&poll=0&endpoint={server.url}"


def test_a_worker_on_sqs_is_listed_with_what_it_runs_by_its_cell_on_dynamodb(ministack: Ministack, url: str) -> None:
    cells = f"dynamodb://fleet-{uuid4().hex}?region={REGION}&endpoint={ministack.url}&create=true"
    app = App(f"{url}&cells={quote(cells, safe='')}")
    began, over = asyncio.Event(), asyncio.Event()

    @app.task(name="push", queue="crm")
    async def push() -> None:
        began.set()
        await over.wait()

    async def main() -> None:
        await push.aenqueue()
        async with app.worker(queues={"crm": 3}) as worker:
            await began.wait()
            worker._presence.keeper.soon()
            await until(lambda: [info.held for info in app.workers()] == [1])
            (info,) = app.workers()
            assert (info.name, info.state, [m.task for m in info.messages]) == (worker.name, "running", ["push"])
            (status,) = app.status().workers
            assert (status.name, status.state, status.queues) == (worker.name, "running", {"crm": 1})
            over.set()

    asyncio.run(main())
    assert app.workers() == ()
    app.store.close()


def test_what_happened_on_sqs_is_kept_in_its_cells_on_dynamodb(ministack: Ministack, url: str) -> None:
    cells = f"dynamodb://history-{uuid4().hex}?region={REGION}&endpoint={ministack.url}&create=true"
    app = App(f"{url}&cells={quote(cells, safe='')}")

    @app.task(name="push", queue="crm", slo=SLO("99% within 1m"))
    async def push(n: int) -> None:
        if n % 4 == 0:
            raise Reject("no")

    app.enqueue_many([push.draft(n) for n in range(20)])
    app.run_worker(["crm"], burst=True)
    total = app.history("crm", "push", since="1h").total
    assert (total.enqueued, total.outcomes, total.run.count) == (20, {"done": 15, "dead": 5}, 20)
    (slo,) = app.slo()
    assert (slo.good, slo.all) == (15, 20)
    app.store.close()


def test_without_cells_it_is_not_kept_and_the_answer_says_what_to_do(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(url)
    for ask in (app.workers, app.history, app.slo):
        with pytest.raises(Unsupported, match=NOT_KEPT):
            ask()
    app.run_worker(["crm"], burst=True)  # works as before
    assert app.status().workers == () and not app.status().tell
    app.store.close()
    assert run(["workers", "--url", url]) != 0
    assert NOT_KEPT in capsys.readouterr().err
