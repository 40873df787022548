"""Spans and instruments of OpenTelemetry: what they say, what they link to, and that they cost nothing while off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler, SamplingResult
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, exception_attributes
from prometheus_client import CollectorRegistry
from tests.support.workers import SOON, Heard, until

import redrive
from redrive import App, Reject, Snooze
from redrive.errors import ConfigError, StoreUnavailable
from redrive.message import Exchange, Lane, LeaseStatus
from redrive.observe.otel import spans as made
from redrive.observe.prometheus import Metrics
from redrive.stores.memory.store import MemoryStore
from redrive.testing import Kit
from redrive.testing.sqs import EventSource, SqsServer

AWS = {"region_name": "eu-central-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
SENDER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Traced:
    """An app in memory whose spans are kept here."""

    def __init__(self, app: App | None = None, *, sampler: Sampler | None = None, **options: Any) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("test")
        self.app = app or App("memory://")
        self.app.instrument(**{"metrics": False, "tracer_provider": self.provider, **options})

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._kept.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def work(self) -> None:
        self.app.run_worker(drain=True)


@pytest.fixture
def traced() -> Iterator[Traced]:
    found = Traced()
    yield found
    found.app.store.close()


def id_of(span: ReadableSpan | trace.Span) -> int:
    return span.get_span_context().span_id  # type: ignore[union-attr]


def told(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def linked(span: ReadableSpan) -> dict[str, int]:
    return {str((link.attributes or {})["redrive.link"]): link.context.span_id for link in span.links}


# -- off


def test_a_worker_and_the_doctor_say_that_without_an_sdk_spans_and_metrics_go_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tasks.py").write_text(
        "from redrive import App\napp = App('sqlite:///work.db')\napp.task(name='a')(lambda: None)\n"
    )
    setup = "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
    setup += "trace.set_tracer_provider(TracerProvider())\nfrom tasks import app\n"
    (tmp_path / "traced.py").write_text(setup)

    def said(*words: str) -> str:
        command = [sys.executable, "-m", "redrive", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False).stderr

    gap = "OpenTelemetry is on without an SDK, so its spans and metrics go nowhere; set a TracerProvider"
    assert f"warning: {gap}" in said("worker", "tasks:app", "--otel", "--burst", "--log", "off")
    assert said("worker", "traced:app", "--otel", "--burst", "--log", "off") == ""
    monkeypatch.setenv("REDRIVE_OTEL", "true")
    out = subprocess.run(
        [sys.executable, "-m", "redrive", "doctor", "--app", "tasks:app"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert out.returncode == 1 and gap in out.stdout


def test_without_an_sdk_to_import_the_gap_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")
    app.instrument(metrics=False)
    assert app.tracing is not None
    monkeypatch.setattr("redrive.observe.otel.traced_store.find_spec", lambda name: None)
    assert "; pip install opentelemetry-sdk " in str(app.tracing.gap())
    given = App("memory://")
    given.instrument(metrics=False, tracer_provider=TracerProvider(shutdown_on_exit=False))
    assert given.tracing is not None and given.tracing.gap() is None


def test_without_instrument_nothing_of_opentelemetry_is_imported() -> None:
    program = """
import sys
from redrive import App
app = App("memory://")
@app.task
def push(n: int) -> None: ...
"""
    program = (
        program.replace("@app.task\n", "@app.task()\n")
        + """
