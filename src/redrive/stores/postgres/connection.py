"""Connections to PostgreSQL on which no wait outlasts a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Generator
from math import inf
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow

from .errors import TooSlow

T = TypeVar("T")
_of_the_parent: list[psycopg.Connection[Any]] = []


class Connection(psycopg.Connection[TupleRow]):
    """A connection on which no wait outlasts `deadline_s`."""

    deadline_s: float = inf  # by time.monotonic()
    committing = False  # whether the commit was sent: then nobody knows whether it took place
    commit_sent: psycopg.Cursor[TupleRow] | None = None  # its cursor
    began_ms = 0  # when its transaction began, by the store's clock
    idle_since_s = 0.0

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        return super().wait(_bounded(gen, self), *args, **options)

    @property
    def has_committed(self) -> bool:
        """Whether the commit was sent and answered."""
        result = None if self.commit_sent is None else self.commit_sent.pgresult
        return result is not None and result.command_status == b"COMMIT"

    def is_silent(self) -> bool:
        """Whether nothing came while it lay idle: else the server has said good-bye, or is gone."""
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not self.broken and not poll.poll(0)

    def drop(self) -> None:
        """Close it without asking the server anything."""
        with contextlib.suppress(Exception):
            self.close()

    def leave_to_parent(self) -> None:
        """In a forked child: forget it without a word to the server, not even good-bye. The child's copy of the socket
        is closed below libpq, so that the server sees when the parent dies; the object is kept, so that nothing ever
        finishes it.
        """
        _of_the_parent.append(self)
        if not self.closed:
            with contextlib.suppress(OSError):
                os.close(self.pgconn.socket)


def _bounded(gen: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """The generator, ended by TooSlow when it still waits at the deadline."""
    try:
        wants = next(gen)
        while True:
            ready = yield wants
            if not ready and time.monotonic() >= connection.deadline_s:
                gen.close()
                raise TooSlow("the server did not answer in time")
            wants = gen.send(ready)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
