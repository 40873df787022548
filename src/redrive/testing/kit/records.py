"""Records of a Kit: enqueued messages, runs, dead messages and the sum of a drain, each printed in one line."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ...codec import Codec
from ...duration import show
from ...errors import Unreadable
from ...fault import Fault
from ...message import Draft

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxdict = _short.maxlist = _short.maxtuple = 6


def arguments(codec: Codec | None, body: bytes, version: int) -> dict[str, Any]:
    """Return the arguments in a body by name, defaults included, as the handler would get them; without a codec (the
    task is unknown) the raw JSON values; empty if the body cannot be read."""
    try:
        if codec is not None:
            return named(codec, *codec.decode(body, version))
        decoded = msgspec.json.decode(body)
        return decoded if isinstance(decoded, dict) else {}
    except (Unreadable, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def named(codec: Codec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a task's call by name, defaults included."""
    bound = codec.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def call(task: str, args: Mapping[str, Any]) -> str:
    """Return a call as Python source, with long values cut.

    >>> call("crm.push", {"record_id": 42, "dry": True})
    'crm.push(record_id=42, dry=True)'
    """
    return f"{task}({', '.join(f'{name}={_short.repr(value)}' for name, value in args.items())})"


class Enqueued(Struct, frozen=True, kw_only=True):
    """A message that was enqueued, even if it is gone. `args`: its arguments by name, defaults included. `at_s`:
    virtual seconds since the test began; `delay_s`: seconds from then to its first due time."""

    id: str
    task: str
    queue: str
    args: dict[str, Any]
    at_s: float
    delay_s: float
    key: str | None
    group: str | None
    draft: Draft  # the draft, with headers, priority, correlation_id and the other fields

    def __repr__(self) -> str:
        notes = [f"at {show(self.at_s)}"]
        if self.delay_s:
            notes.append(f"delay {show(self.delay_s)}")
        notes += [f"{name} {value!r}" for name, value in (("key", self.key), ("group", self.group)) if value]
        if self.queue != "default":
            notes.append(f"queue {self.queue!r}")
        return f"{call(self.task, self.args)}  [{', '.join(notes)}]"


class Ran(Struct, frozen=True, kw_only=True):
    """One run of a handler. `outcome`: done, retry, snoozed, dead, stayed, quarantined, cancelled, or crashed (it was
    never settled). `at_s`: virtual seconds since the test began; `delay_s`: seconds until the message was due again."""

    id: str
    task: str
    args: dict[str, Any]
    attempt: int
    crashes: int
    redrives: int
    at_s: float
    outcome: str
    delay_s: float | None = None
    result: Any = None  # the value that the handler returned
    degraded: str | None = None  # why the result is partial
    reason: str | None = None  # why the message died
    fault: Fault | None = None  # how the run failed

    @property
    def failed(self) -> bool:
        """True if the run ended in a fault or by the death of its worker."""
        return self.fault is not None or self.outcome == "crashed"

    def __repr__(self) -> str:
        parts = [f"{show(self.at_s):>8}  attempt {self.attempt}  {call(self.task, self.args)}  {self.outcome}"]
        if self.outcome == "dead" and self.reason:
            parts.append(f" ({self.reason})")
        if self.delay_s is not None:
            parts.append(f" in {show(self.delay_s)}")
        if self.fault is not None:
            parts.append(f": {failure(self.fault)}")
        return "".join(parts)


class Dead(Struct, frozen=True, kw_only=True):
    """A message in the dead lane or in quarantine. `faults`: its failures, the oldest first; of many, the first and
    last ten."""

    id: str
    task: str
    queue: str
    args: dict[str, Any]
    lane: str
    reason: str | None
    attempt: int
    crashes: int
    redrives: int
    faults: tuple[Fault, ...]
    body: bytes

    def __repr__(self) -> str:
        spent = _count(self.attempt, "attempt") + (f" and {_count(self.crashes, 'crash')}" if self.crashes else "")
        last = f": {failure(self.faults[-1])}" if self.faults else ""
        return f"{call(self.task, self.args)}  {self.lane} ({self.reason}) after {spent}{last}"


class Drained(Struct, frozen=True, kw_only=True):
    """The result of a drain. `runs`: handlers that ran; of these `done` and `failed` (retried or not, crashes too);
    `dead`: messages that died or went to quarantine, run or not; `left`: messages that still wait (beyond `until`, in a
    paused queue, behind a blocked group); `elapsed_s`: virtual seconds that passed; `last_failure`: a line of text."""

    runs: int
    done: int
    failed: int
    dead: int
    left: int
    elapsed_s: float
    last_failure: str | None = None


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}{'es' if what.endswith('sh') else 's'}"


def failure(fault: Fault) -> str:
    """Return a fault as one line: the class of its error and the first line of its text."""
    text = fault.text.strip().splitlines()[0][:200] if fault.text.strip() else ""
    return f"{fault.error or fault.kind.value}: {text}" if text else fault.error or fault.kind.value
