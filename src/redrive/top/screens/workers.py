"""Workers and schedulers that are alive, or were killed lately, and what one runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from ...present.table import cell
from ...present.workers import COLUMNS, work_lines, worker_record
from ...redact import joined
from ..model import Model
from ..screen import Screen, ScreenPage, ScreenRow, Text
from ..texts import count, pairs, shown

if TYPE_CHECKING:
    from ...presence import WorkerInfo


_FIGURES = COLUMNS[6:-4]  # the columns from claims to the clock


def row_of(info: WorkerInfo) -> ScreenRow:
    """Return a worker as a row. A state to be noticed is in upper case, as colours alone may not be visible."""
    return {
        **worker_record(info),
        "id": f"{info.name} {info.host} {info.pid} {info.started_ms}",
        "state": info.state.upper() if info.gone or info.hung else info.state,
        "queues": [shown(queue.name) for queue in info.queues],
    }


class WorkersScreen(Screen):
    name: ClassVar[str] = "workers"
    columns = COLUMNS

    def read(self, model: Model) -> Sequence[WorkerInfo]:
        from ...presence import read_workers

        return read_workers(model.store)

    def page(self) -> ScreenPage:
        return ScreenPage([row_of(info) for info in self.reading], empty="no worker tells that it is alive")

    def look(self, row: ScreenRow) -> Screen:
        return WorkerDetail(row["id"], row["name"])


class WorkerDetail(Text):
    worker: str

    def __init__(self, id: str, worker: str) -> None:
        super().__init__()
        self._id, self.worker = id, worker

    @property
    def title(self) -> str:
        return f"worker {self.worker}"

    def read(self, model: Model) -> Sequence[WorkerInfo]:
        from ...presence import read_workers

        return [info for info in read_workers(model.store) if row_of(info)["id"] == self._id]

    def lines(self) -> Sequence[str]:
        if not self.reading:
            return [f"worker {self.worker} has ended"]
        return list(self._lines(self.reading[0]))

    def _lines(self, info: WorkerInfo) -> Iterator[str]:
        row = row_of(info)
        figures = [
            (column.title, cell(row[column.name], column)) for column in _FIGURES if row[column.name] is not None
        ]
        yield from pairs(
            [
                ("name", info.name),
                ("state", row["state"]),
                ("process", f"{info.pid} on {info.host}"),
                ("version", info.version),
                ("app", info.app),
                ("started", row["started_at"]),
                ("reported", row["seen_at"]),
                *figures,
            ]
        )
        yield from ("", "queues")
        for queue in info.queues:
            yield joined("  ", queue.name, f": holds {queue.held:,} of {queue.concurrency:,}")
        yield from ("", f"{'not taken over yet:' if info.gone else 'holds'} {count(info.held, 'message')}")
        yield from (f"  {line}" for line in work_lines(info, self.now_ms))