push.using(traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").enqueue(1)
app.run_worker(burst=True)
assert push.app.tracing is None and push.entry is push.handler
assert not [m for m in sys.modules if m.startswith("opentelemetry")], sys.modules
"""
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_package_is_told_with_its_install_command() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import redrive; redrive.App('memory://').instrument()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.returncode == 1 and b"pip install 'redrive[otel]'" in done.stderr


def test_a_traceparent_travels_without_opentelemetry() -> None:
    app = App("memory://")

    @app.task(retry=SOON)
    def push() -> str:
        return redrive.context().message.traceparent or ""

    ref = push.using(traceparent=SENDER, keep_result="1h").enqueue()
    app.run_worker(burst=True)
    assert ref.wait(timeout=1) == SENDER


# -- names


def test_names_are_those_of_the_published_model_and_none_is_deprecated(traced: Traced) -> None:
    @traced.app.task(name="push", queue="crm", retry=SOON)
    def push(n: int) -> None:
        raise ConnectionError("no answer")

    push.enqueue(1)
    traced.app.enqueue_many([push.draft(2), push.draft(3)])
    traced.work()
    traced.app.dlq.retry(all=True)
    published = {
        value
        for model in (messaging_attributes, error_attributes, exception_attributes)
        for name, value in vars(model).items()
        if name.isupper() and isinstance(value, str) and "Deprecated" not in _documented(model, name)
    }
    used = {name for span in traced.spans for name in told(span)}
    used |= {name for span in traced.spans for event in span.events for name in (event.attributes or {})}
    assert {name for name in used if not name.startswith("redrive.")} <= published
    assert {"messaging.operation", "messaging.message.payload_size_bytes"} & published == set()
    types = {each.value for each in messaging_attributes.MessagingOperationTypeValues} - {"publish", "deliver"}
    for span in traced.spans:
        assert told(span)["messaging.system"] == "redrive"
        assert told(span)["messaging.operation.type"] in types
        assert span.name == f"{told(span)['messaging.operation.name']} {told(span)['messaging.destination.name']}"
    kinds = {str(told(span)["messaging.operation.name"]): span.kind.name for span in traced.spans}
    assert kinds == {
        "send": "PRODUCER", "receive": "CLIENT", "process": "CONSUMER", "settle": "CLIENT", "redrive": "PRODUCER",
    }  # fmt: skip


def _documented(model: Any, name: str) -> str:
    """The text below a constant of the model, which says whether it is deprecated."""
    text = Path(model.__file__).read_text().partition(f"\n{name}: Final")[2]
    return text.partition("\n\n")[0]


# -- sending


def test_the_sender_is_the_current_span_of_the_caller_and_not_of_who_writes(traced: Traced) -> None:
    @traced.app.task(queue="crm")
    def push(n: int) -> None: ...

    async def request(n: int) -> tuple[int, str]:
        with traced.tracer.start_as_current_span("request") as span:
            ref = await push.aenqueue(n)  # concurrent ones share a commit, which one of them begins
        return id_of(span), ref.id

    async def all() -> list[tuple[int, str]]:
        found = await asyncio.gather(*map(request, range(20)))
        await push.aenqueue(20)
        return found

    requests = asyncio.run(all())
    sent = traced.named("send crm")
    assert {(span.parent.span_id, told(span)["messaging.message.id"]) for span in sent if span.parent} == set(requests)
    assert [span.parent for span in sent].count(None) == 1
    stored = {m.id: m.traceparent for m in traced.app.store.peek(Lane.READY).messages}
    assert {told(span)["messaging.message.id"]: made.traceparent_of(span.get_span_context()) for span in sent} == stored


def test_a_batch_of_one_sender_is_one_span(traced: Traced) -> None:
    @traced.app.task(queue="crm")
    def push(n: int) -> None: ...

    traced.app.enqueue_many([push.draft(n) for n in range(5)])
    sent = traced.one("send crm")
    assert told(sent)["messaging.batch.message_count"] == 5 and "messaging.message.id" not in told(sent)


def test_each_step_of_a_workflow_is_in_the_trace_of_who_enqueued_it(traced: Traced) -> None:
    seen = list[str]()

    @traced.app.task(ctx=True)
    def step(ctx: redrive.Context, n: int) -> None:
        seen.append((ctx.message.traceparent or "none").split("-")[1])

    w = traced.app.workflow(name="order")
    first = w.map(step, range(2))
    w.map(step, range(300)).after(w.step(step, 7).after(first))  # the last ones are stored in two lists
    with traced.tracer.start_as_current_span("request") as span:
        w.enqueue()
    traced.work()
    assert seen == [f"{span.get_span_context().trace_id:032x}"] * 303


def test_the_span_of_a_callback_names_its_batch_and_that_of_a_member_costs_no_read(traced: Traced) -> None:
    @traced.app.task(queue="crm")
    def push(n: int) -> None: ...

    @traced.app.task(queue="mail")
    def report() -> None: ...

    traced.app.batch([push.draft(1)], name="nightly", on_success=report.draft()).enqueue()
    traced.work()
    assert told(traced.one("process mail"))["redrive.batch.name"] == "nightly"
    assert "redrive.batch.name" not in told(traced.one("process crm"))


def test_a_given_traceparent_stays_the_trace(traced: Traced) -> None:
    @traced.app.task(queue="crm")
    def push() -> None: ...

    with traced.tracer.start_as_current_span("request"):
        push.using(traceparent=SENDER).enqueue()
    (message,) = traced.app.store.peek(Lane.READY).messages
    assert message.traceparent is not None and message.traceparent.split("-")[1] == SENDER.split("-")[1]
    sent = traced.one("send crm")
    assert sent.parent is not None and sent.parent.span_id == int("00f067aa0ba902b7", 16)


def test_a_follow_up_has_the_run_as_its_sender(traced: Traced) -> None:
    @traced.app.task(name="first", queue="crm")
    def first() -> None:
        redrive.context().enqueue(second)

    @traced.app.task(name="second", queue="mail")
    def second() -> None: ...

    first.enqueue()
    traced.work()
    sent, run = traced.one("send mail"), traced.one("process crm")
    assert sent.parent is not None and sent.parent.span_id == id_of(run)
    assert linked(traced.one("process mail")) == {"sender": id_of(sent)}


def test_what_cannot_be_stored_is_an_error_of_its_span() -> None:
    class Full(MemoryStore):
        def put(self, *_: Any, **__: Any) -> Any:
            raise StoreUnavailable("redis://ann:secret@db is full")

    traced = Traced(App(store=Full()))

    @traced.app.task(queue="crm")
    def push() -> None: ...

    with pytest.raises(StoreUnavailable):
        push.enqueue()
    sent = traced.one("send crm")
    assert told(sent)["error.type"] == "StoreUnavailable" and not sent.status.is_ok
    assert "secret" not in str(sent.status.description)


# -- running


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_spans_of_a_handler_and_of_its_wraps_are_children_of_its_run(traced: Traced, kind: str) -> None:
    @traced.app.wrap
    def session(ctx: redrive.Context) -> Iterator[None]:
        with traced.tracer.start_as_current_span("wrap"):
            yield

    def push() -> None:
        with traced.tracer.start_as_current_span("own"):
            pass

    async def apush() -> None:
        push()
        await asyncio.sleep(0)
        with traced.tracer.start_as_current_span("later"):
            pass

    task: Any = traced.app.task(name="push", queue="crm")(push if kind == "sync" else apush)
    task.enqueue()
    traced.work()
    run, wrap = traced.one("process crm"), traced.one("wrap")
    inner = [traced.one(name) for name in ("own", *["later"] * (kind == "async"))]
    assert wrap.parent is not None and wrap.parent.span_id == id_of(run)
    assert [span.parent and span.parent.span_id for span in inner] == [id_of(wrap)] * len(inner)
    assert not trace.get_current_span().get_span_context().is_valid


def test_spans_of_a_worker_do_not_hang_on_what_happens_to_be_current_where_it_starts(traced: Traced) -> None:
    @traced.app.task(queue="crm")
    async def push() -> None: ...

    async def embedded() -> None:
        with traced.tracer.start_as_current_span("startup"):
            async with traced.app.worker(drain=True) as worker:
                await worker.wait()

    push.enqueue()
    asyncio.run(embedded())
    assert [traced.one(name).parent for name in ("process crm", "receive crm", "settle crm")] == [None] * 3


def test_with_parent_a_run_belongs_to_the_trace_of_its_sender() -> None:
    traced = Traced(parent=True)

    @traced.app.task(queue="crm", retry=SOON)
    def push() -> None:
        if redrive.context().attempt == 1:
            raise ConnectionError("once")

    push.enqueue()
    traced.work()
    sent, (first, second) = traced.one("send crm"), traced.named("process crm")
    assert [run.parent and run.parent.span_id for run in (first, second)] == [id_of(sent)] * 2
    assert (linked(first), linked(second)) == ({}, {"previous attempt": id_of(first)})


def test_what_became_of_a_run_is_told_and_only_a_failure_is_an_error(traced: Traced) -> None:
    ends: list[BaseException | None] = [Snooze("1ms"), ConnectionError("password=hunter2"), None, Reject("no")]

    @traced.app.task(queue="crm", retry=SOON)
    def push() -> None:
        end = ends.pop(0)
        if end is not None:
            raise end

    push.enqueue()
    traced.work()
    push.enqueue()
    traced.work()
    runs = traced.named("process crm")
    assert [told(run)["redrive.outcome"] for run in runs] == ["snoozed", "retry", "done", "dead"]
    assert [run.status.status_code.name for run in runs] == ["UNSET", "ERROR", "UNSET", "ERROR"]
    failed = told(runs[1])
    assert (failed["error.type"], failed["redrive.fault.kind"], failed["redrive.delay_ms"]) == (
        "ConnectionError", "transient", 10,
    )  # fmt: skip
    assert told(runs[3])["redrive.reason"] == "rejected"
    (event,) = runs[1].events
    assert "hunter2" not in f"{event.attributes} {runs[1].status.description}"
    assert "Traceback" in str((event.attributes or {})["exception.stacktrace"])


def test_a_failure_looks_the_same_with_and_without_spans() -> None:
    def die(app: App) -> tuple[str, str]:
        def push() -> None:
            raise ValueError("boom")

        app.task(name="push", retry=redrive.Retry(max_attempts=1))(push).enqueue()
        app.run_worker(drain=True)
        (fault,) = app.dlq.list().messages[0].faults
        return fault.fingerprint, fault.traceback

    assert die(Traced().app) == die(App("memory://"))


def test_a_run_whose_lease_is_lost_is_told_as_lost() -> None:
    class Forgetful(MemoryStore):
        def extend(self, receipts: Any, **_: Any) -> list[LeaseStatus]:
            return [LeaseStatus.LOST for _ in receipts]

    traced = Traced(App(store=Forgetful()))

    @traced.app.task(queue="crm")
    async def push() -> None:
        await asyncio.sleep(60)  # until it is cancelled

    async def lose() -> None:
        async with traced.app.worker(lease="90ms", grace=0):
            await until(lambda: traced.named("process crm"))

    push.enqueue()
    asyncio.run(lose())
    run = traced.one("process crm")
    assert (told(run)["redrive.outcome"], told(run)["error.type"]) == ("lost", "lease_lost")


def test_spans_alone_build_no_event() -> None:
    traced = Traced()
    assert not traced.app.events.observers


def test_a_sampler_that_drops_spans_drops_no_context() -> None:
    traced = Traced(sampler=ALWAYS_OFF)

    @traced.app.task(queue="crm", keep_result="1h")
    def push() -> str:
        return redrive.context().message.traceparent or ""

    ref = push.using(traceparent=SENDER).enqueue()
    traced.work()
    assert ref.wait(timeout=1).split("-")[1::2] == [SENDER.split("-")[1], "00"]
    assert traced.spans == ()


def test_a_sampler_that_raises_costs_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Sampler):
        def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
            raise RuntimeError("sampler")

        def get_description(self) -> str:
            return "broken"

    traced = Traced(sampler=Broken())
    heard = Heard(traced.app)

    @traced.app.task(queue="crm")
    def push() -> None: ...

    push.enqueue()
    traced.work()
    assert heard.outcomes == ["done"] and "RuntimeError: sampler" in capsys.readouterr().err


def test_a_child_process_runs_within_the_span_that_its_worker_has(tmp_path: Path) -> None:
    (tmp_path / "isolated.py").write_text(
        """
import os, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redrive import App, Retry
kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
app = App("sqlite:///work.db")
app.instrument(metrics=False)

@app.task(name="push", queue="crm", isolation="process", keep_result="1h", retry=Retry(max_attempts=1))
def push(die: bool) -> str:
    if die:
        os._exit(3)
    return f"{trace.get_current_span().get_span_context().span_id:016x}"
"""
    )
    program = """
from isolated import app, kept, push
app.spec = "isolated:app"
ref = push.enqueue(False)
push.enqueue(True)
app.run_worker(burst=True)
runs = {s.attributes["redrive.outcome"]: s for s in kept.get_finished_spans() if s.name == "process crm"}
assert ref.wait(timeout=1) == f"{runs['done'].get_span_context().span_id:016x}", runs
assert runs["crashed"].attributes["error.type"] == "ProcessDied", runs
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=100)


