"""Make spans: `send`, `receive`, `process` and `settle`, as the messaging conventions name them, and `redrive`.

An execution is a trace of its own, with links to the sender and the previous attempt: attempts may be a day apart, and
most backends split a trace that lasts so long. With `parent`, it is part of the sender's trace.

A `process` span has the times of the handler. It stays open until the settlement, which decides its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import time_ns
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from opentelemetry.context import attach, detach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from ..._version import __version__
from ...counters import FAILED
from ...decide import is_free
from ...events import Event, Notice, complain
from ...fault import Fault
from ...message import (
    BATCH_NAME_HEADER,
    HELD,
    Ack,
    DeadLetter,
    Decision,
    Draft,
    Message,
    Quarantine,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
)
from ...redact import redact
from ...run_context import Context
from .carried import BAGGAGE, NONE, TRACESTATE, baggage_to_send, read, traceparent_of, with_baggage

LINKS_MAX = 32  # the most links of a batch's span; SDKs keep 128
OPEN_MAX = 10_000  # the most executions whose spans wait for their settlement
RUNS_MAX = 100  # the most redrive runs with an open span
SYSTEM, DESTINATION = "messaging.system", "messaging.destination.name"
OPERATION, TYPE = "messaging.operation.name", "messaging.operation.type"
ID, CONVERSATION = "messaging.message.id", "messaging.message.conversation_id"
COUNT, CLIENT, ERROR_TYPE = "messaging.batch.message_count", "messaging.client.id", "error.type"
SENDER, PREVIOUS = {"redrive.link": "sender"}, {"redrive.link": "previous attempt"}
CALL = {"redrive.link": "gathered call"}
# The outcome of a free decision by its `why`; `held` for all others.
_FREE = {"snooze": "snoozed", "interrupted": "released"}
_OVER = frozenset({"run_done", "run_stopped", "run_cancelled"})


class RunSpan(Struct, eq=False):
    """The span of an execution, its message, and when its handler ended."""

    span: Span
    message: Message
    ended_ns: int = 0


class Spans:
    """The spans of one app in this process; also an observer of notices. `baggage`: names that messages may carry."""

    def __init__(self, *, parent: bool, baggage: frozenset[str], provider: Any = None) -> None:
        self._parent, self._baggage = parent, baggage
        self._tracer = get_tracer("redrive", __version__, provider)
        self._open: dict[Receipt, RunSpan] = {}
        self._runs: dict[str, Span] = {}  # the spans of redrive runs, by the run's id

    def stamp(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Return the drafts with the trace context of the enqueuing code; a draft that has a context keeps it."""
        sender = get_current_span().get_span_context()
        bag = baggage_to_send(self._baggage) if self._baggage else None
        if not sender.is_valid and bag is None:
            return drafts
        return [_stamp(draft, sender, bag) for draft in drafts]

    def sending(self, drafts: Sequence[Draft]) -> Sending:
        """Begin a span for each pair of queue and sender of the drafts, and return them."""
        return Sending(self, drafts)

    def begin(self, context: Context, call: Context | None = None) -> str:
        """Begin, in the worker, the span of an execution that runs in a child process, or in the `call` of another
        message, to whose span it has a link. Return the span's traceparent, to be sent to the child; empty after an
        error."""
        try:
            of_call = None if call is None else call._trace
            links = [Link(of_call.span.get_span_context(), CALL)] if isinstance(of_call, RunSpan) else []
            return traceparent_of(self._begin(context, links).span.get_span_context())
        except Exception:  # an error of tracing must not fail the message
            complain("the span of a run")
            return ""

    def enter(self, context: Context) -> Any:
        """Make the span of an execution the current one; return a token for `leave`. After an error, the execution is
        not traced."""
        try:
            traced = context._trace
            span = NonRecordingSpan(_remote(traced)) if isinstance(traced, str) else self._begin(context).span
            return attach(set_span_in_context(span, with_baggage(context.message.headers, self._baggage)))
        except Exception:  # an error of a sampler or a processor must not fail the message
            complain("the span of a run")
            return None

    def leave(self, context: Context, token: Any = None) -> None:
        """Note the end of the handler, and undo `enter`. Without a token, the context ends with its coroutine."""
        traced = context._trace
        if isinstance(traced, RunSpan):
            traced.ended_ns = time_ns()
        if token is not None:
            detach(token)

    def _begin(self, context: Context, more: Sequence[Link] = ()) -> RunSpan:
        message = context.message
        sender = read(message.traceparent, message.headers.get(TRACESTATE) if message.headers else None)
        links, carried = [*more], NONE
        if sender is not None and self._parent:
            carried = set_span_in_context(NonRecordingSpan(sender), carried)
        elif sender is not None:
            links.append(Link(sender, SENDER))
        previous = read(_last(message)) if message.faults else None
        if previous is not None:
            links.append(Link(previous, PREVIOUS))
        attributes: dict[str, Any] = {
            SYSTEM: "redrive",
            OPERATION: "process",
            TYPE: "process",
            DESTINATION: message.queue,
            ID: message.id,
            CONVERSATION: message.correlation_id,
            "redrive.task": message.task,
            "redrive.attempt": message.attempt,
        }
        if message.redrives or message.crashes:
            attributes |= _seldom(message)
        if message.headers and BATCH_NAME_HEADER in message.headers:
            attributes["redrive.batch.name"] = message.headers[BATCH_NAME_HEADER]
        span = self._tracer.start_span(f"process {message.queue}", carried, SpanKind.CONSUMER, attributes, links)
        run = context._trace = RunSpan(span, message)
        if context._receipt is not None:
            if len(self._open) >= OPEN_MAX:
                self.lose(next(iter(self._open)))
            self._open[context._receipt] = run
        return run

    def runs_of(self, settlements: Sequence[Settlement]) -> list[RunSpan | None]:
        """Return the span of each settlement's execution; None for an execution that is not traced."""
        runs = self._open
        return [runs.get(settlement.receipt) for settlement in settlements]

    def end_runs(
        self,
        settlements: Sequence[Settlement],
        runs: Sequence[RunSpan | None],
        words: Sequence[Settled],
        *,
        texts: bool,
    ) -> None:
        """End the spans of settled executions; `words` are the store's answers. `texts`: spans may contain texts of
        faults."""
        for settlement, run, word in zip(settlements, runs, words, strict=True):
            if run is not None and self._open.pop(settlement.receipt, None) is not None:
                _end(run, settlement, word, texts=texts)

    def lose(self, receipt: Receipt) -> None:
        """End the span of an execution whose lease was lost, as that is never settled."""
        run = self._open.pop(receipt, None)
        if run is not None:
            run.span.set_attributes({"redrive.outcome": "lost", ERROR_TYPE: "lease_lost"})
            run.span.set_status(StatusCode.ERROR, "the lease was lost while it ran")
            run.span.end(run.ended_ns or None)

    def lose_earlier(self, message: Message) -> None:
        """End the spans of earlier executions of a message that was claimed again, whose leases were lost."""
        for receipt, run in list(self._open.items()):
            if run.message.id == message.id:
                self.lose(receipt)

    def batch(
        self,
        operation: str,
        queues: Iterable[str],
        count: int,
        began_ns: int,
        *,
        links: Iterable[SpanContext | None] = (),
        error: BaseException | None = None,
        worker: str = "",
    ) -> None:
        """Record a span for one finished call of the store about a batch of `count`, which began at `began_ns`."""
        names = set(queues)
        attributes: dict[str, Any] = {SYSTEM: "redrive", OPERATION: operation, TYPE: operation, COUNT: count}
        if len(names) == 1:
            (attributes[DESTINATION],) = names
        if worker:
            attributes[CLIENT] = worker
        name = f"{operation} {attributes[DESTINATION]}" if len(names) == 1 else operation
        span = self._tracer.start_span(name, NONE, SpanKind.CLIENT, attributes, _links(links), start_time=began_ns)
        end_with(span, error)

    def redriving(self, run: str | None, queues: Iterable[str], count: int, messages: Sequence[Message | None]) -> Span:
        """Begin and return the span of a redriven batch, with links to the executions in which its messages died. It is
        a child of the span of its redrive run, which lasts while this process carries out the run."""
        names = set(queues)
        attributes: dict[str, Any] = {SYSTEM: "redrive", OPERATION: "redrive", TYPE: "send", COUNT: count}
        if len(names) == 1:
            (attributes[DESTINATION],) = names
        carried = NONE
        if run is not None:
            attributes["redrive.run.id"] = run
            carried = set_span_in_context(self._span_of(run), carried)
        links = [read(_last(message) or message.traceparent) for message in messages if message is not None]
        name = f"redrive {attributes[DESTINATION]}" if len(names) == 1 else "redrive"
        return self._tracer.start_span(name, carried, SpanKind.PRODUCER, attributes, _links(links))

    def _span_of(self, run: str) -> Span:
        span = self._runs.get(run)
        if span is None:
            if len(self._runs) >= RUNS_MAX:
                self._runs.pop(next(iter(self._runs))).end()
            attributes = {SYSTEM: "redrive", "redrive.run.id": run}
            span = self._runs[run] = self._tracer.start_span("redrive run", NONE, attributes=attributes)
        return span

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Notice) and event.name in _OVER and event.about in self._runs:
                span = self._runs.pop(event.about)
                span.set_attribute("redrive.run.status", event.name.removeprefix("run_"))
                span.end()

    def close(self) -> None:
        """End the spans of redrive runs, as another process may carry on with the runs."""
        while self._runs:
            self._runs.popitem()[1].end()


