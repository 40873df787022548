"""Find the process in which a message runs, from the records of living workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..presence import Hung, WorkerInfo


class Running(Struct, frozen=True, kw_only=True):
    """A message that a worker has claimed. `since_ms`: when it began to run, None if it has not. `isolated`: it runs in
    a child process, which can be killed. `hung`: why the worker is hung, if it is hung."""

    worker: str
    host: str
    pid: int
    since_ms: int | None
    isolated: bool
    hung: Hung | None

    @property
    def process(self) -> str:
        """The worker's process, as text."""
        return f"pid {self.pid} on {self.host}" if self.pid else self.worker

    @property
    def end(self) -> str:
        """How to end a handler that does not obey a cancel, as text."""
        if self.isolated:
            return "it runs in a child process, which can be killed"
        heard = "its worker is hung and hears no cancel" if self.hung else "a handler that does not listen to a cancel"
        rest = ": end" if self.hung else " ends with its worker: drain that, or end"
        return f"{heard}{rest} {self.process}; the messages that run in it begin again elsewhere"


def running_of(workers: Iterable[WorkerInfo] | None) -> Mapping[str, Running]:
    """Return, by id, the messages that living workers have claimed: the first hundred of each worker."""
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
