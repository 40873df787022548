"""Messages, their faults and their timelines as records: one name for each field, times in RFC 3339."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..blobs import read_reference
from ..crypto import key_of, shown_text
from ..duration import show
from ..errors import Unreadable
from ..fault import Fault, kind_word
from ..message import ABSENT, BLOB, DAMAGED, HELD, Lane, Message
from ..triage.timeline import Moment
from .formats import timestamp

if TYPE_CHECKING:
    from ..status import Running


_STARTED = re.compile(r"; started: [0-9a-f-]+(?:, [0-9a-f-]+)*(?: and \d+ more)?\Z")


def body_json(body: bytes) -> Any:
    """Return a body or checkpoint as JSON: as it is if it is JSON, `{"encrypted": KEY}` if it could not be decrypted,
    else `{"base64": …}`."""
    if (key := key_of(body)) is not None:
        return {"encrypted": key}
    try:
        msgspec.json.decode(body)
        body.decode()
    except (ValueError, RecursionError):
        return {"base64": base64.b64encode(body).decode()}
    return msgspec.Raw(body)  # not decoded, so that long numbers and repeated keys are preserved


def reason_text(reason: str | None) -> str:
    """Return why a message is dead, as tables show it."""
    return "held for a person" if reason == HELD else reason or ""


def message_row(message: Message, now_ms: int) -> dict[str, Any]:
    """Return the fields of a message that lists show, as a row."""
    return {
        "id": message.id,
        "task": message.task,
        "queue": message.queue,
        "state": message.state_at(now_ms) if message.damage is None else DAMAGED,
        "attempt": message.attempt,
        "crashes": message.crashes,
        "redrives": message.redrives,
        "due_at": timestamp(message.due_ms),
        "enqueued_at": timestamp(message.enqueued_ms),
        "correlation_id": message.correlation_id,
    }


def running_record(run: Running | None, now_ms: int) -> dict[str, Any] | None:
    """Return where and since when a message runs, as a record; None if no living worker reports that."""
    if run is None:
        return None
    return {
        "worker": run.worker,
        "host": run.host,
        "pid": run.pid,
        "since": timestamp(run.since_ms),
        "for_s": None if run.since_ms is None else max(0, now_ms - run.since_ms) / 1000,
        "isolated": run.isolated,
        "worker_hung": run.hung is not None,
        "end": run.end,
    }


def body_size(message: Message) -> dict[str, Any]:
    """Return the encoding, size and place of a message's body: inline, or in a blob."""
    if message.content == BLOB:
        with contextlib.suppress(Unreadable):
            reference = read_reference(message.body)
            return {"content": reference.content, "bytes": reference.bytes, "body_in": f"blob {reference.blob}"}
    return {"content": message.content, "bytes": len(message.body), "body_in": "inline"}


def message_record(message: Message, now_ms: int) -> dict[str, Any]:
    """Return all fields of a message as a record; if the body is in a blob, with the reference to it."""
    if message.content == ABSENT:
        return _recorded(message, now_ms)
    return {
        **message_row(message, now_ms),
        "reason": message.reason,
        "rested_at": timestamp(message.rested_ms),
        "life_began_at": timestamp(message.life_ms),
        "deadline_at": timestamp(message.deadline_ms),
        "priority": message.priority,
        "key": message.key,
        "group": message.group,
        "batch": message.batch,
        "fence": message.fence,
        "crashes_alone": message.crashes_alone,
        "suspect": message.suspect,
        "cancel_requested": message.cancel,
        "deferral": deferral_record(message),
        "attempts_allowed": message.attempts_allowed,
        "worker": message.worker,
        "producer": message.producer,
        "causation_id": message.causation_id,
        "traceparent": message.traceparent,
        "version": message.version,
        "headers": dict(message.headers),
        **body_size(message),
        "body": body_json(message.body),
        "result": None if message.result is None else body_json(message.result),
        "progress": None if message.progress is None else body_json(message.progress),
        "faults": [fault_record(f) for f in message.faults],
        **_damage(message),
    }


def _damage(message: Message) -> dict[str, Any]:
    """Return why the message's row cannot be read, and the row itself; an empty record for an intact message."""
    damage = message.damage
    return {} if damage is None else {"damage": damage.why, "row": dict(damage.raw)}


