"""Starts the programs of the crash tests, kills them, and waits for what their journals say."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.support.crash.ledger import Journal, Ledger, Record, handled, opened, produced, read
from tests.support.crash.programs import Plan, acknowledge, drafts_of, kind_of, make_app

from redrive import Draft
from redrive.message import Message

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0  # for a child to end or to say something; far more than it needs
SHARES = 12
ENGINES = ("sqlite", "postgres", "redis")  # the stores that all crash tests run over
SERVER_ENGINES = ENGINES[1:]
KILLED = -9
PROGRAMS = {
    "worker": "programs",
    "producer": "programs",
    "follower": "followers",
    "gatherer": "gathering",
    "payer": "payments",
    "redriver": "redrives",
    "mender": "edits",
    "changer": "changes",
    "member": "members",
    "filler": "members",
    "planner": "members",
    "indexer": "latest",
    "editor": "latest",
}  # the module of each role


class Child:
    """A running program. As a context manager it leaves no process behind."""

    def __init__(
        self, role: str, plan: Plan, *, under: Sequence[str] = (), extra: Mapping[str, str] | None = None
    ) -> None:
        self.place = Path(plan.place)
        argv = [
            *under,
            sys.executable,
            "-m",
            f"tests.support.crash.{PROGRAMS[role]}",
            role,
            msgspec.json.encode(plan).decode(),
        ]
        with (self.place / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=os.environ | dict(extra or {}),
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # its whole group: one that strace leaves behind would run on
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self) -> int:
        """Its exit code, minus the signal's number if one killed it."""
        return self.process.wait(PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        self.process.kill()
        self.process.wait()

    def starts(self) -> int:
        """How many handlers it has started so far."""
        return sum(r.pid == self.process.pid for r in records(self.place, "start"))

    def ends_well(self) -> None:
        code = self.wait()
        assert code == 0, f"exit code {code}; stderr: {(self.place / 'stderr').read_text()[-4000:]}"


def run(role: str, plan: Plan, *, under: Sequence[str] = ()) -> int:
    """Start a child, wait for its end and return its exit code."""
    with Child(role, plan, under=under) as child:
        code = child.wait()
        assert code in (0, KILLED), f"exit code {code}; stderr: {(child.place / 'stderr').read_text()[-4000:]}"
        return code


def fill(place: Path, kinds: Sequence[str] | int, pause_ms: int = 4) -> list[str]:
    """Put messages of these kinds, or so many of the usual mix, and journal that they were acknowledged; their ids."""
    names = [kind_of(n) for n in range(kinds)] if isinstance(kinds, int) else kinds
    return put_all(place, [(kind, None) for kind in names], pause_ms)


def put_all(place: Path, wanted: Sequence[tuple[str, Draft | None]], pause_ms: int = 4) -> list[str]:
    """As `fill`; a kind that comes with a draft is put as that draft."""
    journal, other = Journal(produced(place)), Journal(handled(place))
    app = make_app(place, other)
    usual = iter(drafts_of(app, [kind for kind, draft in wanted if draft is None], pause_ms=pause_ms))
    drafts = [next(usual) if draft is None else draft for _, draft in wanted]
    for (kind, _), draft in zip(wanted, drafts, strict=True):
        journal.write("try", draft.id or "", note=f"{kind}#fill")
    app.enqueue_many(drafts)
    acknowledge(journal, drafts)
    app.store.close()
    journal.close()
    other.close()
    return [draft.id or "" for draft in drafts]


def records(place: Path, what: str, note: str | None = None) -> list[Record]:
    """The handlers' records of one kind."""
    return [r for r in read(handled(place)) if r.what == what and note in (None, r.note)]


def until(what: str, condition: Callable[[], bool], *, child: Child | None = None) -> None:
    """Wait until the condition holds; fails when it does not in PATIENCE_S, or when `child` ended before."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if child is not None and child.process.poll() is not None and not condition():
            pytest.fail(f"the child ended before {what}; stderr: {(child.place / 'stderr').read_text()[-4000:]}")
        assert time.monotonic() < end_s, f"never happened: {what}"
        time.sleep(0.005)


def stored(place: Path, ids: Sequence[str]) -> list[Message | None]:
    """These messages as they lie in the store now."""
    store = opened(place)
    try:
        return store.find(ids)
    finally:
        store.close()


def balanced(place: Path, *, worked_off: bool = True, lost: Sequence[int] = ()) -> Ledger:
    """The ledger, after asserting that it balances."""
    ledger = Ledger(place, lost=lost)
    problems = ledger.problems(worked_off=worked_off)
    if problems:
        pytest.fail("the books do not balance:\n" + "\n".join(problems[:20]))
    return ledger


def sweep(name: str, steps: int, *, shares: int = SHARES) -> pytest.MarkDecorator:
    """Parametrize over steps 1 to `steps`: one of `shares` parts, turning with the seed, in every run, all in `make
    soak`."""
    return pytest.mark.parametrize(name, [pytest.param(n, marks=m) for n, m in _turning(steps, shares)])


def sweep_stores(
    name: str, steps: int, *, shares: int = SHARES, shares_of_servers: int = 4 * SHARES
) -> pytest.MarkDecorator:
    """As `sweep`, over every store; each of those with a server takes a smaller share."""
    return pytest.mark.parametrize(
        f"place, {name}",
        [
            pytest.param(engine, step, marks=marks)
            for engine in ENGINES
            for step, marks in _turning(steps, shares if engine == "sqlite" else shares_of_servers)
        ],
        indirect=["place"],
    )


def mostly_sqlite() -> pytest.MarkDecorator:
    """Parametrize over every store, those with a server in soaks only: what the test is about is not theirs."""
    chosen = [pytest.param(engine, marks=pytest.mark.soak) for engine in SERVER_ENGINES]
    return pytest.mark.parametrize("place", ["sqlite", *chosen], indirect=True)


def _turning(steps: int, shares: int) -> Iterator[tuple[int, pytest.MarkDecorator]]:
    share = int(os.environ.get("TEST_SEED", "0")) % shares
    return ((n, pytest.mark.slow if n % shares == share else pytest.mark.soak) for n in range(1, steps + 1))


def strace(*options: str) -> list[str]:
    """The command under which a child's system calls are counted and tampered with."""
    found = shutil.which("strace")
    assert found is not None, "strace is missing; on Linux these tests must run: install the package strace"
    return [found, "-f", "-qq", *options]
