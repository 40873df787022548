"""Workers and schedulers that are alive, or were killed lately, and what one runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...present.formats import seconds, share, timestamp
from ...present.table import Column
from ...redact import joined
from ..model import Model
from ..screen import Screen, ScreenPage, ScreenRow, Text
from ..texts import count, pairs

if TYPE_CHECKING:
    from ...presence import WorkerInfo


def _figure(value: float | None, unit: str = "") -> str | None:
    return None if value is None else f"{value:g}{unit}"


def row_of(info: WorkerInfo) -> dict[str, Any]:
    return {
        "id": f"{info.name} {info.host} {info.pid} {info.started_ms}",
        "name": info.name,
        "state": info.state.upper() if info.gone or info.hung else info.state,
        "pid": str(info.pid),
        "held": info.held,
        "running": info.running,
        "queues": ", ".join(queue.name for queue in info.queues) or None,
        "claims": _figure(info.claims_per_s),
        "cpu": None if info.cpu_share is None else share(info.cpu_share),
        "memory": None if info.rss_bytes is None else f"{info.rss_bytes / 2**20:,.0f} MiB",
        "lag": _figure(info.loop_lag_ms, " ms"),
        "store": _figure(info.store_p99_ms, " ms"),
        "ahead": _figure(info.clock_ahead_ms, " ms"),
        "version": info.version or None,
        "seen_at": timestamp(info.seen_ms),
    }


class WorkersScreen(Screen):
    name: ClassVar[str] = "workers"
    columns = (
        Column("name", shrinks=True),
        Column("state"),
        Column("pid", spare=4),
        Column("held"),
        Column("running"),
        Column("claims", "claims/s", spare=1),
        Column("cpu", spare=1),
        Column("memory", spare=2),
        Column("lag", "loop lag p99", spare=3),
        Column("store", "store p99", spare=3),
        Column("ahead", "clock", spare=5),
        Column("version", spare=5),
        Column("seen_at", "seen", spare=2),
        Column("queues", shrinks=True),
    )

    def read(self, model: Model) -> Sequence[WorkerInfo]:
        from ...presence import read_workers

        return read_workers(model.store)

    def page(self) -> ScreenPage:
        return ScreenPage([row_of(info) for info in self.reading], empty="no worker tells that it is alive")

    def look(self, row: ScreenRow) -> Screen:
        return WorkerDetail(row["id"], row["name"])


class WorkerDetail(Text):
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
        yield from pairs(
            [
                ("name", info.name),
                ("state", row["state"]),
                ("process", f"{info.pid} on {info.host}"),
                ("version", info.version),
                ("app", info.app),
                ("started", timestamp(info.started_ms)),
                ("told last", timestamp(info.seen_ms)),
                ("claims/s", row["claims"]),
                ("processor", row["cpu"]),
                ("memory", row["memory"]),
                ("loop lag p99", row["lag"]),
                ("store p50", _figure(info.store_p50_ms, " ms")),
                ("store p99", row["store"]),
                ("clock ahead", row["ahead"]),
            ]
        )
        if info.hung is not None and not info.gone:
            yield from ("", f"{info.hung.text(info.name)}, for {seconds(_since_s(self.now_ms, info.hung.since_ms))}")
        yield from ("", "queues")
        for queue in info.queues:
            yield joined("  ", queue.name, f": holds {queue.held:,} of {queue.concurrency:,}")
        yield from ("", f"{'not taken over yet:' if info.gone else 'holds'} {count(info.held, 'message')}")
        for message in info.messages:
            ran = (
                "waits to start"
                if message.since_ms is None
                else f"runs {seconds(_since_s(self.now_ms, message.since_ms))}"
            )
            words = [word for word, is_so in (("isolated", message.isolated), ("alone", message.alone)) if is_so]
            yield f"  {message.id}  {message.task}  {', '.join([ran, *words])}"
        if info.held > len(info.messages):
            yield f"  and {info.held - len(info.messages):,} more"
        for what, names in (("carries runs", info.runs), ("schedules", info.schedules)):
            if names:
                yield from ("", f"{what}: {', '.join(names)}")


def _since_s(now_ms: int, since_ms: int) -> float:
    return max(0, now_ms - since_ms) / 1000
