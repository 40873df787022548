"""Log retries and deaths to the logger `redrive`, so that the application's own handlers and error trackers get them.

A retry is a WARNING and a death an ERROR, each with `exc_info` and with its figures in `record.redrive`. They are
logged after the commit of the settlement, so that a record never contradicts another worker's decision. A kill between
the two loses the record, but not the dead letter with its faults.

In a program that has set up no logging at all, such as a plain script, Python prints warnings by itself: there a retry
is one line without traceback.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import IO, Any

from ..duration import show
from ..events import DeliveryEvent, Events, LineLog, complain
from ..fault import stand_in
from ..redact import one_line, redact, shown_traceback

NAME = "redrive"
TEXT_MAX = 500  # characters of a fault's text that a record contains
_RETRY, _CRASH = "failed and runs again in %s (attempt %s): %s", "crashed its process and runs again (crash %s): %s"
_FIGURES = ("outcome", "id", "task", "queue", "attempt", "crashes", "redrives", "delay_ms", "fault", "error", "reason",
            "fingerprint", "correlation_id", "worker")  # fmt: skip
LEVELS = {
    "retry": logging.WARNING, "crashed": logging.WARNING, "stayed": logging.WARNING, "dead": logging.ERROR,
    "quarantined": logging.ERROR,
}  # fmt: skip


_name = lru_cache(maxsize=4_096)(redact)  # cached, as the same names of tasks, queues and errors occur again and again


def log_faults(fates: Sequence[DeliveryEvent], events: Events) -> None:
    """Log the events that are retries or deaths. An error of a logging handler has no other effect.

    If an observer of `events` writes lines to a stream, logging handlers of the same stream skip these records."""
    logger = logging.getLogger(NAME)
    streams = [observer.stream for observer in events.observers if isinstance(observer, LineLog)]
    if not fates or not _is_heard(logger, streams):
        return
    for fate in fates:
        level = LEVELS.get(fate.outcome)
        if level is None or not logger.isEnabledFor(level):
            continue
        try:
            if streams:
                _leave_out(logger)
            logger.handle(_record(logger, level, fate, streams, level < logging.ERROR and _is_bare(logger)))
        except Exception:
            complain("a handler of the logger 'redrive'")


def _record(
    logger: logging.Logger, level: int, fate: DeliveryEvent, streams: Sequence[IO[str]], short: bool
) -> logging.LogRecord:
    figures = {name: value for name in _FIGURES if (value := getattr(fate, name)) is not None}
    figures = {name: _name(value) if isinstance(value, str) else value for name, value in figures.items()}
    text = redact(fate.text or "")
    message, arguments = _message(fate, text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…")
    arguments = (one_line(figures["id"]), one_line(figures["task"]), *arguments)
    info, traceback = None, None
    if fate.error is not None and not short:
        traceback = _traceback(fate, text)
        info = stand_in(figures["error"], text, traceback)
    extra = {"redrive": figures, "redrive_shown_on": streams}
    record = logger.makeRecord(
        NAME, level, __file__, 0, f"message %s of task %s {message}", arguments, info, None, extra
    )
    record.exc_text = traceback  # formatters use this instead of formatting `exc_info`
    return record


def _traceback(fate: DeliveryEvent, shown: str) -> str:
    """Return the fault's traceback without secrets; `shown` is its text without them. The lines above the text are the
    same for each such fault, so they are searched once."""
    whole, text = (fate.traceback or "").rstrip("\n"), fate.text or ""
    if not whole:
        return f"{_name(fate.error or '')}: {shown}"
    return shown_traceback(whole[: -len(text)]) + shown if text and whole.endswith(text) else shown_traceback(whole)


def _message(fate: DeliveryEvent, text: str) -> tuple[str, tuple[Any, ...]]:
    why = one_line(f"{_name(fate.error)}: {text}" if fate.error else text)
    match fate.outcome:
        case "retry":
            return _RETRY, (show((fate.delay_ms or 0) / 1000), fate.attempt, why)
        case "crashed":
            return _CRASH, (fate.crashes, why)
        case "stayed":
            return "is held for a person (attempt %s): %s", (fate.attempt, why)
        case _:
            return f"is {fate.outcome}, %s (attempt %s): %s", (fate.reason, fate.attempt, why)


class Once(logging.Filter):
    """A filter of a logging handler: drops records of events that an observer writes to the handler's stream."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler

    def filter(self, record: logging.LogRecord) -> bool:
        streams: Sequence[IO[str]] = getattr(record, "redrive_shown_on", ())
        return not any(_writes_to(self._handler, stream) for stream in streams)


def _writes_to(handler: logging.Handler, stream: IO[str]) -> bool:
    if type(handler).__module__.startswith("awslambdaric"):  # Lambda's handler, which writes to the same log as stdout
        return stream in (sys.stdout, sys.stderr)
    return getattr(handler, "stream", None) is stream


def _is_heard(logger: logging.Logger, streams: Sequence[IO[str]]) -> bool:
    """Return True if a logging handler would write the logger's records to another stream than these."""
    return any(not any(_writes_to(handler, stream) for stream in streams) for handler in _handlers(logger))


def _is_bare(logger: logging.Logger) -> bool:
    """Return True if no logger of the program has a handler; a handler of a web server's logger counts, too."""
    if any(handler is not logging.lastResort for handler in _handlers(logger)):
        return False
    return not any(
        isinstance(handler, logging.StreamHandler)
        for each in list(logging.root.manager.loggerDict.values())
        if isinstance(each, logging.Logger)
        for handler in each.handlers
    )


def _leave_out(logger: logging.Logger) -> None:
    for handler in _handlers(logger):
        if not any(isinstance(each, Once) for each in handler.filters):
            handler.addFilter(Once(handler))


def _handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Yield the handlers that get the logger's records, also those of its parents."""
    any_handler = False
    at: logging.Logger | None = logger
    while at is not None:
        for handler in at.handlers:
            any_handler = True
            yield handler
        at = at.parent if at.propagate else None
    if not any_handler and logging.lastResort is not None:
        yield logging.lastResort
