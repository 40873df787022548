"""A receiver of OTLP over HTTP on loopback, and the trace that redrive's docs show: what an exporter sends, decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from redrive import App, Backoff, Retry

KINDS = {value: name.removeprefix("SPAN_KIND_").lower() for name, value in Span.SpanKind.items()}


class Received(Struct):
    """A span as the receiver got it. `links` and `parent` are ids of spans."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    attributes: Mapping[str, Any]
    events: tuple[str, ...]
    failed: bool
    start_ns: int
    end_ns: int


class Receiver:
    """Takes what an exporter posts to `url`."""

    def __init__(self) -> None:
        spans = self.spans = list[Received]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
                spans.extend(_decoded(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def named(self, name: str) -> list[Received]:
        """The spans of this name, in the order in which they began."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_ns)


def _decoded(body: bytes) -> Iterator[Received]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    span.name,
                    KINDS[span.kind],
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    tuple(link.span_id.hex() for link in span.links),
                    {item.key: getattr(item.value, str(item.value.WhichOneof("value"))) for item in span.attributes},
                    tuple(event.name for event in span.events),
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )


@contextmanager
def exporting(receiver: Receiver) -> Iterator[TracerProvider]:
    """A provider whose spans go to the receiver; all have arrived when this ends."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(receiver.url)))
    try:
        yield provider
    finally:
        provider.shutdown()


def charge_that_dies_and_is_redriven(url: str, provider: TracerProvider) -> str:
    """Enqueue within a request, fail twice and die, be redriven by a run, succeed: each step on an app of its own, as
    in processes that share nothing but the store. Returns the message's id."""
    tracer = trace.get_tracer("shop", tracer_provider=provider)

    def app_of(works: bool) -> App:
        app = App(url)
        app.instrument(metrics=False, tracer_provider=provider)

        @app.task(name="charge", queue="payments", retry=Retry(max_attempts=3, backoff=Backoff.fixed("10ms")))
        def charge(order: str) -> None:
            with tracer.start_as_current_span("POST api.bank.example"):
                if not works:
                    raise ConnectionError("the bank does not answer")

        return app

    sender = app_of(works=False)
    with tracer.start_as_current_span("POST /orders", kind=trace.SpanKind.SERVER):
        id: str = sender.tasks["charge"].enqueue("A-17").id
    sender.store.close()
    failing = app_of(works=False)
    failing.run_worker(["payments"], drain=True)
    failing.store.close()
    fixed = app_of(works=True)
    fixed.dlq.select("queue:payments").plan().start(reason="the bank is back")
    fixed.run_worker(["payments"], drain=True)
    fixed.store.close()
    return id
