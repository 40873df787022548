"""Workers and schedulers that are alive, or were killed lately, and what one runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ...duration import show
from ...present.table import cell
from ...present.workers import COLUMNS, work_lines, worker_record
from ...redact import joined
from ..model import Model
from ..screen import Screen, ScreenPage, ScreenRow, Text
from ..texts import count, pairs, shown
from ..tones import Tone

if TYPE_CHECKING:
    from ...presence import WorkerInfo


NAMED_MAX = 3  # the most workers of a state that the first line names
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
        """The hung and the killed ones come first, and a line above all says how many there are."""
        found: Sequence[WorkerInfo] = self.reading
        hung = [info for info in found if info.hung is not None and not info.gone]
        gone = [info for info in found if info.gone]
        rest = [info for info in found if info.hung is None and not info.gone]
        states = (("HUNG", hung), ("GONE without a word", gone))
        says = [f"{word} {len(some):,}: {', '.join(w.name for w in some[:NAMED_MAX])}" for word, some in states if some]
        first = ("; ".join(says), Tone.ACT) if says else None
        rows = [row_of(info) for info in (*hung, *gone, *rest)]
        return ScreenPage(rows, empty="no worker tells that it is alive", first=first)

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

    def tones(self, row: ScreenRow) -> Mapping[str, Tone]:
        return {"line": Tone.ACT} if str(row["line"]).startswith("HUNG ") else {}

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
        if info.hung is not None and not info.gone:
            yield from ("", f"HUNG for {show((self.now_ms - info.hung.since_ms) // 1000)}: {info.hung.text(info.name)}")
        yield from ("", "queues")
        for queue in info.queues:
            yield joined("  ", queue.name, f": holds {queue.held:,} of {queue.concurrency:,}")
        yield from ("", f"{'not taken over yet:' if info.gone else 'holds'} {count(info.held, 'message')}")
        yield from (f"  {line}" for line in work_lines(info, self.now_ms))
