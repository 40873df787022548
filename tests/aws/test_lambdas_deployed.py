"""The Lambdas as they are deployed: packaged, made by the template, run by ministack in processes of their own."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.aws.deployments import Deployed
from tests.support.aws.places import REGION, Ministack, client

from redrive import App
from redrive.aws.bundle import package
from redrive.aws.cloudformation.template import Settings
from redrive.aws.redriver.pace import TENTHS, decode
from redrive.aws.redriver.steps import ATTEMPT
from redrive.stores import open_cells

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
WITHIN_S = 90.0
WORK = """
import json, redrive
from redrive import App, Backoff, Retry, context

app = App.from_env()

@app.task(name="note", queue="orders", retry=Retry(max_attempts=3, backoff=Backoff.fixed("1s")))
async def note(n: int) -> None:
    with open({log!r}, "a") as log:
        print(json.dumps([n, context().attempt, redrive.__file__]), file=log)
    if n == 3 and context().attempt == 1:
        raise ConnectionError("down")

handler = app.lambda_handler()
"""


class Stack(Deployed):
    """The template with code: a re-driver and a consumer of queue `orders`."""

    def __init__(self, server: Ministack, folder: Path) -> None:
        self.log, self.bucket = folder / "log", f"code-{uuid4().hex[:8]}"
        (folder / "work.py").write_text(WORK.format(log=str(self.log)))
        package(folder / "zip", python=PYTHON, architecture="x86_64", add=[folder / "work.py"])
        s3 = client("s3", server.url)
        s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket=self.bucket, Key="redrive.zip", Body=(folder / "zip").read_bytes())
        code = {"CodeBucket": self.bucket, "CodeKey": "redrive.zip", "ConsumerKey": "redrive.zip"}
        chosen = {"ConsumerHandler": "work.handler", "Runtime": f"python{PYTHON}", "Architecture": "x86_64"}
        name = f"l-{uuid4().hex[:8]}"
        super().__init__(server.url, Settings(prefix=name, queues=("orders",)), {**code, **chosen})


@pytest.fixture(scope="module")
def stack(ministack: Ministack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    found = Stack(ministack, tmp_path_factory.mktemp("lambda"))
    yield found
    found.delete()


def comes(true: Callable[[], bool], what: Callable[[], Any]) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end_s, what()
        time.sleep(0.1)


def test_the_good_are_deleted_and_the_bad_one_comes_again(stack: Stack) -> None:
    app = App(f"sqs://{REGION}/{stack.prefix}?endpoint={stack.url}")

    @app.task(name="note", queue="orders")
    async def note(n: int) -> None: ...

    app.enqueue_many([note.draft(n) for n in range(10)])

    def ran() -> list[Any]:
        return [json.loads(line) for line in stack.log.read_text().splitlines()] if stack.log.exists() else []

    def left() -> int:
        return stack.count("OrdersQueueUrl")

    comes(lambda: len(ran()) >= 11 and not left(), lambda: (ran(), left()))
    assert Counter((n, attempt) for n, attempt, _ in ran()) == Counter([*((n, 1) for n in range(10)), (3, 2)])
    assert all("site-packages" not in path and "/src/" not in path for _, _, path in ran()), ran()[0]
    app.store.close()


def test_137_dead_messages_and_one_alarm_none_is_left_waiting(stack: Stack) -> None:
    spent = {"MessageAttributes": {ATTEMPT: {"DataType": "Number", "StringValue": "5"}}}
    entries = [{"Id": str(n), "MessageBody": f"m{n}", **(spent if n % 10 == 0 else {})} for n in range(137)]
    for at in range(0, 137, 10):
        told = stack.sqs.send_message_batch(QueueUrl=stack.outputs["OrdersDlqUrl"], Entries=entries[at : at + 10])
        assert not told.get("Failed")
    assert stack.measured("OrdersDeadAlarm", 137) == "ALARM"  # its only change of state

    def counts() -> list[int]:
        return [stack.count(f"Orders{kind}Url") for kind in ("Dlq", "Queue", "Poison")]

    comes(lambda: counts() == [0, 123, 14], lambda: f"{counts()}\n{stack.said('OrdersRedriver')}")
    url = f"dynamodb://{stack.outputs['CellsTable']}?region={REGION}&endpoint={stack.url}"
    with closing(open_cells(url)) as cells:  # by which functions in processes of their own keep one rate
        [cell] = cells.read([f"redriver/pace/{stack.prefix}-orders-dlq"])
    assert cell is not None
    seconds = Counter[int]()
    for at, count in decode(cell.value).items():
        seconds[at // TENTHS] += count
    assert max(seconds.values()) <= 10


@pytest.mark.soak
def test_short_invocations_go_on_through_the_work_queue(stack: Stack) -> None:
    functions = client("lambda", stack.url)
    name = stack.ids()["OrdersRedriver"]
    functions.update_function_configuration(FunctionName=name, Timeout=6)  # of which ministack counts the start
    before = stack.count("OrdersQueueUrl")
    for _ in range(60):
        entries = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(10)]
        stack.sqs.send_message_batch(QueueUrl=stack.outputs["OrdersDlqUrl"], Entries=entries)
    stack.repeat("OrdersRedriver")  # the alarm is as it was
    comes(lambda: not stack.count("OrdersDlqUrl"), lambda: stack.count("OrdersDlqUrl"))
    assert stack.count("OrdersQueueUrl") >= before + 600
