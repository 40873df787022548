"""Queues of SQS that were there before redrive, under names of their own: worked, drained, moved back and checked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import REGION, client

from redrive import App
from redrive.aws.dead_letters import ingest as ingesting
from redrive.errors import ConfigError
from redrive.program.main import run as run_command
from redrive.testing.sqs import EventSource, SqsServer

APP = """
from redrive import App, Retry

app = App.from_env()
seen = []


@app.task(name="billing.charge", queue="billing", retry=Retry(max_attempts=1))
def charge(event: dict) -> None:
    if event.get("bad"):
        raise ValueError("no such account")
    if event.get("poison"):
        from redrive import Quarantine

        raise Quarantine("poison")
    seen.append(event["n"])


app.queue("billing", foreign=charge, {names})
"""
SQS, DLQ = "billing_events", "billing-events-dead"


class Place:
    """A queue and its dead-letter queue that another program made, and an app that works them."""

    def __init__(self, folder: Path, server: SqsServer) -> None:
        self.folder, self.server, self.boto = folder, server, client("sqs", server.url)
        self.dead = self.made(DLQ)
        arn = self.boto.get_queue_attributes(QueueUrl=self.dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        self.policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "100"})
        self.queue = self.made(SQS, RedrivePolicy=self.policy, VisibilityTimeout="300")

    def made(self, name: str, **attributes: str) -> str:
        attributes |= {"MessageRetentionPeriod": "1209600"}
        return str(self.boto.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def url(self, options: str = "") -> str:
        return f"sqs://{REGION}/shop?endpoint={self.server.url}{options or '&poll=0'}"

    def send(self, **body: Any) -> None:
        self.boto.send_message(QueueUrl=self.queue, MessageBody=json.dumps(body))

    def depth(self, name: str) -> int:
        return len(self.server.account.queues[name].messages)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(ingesting, "EMPTY_S", 0)
    monkeypatch.chdir(tmp_path)
    with SqsServer() as server:
        yield Place(tmp_path, server)


@pytest.fixture
def call(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `redrive WORDS` with the app on a URL; exit code, stdout and stderr."""

    def called(*words: str, names: str = f'sqs="{SQS}"', options: str = "") -> tuple[int, str, str]:
        sys.modules.pop("taken", None)
        (place.folder / "taken.py").write_text(APP.replace("{names}", names))
        monkeypatch.setenv("REDRIVE_URL", place.url(options))
        monkeypatch.setenv("REDRIVE_APP", "taken:app")
        code, told = run_command(words), capsys.readouterr()
        return code, told.out, told.err

    return called


def test_a_queue_of_any_name_is_worked_and_its_dead_go_where_its_redrive_policy_leads(
    place: Place, call: Callable[..., Any]
) -> None:
    for n in range(3):
        place.send(n=n)
    place.send(bad=True)
    place.send(poison=True)
    assert call("worker", "--burst", "--log", "off")[0] == 0
    assert (place.depth(SQS), place.depth(DLQ)) == (0, 2)  # there is no poison queue: the dead-letter queue takes both
    code, said, _ = call("queue", "list", "-o", "jsonl")
    assert [json.loads(line)["queue"] for line in said.splitlines()] == ["billing"]
    code, said, _ = call("dlq", "move", "billing", "--watch", "-o", "json")
    moved = json.loads(said)
    assert (code, moved["from"], moved["to"]) == (0, DLQ, SQS)
    assert (place.depth(SQS), place.depth(DLQ)) == (2, 0)


def test_ingest_drains_every_queue_that_may_hold_its_dead(place: Place, call: Callable[..., Any]) -> None:
    for name in (f"{SQS}-dlq", "elsewhere", DLQ):
        place.boto.send_message(QueueUrl=place.made(name), MessageBody='{"n": 1}')
    names, options = f'sqs="{SQS}", dlq="elsewhere"', f"&triage=sqlite:///{place.folder / 'triage.db'}"
    code, said, _ = call("dlq", "ingest", "-o", "jsonl", names=names, options=options)
    rows = [json.loads(line) for line in said.splitlines()]
    assert code == 0
    assert {(row["queue"], row["from"], row["written"]) for row in rows} == {
        ("billing", f"{SQS}-dlq", 1),
        ("billing", "elsewhere", 1),
        ("billing", DLQ, 1),
    }
    place.boto.send_message(QueueUrl=place.dead, MessageBody='{"n": 2}')
    assert call("dlq", "ingest", "--from", DLQ, names=names, options=options)[0] == 0  # whose they are is found


def test_the_doctor_looks_at_the_queues_of_the_policy_and_of_the_app(place: Place, call: Callable[..., Any]) -> None:
    place.made(f"{SQS}-poison")
    assert call("store", "check")[0] == 0
    code, said, _ = call("store", "doctor", names=f'sqs="{SQS}", dlq="{DLQ}"', options="&poll=20")
    assert (code, said.split()) == (0, ["ok", "true", "findings", "[]"])
    place.made("elsewhere")
    code, said, _ = call("store", "doctor", names=f'sqs="{SQS}", dlq="elsewhere"', options="&poll=20")
    assert "the app declares dlq='elsewhere', and its redrive policy leads to billing-events-dead" in said
    code, _, said = call("worker", "--burst", names=f'sqs="{SQS}", dlq="gone"')
    assert (code, "its dead-letter queue gone does not exist" in said) == (4, True)


def test_with_create_a_declared_queue_and_its_dead_letter_queue_are_made(
    place: Place, call: Callable[..., Any]
) -> None:
    names = 'sqs="orders.fifo", dlq="orders-dead"'
    assert call("enqueue", "billing.charge", '{"event": {"n": 1}}', names=names, options="&create=true")[0] == 0
    made = place.server.account.queues
    assert {"orders.fifo", "orders-dead.fifo", "orders-poison.fifo"} <= made.keys()
    assert "orders-dead.fifo" in made["orders.fifo"].attributes["RedrivePolicy"]


def test_a_lambda_works_the_events_of_a_declared_queue(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.made(f"{SQS}-poison")
    app = App(place.url())
    seen: list[int] = []

    @app.task(name="billing.charge", queue="billing")
    def charge(n: int) -> None:
        seen.append(n)

    app.queue("billing", sqs=SQS, foreign=charge)
    place.send(n=7)
    source, handler = EventSource(place.boto, place.queue), app.lambda_handler()
    assert source.deliver(handler) == []
    handler.close()
    app.store.close()
    assert (seen, place.depth(SQS)) == ([7], 0)
    assert f'"Queue":"{SQS}"' in capsys.readouterr().out.replace(" ", "")  # the metrics name the queue as SQS does


@pytest.mark.parametrize("name", ["https://sqs.eu-central-1.amazonaws.com/1/x", "a b", "", "x" * 81, 7])
def test_a_name_that_sqs_cannot_have_is_refused_where_it_is_declared(name: Any) -> None:
    with pytest.raises(ConfigError, match="expected the name of a queue in SQS"):
        App("memory://").queue("billing", sqs=name)


def test_two_queues_cannot_be_one_of_sqs() -> None:
    app = App("memory://")
    app.queue("billing", sqs=SQS)
    with pytest.raises(ConfigError, match="is that of queue 'billing'"):
        app.queue("orders", sqs=SQS)
