"""A fault and its kinds: what is kept of a failure, in bounded texts."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

S = TypeVar("S", bound=StrEnum)
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,39}")

TEXT_MAX = 2_000  # characters of Fault.text
TRACEBACK_MAX = 8_000  # characters of Fault.traceback


def member_of(words: type[S], value: object) -> S | None:
    """A word that a newer version wrote, as if it were one of these; None for what is no word at all."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        return None
    member = str.__new__(words, value)
    member._name_ = member._value_ = value
    return member


class Kind(StrEnum):
    """What sort of failure it is; policies choose by it. `permanent`, `unreadable` and `unroutable` are not retried. A
    word that is none of these is a newer version's: it is read and kept as it stands."""

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

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        return member_of(cls, value)


class Crash(Struct, frozen=True, gc=False, omit_defaults=True):
    """How the process died in which a message had been started, as far as that is known.

    `cause`: signal, exit, hung (killed by its supervisor), timeout or memory (killed for that), lease (it ran out: the
    host may have died), or "" where nothing is known. `started` are the ids of all messages that had been started in
    the process and were not settled, itself among them; at most 20, `started_count` has them all.
    """

    cause: str = ""
    signal: str = ""  # its name
    code: int | None = None  # the exit code
    peak_bytes: int | None = None  # the most memory the process had
    run_s: float | None = None
    alone: bool = False  # nothing else was run in the process meanwhile, so the message is guilty
    started: tuple[str, ...] = ()
    started_count: int = 0
    worker: str = ""  # who ran it
    host: str = ""
    child: bool = False  # the process was a child of the worker, which lived on


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
    ran_ms: int = 0  # how long the run took that ended so
    tried_ms: int = 0  # how long its life had been tried by then: runs that failed, and the delays between them
    held_ms: int = 0  # what of the life's time was neither, beyond the message's own `held_ms`
    crash: Crash | None = None  # of a process that died
