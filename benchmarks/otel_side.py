"""One side of the benchmark `otel`, as a program of its own: `otel_side.py SIDE URL MESSAGES` prints the processor time
of a message in µs. SIDE is off, on, or sdk: the same spans by the SDK alone. It imports redrive from PYTHONPATH."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

BATCH = 500
SENDER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def provider() -> Any:
    """An SDK as in production, whose exporter throws away what it gets."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nothing(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(Nothing()))
    return made


def worked(url: str, messages: int, *, on: bool) -> float:
    """Put no-op messages in batches, and work them off."""
    from redrive import App

    app, ran = App(url), 0
    if on:
        app.instrument(metrics=False, tracer_provider=provider())

    @app.task(name="noop")
    async def noop(i: int) -> None:
        nonlocal ran
        ran += 1

    drafts = [noop.draft(n) for n in range(messages)]
    from_s = time.process_time()
    for at in range(0, messages, BATCH):
        app.enqueue_many(drafts[at : at + BATCH])
    app.run_worker(burst=True, concurrency=100)
    cpu_s = time.process_time() - from_s
    app.store.close()
    if ran != messages:
        raise SystemExit(f"{ran} of {messages} messages ran")
    return cpu_s / messages * 1e6


def bare(messages: int) -> float:
    """What the SDK takes for a `process` span, its link, attributes and context, and nothing else."""
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, set_span_in_context

    tracer = provider().get_tracer("bare")
    sender = SpanContext(1, 2, True, TraceFlags(1))
    from_s = time.process_time()
    for n in range(messages):
        attributes = {
            "messaging.system": "redrive",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "default",
            "messaging.message.id": "0199f3a1-0000-7000-8000-000000000001",
            "messaging.message.conversation_id": "0199f3a1-0000-7000-8000-000000000001",
            "redrive.task": "noop",
            "redrive.attempt": n,
        }
        links = [Link(sender, {"redrive.link": "sender"})]
        span = tracer.start_span("process default", Context(), SpanKind.CONSUMER, attributes, links)
        detach(attach(set_span_in_context(span, Context())))
        span.set_attribute("redrive.outcome", "done")
        span.end()
    return (time.process_time() - from_s) / messages * 1e6


if __name__ == "__main__":
    side, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    run = bare if side == "sdk" else partial(worked, url, on=side == "on")
    run(BATCH)  # imports, which may have to be compiled, are not what is measured
    print(run(count))
