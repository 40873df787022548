"""Ready policies by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from ..duration import Duration
from .backoff import Backoff
from .retry import Retry

PresetName = Literal["standard_api", "high_volume", "critical", "webhooks", "emails", "payments", "orchestration"]


def _preset(max_attempts: int, backoff: Backoff, max_elapsed: Duration = "24h", **on: Backoff) -> Retry:
    return Retry(max_attempts, max_elapsed, backoff, on)


def _standard_api() -> Retry:
    def grow(base: Duration, cap: Duration) -> Backoff:
        return Backoff(base, 3, cap, "additive", 0.1)

    usual = grow("2s", "60s")
    quota = grow("120s", "600s")
    return _preset(50, usual, "500s", throttled=grow("60s", "300s"), quota=quota, transient=usual, default=usual)


def _critical() -> Retry:
    quick = Backoff("1s", 2, "5s", "additive", 0.2)
    return _preset(5, Backoff("2s", 2, "10s", "additive", 0.2), transient=quick, default=quick)


#: Ready policies by name. Unless stated otherwise: base 2 s, cap 1 h, full jitter, max elapsed 24 h.
#:
#: - `standard_api`: 50 attempts, factor 3, additive 10 %, 2 s to 60 s (throttled 60 s to 300 s, quota 120 s to 600 s),
#:   max elapsed 500 s, which end it after about 11 retries (2 if throttled or out of quota): its 50 attempts and the
#:   caps of 300 s and 600 s are never reached.
#: - `high_volume`: 10 attempts, factor 2, cap 30 s.
#: - `critical`: 5 attempts, factor 2, cap 10 s, additive 20 % (transient and default 1 s to 5 s).
#: - `webhooks`: 6 attempts, base 5 s, factor 2, symmetric 10 %.
#: - `emails`: 4 attempts, base 2 s, factor 2, symmetric 10 %.
#: - `payments`: 3 attempts, 60 s apart, no jitter.
#: - `orchestration`: 5 attempts, base 0.5 s, factor 2, symmetric 30 %.
presets: Mapping[str, Retry] = MappingProxyType(
    {
        "standard_api": _standard_api(),
        "high_volume": _preset(10, Backoff("2s", 2, "30s")),
        "critical": _critical(),
        "webhooks": _preset(6, Backoff("5s", 2, jitter="symmetric", share=0.1)),
        "emails": _preset(4, Backoff("2s", 2, jitter="symmetric", share=0.1)),
        "payments": _preset(3, Backoff.fixed("60s")),
        "orchestration": _preset(5, Backoff("500ms", 2, jitter="symmetric", share=0.3)),
    }
)
