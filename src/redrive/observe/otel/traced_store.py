"""A store wrapper that makes spans: drafts get the context of their `send` span, settlements end `process` spans."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from time import time_ns
from typing import Any

from msgspec.structs import replace
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import Span, get_tracer_provider

from ...errors import StoreError, Unsupported
from ...events import complain
from ...message import (
    ClaimRequest,
    Draft,
    Exchange,
    Handle,
    LeaseStatus,
    Message,
    PutResult,
    Receipt,
    Redrive,
    Settlement,
    Swap,
    Verdict,
)
from ...store import Store
from ...store.wrapper import StoreWrapper
from .carried import read, traceparent_of
from .spans import LINKS_MAX, RunSpan, Sending, Spans, end_with

_API = ("opentelemetry.trace", "opentelemetry.metrics")  # modules whose default providers export nothing


class TracedStore(StoreWrapper):
    """A wrapper of the store `inner` that makes the spans of an app."""

    def __init__(self, inner: Store, spans: Spans) -> None:
        super().__init__(inner)
        self._spans = spans

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        sending = self._sending(drafts)
        try:
            puts = self.inner.put(drafts if sending is None else sending.drafts, swaps=swaps, tx=tx)
        except BaseException as error:
            self._end_sending(sending, (), error)
            raise
        self._end_sending(sending, [put.id for put in puts])
        return puts

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        began_ns = time_ns()
        runs = self._spans.runs_of(settlements)
        sending = self._sending([draft for settlement in settlements for draft in settlement.follow_ups])
        traced = [_with_context(s, run) for s, run in zip(_with(settlements, sending), runs, strict=True)]
        try:
            result = self.inner.exchange(traced, asks, swaps=swaps)
        except BaseException as error:
            self._end_sending(sending, (), error)
            self._tell(traced, runs, asks, None, began_ns, error)
            raise
        self._end_sending(sending, [] if sending is None else [draft.id for draft in sending.drafts])
        if settlements or result.deliveries:
            self._tell(traced, runs, asks, result, began_ns)
        return result

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        holds = self.inner.extend(receipts, lease_ms=lease_ms, alone=alone)
        for receipt, hold in zip(receipts, holds, strict=True):
            if hold is LeaseStatus.LOST:
                self._spans.lose(receipt)
        return holds

    def _sending(self, drafts: Sequence[Draft]) -> Sending | None:
        try:
            return self._spans.sending(drafts) if drafts else None
        except Exception:
            complain("the span of what is sent")
            return None

    def _end_sending(
        self, sending: Sending | None, ids: Sequence[str | None], error: BaseException | None = None
    ) -> None:
        try:
            if sending is not None:
                sending.finish(ids) if error is None else sending.fail(error)
        except Exception:
            complain("the span of what was sent")

    def _tell(
        self,
        settlements: Sequence[Settlement],
        runs: Sequence[RunSpan | None],
        asks: Sequence[ClaimRequest],
        result: Exchange | None,
        began_ns: int,
        error: BaseException | None = None,
    ) -> None:
        try:
            if result is not None:
                self._spans.end_runs(settlements, runs, result.settled, texts=self.box is None)
            self._batches(settlements, runs, asks, result, began_ns, error)
        except Exception:
            complain("the span of a batch")

    def _batches(
        self,
        settlements: Sequence[Settlement],
        runs: Sequence[RunSpan | None],
        asks: Sequence[ClaimRequest],
        result: Exchange | None,
        began_ns: int,
        error: BaseException | None,
    ) -> None:
        worker = asks[0].worker if asks else ""
        if settlements:
            known = [run for run in runs if run is not None]
            links = [run.span.get_span_context() for run in known[:LINKS_MAX]]
            queues = [run.message.queue for run in known]
            self._spans.batch("settle", queues, len(settlements), began_ns, links=links, error=error, worker=worker)
        if result is not None and result.deliveries:
            messages = [delivery.message for delivery in result.deliveries]
            for message in messages:
                if message.crashes:
                    self._spans.lose_earlier(message)
            senders = [read(message.traceparent) for message in messages[:LINKS_MAX]]
            queues = [message.queue for message in messages]
            self._spans.batch("receive", queues, len(messages), began_ns, links=senders, worker=worker)
        elif error is not None and not settlements:
            self._spans.batch("receive", [ask.queue for ask in asks], 0, began_ns, error=error, worker=worker)

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        span = self._redriving(handles, verdict) if isinstance(verdict, Redrive) and handles else None
        try:
            moved = self.inner.triage(handles, verdict, swaps=swaps)
        except BaseException as error:
            self._redriven(span, 0, error)
            raise
        self._redriven(span, sum(moved))
        return moved

    def _redriving(self, handles: Sequence[Handle], verdict: Redrive) -> Span | None:
        try:
            messages = self._before(handles)
            queues = [message.queue for message in messages if message is not None]
            to = queues if verdict.to_queue is None else [verdict.to_queue]
            return self._spans.redriving(verdict.run, to, len(handles), messages)
        except Exception:
            complain("the span of a redrive")
            return None

    def _redriven(self, span: Span | None, moved: int, error: BaseException | None = None) -> None:
        try:
            if span is not None:
                span.set_attribute("redrive.moved", moved)
                end_with(span, error)
        except Exception:
            complain("the span of a redrive")

    def _before(self, handles: Sequence[Handle]) -> Sequence[Message | None]:
        """Return the messages of some handles, for links to their executions; none if the store cannot find them."""
        try:
            return self.inner.find([handle.id for handle in handles[:LINKS_MAX]])
        except (StoreError, Unsupported):
            return ()

    def close(self) -> None:
        self._spans.close()
        self.inner.close()


class StoreSpans(Spans):
    """The spans of an app. Pass its store to `wrap`. The default providers are OpenTelemetry's global ones."""

    def __init__(self, *, parent: bool, baggage: frozenset[str], provider: Any = None, meters: Any = None) -> None:
        super().__init__(parent=parent, baggage=baggage, provider=provider)
        self._providers = provider, meters

    def wrap(self, store: Store) -> Store:
        """Return the app's store wrapped, so that its calls make spans."""
        return TracedStore(store, self)

    def gap(self) -> str | None:
        """Return why spans and metrics are not exported; None if an SDK is set up."""
        spans, meters = self._providers
        providers = spans or get_tracer_provider(), meters or get_meter_provider()
        if not all(type(each).__module__.startswith(_API) for each in providers):
            return None
        fix = "set a TracerProvider where the app is declared, or run this by opentelemetry-instrument"
        if find_spec("opentelemetry.sdk") is None:
            fix = f"pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http, and {fix}"
        return f"OpenTelemetry is on without an SDK, so its spans and metrics go nowhere; {fix}"


def _with_context(settlement: Settlement, run: RunSpan | None) -> Settlement:
    """Return the settlement with the execution's context in its fault, for the next attempt's link in any process."""
    fault = settlement.fault
    if run is None or fault is None:
        return settlement
    context = run.span.get_span_context()
    if not context.is_valid:
        return settlement
    return replace(settlement, fault=replace(fault, traceparent=traceparent_of(context)))


def _with(settlements: Sequence[Settlement], sending: Sending | None) -> Sequence[Settlement]:
    """Return the settlements with their follow-ups replaced by the drafts that have the contexts of their spans."""
    if sending is None:
        return settlements
    drafts = iter(sending.drafts)
    return [
        replace(s, follow_ups=tuple(next(drafts) for _ in s.follow_ups)) if s.follow_ups else s for s in settlements
    ]
