"""Read the figures that rules compare, each at most once per check of all rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from ..batch import BatchInfo, BatchPhase
from ..history import SloStatus, Tally, read_objectives
from ..history.chunk import MINUTE_MS
from ..history.names import read_names
from ..history.read import counts_of
from ..history.recorder import SeriesName
from ..history.tally import TallyCounts, tally_of
from ..message import Counts as LaneCounts
from ..presence import WorkerInfo, with_claimed
from ..registry import Registry
from ..status import read_batches, schedule_statuses, worked, worker_reports
from ..store import Store
from .rule import AlertRule

WINDOW_MS = 15 * MINUTE_MS  # length of the period over which error rates and percentiles are computed
RUNS_MIN = 20  # with fewer runs in the window there is no share and no percentile
NAMES_MAX = 200  # most queues and tasks whose history is read, the most recently active ones


class FigureSubject(NamedTuple):
    """The subject of a figure: a queue, a task in a queue, an objective, a worker, a schedule, or the batches of a
    name."""

    queue: str = ""
    task: str = ""
    about: str = ""


class Figures:
    """The figures of a store at one moment, each read when a rule first needs it. Reading raises StoreError, and
    Unsupported if the store does not keep the figure."""

    def __init__(self, store: Store, app: Registry) -> None:
        self._store, self._app = store, app

    def of(self, rule: AlertRule) -> dict[FigureSubject, float]:
        """Return the figures that a rule compares with its threshold, by subject."""
        match rule.name:
            case "depth" | "dead" | "age":
                values = {FigureSubject(queue): value for queue, value in self._lanes(rule.name)}
            case "no_workers":
                values = {FigureSubject(queue): waiting for queue, waiting in self._without_worker()}
            case "error_rate" | "p95":
                values = {FigureSubject(queue, task): value for (queue, task), value in self._runs(rule.name)}
            case "worker_hung":
                values = {FigureSubject(about=worker): hung_s for worker, hung_s in self._hung()}
            case "slo_burn":
                values = dict(self._burns(rule))
            case "batch_partial" | "batch_unsealed":
                values = {FigureSubject(about=name): value for name, value in self._batches(rule.name)}
            case _:
                values = {FigureSubject(about=name): late_s for name, late_s in self._late()}
        return {subject: value for subject, value in values.items() if self._is_looked_at(rule, subject)}

    def _is_looked_at(self, rule: AlertRule, subject: FigureSubject) -> bool:
        return rule.takes(subject.queue or None, subject.task or None)

    @cached_property
    def _counts(self) -> Mapping[str, LaneCounts]:
        return with_claimed(self._store.counts_by_queue(), self._workers)

    @cached_property
    def _workers(self) -> tuple[WorkerInfo, ...] | None:
        return worker_reports(self._store)

    def _lanes(self, name: str) -> Iterator[tuple[str, float]]:
        for queue, counts in self._counts.items():
            yield queue, {"depth": counts.ready, "dead": counts.dead, "age": counts.oldest_age_s}[name]

    def _without_worker(self) -> Iterator[tuple[str, float]]:
        """Yield each queue that has due messages and no living worker, with the number of its due messages."""
        known = worked(self._workers)
        paused = self._store.paused()
        for queue, counts in self._counts.items():
            if known is not None and counts.ready and queue not in known and queue not in paused:
                yield queue, counts.ready

    def _hung(self) -> Iterator[tuple[str, float]]:
        """Yield each living worker that cannot start messages, with the seconds for which it has been so."""
        now_ms = self._store.now_ms()
        for info in self._workers or ():
            if info.hung is not None and not info.gone:
                yield info.name, max(1, now_ms - info.hung.since_ms) / 1000

    @cached_property
    def _tallies(self) -> Mapping[SeriesName, Tally]:
        now_ms = self._store.now_ms()
        lately = sorted(read_names(self._store).items(), key=lambda item: -item[1])[:NAMES_MAX]
        tallies: dict[SeriesName, Tally] = {}
        for name, _ in lately:
            counts: TallyCounts = {}
            for _, key, count in counts_of(self._store, [name], now_ms - WINDOW_MS, now_ms):
                counts[key] = counts.get(key, 0) + count
            if counts:
                tallies[name] = tally_of(counts)
        return tallies

    def _runs(self, name: str) -> Iterator[tuple[SeriesName, float]]:
        for of, tally in self._tallies.items():
            if name == "error_rate" and tally.done + tally.failed >= RUNS_MIN:
                yield of, tally.error_rate or 0.0
            elif name == "p95" and tally.run.count >= RUNS_MIN:
                yield of, (tally.run.percentile(0.95) or 0.0) / 1000

    @cached_property
    def _objectives(self) -> tuple[SloStatus, ...]:
        return read_objectives(self._store, self._app)

    def _burns(self, rule: AlertRule) -> Iterator[tuple[FigureSubject, float]]:
        """Yield burn rates by objective: with `above`, that of the shortest windows; else of the first alert that
        fires."""
        for slo in self._objectives:
            subject = FigureSubject(task=slo.name) if slo.kind == "task" else FigureSubject(queue=slo.name)
            if rule.above:
                yield subject, min(slo.burns[0].long, slo.burns[0].short)
            else:
                yield subject, max((burn.long for burn in slo.firing[:1]), default=0.0)

    @cached_property
    def _read_batches(self) -> Sequence[BatchInfo]:
        return read_batches(self._store).found

    def _batches(self, name: str) -> Iterator[tuple[str, float]]:
        """Yield each name of batches with how many wait for a redrive, or the longest time in seconds for which a
        producer has added no member."""
        if name == "batch_partial":
            yield from Counter(batch.name for batch in self._read_batches if batch.waits_for_redrive).items()
            return
        now_ms = self._store.now_ms()
        filling = sorted(
            (batch.filled_ms, batch.name) for batch in self._read_batches if batch.state is BatchPhase.FILLING
        )
        for filled_ms, of in reversed(filling):  # the longest time comes last, and counts
            yield of, (now_ms - filled_ms) / 1000

    def _late(self) -> Iterator[tuple[str, float]]:
        for schedule in schedule_statuses(self._app, self._store):
            if schedule.late_ms is not None and not schedule.paused:
                yield schedule.name, schedule.late_ms / 1000
