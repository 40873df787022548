"""A worker on LocalStack's SQS, which is neither ours nor the emulator that the other tests trust."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.support.aws.places import REGION, Localstack

from redrive import App, Backoff, Reject, Retry

MESSAGES = 40


@pytest.mark.soak
@pytest.mark.parametrize("mode, queue", [("visibility", "crm"), ("visibility", "crm.fifo"), ("requeue", "crm")])
def test_all_are_done_or_dead_on_localstack_too(localstack: Localstack, tmp_path: Path, mode: str, queue: str) -> None:
    app = App(
        f"sqs://{REGION}/second-{mode}-{len(queue)}?mode={mode}&create=true&poll=1&endpoint={localstack.url}"
        f"&triage=sqlite:///{tmp_path}/dead.db"
    )
    tried: Counter[int] = Counter()
    done: set[int] = set()

    @app.task(name="crm.push", queue=queue, retry=Retry(max_attempts=3, backoff=Backoff.fixed("1s")))
    def push(n: int) -> None:
        tried[n] += 1
        if n == 13:
            raise Reject("unlucky")
        if n % 5 == 0 and tried[n] == 1:
            raise ConnectionError("once")
        done.add(n)

    async def work() -> None:
        async with app.worker(lease=30):
            while len(done) < MESSAGES - 1 or app.counts(queue).dead < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    app.enqueue_many([push.using(group=f"g{n % 3}").draft(n) for n in range(MESSAGES)])
    asyncio.run(asyncio.wait_for(work(), 90))
    assert done == set(range(MESSAGES)) - {13}
    assert all(tried[n] == (2 if n % 5 == 0 else 1) for n in range(MESSAGES))
    [dead] = app.dlq.list().messages
    assert dead.reason == "rejected"
    app.store.close()
