"""Say what the event of a delivery counts. History, Prometheus, OpenTelemetry and CloudWatch read it from here, and
translate it into their own names.
"""

from __future__ import annotations

from .events import DeliveryEvent
from .fault import Kind
from .message import REASONS

CountKey = tuple[str, str]  # a counter and the value of its label, "" without one
Count = tuple[CountKey, float]  # times are in ms

DELIVERIES = "deliveries"  # by outcome
RUN_MS = "run_ms"
TIME_TO_DONE_MS = "time_to_done_ms"  # by whether it was retried
ATTEMPTS = "attempts"  # how many attempts a message's life took, by its last outcome
RETRY_DELAY_MS = "retry_delay_ms"
DEFERRAL_MS = "deferral_ms"  # by reason: each is the length of one deferral by flow control
FAULTS = "faults"  # by kind
DEAD, QUARANTINED = "dead", "quarantined"  # by reason; their names are the outcomes
DEGRADED = "degraded"
DUPLICATES = "duplicates"
REDRIVEN = "redriven"  # by redrive outcome
CRASHES = "crashes"  # by cause; counted at the end of a message's life, as causes may become known until then

RUN: CountKey = (RUN_MS, "")
RETRY_DELAY: CountKey = (RETRY_DELAY_MS, "")
FIRST_TRY: CountKey = (TIME_TO_DONE_MS, "false")
AFTER_RETRIES: CountKey = (TIME_TO_DONE_MS, "true")
DONE: CountKey = (DELIVERIES, "done")
ATTEMPTS_TO_DONE: CountKey = (ATTEMPTS, "done")

FAILED = frozenset(("retry", "dead", "stayed", "quarantined", "crashed"))  # outcomes of failed runs
_ENDS = frozenset(("done", "dead", "quarantined", "cancelled"))  # outcomes that end a message's life
BANDS = ("1", "2", "3", "4-5", "6-10", "11+")  # of attempts
_BAND_OF = (0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 4)
OTHER = "(other)"  # replaces labels from outside: tasks that the app does not declare, reasons of an override
UNKNOWN = "unknown"
KINDS = tuple(kind.value for kind in Kind)
_WORDS = {
    FAULTS: KINDS,
    DEAD: REASONS,
    QUARANTINED: REASONS,
    CRASHES: ("signal", "exit", "hung", "timeout", "memory", "lease"),
    DEFERRAL_MS: ("breaker", "cool-down", "ramp", "budget", "limit", "concurrency", "idempotency", "pause"),
}


def counts_of(event: DeliveryEvent) -> list[Count]:
    """Return the counts of a delivery. This runs once per message that is observed, so it is kept lean."""
    outcome = event.outcome
    if outcome == "done":
        took = FIRST_TRY if event.attempt <= 1 and not event.crashes else AFTER_RETRIES
        counts: list[Count] = [(DONE, 1), (ATTEMPTS_TO_DONE, event.attempt), (took, event.age_ms)]
    else:
        counts = [((DELIVERIES, outcome), 1)]
    if event.run_ms is not None:
        counts.append((RUN, event.run_ms))
    if outcome in _ENDS:
        if outcome != "done":
            counts.append(((ATTEMPTS, outcome), event.attempt))
        if event.reason is not None and outcome in (DEAD, QUARANTINED):
            counts.append(((outcome, event.reason), 1))
        if event.degraded is not None:
            counts.append(((DEGRADED, ""), 1))
        if event.duplicate_of is not None:
            counts.append(((DUPLICATES, ""), 1))
        for cause in event.causes:
            counts.append(((CRASHES, cause or UNKNOWN), 1))
    elif outcome == "retry" and event.delay_ms is not None:
        counts.append((RETRY_DELAY, event.delay_ms))
    elif outcome == "held" and event.deferral is not None:
        counts.append(((DEFERRAL_MS, event.deferral), event.delay_ms or 0))
    if event.verdict is not None:
        counts.append(((REDRIVEN, event.verdict), 1))
    if event.fault is not None:
        counts.append(((FAULTS, event.fault), 1))
    return counts


def band(attempt: int) -> int:
    """Return the index of an attempt's band: 1, 2, 3, 4-5, 6-10, more."""
    return _BAND_OF[attempt] if attempt < len(_BAND_OF) else len(BANDS) - 1


def bounded(key: CountKey) -> CountKey:
    """Return the key with a label from a fixed set of words, so that the number of series is bounded."""
    counter, label = key
    if label in _WORDS.get(counter, (label,)):
        return key
    return counter, UNKNOWN if counter == CRASHES else OTHER
