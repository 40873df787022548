"""Compute the cost of SQS, and of the services beside it, for a volume of messages. Pure.

A request to SQS is billed once per 64 KiB of payload. The prices are in `prices`.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from ..errors import ConfigError
from . import prices

MILLION = 1_000_000
BATCH_MAX = 10
BATCH_BYTES_MAX = 1024 * 1024
CHUNK_BYTES = 64 * 1024  # payload covered by one billed request
MONTH_S = 30 * 86_400
SHARED_PER_S = 4  # reads and writes a second, at most, with which a busy worker shares the state of a dependency
KIB, GB = 1024, 1_000_000_000
USUAL_METRICS = 24  # custom metrics of a usual queue with `Emf(app)`
LOG_BYTES = 7_000  # bytes that a busy worker process logs every LOG_S seconds with `Emf(app)`
LOG_S = 10


class Bill(Struct, frozen=True):
    """Billed requests of a month by action, their price in dollars, and the requests per message."""

    requests: dict[str, float]
    dollars: float
    per_message: float

    @property
    def total(self) -> float:
        return sum(self.requests.values())


def bill(
    messages: int,
    *,
    fill: float = 10.0,
    retries: float = 0.0,
    body_bytes: int = 1024,
    pollers: int = 1,
    poll_s: float = 20.0,
    requeue: bool = False,
    fifo: bool = False,
    fair: bool = False,
    price: float | None = None,
    free: bool = False,
) -> Bill:
    """Return the cost of `messages` a month.

    `fill`: messages in a batch, 1 to 10, of sends, receives and deletes alike. `retries`: retries per message, 0.2 if a
    fifth fails once; each takes a receive and a change of visibility, or with `requeue` a send, a receive and a delete.
    `pollers`: workers that wait for messages all month, each with a long poll of `poll_s` seconds after the other: the
    most that idle polling can cost, since the receives of a busy worker return messages. `price` for a million requests
    replaces the list's; `free` takes off the first million. Raises ConfigError.

    >>> bill(10_000_000, retries=0.2, pollers=0).per_message
    0.34
    >>> round(bill(10_000_000, retries=0.2, pollers=0).dollars, 2)
    1.36
    >>> round(bill(10_000_000, fill=1, retries=0.2, requeue=True, pollers=0).dollars, 2)  # the naive consumer
    14.4
    """
    if messages < 0 or not 1 <= fill <= BATCH_MAX or retries < 0 or pollers < 0 or poll_s <= 0:
        raise ConfigError(
            f"{messages=}, {fill=}, {retries=}, {pollers=}, {poll_s=}: expected a fill from 1 to {BATCH_MAX}, a poll "
            "above 0 and nothing below 0"
        )
    if not 0 < body_bytes <= BATCH_BYTES_MAX:
        raise ConfigError(f"{body_bytes=}: expected 1 to {BATCH_BYTES_MAX}; larger bodies lie in S3 (App(blobs=…))")
    fill = max(1.0, min(fill, BATCH_BYTES_MAX // body_bytes))
    chunks = ceil(fill * body_bytes / CHUNK_BYTES)  # billed requests of a batch with bodies
    batches, again = messages / fill, messages * retries / fill
    made = {
        "SendMessage": (batches + (again if requeue else 0), chunks),
        "ReceiveMessage": (batches + again, chunks),
        "DeleteMessage": (batches + (again if requeue else 0), 1),
        "ChangeMessageVisibility": (0 if requeue else again, 1),
        "ReceiveMessage (idle)": (pollers * MONTH_S / poll_s, 1),
    }
    requests = {action: count * each for action, (count, each) in made.items() if count}
    listed = prices.FIFO if fifo else prices.STANDARD + (prices.FAIR if fair else 0.0)
    each = price if price is not None else listed
    billed = max(0.0, sum(requests.values()) - (prices.FREE if free else 0))
    busy = sum(count for action, (count, _) in made.items() if "idle" not in action)
    return Bill(requests, billed / MILLION * each, round(busy / messages, 6) if messages else 0.0)


class BillLine(Struct, frozen=True):
    """A line of a month's bill of a service beside SQS: how many of its billed units, and their price in dollars."""

    service: str
    unit: str
    count: float
    dollars: float


