"""Log each delivery and notice as a line: JSON for collectors, or text for people.

`app.subscribe(JsonLog(sys.stderr))`. Bodies, headers and results are never written; secrets in texts are hidden.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import IO, Any

import msgspec

from ..config import settings, web_link
from ..duration import rfc3339, show
from ..events import DeliveryEvent, Event, LineLog
from ..fault import Crash, kind_word
from ..redact import clip, in_json, many_lines, one_line, redact, shown_traceback

TEXT_MAX = 500  # characters of a fault's text that a line contains; `redrive job show` has all of it
TRACEBACKS_MAX = 1_000  # the most sequences of code lines that a text log remembers
_encode_lines = msgspec.json.Encoder().encode_lines
_name = lru_cache(maxsize=4096)(redact)  # cached, as the same few names occur again and again
_LEFT_OUT = frozenset(("aws_requests",))  # names of notices that are not logged: figures for metrics, several a minute
_WARNINGS = frozenset(("breaker_opened", "budget_exhausted", "flow_local", "alert_lost", "run_stopped", "no_scheduler",
                       "worker_hung", "regressed"))  # fmt: skip
_GREEN, _YELLOW, _RED, _DIM, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
_COLOURS = {"done": _GREEN, "retry": _YELLOW, "stayed": _YELLOW}
_COLOURS |= dict.fromkeys(("snoozed", "released", "held", "cancelled"), _DIM)


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The log record of one delivery. Empty fields are left out."""

    time: str
    level: str
    outcome: str
    id: str
    task: str
    queue: str
    attempt: int
    crashes: int = 0
    redrives: int = 0
    delay_ms: int | None = None
    fault: str | None = None  # the kind of the fault
    error: str | None = None
    text: str | None = None
    reason: str | None = None
    fingerprint: str | None = None  # the fingerprint of a dead message
    deferral: str | None = None  # why flow control put the message off
    by: str | None = None  # the dependency, queue or task that caused the deferral
    degraded: str | None = None
    duplicate_of: str | None = None  # id of the message whose stored result this one has without a run
    crash: Crash | None = None
    correlation_id: str = ""
    run_ms: float | None = None
    worker: str = ""
    traceback: str | None = None
    page: str | None = None  # the address of the web page about a message at rest, if `web_url` is set


class NoticeLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    time: str
    level: str
    notice: str
    text: str
    worker: str
    about: str = ""


class JsonLog(LineLog):
    """An observer that writes each event as one JSON line, and each batch of events in one write.

    `stream` takes text, such as `sys.stderr` or an open file. If it is closed or broken, lines are lost, and work
    continues."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._write = _writer(stream)

    def __call__(self, events: Sequence[Event]) -> None:
        if logged := _select(events):
            self._write(_visible(_encode_lines([_line(event) for event in logged])))


class TextLog(LineLog):
    """An observer that writes each event as a line for people, in colour on a terminal unless NO_COLOR is set.

    The traceback of a fault is written once for each sequence of code lines in it."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._write = _writer(stream)
        self._known: set[str] = set()  # the code lines of each traceback written before
        self._colour = stream.isatty() and not os.environ.get("NO_COLOR")

    def __call__(self, events: Sequence[Event]) -> None:
        if logged := _select(events):
            self._write("".join(f"{self._text(event)}\n" for event in logged).encode(errors="backslashreplace"))

    def _text(self, event: Event) -> str:
        time = rfc3339(event.at_ms)[11:23]
        if not isinstance(event, DeliveryEvent):
            about = f"{_clean(event.about)}: " if event.about else ""
            colour = _YELLOW if event.name in _WARNINGS else _DIM
            text, more = redact(event.text), list[str]()
            if event.name == "worker_hung":  # the text of this notice ends with a stack
                text, *more = many_lines(text).split("\n")
            lines = [
                f"{time} {event.name:<9} {about}{one_line(text)} ({one_line(event.worker)})",
                *(f"    {line}" for line in more),
            ]
            return self._paint("\n".join(lines), colour)
        outcome = self._paint(f"{event.outcome:<9}", _COLOURS.get(event.outcome, _RED))
        line = f"{time} {outcome} {_clean(event.task)} {one_line(event.id)}{_details(event)}"
        return line if event.traceback is None else line + self._traceback(event.traceback)

    def _traceback(self, text: str) -> str:
        """Return the traceback indented; empty if one with the same code lines was written before."""
        places = "\n".join(line for line in text.splitlines() if line.startswith('  File "'))
        if not places or places in self._known:
            return ""
        if len(self._known) >= TRACEBACKS_MAX:
            self._known.clear()
        self._known.add(places)
        shown = "".join(f"\n    {line}" for line in many_lines(shown_traceback(text)).splitlines())
        return self._paint(shown, _DIM)

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colour else text