class _Sent:
    """The span of the drafts from one sender to one queue, their places in the batch, and the context they carry."""

    def __init__(self, span: Span) -> None:
        context = span.get_span_context()
        self.span, self.places = span, list[int]()
        self.traceparent = traceparent_of(context) if context.is_valid else None
        self.state = context.trace_state.to_header() if context.trace_state else ""


class Sending:
    """A batch of drafts that is being put. `drafts` are the drafts with the contexts of their spans."""

    def __init__(self, spans: Spans, drafts: Sequence[Draft]) -> None:
        self._sent: dict[tuple[str | None, str], _Sent] = {}
        self.drafts: list[Draft] = [self._with_span(spans, draft, at) for at, draft in enumerate(drafts)]

    def _with_span(self, spans: Spans, draft: Draft, at: int) -> Draft:
        key = (draft.traceparent, draft.queue)
        sent = self._sent.get(key)
        if sent is None:
            sent = self._sent[key] = _Sent(_send_span(spans, draft))
        sent.places.append(at)
        if sent.traceparent is None:
            return draft
        headers = draft.headers
        if sent.state != ((headers.get(TRACESTATE) or "") if headers else ""):
            headers = {**(headers or {}), TRACESTATE: sent.state}
        return replace(draft, traceparent=sent.traceparent, headers=headers)

    def finish(self, ids: Sequence[str | None]) -> None:
        """End the spans after the put; `ids` are the ids of the messages."""
        for sent in self._sent.values():
            span, places = sent.span, sent.places
            if span.is_recording():
                one = len(places) == 1
                span.set_attribute(ID if one else COUNT, (ids[places[0]] or "") if one else len(places))
            span.end()

    def fail(self, error: BaseException) -> None:
        """End the spans with the error of a put that stored nothing."""
        for sent in self._sent.values():
            if len(sent.places) > 1:
                sent.span.set_attribute(COUNT, len(sent.places))
            end_with(sent.span, error)


