"""The worker that test_groups starts and kills: `python -m tests.support.crash.groups PLAN`, and what its journal says.

It embeds several workers on one event loop, and works grouped messages until SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, Record, handled, url_of

import redrive

ENDS = ("done", "failed", "died")


class Plan(msgspec.Struct, frozen=True):
    """What a process shall do."""

    place: str
    workers: int = 2
    concurrency: int = 4
    prefetch: int = 2


def make_app(place: Path, journal: Journal) -> redrive.App:
    """The app of all processes. `step` writes down its start and its end: done, failed or died, for `group:n`."""
    app = redrive.App(url_of(place))
    soon = redrive.Retry(max_attempts=4, backoff=redrive.Backoff.fixed("30ms"))

    @app.task(name="step", ctx=True, retry=soon)
    async def step(c: redrive.Context, name: str, run_ms: int, ends: str) -> None:
        note = f"{c.message.group}:{name}"
        journal.write("start", c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence, note=note)
        await asyncio.sleep(run_ms / 1000)
        if ends == "failed" and c.attempt == 1:
            journal.write("failed", c.message_id, attempt=c.attempt, fence=c.fence, note=note)
            raise ConnectionError("the first attempt fails")
        if ends == "died" and c.message.redrives == 0:
            journal.write("died", c.message_id, attempt=c.attempt, fence=c.fence, note=note)
            raise redrive.Reject("not in this life")
        journal.write("done", c.message_id, attempt=c.attempt, fence=c.fence, note=note)

    return app


class History:
    """What the journal says of the groups' runs, in the order in which it happened.

    `kill` records stand just before the SIGKILL: a run that they cut off ends there. What the victim still managed to
    write behind one counts as a run that took no time.
    """

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.most_at_once: dict[str, int] = defaultdict(int)
        self.starts: dict[str, list[int]] = defaultdict(list)  # per group, in order
        self.successes: dict[str, list[int]] = defaultdict(list)
        self.cut_off = self.kills = self.failures = 0
        self.unexplained: list[str] = []  # runs again after an end, though the worker of that end lived
        self._open: dict[str, set[tuple[int, str]]] = defaultdict(set)
        self._killed: set[int] = set()
        self._ended: dict[str, Record] = {}
        for record in records:
            self._add(record)

    def _add(self, r: Record) -> None:
        if r.what == "kill":
            self._kill(int(r.note))
            return
        group, _, name = r.note.partition(":")
        run = r.pid, r.id
        if r.what == "start":
            self.starts[group].append(int(name))
            self._explain(r)
            together = len(self._open[group]) + 1
            self.most_at_once[group] = max(together, self.most_at_once[group])
            if r.pid not in self._killed:
                self._open[group].add(run)
        elif r.what in ENDS:
            self._open[group].discard(run)
            self._ended[r.id] = r
            self.failures += r.what == "failed"
            if r.what == "done":
                self.successes[group].append(int(name))

    def _kill(self, pid: int) -> None:
        self.kills += 1
        self._killed.add(pid)
        for runs in self._open.values():
            cut = {run for run in runs if run[0] == pid}
            runs -= cut
            self.cut_off += len(cut)

    def _explain(self, start: Record) -> None:
        """A run that ended by itself is the last of its attempt, unless its worker was killed before it settled it. A
        death may be followed by a redrive, which counts attempts anew."""
        end = self._ended.get(start.id)
        if end is None or end.pid in self._killed or end.what == "died":
            return
        if end.what == "done" or start.attempt <= end.attempt:
            self.unexplained.append(f"{start.note} ran attempt {start.attempt} again after it was {end.what}")

    def busy(self) -> set[int]:
        """The processes that run something now."""
        return {pid for runs in self._open.values() for pid, _ in runs}

    def first_successes(self, group: str) -> list[int]:
        return list(dict.fromkeys(self.successes[group]))

    def out_of_order(self) -> Iterator[str]:
        """Starts that came before one that stood ahead of them had been done."""
        done: dict[str, set[int]] = defaultdict(set)
        for r in self.records:
            group, _, name = r.note.partition(":")
            if r.what == "start" and (missing := set(range(int(name))) - done[group]):
                yield f"{r.note} started before {sorted(missing)} were done"
            if r.what == "start" and (later := {n for n in done[group] if n > int(name)}):
                yield f"{r.note} started after {sorted(later)} were done"
            if r.what == "done":
                done[group].add(int(name))

    def finished_since(self, at: int) -> set[str]:
        """The groups that began and finished a message after that many records."""
        begun: set[tuple[int, str]] = set()
        found = set()
        for r in self.records[at:]:
            if r.what == "start":
                begun.add((r.pid, r.id))
            elif r.what == "done" and (r.pid, r.id) in begun:
                found.add(r.note.partition(":")[0])
        return found


async def work(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    app = make_app(place, journal)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(plan.workers):
            worker = app.worker(["default"], concurrency=plan.concurrency, prefetch=plan.prefetch)
            await stack.enter_async_context(worker)
            journal.write("up", note=worker.name)
        await stop.wait()
    app.store.close()
    journal.write("exit")


if __name__ == "__main__":
    asyncio.run(work(msgspec.json.decode(sys.argv[1], type=Plan)))