def log_of_lambda() -> JsonLog | None:
    """Return the log of a Lambda function: JSON lines on stdout, or None if the setting `log` is `off`."""
    return None if settings().log == "off" else JsonLog(sys.stdout)


def _select(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, DeliveryEvent) or event.name not in _LEFT_OUT]


def _details(event: DeliveryEvent) -> str:
    parts = [f" attempt {event.attempt}"]
    if event.run_ms is not None:
        parts.append(f" ran {show(event.run_ms / 1000)}")
    if event.delay_ms is not None:
        parts.append(f" again in {show(event.delay_ms / 1000)}")
    if event.deferral is not None:
        parts.append(f" {event.deferral}{f' of {_clean(event.by)}' if event.by else ''}")
    if event.duplicate_of is not None:
        parts.append(f" unrun: {one_line(event.duplicate_of)} did it")
    if event.degraded is not None:
        parts.append(f" degraded: {one_line(_short(event.degraded))}")
    if event.reason:
        parts.append(f" {_clean(event.reason)}:")
    if event.fault and event.fault != event.reason:
        parts.append(f" {kind_word(event.fault)}:")
    if event.error:
        parts.append(f" {_clean(event.error)}: {one_line(_short(event.text))}")
    elif event.text:
        parts.append(f" {one_line(_short(event.text))}")
    if (page := _page(event)) is not None:
        parts.append(f" {page}")
    return "".join(parts)


def _clean(name: str) -> str:
    return one_line(_name(name))


def _visible(lines: bytes) -> bytes:
    """Return JSON lines with control characters escaped, as those could act on a terminal."""
    return lines if lines.isascii() and b"\x7f" not in lines else in_json(lines.decode()).encode()


def _line(event: Event) -> EventLine | NoticeLine:
    time = rfc3339(event.at_ms)
    if not isinstance(event, DeliveryEvent):
        level = "warning" if event.name in _WARNINGS else "info"
        text, about = redact(event.text), _name(event.about)
        return NoticeLine(time=time, level=level, notice=event.name, text=text, worker=event.worker, about=about)
    return EventLine(
        time=time,
        level=_level(event),
        outcome=event.outcome,
        id=event.id,
        task=_name(event.task),
        queue=_name(event.queue),
        attempt=event.attempt,
        crashes=event.crashes,
        redrives=event.redrives,
        delay_ms=event.delay_ms,
        fault=event.fault,
        error=None if event.error is None else _name(event.error),
        text=None if event.text is None else _short(event.text),
        reason=event.reason,
        fingerprint=event.fingerprint,
        deferral=event.deferral,
        by=None if event.by is None else _name(event.by),
        duplicate_of=event.duplicate_of,
        crash=event.crash if event.fault == "crashed" or event.outcome == "quarantined" else None,
        degraded=None if event.degraded is None else _short(event.degraded),
        correlation_id=event.id if event.correlation_id == event.id else redact(event.correlation_id),
        run_ms=event.run_ms,
        worker=event.worker,
        traceback=None if event.traceback is None else shown_traceback(event.traceback),
        page=_page(event),
    )


def _page(event: DeliveryEvent) -> str | None:
    return web_link("messages", event.id) if event.outcome in ("dead", "quarantined", "stayed") else None


def _level(event: DeliveryEvent) -> str:
    if event.outcome in ("dead", "quarantined"):
        return "error"
    return "warning" if event.outcome in ("retry", "crashed", "stayed", "stale", "lost") else "info"


def _short(text: str | None) -> str:
    if not text:
        return ""
    return clip(text, 4 * TEXT_MAX, TEXT_MAX)


def _writer(stream: IO[str]) -> Callable[[bytes], None]:
    """Return a function that writes lines to the stream, by its binary buffer if it has one, and flushes."""
    below: Any = getattr(stream, "buffer", None)

    def write(lines: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader has gone, so lines are lost, and work continues
            if below is not None:
                stream.flush()
                below.write(lines)
                below.flush()
            else:
                stream.write(lines.decode())
                stream.flush()

    return write