def test_the_test_kit_and_a_lambda_handler_tell_what_became_of_a_run_too(traced: Traced) -> None:
    @traced.app.task(queue="crm", retry=SOON)
    def push() -> None:
        if redrive.context().attempt == 1:
            raise ConnectionError("once")

    with Kit(traced.app) as rd:
        push.enqueue()
        rd.drain()
    assert [told(run)["redrive.outcome"] for run in traced.named("process crm")] == ["retry", "done"]

    with SqsServer() as server:
        on_sqs = Traced(App(f"sqs://eu-central-1/shop?create=true&poll=0&endpoint={server.url}"))

        @on_sqs.app.task(name="push", queue="crm")
        def mail(n: int) -> None:
            if n:
                raise ConnectionError("no answer")

        on_sqs.app.enqueue_many([mail.draft(0), mail.draft(1)])
        client = boto3.client("sqs", endpoint_url=server.url, **AWS)
        handler = on_sqs.app.lambda_handler(metrics=False)
        EventSource(client, client.get_queue_url(QueueName="shop-crm")["QueueUrl"]).deliver(handler)
        handler.close()
        on_sqs.app.store.close()
    runs = {told(run)["redrive.outcome"]: linked(run)["sender"] for run in on_sqs.named("process crm")}
    assert runs == dict.fromkeys(("done", "retry"), id_of(on_sqs.one("send crm")))


