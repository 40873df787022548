"""The settings of a re-driver, and how a deployment's environment variables set them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from ...errors import ConfigError
from ...flow.auto_redrive import JITTER, RATE_PER_S, AutoRedrive
from ...flow.gates import Gates, is_url
from ...flow.limits import per_s
from ...urls import shown
from ..cloudwatch import NAMESPACE


class RedriverSettings(Struct, frozen=True, kw_only=True):
    """The settings of a re-driver. `dead`, `queue`, `poison`: URLs of the dead-letter queue, of the queue that messages
    go back to, and of the poison queue. `cells`: URL of the cells with the places that the rate limit has given to
    messages, and with the breaker of `dependency` (NAME or NAME/KEY). Of the gates of `auto`, the re-driver checks only
    a health URL."""

    dead: str
    queue: str
    poison: str
    auto: AutoRedrive = AutoRedrive()
    cells: str | None = None
    dependency: str | None = None
    namespace: str = NAMESPACE

    @property
    def fifo(self) -> bool:
        """True if the queues are FIFO: SQS requires all three to be, or none."""
        return self.queue.endswith(".fifo")


def settings_of(environ: Mapping[str, str]) -> RedriverSettings:
    """Read the settings from the environment. Raises ConfigError.

    Required are REDRIVE_DLQ_URL, REDRIVE_QUEUE_URL and REDRIVE_POISON_URL. Optional are, with their defaults,
    REDRIVE_MAX_REDRIVES=5, REDRIVE_BASE_S=60, REDRIVE_FACTOR=2, REDRIVE_CAP_S=900, REDRIVE_RATE=10/s,
    REDRIVE_JITTER=0.2 (or 20%), REDRIVE_BATCH=10, REDRIVE_CONCURRENCY=5, REDRIVE_METRICS_NAMESPACE=Redrive; without
    defaults, REDRIVE_ATTEMPTS (how many attempts a redriven message gets), REDRIVE_CELLS (a URL) or else REDRIVE_TABLE
    (a DynamoDB table), REDRIVE_DEPENDENCY (with one of these) and REDRIVE_HEALTH_URL.
    """
    table, attempts = environ.get("REDRIVE_TABLE"), _number_of(environ, "REDRIVE_ATTEMPTS", 0)
    auto = AutoRedrive(
        base=_number_of(environ, "REDRIVE_BASE_S", 60),
        factor=_number_of(environ, "REDRIVE_FACTOR", 2),
        cap=_number_of(environ, "REDRIVE_CAP_S", 900),
        max_redrives=int(_number_of(environ, "REDRIVE_MAX_REDRIVES", 5)),
        batch=int(_number_of(environ, "REDRIVE_BATCH", 10)),
        concurrency=int(_number_of(environ, "REDRIVE_CONCURRENCY", 5)),
        attempts=int(attempts) or None,
        gates=Gates(health=_health(environ)),
        rate=_rate(environ),
        jitter=_jitter(environ),
    )
    cells = environ.get("REDRIVE_CELLS") or (f"dynamodb://{table}" if table else None)
    dependency = environ.get("REDRIVE_DEPENDENCY") or None
    if dependency is not None and cells is None:
        raise ConfigError(
            f"REDRIVE_DEPENDENCY={dependency!r} is set without the cells in which its breaker is; set REDRIVE_TABLE or "
            "REDRIVE_CELLS to those of the workers"
        )
    return RedriverSettings(
        dead=_needed(environ, "REDRIVE_DLQ_URL"),
        queue=_needed(environ, "REDRIVE_QUEUE_URL"),
        poison=_needed(environ, "REDRIVE_POISON_URL"),
        auto=auto,
        cells=cells,
        dependency=dependency,
        namespace=environ.get("REDRIVE_METRICS_NAMESPACE") or NAMESPACE,
    )


def _needed(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ConfigError(f"{name} is not set; a re-driver needs the URLs of its queue, dead-letter and poison queue")
    return environ[name]


def _rate(environ: Mapping[str, str]) -> float:
    text = environ.get("REDRIVE_RATE") or f"{RATE_PER_S:g}/s"
    return per_s(float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII) else text, "REDRIVE_RATE")


def _jitter(environ: Mapping[str, str]) -> float:
    text = environ.get("REDRIVE_JITTER") or f"{JITTER:g}"
    match = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(%?)\s*", text, re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"REDRIVE_JITTER={text!r}; expected a share from 0 to 1, such as 0.2 or 20%")
    return share


def _health(environ: Mapping[str, str]) -> str | None:
    url = environ.get("REDRIVE_HEALTH_URL") or None
    if url is not None and not is_url(url):
        raise ConfigError(f"REDRIVE_HEALTH_URL={shown(url)!r}; expected an http or https URL")
    return url


def _number_of(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name) or str(default)
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", text, re.ASCII):
        raise ConfigError(f"{name}={text!r}; expected a number")
    return float(text)