def _recorded(message: Message, now_ms: int) -> dict[str, Any]:
    """Return the fields of a message whose body the store cannot read, as far as its record has them."""
    ended = message.lane is Lane.DONE
    return {
        **message_row(message, now_ms),
        "known": "by its record, without its body" + ("" if ended else "; once it is due it may run"),
        "reason": message.reason,
        "rested_at": timestamp(message.rested_ms),
        "life_began_at": timestamp(message.life_ms),
        "key": message.key,
        "group": message.group,
        "batch": message.batch,
        "cancel_requested": message.cancel,
        "deferral": None,
        "body": None,
        "result": None,
        "progress": None,
        "faults": [],
    }


def deferral_record(message: Message) -> dict[str, Any] | None:
    """Return why flow control defers the message, by which dependency, queue or task, and until when; None if it does
    not."""
    held = message.deferral
    if held is None or message.lane is not Lane.READY:  # a claimed message keeps its last deferral
        return None
    return {"why": held.why, "by": held.by or None, "until": timestamp(message.due_ms)}


def fault_record(fault: Fault) -> dict[str, Any]:
    return {
        "at": timestamp(fault.at_ms),
        "attempt": fault.attempt,
        "kind": str(fault.kind),
        "error": fault.error,
        "text": shown_text(fault.text),
        "fingerprint": fault.fingerprint,
        "errors": list(fault.errors),
        "retry_after_s": fault.retry_after_s,
        "delay_ms": fault.delay_ms,
        "worker": fault.worker,
        "traceback": shown_text(fault.traceback),
        "crash": None if fault.crash is None else msgspec.structs.asdict(fault.crash),
    }


def moment_record(moment: Moment) -> dict[str, Any]:
    """Return one moment of a timeline as a record: an attempt with its fault, a person's action, or the end."""
    fault, entry = moment.fault, moment.entry
    return {
        "at": timestamp(moment.at_ms),
        "after_s": None if moment.after_ms is None else moment.after_ms / 1000,
        "what": moment.what,
        "text": shown_text(fault.text if fault else moment.text) or None,
        "kind": str(fault.kind) if fault else None,
        "error": fault.error if fault else None,
        "worker": (fault.worker or None) if fault else None,
        "delay_ms": fault.delay_ms if fault else None,
        "actor": entry.actor if entry else None,
        "claimed": (entry.claimed or None) if entry else None,
        "reason": (entry.reason or None) if entry else None,
    }


def crash_text(text: str) -> str:
    """Return the text of a crash without the ids of the other started messages, which the details list.

    >>> crash_text("killed by SIGSEGV; 2 messages had been started in its process; started: 0199-a, 0199-b and 3 more")
    'killed by SIGSEGV; 2 messages had been started in its process'
    """
    return _STARTED.sub("", text)


def moment_text(moment: Mapping[str, Any], *, known: Mapping[str, Any] | None = None) -> str:
    """Return a moment's record as text, without its time. If its fault equals `known`, which the reader has just seen,
    the error is not repeated."""
    parts = [moment["what"]]
    if moment["kind"] is not None:
        parts[0] += f" on {moment['worker']}" if moment["worker"] else ""
        same = known is not None and all(moment[name] == (known[name] or None) for name in ("kind", "error", "text"))
        error = "the same error" if same else f"{moment['error']}: {crash_text(moment['text'] or '')}".rstrip(": ")
        parts.append(f"{kind_word(moment['kind'])}, {error}")
        if moment["delay_ms"] is not None:
            parts.append(f"again in {show(moment['delay_ms'] / 1000)}")
        return f"{parts[0]}: {'; '.join(parts[1:])}"
    if moment["actor"] is not None:
        who = f"{moment['claimed']} ({moment['actor']})" if moment["claimed"] else moment["actor"]
        return f"{moment['what']} by {who}" + (f": {moment['reason']}" if moment["reason"] else "")
    return f"{moment['what']}: {moment['text']}" if moment["text"] else str(moment["what"])


def dead_message_row(message: Message, now_ms: int) -> dict[str, Any]:
    """Return a dead message with its last fault as a row."""
    last = message.faults[-1] if message.faults else None
    return {
        **message_row(message, now_ms),
        "lane": str(message.lane),
        "reason": message.reason,
        "fingerprint": last.fingerprint if last else None,
        "kind": str(last.kind) if last else None,
        "error": last.error if last else None,
        "text": message.damage.why if message.damage else shown_text(last.text) if last else None,
        "died_at": timestamp(message.rested_ms),
    }