# -- baggage


def test_only_the_baggage_that_is_named_travels() -> None:
    traced, seen = Traced(baggage=["tenant"]), list[Mapping[str, object]]()

    @traced.app.task(queue="crm")
    def push() -> None:
        seen.append(baggage.get_all())

    token = context.attach(baggage.set_baggage("secret", "s", baggage.set_baggage("tenant", "a cme;")))
    try:
        push.enqueue()
    finally:
        context.detach(token)
    push.using(headers={"baggage": "tenant=other,admin=1"}).enqueue()
    (first, _) = traced.app.store.peek(Lane.READY).messages
    assert dict(first.headers) == {"baggage": "tenant=a+cme%3B"}
    traced.work()
    assert sorted(map(dict, seen), key=str) == [{"tenant": "a cme;"}, {"tenant": "other"}]


def test_without_a_list_no_baggage_travels_either_way(traced: Traced) -> None:
    seen = list[Mapping[str, object]]()

    @traced.app.task(queue="crm")
    def push() -> None:
        seen.append(baggage.get_all())

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    try:
        push.enqueue()
    finally:
        context.detach(token)
    push.using(headers={"baggage": "tenant=other"}).enqueue()
    traced.work()
    assert seen == [{}, {}]


@pytest.mark.parametrize("given", ["tenant", [1]])
def test_baggage_that_is_no_list_of_names_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="expected a list of the names"):
        App("memory://").instrument(baggage=given)