def retries_of(retries: float, *, poison: float = 0.0, attempts: int = 1) -> float:
    """Return the retries per message if the share `poison` of the messages fails at each of its `attempts`, and the
    others need `retries`. A storm is the same: the share of a month's messages that met an outage, and the attempts
    that each made in it. Raises ConfigError.

    >>> retries_of(0.0, poison=0.01, attempts=20)
    0.19
    """
    if retries < 0 or not 0 <= poison <= 1 or attempts < 1:
        raise ConfigError(f"{retries=}, {poison=}, {attempts=}: expected a share from 0 to 1, and 1 attempt or more")
    return round(retries * (1 - poison) + poison * (attempts - 1), 12)


def beside(
    messages: int,
    *,
    retries: float = 0.0,
    fill: float = 10.0,
    sharers: int = 0,
    busy: float = 1.0,
    cell_bytes: int = KIB,
    lambda_ms: float = 0.0,
    memory_mb: int = 256,
    blobs: float = 0.0,
    blob_bytes: int = MILLION,
    blob_days: float = 14.0,
    metered: int = 0,
    alarms: int = 0,
    loggers: int = 0,
) -> tuple[BillLine, ...]:
    """Return what the services beside SQS bill for `messages` a month, line by line; what is not used has no line.

    DynamoDB: `sharers` are pairs of a worker process and a dependency whose state it shares in a cell of `cell_bytes`,
    four times a second at most, in the share `busy` of the month. Lambda: an invocation takes a batch of `fill` runs
    and lasts `lambda_ms` with `memory_mb` (0 ms: no Lambda). S3: the share `blobs` of the messages has a body of
    `blob_bytes`, written once, read at each run and kept for `blob_days`. CloudWatch: `metered` queues with the usual
    24 metrics, `alarms`, and `loggers` processes that write them to its logs. Raises ConfigError.

    >>> [(line.service, line.unit, round(line.dollars, 2)) for line in beside(0, sharers=1)]
    [('DynamoDB', 'write units', 6.48), ('DynamoDB', 'read units', 1.3)]
    """
    numbers = (messages, retries, sharers, lambda_ms, blob_days, metered, alarms, loggers)
    if min(numbers) < 0 or not 1 <= fill <= BATCH_MAX or not 0 <= busy <= 1 or not 0 <= blobs <= 1:
        raise ConfigError(
            f"{fill=}, {busy=}, {blobs=}: expected a fill from 1 to {BATCH_MAX}, shares from 0 to 1 and nothing below 0"
        )
    if min(cell_bytes, memory_mb, blob_bytes) < 1:
        raise ConfigError(f"{cell_bytes=}, {memory_mb=}, {blob_bytes=}: expected 1 or more")
    runs = messages * (1 + retries)
    shared = sharers * SHARED_PER_S * MONTH_S * busy
    invoked = runs / fill if lambda_ms else 0.0
    stored_gb = messages * blobs * blob_bytes / GB * blob_days * 86_400 / MONTH_S
    priced = (
        ("DynamoDB", "write units", shared * ceil(cell_bytes / KIB), prices.WRITE_UNIT / MILLION),
        ("DynamoDB", "read units", shared * ceil(cell_bytes / (4 * KIB)), prices.READ_UNIT / MILLION),
        ("Lambda", "requests", invoked, prices.INVOCATIONS / MILLION),
        ("Lambda", "GB-seconds", invoked * ceil(lambda_ms) / 1000 * memory_mb / 1024, prices.GB_SECOND),
        ("S3", "PUTs", messages * blobs, prices.PUTS / MILLION),
        ("S3", "GETs", runs * blobs, prices.GETS / MILLION),
        ("S3", "GB-months", stored_gb, prices.STORED_GB),
        ("CloudWatch", "metrics", metered * USUAL_METRICS, prices.METRIC),
        ("CloudWatch", "alarms", alarms, prices.ALARM),
        ("CloudWatch", "GB of logs", loggers * LOG_BYTES * MONTH_S / LOG_S / GB, prices.LOGS_GB),
    )
    return tuple(BillLine(service, unit, count, count * each) for service, unit, count, each in priced if count)
