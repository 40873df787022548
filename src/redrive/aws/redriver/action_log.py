"""Log each action of the re-driver and the state machine as a JSON line on stdout, which Lambda stores.

`REDRIVE_LOG=off` in the function's environment turns the lines off.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from ...duration import rfc3339
from ...message import Isolate
from ...redact import clip, in_json, redact_value
from .steps import MoveStep, Raw, RedriveStep, redrives, state_in, text_of
from .transfer import MoveOutcome

TEXT_MAX = 500  # most characters of a reason or an error
_encode = msgspec.json.Encoder().encode


class _Envelope(msgspec.Struct):
    id: str = ""
    type: str = ""


def log_moves(done: MoveOutcome, now_ms: int) -> None:
    """Log each message's outcome: `redriven`, `isolated`, or `failed` and left in the dead-letter queue."""
    if _off():
        return
    lines = [
        _line(now_ms, "info" if isinstance(step, MoveStep) else "error", _action(step), _about(raw, step))
        for raw, step in done.moved
    ]
    lines += [
        _line(now_ms, "warning", "failed", {**_about(failure.raw, failure.step), "why": failure.why})
        for failure in done.failures
    ]
    _write(lines)


def log_action(action: str, now_ms: int, **fields: object) -> None:
    """Log an action that does not concern a single message."""
    if not _off():
        _write([_line(now_ms, "info", action, fields)])


def _off() -> bool:
    return os.environ.get("REDRIVE_LOG") == "off"


def _action(step: RedriveStep) -> str:
    return "isolated" if isinstance(step, Isolate) else "redriven"


def _about(raw: Raw, step: RedriveStep) -> dict[str, Any]:
    """Return the logged fields of a message: ids, attempts of its last life, redrives with this one, last fault."""
    state = state_in(raw)
    own = _Envelope() if state is None else _envelope(raw["Body"])
    received = (raw.get("Attributes") or {}).get("ApproximateReceiveCount", 0)
    last = state.faults[-1] if state is not None and state.faults else None
    fields = {
        "id": own.id or raw["MessageId"],
        "sqs_id": raw["MessageId"],
        "task": own.type,
        "attempt": int(received) if state is None else state.attempt,
        "redrives": step.attempt if isinstance(step, MoveStep) else redrives(raw),
        "error": text_of(raw, "error") or "" if last is None else f"{last.error}: {last.text}",
    }
    how = {"delay_s": step.delay_s} if isinstance(step, MoveStep) else {"why": step.why}
    return {name: value for name, value in fields.items() if value != ""} | how


def _envelope(body: str) -> _Envelope:
    try:
        return msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Envelope()


def _line(now_ms: int, level: str, action: str, fields: dict[str, Any]) -> str:
    texts = {n: clip(v, 4 * TEXT_MAX, TEXT_MAX) if isinstance(v, str) else v for n, v in fields.items()}
    shown = {"time": rfc3339(now_ms), "level": level, "action": action, **redact_value(texts)}
    return in_json(_encode(shown).decode()) + "\n"


def _write(lines: list[str]) -> None:
    """Write the lines at once, so that lines of several threads do not mix."""
    if lines:
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
