"""Show Python warnings as lines of a command."""

from __future__ import annotations

import logging
import sys
import time

import click
import msgspec

from ...duration import rfc3339
from ...observe.logs import NoticeLine
from ...redact import in_json, redact
from .failure import note


class Warnings(logging.Handler):
    """Writes warnings of redrive's own on stderr: as `warning: …`, or as JSON among a worker's JSON lines."""

    def __init__(self, *, json: bool = False) -> None:
        super().__init__(logging.WARNING)
        self._json = json

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "redrive"):  # a retry or a death: the worker's own lines have it
            return
        text = redact(record.getMessage())
        if self._json:
            at = rfc3339(time.time_ns() // 1_000_000)
            line = NoticeLine(time=at, level="warning", notice="warning", text=text, worker="")
            click.echo(in_json(msgspec.json.encode(line).decode()), err=True)
        else:
            note(f"warning: {text}")


def tell_warnings(log: str = "text", *, quiet: bool = False) -> None:
    """Show warnings in this way from now on; `quiet` if another process shows the same. `log`: as for a worker."""
    logger = logging.getLogger("redrive")
    for old in [handler for handler in logger.handlers if isinstance(handler, Warnings | logging.NullHandler)]:
        logger.removeHandler(old)
    json = log == "json" or (log == "auto" and not sys.stderr.isatty())
    logger.addHandler(logging.NullHandler() if quiet or log == "off" else Warnings(json=json))