def test_the_state_of_a_vendor_travels_in_a_header() -> None:
    traced = Traced()
    state = trace.TraceState([("acme", "t61")])
    sender = trace.SpanContext(1, 2, True, trace.TraceFlags(1), state)

    @traced.app.task(queue="crm")
    def push() -> None: ...

    with trace.use_span(trace.NonRecordingSpan(sender)):
        push.enqueue()
    (message,) = traced.app.store.peek(Lane.READY).messages
    assert dict(message.headers) == {"tracestate": "acme=t61"}
    traced.work()
    (link,) = traced.one("process crm").links
    assert link.context.trace_state.get("acme") == "t61"


# -- settings


def test_an_app_is_instrumented_once(traced: Traced) -> None:
    with pytest.raises(ConfigError, match="instrumented already"):
        traced.app.instrument()


def test_the_setting_instruments_an_app_when_it_opens_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_OTEL", "true")
    app = App("memory://")
    assert app.tracing is None and app.store is not None
    assert app.tracing is not None
    monkeypatch.setenv("REDRIVE_OTEL", "perhaps")
    with pytest.raises(ConfigError, match="REDRIVE_OTEL"):
        App("memory://").store  # noqa: B018


# -- bounds


def test_links_of_a_batch_and_of_a_redrive_are_bounded(traced: Traced) -> None:
    @traced.app.task(queue="crm", retry=redrive.Retry(max_attempts=1))
    def push(n: int) -> None:
        raise ValueError("boom")

    for n in range(made.LINKS_MAX + 8):
        push.enqueue(n)
    traced.work()
    traced.app.dlq.retry(all=True)
    most = {span.name: max(len(s.links) for s in traced.named(span.name)) for span in traced.spans}
    assert most["redrive crm"] == made.LINKS_MAX and max(most.values()) == made.LINKS_MAX
    assert told(traced.one("redrive crm"))["redrive.moved"] == made.LINKS_MAX + 8


def test_an_idle_worker_makes_no_spans(traced: Traced) -> None:
    @traced.app.task(queue="crm")
    def push() -> None: ...

    traced.work()
    assert traced.spans == ()


