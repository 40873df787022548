"""What becomes of a message of an SQS dead-letter queue: back to its own queue, or to the poison queue. Pure.

Both re-drivers go by it, the Lambda and the Step Functions machine; `sending` does it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...errors import ConfigError
from ...flow.auto_redrive import JITTER, RATE_PER_S, AutoRedrive
from ...flow.gates import Gates, is_url
from ...flow.limits import per_s
from ...message import Isolate
from ...stores.sqs import envelope, message_state
from ...stores.sqs.message_state import Kept
from ...urls import shown
from ..cloudwatch import NAMESPACE

ATTEMPT: Final = envelope.ATTEMPT
KEPT: Final = envelope.KEPT
FIRST: Final = "x-original-first-receive-timestamp"
WHY: Final = "x-redrive-why"  # of what was isolated, where there is room
DELAY_MAX_S = 900  # of SQS
ATTRIBUTES_MAX = 10
BYTES_MAX = 1024 * 1024  # of a message with its attributes, and of a batch
_OF_DEATH = ("reason", "error", "fingerprint")  # attributes of redrive's dead letters
_OWN = re.compile(r'"rdversion"\s*:')  # of redrive's envelope

Raw = Mapping[str, Any]  # an entry of ReceiveMessage's answer, with all attributes


class Settings(Struct, frozen=True, kw_only=True):
    """What a re-driver goes by. `dead`, `queue`, `poison`: the URLs of the dead-letter queue, of the queue that its
    messages came from, and of the poison queue. `cells`: URL of the cells, which hold its pace, and know the breaker of
    `dependency`: NAME, or NAME/KEY. Of the gates of `auto` a health URL is looked at."""

    dead: str
    queue: str
    poison: str
    auto: AutoRedrive = AutoRedrive()
    cells: str | None = None
    dependency: str | None = None
    namespace: str = NAMESPACE

    @property
    def fifo(self) -> bool:
        """Whether its queues are FIFO: SQS wants all three to be, or none."""
        return self.queue.endswith(".fifo")


class Move(Struct, frozen=True):
    """Back to its queue, to run in `delay_s`, as its redrive number `attempt`. It is there in `comes_s`; None: in
    `delay_s` too, as far as SQS delays it."""

    delay_s: int
    attempt: int
    comes_s: int | None = None


Step = Move | Isolate


def settings_of(environ: Mapping[str, str]) -> Settings:
    """What the variables of a deployment say: REDRIVE_DLQ_URL, REDRIVE_QUEUE_URL, REDRIVE_POISON_URL and, where the
    defaults do not fit, REDRIVE_MAX_REDRIVES=5, REDRIVE_BASE_S=60, REDRIVE_FACTOR=2, REDRIVE_CAP_S=900,
    REDRIVE_ATTEMPTS (of a fresh life), REDRIVE_RATE=10/s, REDRIVE_JITTER=0.2 (or 20%), REDRIVE_BATCH=10,
    REDRIVE_CONCURRENCY=5, REDRIVE_TABLE (a DynamoDB table) or REDRIVE_CELLS (a URL), REDRIVE_DEPENDENCY,
    REDRIVE_HEALTH_URL, REDRIVE_METRICS_NAMESPACE. Raises ConfigError."""
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
    return Settings(
        dead=_needed(environ, "REDRIVE_DLQ_URL"),
        queue=_needed(environ, "REDRIVE_QUEUE_URL"),
        poison=_needed(environ, "REDRIVE_POISON_URL"),
        auto=auto,
        cells=environ.get("REDRIVE_CELLS") or (f"dynamodb://{table}" if table else None),
        dependency=environ.get("REDRIVE_DEPENDENCY") or None,
        namespace=environ.get("REDRIVE_METRICS_NAMESPACE") or NAMESPACE,
    )


def next_step(raw: Raw, now_ms: int, auto: AutoRedrive) -> Step:
    """What becomes of a dead message: back after `auto.delay_s(n)` for the n-th time, poison after `max_redrives`.

    A message that has no room for its count (10 attributes of its own, or 1 MiB) could go round for ever, so it is
    isolated. The wait counts from now, as nothing in SQS says when a message died.
    """
    past = redrives(raw)
    if past >= auto.max_redrives:
        return Isolate(f"poison: dead again after {past:,} redrive{'' if past == 1 else 's'}")
    attributes = _back(raw, past + 1, now_ms, auto, due_ms=now_ms)
    if len(attributes) > ATTRIBUTES_MAX:
        return Isolate(f"it has {len(_attributes(raw))} attributes: no room to count its redrives")
    if size_of(raw["Body"], attributes) > BYTES_MAX:
        return Isolate(f"it has {size_of(raw['Body'], _attributes(raw)):,} bytes: no room to count its redrives")
    return Move(math.ceil(auto.delay_s(past + 1)), past + 1)


def redrives(raw: Raw) -> int:
    """How often it was driven back, by `x-redrive-attempt` and by what a message of redrive's own carries: the higher
    one counts, and what nobody can read counts as never."""
    found = text_of(raw, ATTEMPT) or ""
    counted = int(found) if re.fullmatch("[0-9]{1,9}", found, re.ASCII) else 0
    kept = _kept(raw)
    return max(counted, kept.redrives if kept else 0)


def entry_of(raw: Raw, step: Step, url: str, now_ms: int, auto: AutoRedrive) -> dict[str, Any]:
    """What SendMessageBatch is given for it, without an Id.

    A delay that is too long for SQS (15 minutes; on FIFO none at all) messages of redrive's own wait out in their
    queue, as any other they know; those of others wait 15 minutes, or not at all. On FIFO queues a repeat of the very
    move has the same deduplication id.
    """
    entry: dict[str, Any] = {"MessageBody": raw["Body"]}
    system, fifo = raw.get("Attributes") or {}, url.endswith(".fifo")
    if trace := system.get("AWSTraceHeader"):
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    if group := system.get("MessageGroupId") or (fifo and raw["MessageId"]):
        entry["MessageGroupId"] = group
    if fifo:
        number = step.attempt if isinstance(step, Move) else "poison"
        entry["MessageDeduplicationId"] = f"{raw['MessageId']}/{number}"
    if isinstance(step, Isolate):
        attributes = _isolated(raw, step.why)
    else:
        waits = bool(step.delay_s) and (fifo or step.delay_s > DELAY_MAX_S)
        due_ms = now_ms + 1000 * step.delay_s if waits else None
        attributes = _back(raw, step.attempt, now_ms, auto, due_ms=due_ms)
        comes_s = min(step.delay_s, DELAY_MAX_S) if step.comes_s is None else step.comes_s
        if comes_s and not fifo:
            entry["DelaySeconds"] = comes_s
    return entry | ({"MessageAttributes": attributes} if attributes else {})


def group_of(raw: Raw) -> str:
    """Its FIFO group."""
    return str((raw.get("Attributes") or {}).get("MessageGroupId") or raw["MessageId"])


def text_of(raw: Raw, name: str) -> str | None:
    """The value of a message's attribute."""
    value = ((raw.get("MessageAttributes") or {}).get(name) or {}).get("StringValue")
    return None if value is None else str(value)


