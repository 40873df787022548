"""One message's life as an OTLP receiver gets it: sent, failed twice, dead, redriven and done, on each store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.namespaces import redis_url
from tests.support.otlp import Receiver, charge_that_dies_and_is_redriven, exporting
from tests.support.schemas import schema  # noqa: F401

from redrive.testing.sqs import SqsServer


@pytest.fixture(params=["sqlite", "postgres", "redis", "sqs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path}/work.db"
        case "postgres":
            yield request.getfixturevalue("schema")
        case "redis":
            yield redis_url(tmp_path, request.getfixturevalue("redis_server"))
        case _:
            with SqsServer() as server:
                triage = f"sqlite:///{tmp_path}/dead.db"
                yield f"sqs://eu-central-1/shop?create=true&poll=0&endpoint={server.url}&triage={triage}"


@pytest.mark.slow
def test_a_message_that_dies_and_is_redriven_is_told_in_spans_that_lead_to_each_other(url: str) -> None:
    with Receiver() as receiver:
        with exporting(receiver) as provider:
            id = charge_that_dies_and_is_redriven(url, provider)

        (request,), (sent,) = receiver.named("POST /orders"), receiver.named("send payments")
        assert (sent.kind, sent.trace, sent.parent) == ("producer", request.trace, request.id)
        assert sent.attributes["messaging.message.id"] == id

        runs = receiver.named("process payments")
        assert [run.attributes["redrive.outcome"] for run in runs] == ["retry", "retry", "dead", "done"]
        assert [run.attributes["redrive.attempt"] for run in runs] == [1, 2, 3, 1]
        assert [run.failed for run in runs] == [True, True, True, False]
        assert [run.attributes.get("error.type") for run in runs] == [*["ConnectionError"] * 3, None]
        assert [run.events for run in runs] == [*[("exception",)] * 3, ()]
        assert {(run.kind, run.parent, run.attributes["messaging.message.id"]) for run in runs} == {
            ("consumer", "", id)
        }
        assert len({run.trace for run in runs}) == 4  # a trace for each run
        first, second, third, last = runs
        assert first.links == (sent.id,)
        assert second.links == (sent.id, first.id)
        assert third.links == (sent.id, second.id)
        assert last.links == (sent.id, third.id)  # and over the redrive

        (moved,), (carried,) = receiver.named("redrive payments"), receiver.named("redrive run")
        assert (moved.kind, moved.parent, moved.links) == ("producer", carried.id, (third.id,))
        assert carried.attributes["redrive.run.id"] == moved.attributes["redrive.run.id"]
        assert carried.attributes["redrive.run.id"] == last.attributes["redrive.run.id"]
        assert carried.attributes["redrive.run.status"] == "done"
        assert (moved.attributes["redrive.moved"], last.attributes["redrive.redrives"]) == (1, 1)

        calls = receiver.named("POST api.bank.example")
        assert [(call.trace, call.parent) for call in calls] == [(run.trace, run.id) for run in runs]
        for call, run in zip(calls, runs, strict=True):
            assert run.start_ns <= call.start_ns <= call.end_ns <= run.end_ns
        taken, settled = receiver.named("receive payments"), receiver.named("settle payments")
        assert [span.links for span in taken] == [(sent.id,)] * 4
        assert [span.links for span in settled] == [(run.id,) for run in runs]


def test_worker_otel_traces_an_app_that_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        """
import os
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from redrive import App

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter(os.environ["COLLECTOR"])))
app = App("sqlite:///work.db")

@app.task(name="push", queue="crm")
def push(n: int) -> None: ...
"""
    )
    with Receiver() as receiver:
        environment = {**os.environ, "COLLECTOR": receiver.url}
        for words in (["enqueue", "push", "[1]"], ["worker", "--otel", "--burst", "--log", "off"]):
            argv = [sys.executable, "-m", "redrive", words[0], "--app", "tasks:app", *words[1:]]
            subprocess.run(argv, cwd=tmp_path, env=environment, check=True, timeout=100, capture_output=True)
        (run,) = receiver.named("process crm")
        assert run.attributes["redrive.outcome"] == "done" and run.links == ()  # what enqueued it was not traced
        assert len(receiver.named("receive crm")) == len(receiver.named("settle crm")) == 1
