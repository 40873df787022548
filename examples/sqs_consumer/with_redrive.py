"""The same work as `naive.py` by redrive, and none of it lost: `python examples/sqs_consumer/with_redrive.py`"""

import asyncio
import sys

import crm

from redrive import App, Backoff, Retry, RetryAfter
from redrive.testing.sqs import SqsServer

app = App("sqs://eu-central-1/shop?create=true")


@app.task(name="orders.push", queue="orders", retry=Retry(max_attempts=8, backoff=Backoff(base="1s", cap="15m")))
def push(order: int) -> None:
    try:
        crm.push(order)
    except crm.Busy as busy:
        raise RetryAfter(busy.wait_s) from busy


async def work(pushed: int) -> None:
    """Until so many are pushed; what waits longer stays in the queue."""
    async with app.worker():
        while len(crm.pushed) < pushed:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def main(orders: int) -> None:
    with SqsServer() as server:  # plays SQS on loopback, and counts requests
        app.url = f"{app.url}&endpoint={server.url}"
        app.enqueue_many([push.draft(order) for order in range(1, orders + 1)])
        for action in ("SendMessageBatch", "ChangeMessageVisibilityBatch"):  # whichever a retry takes
            server.faults.lose_call(action, 2)
        asyncio.run(work(orders - (orders >= 7)))
        left = len(server.account.named("shop-orders").messages)
        print(f"{orders} orders, {len(crm.pushed)} pushed, {left} waiting, {orders - len(crm.pushed) - left} lost")
        asked = sum(count for action, count in server.requests.items() if "Message" in action)
        print(f"{asked / orders:.2f} requests per message")
        app.store.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