def test_a_failed_exchange_is_told_and_its_runs_end_once_they_are_settled() -> None:
    class Once(MemoryStore):
        failed = False

        def exchange(self, settlements: Any, asks: Any, *, swaps: Any = ()) -> Exchange:
            if settlements and not self.failed:
                self.failed = True
                raise StoreUnavailable("away")
            return super().exchange(settlements, asks, swaps=swaps)

    traced = Traced(App(store=Once()))

    @traced.app.task(queue="crm")
    def push() -> None: ...

    push.enqueue()
    traced.work()
    assert [told(span).get("error.type") for span in traced.named("settle crm")] == ["StoreUnavailable", None]
    assert told(traced.one("process crm"))["redrive.outcome"] == "done"


# -- metrics


def test_instruments_tell_the_numbers_of_the_prometheus_metrics_under_the_names_a_collector_makes_them() -> None:
    reader, registry, app = InMemoryMetricReader(), CollectorRegistry(), App("memory://")
    app.instrument(meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    Metrics(app).register(registry)
    taken = threading.Event()

    @app.task(name="push", queue="crm", retry=SOON)
    def push(fails: int) -> None:
        if redrive.context().attempt <= fails:
            raise ConnectionError("no answer")

    @app.task(name="look", queue="crm")
    def look() -> None:
        found.update(_points(reader))
        taken.set()

    found: dict[tuple[str, frozenset[Any]], Any] = {}
    assert _points(reader) == {}  # before a worker starts here
    for fails in (0, 0, 1, 5):
        push.enqueue(fails)
    app.run_worker(drain=True)
    push.using(delay="1h").enqueue(0)
    look.enqueue()
    app.run_worker(burst=True)
    assert taken.is_set()
    depths = {dict(labels)["lane"]: n for (name, labels), n in found.items() if name == "redrive_queue_messages"}
    assert (depths["dead"], depths["scheduled"], depths["leased"]) == (1, 1, 1)
    assert found["redrive_store_up", frozenset()] == 1

    exported = {key: value for key, value in _points(reader).items() if not key[0].startswith("redrive_queue")}
    scraped = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if family.type in ("counter", "histogram")
    }
    assert {key: value for key, value in exported.items() if key not in scraped} == {}
    assert {key: value for key, value in scraped.items() if value and exported.get(key) != pytest.approx(value)} == {}


def _points(reader: InMemoryMetricReader) -> dict[tuple[str, frozenset[Any]], float]:
    """What is exported now, under the names and with the buckets that a collector gives Prometheus."""
    found: dict[tuple[str, frozenset[Any]], float] = {}
    data = reader.get_metrics_data()
    for metric in () if data is None else data.resource_metrics[0].scope_metrics[0].metrics:
        name = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
        for point in metric.data.data_points:
            labels = frozenset((point.attributes or {}).items())
            if isinstance(point, HistogramDataPoint):
                found[f"{name}_sum", labels], found[f"{name}_count", labels] = point.sum, point.count
                sum_ = 0
                for bound, count in zip([*map(repr, point.explicit_bounds), "+Inf"], point.bucket_counts, strict=True):
                    sum_ += count
                    found[f"{name}_bucket", labels | {("le", bound)}] = sum_
            elif isinstance(point, NumberDataPoint):
                found[f"{name}_total" if hasattr(metric.data, "is_monotonic") else name, labels] = point.value
    return found


# -- calls that gather messages


@pytest.mark.parametrize("sync", [False, True], ids=["coroutine", "thread"])
def test_each_message_of_a_call_has_a_span_that_links_to_the_calls(traced: Traced, sync: bool) -> None:
    inner: list[int] = []

    def within() -> None:
        with traced.tracer.start_as_current_span("inside") as span:
            inner.append(span.parent.span_id)  # type: ignore[attr-defined]

    async def push(items: list[int]) -> list[Exception | None]:
        within()
        return [Reject("no") if n == 1 else None for n in items]

    def push_sync(items: list[int]) -> list[Exception | None]:
        within()
        return [Reject("no") if n == 1 else None for n in items]

    task: Any = traced.app.task(name="push", gather=4)(push_sync if sync else push)
    ids = [ref.id for ref in traced.app.enqueue_many([task.draft(n) for n in range(3)])]
    traced.work()
    runs = {
        str(told(span)[messaging_attributes.MESSAGING_MESSAGE_ID]): span for span in traced.named("process default")
    }
    first, *others = [runs[id] for id in ids]
    assert inner == [id_of(first)] and "gathered call" not in linked(first)
    assert [linked(span)["gathered call"] for span in others] == [id_of(first)] * 2
    assert [told(runs[id])["redrive.outcome"] for id in ids] == ["done", "dead", "done"]
    assert all(span.end_time and span.start_time and span.end_time >= span.start_time for span in runs.values())
