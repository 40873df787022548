"""One message that kills whoever runs it, among eleven good ones: it alone is quarantined, with the evidence, and
nobody else runs more than twice."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import redrive
from redrive.fault import Crash
from redrive.message import Draft, Lane, Message

from .children import ENGINES, PATIENCE_S, ROOT, SERVER_ENGINES, records
from .ledger import url_of

pytestmark = pytest.mark.slow

CLI = (
    *(sys.executable, "-m", "redrive", "worker", "tests.crash.poison:app", "-q", "default:4", "--drain"),
    *("--lease", "2s", "--grace", "1s", "--log", "json"),
)  # runs suspects in child processes
QUICK = (sys.executable, "-m", "tests.crash.poison", "parent")  # sees after a second and a half what hangs
BIG_BYTES = 150_000_000
WAYS = {
    "killed": {"cause": "signal", "signal": "SIGKILL"},
    "exits": {"cause": "exit", "code": 3},
    "exits well": {"cause": "exit", "code": 0},
    "exits as if misused": {"cause": "exit", "code": 2},
    "segfault": {"cause": "signal", "signal": "SIGSEGV"},
    "memory": {"cause": "signal", "signal": "SIGKILL"},
    "hangs": {"cause": "hung", "signal": "SIGKILL"},
}


def ways(*names: str) -> list[object]:
    """One of them in every run, turning with the seed; all in soaks."""
    turn = int(os.environ.get("TEST_SEED", "0")) % len(names)
    return [pytest.param(name, marks=() if n == turn else pytest.mark.soak) for n, name in enumerate(names)]


def engines() -> pytest.MarkDecorator:
    chosen = [pytest.param(engine, marks=pytest.mark.soak) for engine in SERVER_ENGINES]
    return pytest.mark.parametrize("place", [ENGINES[0], *chosen], indirect=True)


class Fleet:
    """A supervising parent in a session of its own."""

    def __init__(self, place: Path, argv: Sequence[str]) -> None:
        self.place = place
        with (place / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=os.environ | {"POISON_PLACE": str(place)},
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )

    def said(self) -> str:
        return (self.place / "stderr").read_text()[-6000:]

    def ends_well(self) -> None:
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"exit code {code}; stderr: {self.said()}"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def fleet(place: Path, argv: Sequence[str]) -> Iterator[Fleet]:
    started = Fleet(place, argv)
    try:
        yield started
    finally:
        started.kill()


@contextlib.contextmanager
def killer_of_big_ones() -> Iterator[None]:
    """What the kernel does where memory ends, sooner: whoever of ours has too much is killed."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/status"):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    environ = (path.parent / "environ").read_bytes()
                    resident = int(path.read_text().split("VmRSS:")[1].split()[0]) * 1024
                    if b"POISON_PLACE=" in environ and resident > BIG_BYTES:
                        os.kill(int(path.parent.name), signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def fill(place: Path, way: str, seed: int, task: str = "poison") -> tuple[str, list[str]]:
    """Eleven good ones, and the poison somewhere among them: its id and theirs."""
    app = redrive.App(url_of(place))
    drafts = [
        Draft(task=random.Random(f"{seed}.{n}").choice(("good", "good_too")), body=b'{"n": 1}') for n in range(11)
    ]
    at = random.Random(seed).randrange(12)
    drafts.insert(at, Draft(task=task, body=b'{"way": "%s"}' % way.encode()))
    ids = [ref.id for ref in app.enqueue_many(drafts)]
    app.store.close()
    print(f"TEST_SEED={seed}: the poison is number {at}")
    return ids[at], [*ids[:at], *ids[at + 1 :]]


def left(place: Path, ids: Sequence[str]) -> list[Message]:
    app = redrive.App(url_of(place))
    try:
        return [message for message in app.store.find(ids) if message is not None]
    finally:
        app.store.close()


def state_dir_of(place: Path) -> Path:
    app = redrive.App(url_of(place))
    state_dir = app.store.state_dir
    app.store.close()
    assert state_dir is not None
    return state_dir


def convicted(place: Path, poison: str, good: Sequence[str]) -> Message:
    """The poison, after asserting that it alone was quarantined, and the others are done after two runs at most."""
    [message] = left(place, [poison, *good])
    assert (message.id, message.lane, message.reason) == (poison, Lane.QUARANTINE, "crashed")
    assert [crash.alone for crash in evidence(message)] == [False, True, True, True] and message.attempt <= 1
    starts = Counter(record.id for record in records(place, "start"))
    assert set(starts) == {poison, *good} and starts[poison] == 4
    assert max(starts[id] for id in good) <= 2, starts
    assert max(record.attempt for record in records(place, "start")) <= 2
    assert {record.id for record in records(place, "end")} == set(good)
    return message


def in_doubt(place: Path, first: Crash, poison: str) -> set[str]:
    """Of what a crash names, what had not ended in that process: a hung loop also keeps back what ended before it."""
    process = next(record.pid for record in records(place, "start") if record.id == poison)
    return set(first.started) - {record.id for record in records(place, "end") if record.pid == process}


def evidence(message: Message) -> list[Crash]:
    return [fault.crash for fault in message.faults if fault.crash is not None]


def assert_evidence(place: Path, message: Message, way: str, good: Sequence[str]) -> None:
    first, *alone = evidence(message)
    assert message.id in first.started and not first.alone and first.started_count == len(first.started)
    assert len(in_doubt(place, first, message.id)) <= 4
    assert set(first.started) <= {message.id, *good}
    assert {crash.started for crash in alone} == {(message.id,)}
    for crash in (first, *alone):
        assert {name: getattr(crash, name) for name in WAYS[way]} == WAYS[way]
        assert crash.peak_bytes is not None and crash.peak_bytes > 10_000_000
        assert crash.host == os.uname().nodename and crash.worker.startswith(crash.host)
    if way == "memory":
        assert max(crash.peak_bytes or 0 for crash in alone) > BIG_BYTES


@engines()
@pytest.mark.parametrize("way", ways("killed", "exits", "exits well", "segfault", "memory", "exits as if misused"))
@pytest.mark.fault("a message that kills its worker process, each time it is run")
def test_poison_is_quarantined_with_evidence_and_the_others_are_done(place: Path, way: str, seed: int) -> None:
    poison, good = fill(place, way, seed)
    with fleet(place, QUICK) as workers, killer_of_big_ones():
        workers.ends_well()
    assert_evidence(place, convicted(place, poison, good), way, good)


@engines()
@pytest.mark.parametrize("task", ways("poison", "poison_on_the_loop"))
@pytest.mark.fault("a message that hangs its worker process, each time it is run")
def test_what_hangs_its_process_is_killed_by_the_supervisor_and_convicted(place: Path, task: str, seed: int) -> None:
    poison, good = fill(place, "hangs", seed, task)
    with fleet(place, QUICK) as workers:
        workers.ends_well()
    assert_evidence(place, convicted(place, poison, good), "hangs", good)
    assert "hung; its process was killed by SIGKILL" in left(place, [poison])[0].faults[-1].text


@engines()
@pytest.mark.parametrize("way", ways("memory", "killed", "exits", "exits well", "segfault", "exits as if misused"))
@pytest.mark.fault("a message that kills its worker process, each time it is run")
def test_a_worker_of_an_app_runs_suspects_in_a_child_and_goes_on(place: Path, way: str, seed: int) -> None:
    poison, good = fill(place, way, seed)
    with fleet(place, CLI) as workers, killer_of_big_ones():
        workers.ends_well()
    message = convicted(place, poison, good)
    first, *alone = evidence(message)
    assert poison in first.started and len(in_doubt(place, first, poison)) <= 4
    for crash in (first, *alone):
        assert {name: getattr(crash, name) for name in WAYS[way]} == WAYS[way]
        assert crash.peak_bytes is None or crash.peak_bytes > 10_000_000
    assert len({record.pid for record in records(place, "start") if record.id != poison}) <= 2 + len(first.started)


@pytest.mark.soak
@pytest.mark.parametrize("place", ENGINES, indirect=True)
@pytest.mark.fault("kill -9 of a worker's whole tree by a message, its record of what it started lost")
def test_a_host_that_dies_hard_is_counted_through_lost_leases(place: Path, seed: int) -> None:
    poison, good = fill(place, "tree", seed)
    state_dir, lives = state_dir_of(place), 0
    while not (found := left(place, [poison])) or found[0].lane is not Lane.QUARANTINE:
        lives += 1
        assert lives <= 8, found
        with fleet(place, QUICK) as workers:
            workers.process.wait(PATIENCE_S)
        shutil.rmtree(state_dir)  # another host comes next
    with fleet(place, QUICK) as workers:
        workers.ends_well()
    [message] = left(place, [poison, *good])
    starts = Counter(record.id for record in records(place, "start"))
    assert (message.lane, message.reason, message.crashes_alone) == (Lane.QUARANTINE, "crashed", 3)
    assert [(crash.cause, crash.alone) for crash in evidence(message)] == [("lease", True)]
    assert starts[poison] == 4 and max(starts[id] for id in good) <= 2, starts
    assert {record.id for record in records(place, "end")} == set(good)
