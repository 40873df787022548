"""How a message in an SQS dead-letter queue goes on: to which queue, after which wait, with which attributes. Pure.

Its redrives are counted in the message itself, in the attribute `x-redrive-attempt`. After `max_redrives` of them the
next death is taken for poison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ..errors import ConfigError

ATTEMPT = "x-redrive-attempt"
FIRST = "x-original-first-receive-timestamp"
ATTRIBUTES_MAX = 10  # of an SQS message
BYTES_MAX = 1024 * 1024  # of a message with its attributes, and of a batch
DELAY_MAX_S = 900
_DOUBLINGS_MAX = 40

Raw = Mapping[str, Any]  # one entry of ReceiveMessage's Messages


class Settings(Struct, frozen=True, kw_only=True):
    """What the re-driver goes by: its queues, and how long and how often a message may come back.

    The wait before redrive n is `base_s * 2**(n-1)` seconds, at most `cap_s`. `dependency` is the NAME, or NAME/KEY,
    whose breaker must not be open, as kept in `cells`. `fan_out` bounds how many Lambdas one trigger sets to work.
    """

    queue_url: str
    dlq_url: str
    poison_url: str
    work_url: str | None = None
    cells: str | None = None
    max_redrives: int = 5
    base_s: int = 60
    cap_s: int = 900
    fan_out: int = 5
    namespace: str = "Redrive"
    dependency: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_redrives <= 1000 or self.fan_out < 1:
            raise ConfigError(f"re-driver: {self.max_redrives=}, {self.fan_out=}; expected 0 to 1000, and 1 or more")
        if not 0 <= self.base_s <= self.cap_s <= DELAY_MAX_S:
            raise ConfigError(
                f"re-driver: {self.base_s=}, {self.cap_s=}; expected 0 <= base <= cap <= {DELAY_MAX_S}, as SQS delays "
                "a message by no more"
            )

    @property
    def fifo(self) -> bool:
        """Whether its queues are FIFO; SQS wants all three to be, or none."""
        return self.queue_url.endswith(".fifo")

    def wait_s(self, redrive: int) -> int:
        """How long redrive number `redrive`, from 1, waits.

        >>> [Settings(queue_url="q", dlq_url="d", poison_url="p").wait_s(n) for n in (1, 2, 3, 4, 5, 6)]
        [60, 120, 240, 480, 900, 900]
        """
        doublings: int = 2 ** min(max(redrive - 1, 0), _DOUBLINGS_MAX)
        return min(self.cap_s, self.base_s * doublings)


def settings_of(environ: Mapping[str, str]) -> Settings:
    """What the variables of the deployment say: REDRIVE_QUEUE_URL, REDRIVE_DLQ_URL, REDRIVE_POISON_URL and, where they
    are wanted, REDRIVE_WORK_QUEUE_URL, REDRIVE_TABLE or REDRIVE_CELLS, REDRIVE_MAX_REDRIVES, REDRIVE_BASE_S,
    REDRIVE_CAP_S, REDRIVE_FAN_OUT, REDRIVE_METRICS_NAMESPACE, REDRIVE_DEPENDENCY. Raises ConfigError."""
    table = environ.get("REDRIVE_TABLE")
    return Settings(
        queue_url=_needed(environ, "REDRIVE_QUEUE_URL"),
        dlq_url=_needed(environ, "REDRIVE_DLQ_URL"),
        poison_url=_needed(environ, "REDRIVE_POISON_URL"),
        work_url=environ.get("REDRIVE_WORK_QUEUE_URL") or None,
        cells=environ.get("REDRIVE_CELLS") or (f"dynamodb://{table}" if table else None),
        max_redrives=_whole(environ, "REDRIVE_MAX_REDRIVES", 5),
        base_s=_whole(environ, "REDRIVE_BASE_S", 60),
        cap_s=_whole(environ, "REDRIVE_CAP_S", 900),
        fan_out=_whole(environ, "REDRIVE_FAN_OUT", 5),
        namespace=environ.get("REDRIVE_METRICS_NAMESPACE") or "Redrive",
        dependency=environ.get("REDRIVE_DEPENDENCY") or None,
    )


class Move(Struct, frozen=True):
    """What becomes of one dead message. `redrive` counts from 1; `isolated` says why it goes to the poison queue
    instead; `wait_s` is left to wait in the dead-letter queue, as a FIFO queue delays no single message. `entry` is
    that of SendMessageBatch, without its Id."""

    raw: Raw
    redrive: int
    entry: dict[str, Any]
    isolated: str = ""
    wait_s: int = 0

    @property
    def group(self) -> str:
        return str(_system(self.raw).get("MessageGroupId", ""))

    @property
    def size(self) -> int:
        return size_of(self.entry["MessageBody"], self.entry.get("MessageAttributes", {}))


def move_of(raw: Raw, settings: Settings, now_ms: int) -> Move:
    """What becomes of a message as it lies in the dead-letter queue: body and attributes as they are, and the two that
    count."""
    body, attributes = raw["Body"], _attributes(raw)
    redrive = redrives_of(attributes) + 1
    counted = attributes | {ATTEMPT: {"DataType": "Number", "StringValue": str(redrive)}}
    if FIRST not in counted and len(counted) < ATTRIBUTES_MAX:  # where there is room for one, it is the count
        counted[FIRST] = {"DataType": "Number", "StringValue": _first_received(raw, now_ms)}
    if redrive > settings.max_redrives:
        return isolation(raw, settings, redrive, f"it died again after {redrive - 1} redrives")
    if len(counted) > ATTRIBUTES_MAX:
        return isolation(raw, settings, redrive, f"it has {len(attributes)} attributes: no room to count redrives")
    if size_of(body, counted) > BYTES_MAX:
        return isolation(raw, settings, redrive, f"it has {size_of(body, attributes)} bytes: no room to count redrives")
    entry = {"MessageBody": body, "MessageAttributes": counted, **_beside(raw, settings.fifo, redrive)}
    wait_s = settings.wait_s(redrive)
    if not settings.fifo:
        return Move(raw, redrive, {**entry, "DelaySeconds": wait_s})
    died_ms = int(_system(raw).get("SentTimestamp", now_ms))  # a FIFO queue dates what it is sent by a redrive policy
    return Move(raw, redrive, entry, wait_s=max(0, -(-(died_ms + wait_s * 1000 - now_ms) // 1000)))


def isolation(raw: Raw, settings: Settings, redrive: int, why: str) -> Move:
    """To the poison queue, exactly as it is."""
    entry = {"MessageBody": raw["Body"], **_beside(raw, settings.fifo, redrive)}
    attributes = _attributes(raw)
    return Move(raw, redrive, {**entry, "MessageAttributes": attributes} if attributes else entry, isolated=why)


def redrives_of(attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """How often it was driven back already; what is no number counts as never."""
    text = str(attributes.get(ATTEMPT, {}).get("StringValue", ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def size_of(body: str, attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes, as SQS counts them."""
    size = len(body.encode(errors="surrogatepass"))
    for name, value in attributes.items():
        content = value.get("BinaryValue") or str(value.get("StringValue", "")).encode(errors="surrogatepass")
        size += len(name.encode()) + len(str(value.get("DataType", ""))) + len(content)
    return size


