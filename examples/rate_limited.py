"""Call an API on loopback that takes 20 requests a second: `python examples/rate_limited.py`"""

import asyncio

import httpx
from endpoint import answers, serving

from redrive import App

app = App("sqlite:///limited.db")


async def call(record: int) -> None:
    (await client.get(f"/records/{record}")).raise_for_status()


careful = app.task(name="careful", rate="10/s")(call)  # knows how much is allowed, and leaves room for late calls
bold = app.task(name="bold", dependency="api")(call)  # finds out: a 429 holds all that is for "api"


async def main() -> None:
    global client
    async with serving(limit=20) as url, httpx.AsyncClient(base_url=url) as client:
        for task in (careful, bold):
            await app.aenqueue_many([task.draft(record) for record in range(10, 50)])
            async with app.worker(concurrency=4, drain=True) as worker:
                await worker.wait()
            print(f"{task.name}: {answers.pop(200)} done, {answers.pop(429, 0)} answers 429")


asyncio.run(main())
