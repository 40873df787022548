"""A fault and its kinds: what is kept of a failure, in bounded texts."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

TEXT_MAX = 2_000  # characters of Fault.text
TRACEBACK_MAX = 8_000  # characters of Fault.traceback


class Kind(StrEnum):
    """What sort of failure it is; policies choose by it. `permanent`, `unreadable` and `unroutable` are not retried."""

    TRANSIENT = "transient"
    THROTTLED = "throttled"
    QUOTA = "quota"
    TIMEOUT = "timeout"
    PERMANENT = "permanent"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"
    UNREADABLE = "unreadable"
    UNROUTABLE = "unroutable"
    DEFAULT = "default"


class Fault(Struct, frozen=True, gc=False, omit_defaults=True):
    """A classified failure. Texts are bounded and can be encoded as UTF-8; the worker fills in `at_ms` and the rest."""

    kind: Kind
    error: str = ""  # the class's qualified name; builtins without a module
    text: str = ""
    fingerprint: str = ""  # 16 hex digits
    errors: tuple[str, ...] = ()  # all its classes, most special first, without object
    traceback: str = ""
    retry_after_s: float | None = None  # what the failing side, or the handler, asked for
    steer: str = ""  # retry_after, snooze, reject or quarantine: the handler said so
    at_ms: int = 0
    attempt: int = 0
    worker: str = ""
    delay_ms: int | None = None
