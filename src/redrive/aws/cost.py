"""Compute the cost of SQS: requests by action for a volume of messages, and their price. Pure.

A request is billed once per 64 KiB of payload. Prices are those of the first 100 thousand million requests a month in
most regions (aws.amazon.com/sqs/pricing): pass others if yours differ.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from ..errors import ConfigError

MILLION = 1_000_000
BATCH_MAX = 10
BATCH_BYTES_MAX = 1024 * 1024
CHUNK_BYTES = 64 * 1024  # payload covered by one billed request
MONTH_S = 30 * 86_400
FREE = MILLION  # requests per month that are free for an account
STANDARD, FIFO, FAIR = 0.40, 0.50, 0.10  # dollars per million; FAIR is added to STANDARD for messages with a group


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
    each = price if price is not None else FIFO if fifo else STANDARD + (FAIR if fair else 0.0)
    billed = max(0.0, sum(requests.values()) - (FREE if free else 0))
    busy = sum(count for action, (count, _) in made.items() if "idle" not in action)
    return Bill(requests, billed / MILLION * each, round(busy / messages, 6) if messages else 0.0)
