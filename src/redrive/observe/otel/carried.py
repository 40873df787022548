"""The trace context in messages: `traceparent` in a field of its own, `tracestate` and `baggage` in headers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, TraceFlags, TraceState

TRACESTATE, BAGGAGE = "tracestate", "baggage"  # the headers of a message, named as in HTTP
NONE = Context()
_bags = W3CBaggagePropagator()


def traceparent_of(span: SpanContext) -> str:
    """Return a span's context as a traceparent."""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


@lru_cache(maxsize=1024)  # few suffice: a batch has one sender, and only the next attempt reads a context
def read(traceparent: str | None, tracestate: str | None = None) -> SpanContext | None:
    """Return the span context in a traceparent; None if that is invalid, as other programs may write anything."""
    if not traceparent:
        return None
    try:
        _, trace, span, flags = traceparent.split("-")[:4]
        state = TraceState.from_header([tracestate]) if tracestate else None
        context = SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16) & 1), state)
    except ValueError:
        return None
    return context if context.is_valid else None


def baggage_to_send(allowed: Collection[str]) -> str | None:
    """Return the allowed entries of the current baggage as a header; None if there are none."""
    entries = baggage.get_all() if allowed else {}
    context = Context()
    for name in allowed & entries.keys() if entries else ():
        context = baggage.set_baggage(name, entries[name], context)
    carrier: dict[str, str] = {}
    _bags.inject(carrier, context)
    return carrier.get(BAGGAGE)


def with_baggage(headers: Mapping[str, str], allowed: Collection[str]) -> Context:
    """Return a context with only the allowed baggage of a message's headers, and nothing of the current thread's."""
    context = NONE
    if not allowed or BAGGAGE not in headers:
        return context
    for name, value in baggage.get_all(_bags.extract(headers, NONE)).items():
        if name in allowed:
            context = baggage.set_baggage(name, value, context)
    return context
