"""Change one place of a store, look at it in every way, let a worker work, look again, and compare with the ledger.

    python -m tests.support.attack.fuzz ENGINE PLACE SEED FIRST COUNT

The process has a bound on its memory, and ends itself where a look or a command takes longer than a bound; whoever
started it takes the corruption that was named last for the cause, and goes on behind it (`fuzzed`). Each round is a
line of JSON.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

TRIES = 20
LIMIT_S = 15.0  # of one look, command or worker
MEMORY = 700 << 20  # beyond what the process has when the fuzzing begins
COUNTED = "messages are stored, but"
EXPECTED = ("started", "run_started", "stopped", "redrive_run", "caught_up")


class Round(Struct, kw_only=True):
    """What one corruption led to."""

    n: int
    text: str
    reach: str = "row"
    refused: bool = False
    problems: list[str] = []
    bystanders: int = 0  # runs of the others
    raised: int = 0  # attempts of the others beyond their own
    slowest_s: float = 0.0
    slowest: str = ""
    peak_mb: int = 0


class Figures(Struct, kw_only=True):
    """Over many rounds."""

    corruptions: int = 0
    refused: int = 0
    problems: list[str] = []
    bystanders: int = 0
    raised: int = 0
    peak_mb: int = 0
    slowest_s: float = 0.0
    slowest: str = ""

    def add(self, one: Round) -> None:
        self.corruptions += not one.refused
        self.refused += one.refused
        self.problems += [f"{one.n}: {one.text}: {problem}" for problem in one.problems]
        self.bystanders += one.bystanders
        self.raised += one.raised
        self.peak_mb = max(self.peak_mb, one.peak_mb)
        if one.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = one.slowest_s, one.slowest


def fuzzed(engine: str, place: str, seed: int, count: int, first: int = 0) -> Figures:
    """Run the rounds in processes of their own: one that dies is named, and the next goes on behind it."""
    figures, end = Figures(), first + count
    while first < end:
        words = [
            sys.executable,
            "-m",
            "tests.support.attack.fuzz",
            engine,
            place,
            str(seed),
            str(first),
            str(end - first),
        ]
        done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[3])
        begun = ""
        for line in done.stdout.splitlines():
            found = json.loads(line)
            begun, first = found.get("begun", ""), found["n"] + 1
            if not begun:
                figures.add(Round(**found))
        if done.returncode and not begun:
            raise AssertionError(f"the fuzzer failed:\n{done.stderr[-4000:]}")
        if begun:
            told = " | ".join(line.strip() for line in done.stderr.splitlines()[-60:] if "redrive" in line)[:1500]
            figures.add(Round(n=first - 1, text=begun, problems=[f"the process ended ({done.returncode}): {told}"]))
    return figures


# -- in the process


def main(engine: str, place: str, seed: int, first: int, count: int) -> None:
    from tests.support.attack.fuzz_bytes import bytes_of
    from tests.support.attack.fuzz_world import build

    from redrive.stores import open_store

    spot = bytes_of(engine, place)
    spot.clear()
    store = open_store(spot.url)
    ledger = build(store)
    store.close()
    spot.save()
    limit_memory()
    for n in range(first, first + count):
        one = Fuzz(spot, ledger, seed, n).round()
        print(json.dumps(_plain(one)), flush=True)
    spot.close()


def limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()  # data and stacks
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))


def _plain(one: Round) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


class Fuzz:
    """One round."""

    def __init__(self, spot: Any, ledger: Any, seed: int, n: int) -> None:
        self._spot, self._ledger = spot, ledger
        self._draw = random.Random(f"{seed}/{n}")
        self._one = Round(n=n, text="")

    def round(self) -> Round:
        from tests.support.attack.fuzz_world import work_off

        self._spot.restore()
        corruption = self._spot.corrupt(self._draw)
        for _ in range(TRIES):  # the engine keeps columns to their types, and names unique
            if not corruption.refused:
                break
            corruption = self._spot.corrupt(self._draw)
        self._corruption = corruption
        one = self._one
        one.text, one.reach, one.refused = corruption.text, corruption.reach, corruption.refused
        one.problems = []
        if corruption.refused:
            return one
        print(json.dumps({"begun": corruption.text, "n": one.n}), flush=True)
        self._looks("before")
        ran = self._timed("worker", lambda: work_off(self._spot.url))
        self._looks("after")
        if ran is not None:
            self._compare(ran)
        one.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return one

    def _problem(self, text: str) -> None:
        self._one.problems.append(text)

    def _timed(self, name: str, act: Callable[[], Any]) -> Any:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        since_s = time.monotonic()
        try:
            return act()
        except Exception as error:
            if not self._allowed(error):
                self._problem(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]} {_place(error)}")
            return None
        finally:
            faulthandler.cancel_dump_traceback_later()
            took_s = time.monotonic() - since_s
            if took_s > self._one.slowest_s:
                self._one.slowest_s, self._one.slowest = took_s, name

    def _allowed(self, error: Exception) -> bool:
        """A refusal with a type, where more than one message was hit."""
        from redrive.errors import RedriveError

        return isinstance(error, RedriveError) and self._corruption.reach != "row"

    def _looks(self, when: str) -> None:
        from redrive.stores import open_store

        store = self._timed("open", lambda: open_store(self._spot.url))
        if store is None:
            return
        with contextlib.closing(store):
            for name, look in _looks(store, [*self._ledger]):
                self._timed(f"{name} {when}", look)
        for words in self._draw.sample(COMMANDS, 1):
            self._timed(" ".join(words), lambda words=words: self._command(words))  # type: ignore[misc]

    def _command(self, words: tuple[str, ...]) -> None:
        from redrive.program.main import run

        victim = self._corruption.victim or next(iter(self._ledger))
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run([*(word.replace("ID", victim) for word in words), "--url", self._spot.url])
        text = said.getvalue()
        if "error: unexpected" in text or code not in ((0, 1, 4) if self._corruption.reach == "row" else (0, 1, 3, 4)):
            self._problem(f"{' '.join(words)}: exit {code}: {' '.join(text.split())[-400:]}")

    def _compare(self, ran: Any) -> None:
        from redrive.stores import open_store

        with contextlib.closing(open_store(self._spot.url)) as store:
            ids = [*self._ledger]
            there = self._timed("find", lambda: store.find(ids))
            told = self._timed("check", store.check)
            if there is None or told is None:
                return
            found = dict(zip(ids, there, strict=True))
            for id, entry in self._ledger.items():
                if id != self._corruption.victim:
                    self._bystander(id, entry, ran, found[id], told, store)
            victim = self._corruption.victim
            if victim in found and self._corruption.reach == "row":
                self._victim(victim, ran, found[victim], told)
            if ran.endless and not self._is_leased(store, told):
                self._problem("the worker did not end by itself")
            odd = [name for name in ran.notices if name not in (*EXPECTED, *["draining"] * ran.endless)]
            if odd and self._corruption.reach == "row":
                self._problem(f"the worker complained: {sorted(set(odd))}: {ran.texts[-3:]}")

    def _is_leased(self, store: Any, told: list[str]) -> bool:
        """Whether a burst rightly waits for a lease that ends some time, or the check says what is wrong."""
        from redrive.message import Lane

        now_ms = store.now_ms()
        leased = store.peek(Lane.LEASED).messages
        named = any((self._corruption.victim or "?") in line for line in told)
        return named or any(m.due_ms > now_ms for m in leased if m.queue in ("plain", "lines", "strict"))

    def _bystander(self, id: str, entry: Any, ran: Any, message: Any, told: list[str], store: Any) -> None:
        runs = ran.runs[id]
        self._one.bystanders += runs
        if runs > entry.runs:
            self._problem(f"bystander {id} ran {runs} times, expected {entry.runs}")
        if runs:
            self._one.raised += max(0, ran.attempts[id] - entry.attempt)
            if ran.attempts[id] != entry.attempt and self._corruption.reach != "all":
                self._problem(f"bystander {id} ran in attempt {ran.attempts[id]}, expected {entry.attempt}")
        if self._corruption.reach == "all":
            return
        if not runs and entry.runs and not self._waits(entry, told, store):
            where = "gone" if message is None else f"{message.lane} {message.reason}"
            self._problem(f"bystander {id} of {entry.group} did not run ({where}); check: {told}")
        if not entry.runs and (message is None or message.lane != entry.lane):
            self._problem(f"bystander {id} is {None if message is None else message.lane}, expected {entry.lane}")

    def _waits(self, entry: Any, told: list[str], store: Any) -> bool:
        """Whether it waits for its group, and that can be seen: places are taken, or the check says that none is."""
        if entry.group is None:
            return False
        queue, name = entry.group
        if any(repr(name) in line for line in told):
            return True
        groups = [group for group in store.groups(queue) if group.name == name]
        return any(group.taken >= group.width or group.blocked_by for group in groups)

    def _victim(self, id: str, ran: Any, message: Any, told: list[str]) -> None:
        """It ran, or is there, or is named."""
        if ran.runs[id] > 1:
            self._problem(f"the victim ran {ran.runs[id]} times")
        if (
            message is None
            and not self._corruption.renamed
            and not ran.runs[id]
            and not any(id in line or COUNTED in line for line in told)
        ):
            self._problem(f"the victim is gone and did not run; check: {told}")


def _place(error: BaseException) -> str:
    last = error.__traceback__
    place = ""
    while last is not None:
        name = last.tb_frame.f_code.co_filename
        if "redrive" in name:
            place = f"{Path(name).name}:{last.tb_lineno}"
        last = last.tb_next
    return place


COMMANDS: list[tuple[str, ...]] = [
    ("status",), ("status", "-o", "json"), ("dlq", "list"), ("dlq", "groups"), ("dlq", "list", "lane:quarantine"),
    ("job", "list"), ("job", "show", "ID"), ("dlq", "show", "ID"), ("queue", "list"), ("upcoming",), ("workers",),
    ("history",), ("audit", "list"), ("audit", "verify"), ("run", "list"), ("flow", "list"),
    ("doctor",), ("group", "list", "lines"), ("store", "check"), ("dlq", "plan", "lane:dead"), ("dlq", "audit"),
]  # fmt: skip


def _looks(store: Any, ids: list[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    from redrive.message import Lane

    yield "counts", store.counts
    yield "counts_by_queue", store.counts_by_queue
    yield "queues", store.queues
    yield "paused", store.paused
    yield "find", lambda: store.find(ids)
    yield "failure_groups", lambda: store.failure_groups(trend=True)
    yield "check", store.check
    for lane in (None, *Lane):
        yield f"peek {lane}", lambda lane=lane: _pages(store, lane)
    for queue in ("plain", "lines", "strict"):
        yield f"groups {queue}", lambda queue=queue: store.groups(queue)
        yield f"due_counts {queue}", lambda queue=queue: store.due_counts(queue, [0, store.now_ms(), 2**50])


def _pages(store: Any, lane: Any) -> None:
    page = store.peek(lane, limit=10)
    for _ in range(100):
        if page.cursor is None:
            return
        page = store.peek(lane, limit=10, cursor=page.cursor)
    raise AssertionError("a list of thirty messages has more than a hundred pages")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
