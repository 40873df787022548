"""The consumer of SQS that most people write first, and what it loses: `python examples/sqs_consumer/naive.py`"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import boto3
import crm
from botocore.config import Config

from redrive.testing.sqs import SqsServer


def send(sqs: Any, url: str, body: dict[str, Any], delay_s: int = 0) -> None:
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(body), DelaySeconds=delay_s)


def consume(sqs: Any, url: str, handle: Callable[[int], None], base_s: int = 1, quiet_s: float = 2.0) -> None:
    """Work until nothing came for so long."""
    last = time.monotonic()
    while time.monotonic() - last < quiet_s:
        for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", ()):
            body = json.loads(message["Body"])
            try:
                handle(body["order"])
            except Exception as error:
                delay_s = getattr(error, "wait_s", base_s * 2 ** body.get("retries", 0))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                # From here until the next line has returned, the message is nowhere.
                try:
                    send(sqs, url, body | {"retries": body.get("retries", 0) + 1}, delay_s)
                except Exception as lost:
                    print(f"order {body['order']}: {lost}", file=sys.stderr)
            else:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            last = time.monotonic()


def main(orders: int) -> None:
    with SqsServer() as server:  # plays SQS on loopback, and counts requests
        sqs = boto3.client("sqs", endpoint_url=server.url, region_name="eu-central-1", aws_access_key_id="local",
                           aws_secret_access_key="local", config=Config(retries={"total_max_attempts": 2}))  # fmt: skip
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        server.log.clear()
        for order in range(1, orders + 1):
            send(sqs, url, {"order": order})
        server.faults.lose_call("SendMessage", 2)  # the network is away as the first retry is sent, boto3's own try too
        consume(sqs, url, crm.push)
        left = len(server.account.named("orders").messages)
        asked = [request for request in server.log if request.action != "ReceiveMessage" or request.entries]
        print(f"{orders} orders, {len(crm.pushed)} pushed, {left} waiting, {orders - len(crm.pushed) - left} lost")
        print(f"{len(asked) / orders:.2f} requests per message")
        sqs.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