def _send_span(spans: Spans, draft: Draft) -> Span:
    sender = read(draft.traceparent, draft.headers.get(TRACESTATE) if draft.headers else None)
    carried = NONE if sender is None else set_span_in_context(NonRecordingSpan(sender), NONE)
    attributes = {SYSTEM: "redrive", OPERATION: "send", TYPE: "send", DESTINATION: draft.queue}
    if draft.correlation_id:
        attributes[CONVERSATION] = draft.correlation_id
    return spans._tracer.start_span(f"send {draft.queue}", carried, SpanKind.PRODUCER, attributes)


def _stamp(draft: Draft, sender: SpanContext, bag: str | None) -> Draft:
    headers: Mapping[str, str] = draft.headers or {}
    more = {BAGGAGE: bag} if bag and BAGGAGE not in headers else {}
    if draft.traceparent is not None or not sender.is_valid:
        return replace(draft, headers={**headers, **more}) if more else draft
    if sender.trace_state and TRACESTATE not in headers:
        more[TRACESTATE] = sender.trace_state.to_header()
    return replace(draft, traceparent=traceparent_of(sender), headers={**headers, **more} if more else draft.headers)


def _last(message: Message) -> str:
    """Return the traceparent of the message's last traced execution that failed; empty if there is none."""
    return next((fault.traceparent for fault in reversed(message.faults) if fault.traceparent), "")


