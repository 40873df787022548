"""Sync records to an API on loopback: `python examples/bulk_sync.py [COUNT]`"""

import asyncio
import sys

import httpx
from endpoint import answers, serving

from redrive import App, Backoff, Retry

app = App("sqlite:///sync.db")
app.queue("crm", concurrency=20)


@app.task(name="push", queue="crm", dependency="crm", retry=Retry(max_attempts=5, backoff=Backoff("50ms", cap="400ms")))
async def push(record: int) -> None:
    (await client.put(f"/records/{record:05}")).raise_for_status()


async def main(count: int) -> None:
    global client
    async with serving() as url, httpx.AsyncClient(base_url=url) as client:
        await app.aenqueue_many([push.draft(record) for record in range(count)])
        async with app.worker(drain=True) as worker:
            await worker.wait()
        print(f"{answers[200]:,} synced, {answers[503]:,} retried, {app.counts().dead:,} dead: 422")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
