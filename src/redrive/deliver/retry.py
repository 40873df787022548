"""Choose the retry policy of a delivery: `patient`, or a preset."""

from __future__ import annotations

from ..errors import ConfigError
from ..fault import Fault, Kind
from ..message import DeadLetter, Decision, Message
from ..policy import Backoff, Retry, presets

DEFAULT = "patient"
FAILURES_MAX = 16
ATTEMPTS_MAX = 100
_ENDPOINT_WORKS = (Kind.THROTTLED, Kind.QUOTA)


def _patience(message: Message, fault: Fault, delay_s: float) -> Decision | None:
    if fault.kind in _ENDPOINT_WORKS or message.attempts_allowed is not None:
        return None
    failures = 1 + sum(f.kind not in _ENDPOINT_WORKS for f in message.faults if f.at_ms >= message.life_ms)
    return DeadLetter("exhausted", f"failed {failures} times") if failures >= FAILURES_MAX else None


#: Delays of 1 s doubling to 60 s, half of each fixed and half random; the 16th failure is the last. So a line that
#: keeps failing is retried for 5 to 10 minutes, 7½ on average, and survives an outage of 5. A throttled request does
#: not count as a failure: throttling alone ends a line only after 100 attempts.
PATIENT = Retry(
    max_attempts=ATTEMPTS_MAX,
    max_elapsed=None,
    backoff=Backoff(base="1s", factor=2, cap="60s", jitter="equal"),
    override=_patience,
)


def read_retry(name: str) -> Retry:
    """Return the policy of that name: `patient`, or one of the presets. Raises ConfigError."""
    if name == DEFAULT:
        return PATIENT
    if name not in presets:
        raise ConfigError(f"--retry {name!r}: no such policy; known: {', '.join([DEFAULT, *presets])}")
    return presets[name]
