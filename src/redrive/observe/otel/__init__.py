"""OpenTelemetry: spans of what is sent, run and redriven, and the metrics as instruments. `instrument` begins both.

`spans` makes the spans and `carried` reads and writes the context that messages carry; `traced_store` stands before the
app's store, where everything that is sent and settled passes; `instruments` exports the numbers of `observe.tally`.
It needs the package opentelemetry-api, and imports nothing of it unless an app is instrumented.
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
    """The spans of an app; its metrics begin with its first worker. See `App.instrument`. Raises ConfigError."""
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
