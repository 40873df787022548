"""OpenTelemetry: spans of sent, run and redriven messages, and metrics. `instrument` sets up both.

`spans` makes the spans; `carried` reads and writes the trace context in messages; `traced_store` wraps the app's store,
to trace puts and settlements; `instruments` exports the counts of `observe.tally`. The package opentelemetry-api is
needed, and imported, only if an app is instrumented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    from ...registry import Registry
    from .traced_store import StoreSpans

__all__ = ["instrument"]


def instrument(
    app: Registry,
    *,
    parent: bool,
    baggage: Sequence[str],
    metrics: bool,
    tracer_provider: Any,
    meter_provider: Any,
) -> StoreSpans:
    """Return the spans of an app; its metrics begin with its first worker. See `App.instrument`. Raises ConfigError."""
    if app.tracing is not None:
        raise ConfigError(
            "this app is instrumented already, by an earlier app.instrument(…) or by REDRIVE_OTEL when its store was "
            "opened; call it once, beside the declarations of the app"
        )
    if isinstance(baggage, str) or not all(isinstance(name, str) for name in baggage):
        raise ConfigError(f"baggage={baggage!r}: expected a list of the names that may travel, such as ['tenant']")
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"OpenTelemetry needs its API ({error}); pip install 'redrive[otel]'") from error
    from .instruments import Instruments
    from .traced_store import StoreSpans

    spans = StoreSpans(parent=parent, baggage=frozenset(baggage), provider=tracer_provider, meters=meter_provider)
    app.events.notice_observers.append(spans)
    if metrics:
        app.subscribe(Instruments(app, meter_provider))
    return spans
