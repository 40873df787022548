"""Show warnings and errors that the package logs as lines of a command."""

from __future__ import annotations

import logging
import sys
import time
import traceback

import click
import msgspec

from ...duration import rfc3339
from ...observe.logs import NoticeLine
from ...redact import in_json, redact, shown_traceback
from .stderr import block, note


class Warnings(logging.Handler):
    """Writes warnings and errors that redrive logs to stderr: as `warning: …`, or as JSON among a worker's JSON lines.
    An error has its traceback."""

    def __init__(self, *, json: bool = False) -> None:
        super().__init__(logging.WARNING)
        self._json = json

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "redrive"):  # a retry or a death, which is in the worker's own log
            return
        text, level, trace = redact(record.getMessage()), record.levelname.lower(), ""
        # An error such as that of a failed web page.
        if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1] is not None:
            trace = shown_traceback("".join(traceback.format_exception(record.exc_info[1]))).rstrip()
        if self._json:
            at, text = rfc3339(time.time_ns() // 1_000_000), f"{text}\n{trace}" if trace else text
            line = NoticeLine(time=at, level=level, notice="warning", text=text, worker="")
            click.echo(in_json(msgspec.json.encode(line).decode()), err=True)
            return
        note(f"{level}: {text}")
        if trace:
            block(trace)


def tell_warnings(log: str = "text", *, quiet: bool = False) -> None:
    """Write the package's warnings to stderr from now on; not if `quiet`, as another process then writes them. `log` is
    the form, as for a worker."""
    logger = logging.getLogger("redrive")
    for old in [handler for handler in logger.handlers if isinstance(handler, Warnings | logging.NullHandler)]:
        logger.removeHandler(old)
    json = log == "json" or (log == "auto" and not sys.stderr.isatty())
    logger.addHandler(logging.NullHandler() if quiet or log == "off" else Warnings(json=json))