def size_of(body: str, attributes: Mapping[str, Any]) -> int:
    """What SQS counts of a message: its body, and of each attribute the name, the type and the value, in bytes."""
    size = len(body.encode(errors="replace"))
    for name, value in attributes.items():
        text = value.get("StringValue")
        data = text.encode(errors="replace") if text is not None else value.get("BinaryValue", b"")
        size += len(name.encode()) + len(value.get("DataType", "").encode()) + len(data)
    return size


def _back(raw: Raw, attempt: int, now_ms: int, auto: AutoRedrive, *, due_ms: int | None) -> dict[str, Any]:
    """Its attributes as it goes back; a message of redrive's own begins a fresh life."""
    attributes = _attributes(raw) | {ATTEMPT: _number(attempt)}
    kept = _kept(raw)
    if kept is not None:
        for name in _OF_DEATH:
            attributes.pop(name, None)
        fresh = replace(
            message_state.revived(kept, now_ms), redrives=attempt, attempts_allowed=auto.attempts, due_ms=due_ms
        )
        attributes[KEPT] = {"DataType": "String", "StringValue": message_state.encode(fresh).decode()}
    if FIRST not in attributes and len(attributes) < ATTRIBUTES_MAX:
        attributes[FIRST] = _number(_first_ms(raw, now_ms))
    return attributes


def _isolated(raw: Raw, why: str) -> dict[str, Any]:
    """Its attributes as they are, and why, where that fits."""
    attributes = _attributes(raw)
    told = attributes | {WHY: {"DataType": "String", "StringValue": why}}
    fits = len(told) <= ATTRIBUTES_MAX and size_of(raw["Body"], told) <= BYTES_MAX
    return told if fits else attributes


def _attributes(raw: Raw) -> dict[str, Any]:
    wanted = ("DataType", "StringValue", "BinaryValue")
    found = raw.get("MessageAttributes") or {}
    return {name: {key: value[key] for key in wanted if key in value} for name, value in found.items()}


def _kept(raw: Raw) -> Kept | None:
    """What redrive keeps with a message of its own; None for others'."""
    found = text_of(raw, KEPT)
    if found is None:
        return Kept() if _OWN.search(raw["Body"]) else None
    try:
        return message_state.decode(found)
    except (msgspec.DecodeError, ValueError):
        return None


def _first_ms(raw: Raw, now_ms: int) -> int:
    found = str((raw.get("Attributes") or {}).get("ApproximateFirstReceiveTimestamp", ""))
    return int(found) if re.fullmatch("[0-9]{1,15}", found, re.ASCII) else now_ms


def _number(value: int) -> dict[str, str]:
    return {"DataType": "Number", "StringValue": str(value)}


def _needed(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ConfigError(f"{name} is not set; a re-driver needs the URLs of its queue, dead-letter and poison queue")
    return environ[name]


def _rate(environ: Mapping[str, str]) -> float:
    text = environ.get("REDRIVE_RATE") or f"{RATE_PER_S:g}/s"
    return per_s(float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII) else text, "REDRIVE_RATE")


def _jitter(environ: Mapping[str, str]) -> float:
    text = environ.get("REDRIVE_JITTER") or f"{JITTER:g}"
    found = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(%?)\s*", text, re.ASCII)
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
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
