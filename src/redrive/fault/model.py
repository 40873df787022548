"""Fault, Kind and Crash: the stored facts of a failure, in bounded texts."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

S = TypeVar("S", bound=StrEnum)
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,39}")

TEXT_MAX = 2_000  # most characters of Fault.text
TRACEBACK_MAX = 8_000  # most characters of Fault.traceback


def member_of(words: type[S], value: object) -> S | None:
    """Return a word that only a newer version knows as a member of `words`; None if the value is no valid word."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        return None
    member = str.__new__(words, value)
    member._name_ = member._value_ = value
    return member


class Kind(StrEnum):
    """The sort of a failure; policies choose by it. `permanent`, `unreadable` and `unroutable` are not retried.

    An unlisted kind was written by a newer version; it is kept unchanged.
    """

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


def kind_word(kind: str | None) -> str:
    """Return the kind of a fault as displayed: `unclassified` for `default`."""
    return "unclassified" if kind == Kind.DEFAULT else kind or "–"


class Crash(Struct, frozen=True, gc=False, omit_defaults=True):
    """The crash of a process in which a message ran, as far as known.

    `cause` is signal, exit, hung (killed by its supervisor), timeout or memory (killed for it), lease (the lease ran
    out; the host may have died), or "" if unknown. `started` lists the messages that had been started in the process
    and were not settled, this one among them: at most 20 ids. `started_count` counts them all.
    """

    cause: str = ""
    signal: str = ""
    code: int | None = None
    peak_bytes: int | None = None
    run_s: float | None = None
    alone: bool = False  # no other message ran in the process, so this message caused the crash
    started: tuple[str, ...] = ()
    started_count: int = 0
    worker: str = ""  # the worker that ran the message
    host: str = ""
    child: bool = False  # the process was a child of the worker, and the worker survived


class Fault(Struct, frozen=True, gc=False, omit_defaults=True):
    """A classified failure. Texts are bounded and valid UTF-8; the worker sets `at_ms` and the fields after it."""

    kind: Kind
    error: str = ""  # qualified class name; builtins without the module
    text: str = ""
    fingerprint: str = ""
    errors: tuple[str, ...] = ()  # names of the exception's classes, most derived first, without object
    traceback: str = ""
    retry_after_s: float | None = None  # delay requested by the failing side or the handler
    steer: str = ""  # retry_after, snooze, reject or quarantine, if the handler decided
    at_ms: int = 0
    attempt: int = 0
    worker: str = ""
    delay_ms: int | None = None
    ran_ms: int = 0  # duration of the run in ms
    tried_ms: int = 0  # ms spent on tries in this life: failed runs plus the delays between them
    crash: Crash | None = None  # set if the process of the run died
    due_ms: int = 0  # when the message was first due in this life, if later than the start of the life
    traceparent: str = ""  # span of the run, if it was traced: the next attempt links to it
    release: str = ""  # release of the app whose worker ran it