def _remote(traceparent: str) -> SpanContext:
    return read(traceparent) or SpanContext(0, 0, True)


def _links(contexts: Iterable[SpanContext | None]) -> list[Link]:
    """Return links to these contexts, without duplicates, at most LINKS_MAX."""
    each = {context.span_id: context for context in contexts if context is not None}
    return [Link(context) for context in list(each.values())[:LINKS_MAX]]


def _seldom(message: Message) -> dict[str, Any]:
    attributes: dict[str, Any] = {"redrive.redrives": message.redrives, "redrive.crashes": message.crashes}
    return attributes if message.run is None else {**attributes, "redrive.run.id": message.run_id}


def _end(run: RunSpan, settlement: Settlement, word: Settled, *, texts: bool) -> None:
    span, fault, decision = run.span, settlement.fault, settlement.decision
    if span.is_recording():
        outcome = _outcome(decision) if word is Settled.OK else word.value
        span.set_attribute("redrive.outcome", outcome)
        if isinstance(decision, DeadLetter | Quarantine):
            span.set_attribute("redrive.reason", decision.reason)
        if fault is not None and outcome in FAILED:
            _tell(span, fault, decision, texts=texts)
    span.end(run.ended_ns or None)


def _tell(span: Span, fault: Fault, decision: Decision, *, texts: bool) -> None:
    attributes: dict[str, Any] = {ERROR_TYPE: fault.error, "redrive.fault.kind": fault.kind.value}
    if fault.fingerprint:
        attributes["redrive.fault.fingerprint"] = fault.fingerprint
    if isinstance(decision, RetryAt):
        attributes["redrive.delay_ms"] = fault.delay_ms or 0
    span.set_attributes(attributes)
    text = redact(fault.text) if texts else ""
    span.set_status(StatusCode.ERROR, text or None)
    event = {"exception.type": fault.error, "exception.message": text}
    if texts and fault.traceback:
        event["exception.stacktrace"] = redact(fault.traceback)
    span.add_event("exception", event)


def _outcome(decision: Decision) -> str:
    match decision:
        case Ack():
            return "done"
        case DeadLetter():
            return "stayed" if decision.reason == HELD else "dead"
        case Quarantine():
            return "quarantined"
        case _ if decision.crashed:
            return "crashed"
        case _:
            return _FREE.get(decision.why, "held") if is_free(decision) else "retry"


def end_with(span: Span, error: BaseException | None) -> None:
    """End the span of a call, with its error if it raised one."""
    if error is not None:
        span.set_attribute(ERROR_TYPE, type(error).__qualname__)
        span.set_status(StatusCode.ERROR, redact(str(error)) or None)
    span.end()
