"""Find where messages run, from the reports of living workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..presence import Hung, WorkerInfo


class Running(Struct, frozen=True, kw_only=True):
    """A message that a worker holds: since when it runs, None while it has not begun; whether in a child process that
    can be killed (`isolated`); and what hangs the worker, if it does."""

    worker: str
    host: str
    pid: int
    since_ms: int | None
    isolated: bool
    hung: Hung | None

    @property
    def process(self) -> str:
        """Its worker's process, in words."""
        return f"pid {self.pid} on {self.host}" if self.pid else self.worker

    @property
    def end(self) -> str:
        """What ends its handler where a cancel does not."""
        if self.isolated:
            return "it runs in a child process, which can be killed"
        heard = "its worker is hung and hears no cancel" if self.hung else "a handler that does not listen to a cancel"
        rest = ": end" if self.hung else " ends with its worker: drain that, or end"
        return f"{heard}{rest} {self.process}; the messages that run in it begin again elsewhere"


def running_of(workers: Iterable[WorkerInfo] | None) -> Mapping[str, Running]:
    """The messages that living workers hold, by id: the first hundred of each."""
    return {
        held.id: Running(
            worker=info.name,
            host=info.host,
            pid=info.pid,
            since_ms=held.since_ms,
            isolated=held.isolated,
            hung=info.hung,
        )
        for info in workers or ()
        if not info.gone
        for held in info.messages
    }