def _attributes(raw: Raw) -> dict[str, dict[str, Any]]:
    kept = ("DataType", "StringValue", "BinaryValue")
    given = raw.get("MessageAttributes") or {}
    return {name: {key: value[key] for key in kept if key in value} for name, value in given.items()}


def _system(raw: Raw) -> Mapping[str, str]:
    return raw.get("Attributes") or {}


def _first_received(raw: Raw, now_ms: int) -> str:
    return str(_system(raw).get("ApproximateFirstReceiveTimestamp", now_ms))


def _beside(raw: Raw, fifo: bool, redrive: int) -> dict[str, Any]:
    """Its group, what tells a repeat of this very move from another, and its trace."""
    system, entry = _system(raw), dict[str, Any]()
    group = system.get("MessageGroupId")
    if fifo:
        entry |= {
            "MessageGroupId": group or raw["MessageId"],
            "MessageDeduplicationId": f"{raw['MessageId']}/{redrive}",
        }
    elif group is not None:
        entry["MessageGroupId"] = group
    if "AWSTraceHeader" in system:
        trace = {"DataType": "String", "StringValue": system["AWSTraceHeader"]}
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": trace}
    return entry


def _needed(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ConfigError(f"{name} is not set; the re-driver needs the URLs of its queue, dead-letter and poison queue")
    return environ[name]


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{name}={text!r}: expected a whole number")
    return int(text)
