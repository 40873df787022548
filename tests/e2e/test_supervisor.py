"""A supervising parent and its worker processes: killed, stopped, blocked, told to end, in every order that matters."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.fleet import Journal, Line, Plan, make_app

from redrive.message import Lane, Message

PATIENCE_S = 60.0  # for what comes at once or never
FLEET = Path(__file__).parents[1] / "support" / "fleet.py"

pytestmark = pytest.mark.slow


class Fleet:
    """A supervising parent in a session of its own, and what its children write down."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.place = plan, Path(plan.place)
        self.stderr = (self.place / "stderr").open("ab")
        argv = [sys.executable, str(FLEET), "parent", msgspec.json.encode(plan).decode()]
        self.parent = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=self.stderr, start_new_session=True)

    def lines(self, what: str) -> list[Line]:
        return [line for line in Journal.read(self.place) if line.what == what]

    def pids(self) -> list[int]:
        """Of all children that ever came up, in that order."""
        return [line.pid for line in self.lines("up")]

    def starts(self) -> list[Line]:
        return self.lines("start")

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, f"it did not come; stderr: {self.said()}"
            time.sleep(0.01)

    def wait(self) -> int:
        return self.parent.wait(PATIENCE_S)

    def said(self) -> str:
        return (self.place / "stderr").read_text()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.parent.pid, signal.SIGKILL)
        self.parent.wait()
        self.stderr.close()


class Place:
    """A folder with a store: to fill it, to start a fleet on it and to look at what that left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = make_app(folder)
        self.fleets: list[Fleet] = []

    def fill(self, *tasks: str) -> list[str]:
        drafts = [self.app.tasks[task].draft() for task in tasks]
        return [ref.id for ref in self.app.enqueue_many(drafts)]

    def start(self, **plan: object) -> Fleet:
        self.fleets.append(Fleet(Plan(place=str(self.folder), **plan)))  # type: ignore[arg-type]
        return self.fleets[-1]

    def go(self) -> None:
        (self.folder / "go").touch()

    def left(self, ids: list[str]) -> list[Message]:
        return [message for message in self.app.store.find(ids) if message is not None]

    def close(self) -> None:
        for fleet in self.fleets:
            fleet.end()
        self.app.store.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def lives(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if sys.platform == "linux":
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- children that die or hang


def test_a_killed_child_is_replaced_and_only_what_it_had_started_counts_a_crash(place: Place) -> None:
    ids = place.fill(*["coroutine", "thread"] * 4)
    fleet = place.start()
    fleet.until(lambda: len(fleet.starts()) == 4 and place.app.counts().leased == 8)
    victim = fleet.pids()[0]
    before = [line.id for line in fleet.starts() if line.pid == victim]
    os.kill(victim, signal.SIGKILL)
    fleet.until(lambda: len([line for line in fleet.starts() if line.crashes]) == 2)  # together
    place.go()
    fleet.until(lambda: not place.left(ids))
    fleet.parent.terminate()
    assert fleet.wait() == 0
    assert len(before) == 2 and len(fleet.pids()) == 3 and f"{victim} was killed by SIGKILL" in fleet.said()
    runs = [(line.id, line.attempt, line.crashes) for line in fleet.starts()]
    again = [(id, 1, 1) for id in before]
    assert sorted(runs) == sorted([(id, 1, 0) for id in ids] + again)


def test_a_new_child_has_the_dead_ones_identity_and_its_leases_within_three_seconds(place: Place, soak: bool) -> None:
    [id] = place.fill("coroutine")
    fleet = place.start(processes=1, lease=600.0)
    fleet.until(fleet.starts)
    first = fleet.lines("up")[0]
    killed_s = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    fleet.until(lambda: len(fleet.starts()) == 2)
    second = fleet.lines("up")[1]
    assert second.worker == first.worker and second.pid != first.pid and fleet.lines("took_back")
    assert (fleet.starts()[1].id, fleet.starts()[1].crashes) == (id, 1)
    if soak:  # elsewhere a busy machine must fail nothing; that the lease of ten minutes did not run out shows enough
        assert fleet.starts()[1].at_s - killed_s < 3.0


def test_children_that_live_at_the_same_time_never_share_an_identity(place: Place) -> None:
    fleet = place.start(processes=3)
    fleet.until(lambda: len(fleet.lines("started")) == 3)
    for number in range(2):
        os.kill(fleet.pids()[number], signal.SIGKILL)
    fleet.until(lambda: len(fleet.lines("started")) == 5)
    living = [line.worker for line in fleet.lines("up") if lives(line.pid)]
    assert len(living) == 3 == len(set(living))  # (a dead one's may be in others' hands just then, who take back)


def test_a_stopped_child_is_killed_and_replaced(place: Place) -> None:
    [id] = place.fill("coroutine")
    fleet = place.start(processes=1, lease=1.0, hung_after=1.0)
    fleet.until(fleet.starts)
    os.kill(fleet.pids()[0], signal.SIGSTOP)
    fleet.until(lambda: len(fleet.pids()) == 2)
    place.go()
    fleet.until(lambda: not place.left([id]))
    assert not lives(fleet.pids()[0]) and "no sign of life" in fleet.said()
    assert [line.crashes for line in fleet.starts()] == [0, 1]


@pytest.mark.linux
def test_a_stopped_child_that_holds_the_lock_of_the_file_is_killed_at_once(place: Place) -> None:
    ids = place.fill(*["coroutine"] * 8)
    fleet = place.start(lease=600.0)
    fleet.until(lambda: len(fleet.starts()) == 4)
    (place.folder / "freeze").touch()
    place.go()
    fleet.until(lambda: not place.left(ids))
    assert "is stopped, and holds the lock of the store" in fleet.said() and len(fleet.pids()) == 3


def test_a_child_whose_loop_is_blocked_past_every_timeout_is_killed_and_replaced(place: Place) -> None:
    [id] = place.fill("blocks")
    fleet = place.start(processes=1, lease=1.0, grace=0.2, hung_after=1.0)
    fleet.until(lambda: len(fleet.pids()) == 2)
    fleet.until(lambda: not place.left([id]))
    assert "event loop blocked" in fleet.said()
    assert [(line.attempt, line.crashes) for line in fleet.starts()] == [(1, 0), (1, 1)]


def test_a_child_whose_loop_is_blocked_within_its_timeout_is_let_be(place: Place) -> None:
    ref = place.app.tasks["blocks_a_while"].enqueue(5)
    fleet = place.start(processes=1, lease=2.0, hung_after=2.0)
    fleet.until(lambda: not place.left([ref.id]))
    assert len(fleet.pids()) == 1 and [line.crashes for line in fleet.starts()] == [0]
    assert "killed" not in fleet.said()


def test_a_store_that_does_not_answer_kills_no_child(place: Place) -> None:
    [id] = place.fill("coroutine")
    fleet = place.start(processes=1, lease=1.0, hung_after=1.0)
    fleet.until(fleet.starts)
    with contextlib.closing(sqlite3.connect(place.folder / "work.db", isolation_level=None)) as stranger:
        stranger.execute("begin exclusive")
        fleet.until(lambda: "for its store" in fleet.said() or len(fleet.pids()) > 1)
    place.go()
    fleet.until(lambda: not place.left([id]))
    assert len(fleet.pids()) == 1 and lives(fleet.pids()[0]) and "killed" not in fleet.said()


def test_a_parent_that_stood_still_with_its_children_kills_none(place: Place) -> None:
    """A machine that was paused, or Ctrl-Z: the parent may go on before its children do."""
    [id] = place.fill("coroutine")
    fleet = place.start(processes=1, lease=2.0, hung_after=5.0)
    fleet.until(fleet.starts)
    os.killpg(fleet.parent.pid, signal.SIGSTOP)
    time.sleep(6.0)
    os.kill(fleet.parent.pid, signal.SIGCONT)
    time.sleep(1.0)
    os.killpg(fleet.parent.pid, signal.SIGCONT)
    place.go()
    fleet.until(lambda: not place.left([id]))
    assert len(fleet.pids()) == 1 and lives(fleet.pids()[0]) and "killed" not in fleet.said()


def test_a_child_that_keeps_failing_is_started_again_until_it_works(place: Place) -> None:
    [id] = place.fill("thread")
    place.go()
    fleet = place.start(processes=1, broken=2, code=1)
    fleet.until(lambda: not place.left([id]))
    assert fleet.said().count("ended with exit code 1") == 2 and fleet.parent.poll() is None


@pytest.mark.parametrize("code", [2, 4])
def test_a_child_that_says_no_start_will_help_ends_all_with_its_code(place: Place, code: int) -> None:
    fleet = place.start(processes=2, broken=1, code=code)
    assert fleet.wait() == code
    assert len(fleet.pids()) <= 1 and not any(lives(pid) for pid in fleet.pids())


# -- the end


def test_a_burst_ends_with_its_children(place: Place) -> None:
    ids = place.fill(*["coroutine", "thread"] * 10)
    place.go()
    fleet = place.start(burst=True)
    assert fleet.wait() == 0 and place.left(ids) == []
    assert Counter(line.id for line in fleet.starts()) == dict.fromkeys(ids, 1) and fleet.said() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("to_all", [False, True], ids=["to the parent", "to the group"])
def test_one_signal_lets_children_finish_what_runs_and_give_back_the_rest(
    place: Place, number: signal.Signals, to_all: bool
) -> None:
    ids = place.fill(*["coroutine", "thread"] * 4)
    fleet = place.start()
    fleet.until(lambda: len(fleet.starts()) == 4 and place.app.counts().leased == 8)
    (os.killpg if to_all else os.kill)(fleet.parent.pid, number)
    fleet.until(lambda: len(fleet.lines("draining")) == 2 and place.app.counts().ready == 4)
    assert len(fleet.lines("end")) == 0 and place.app.counts().leased == 4  # what runs goes on
    place.go()
    assert fleet.wait() == 0
    left = place.left(ids)
    assert len(fleet.lines("end")) == 4 == len(left)
    assert {(m.lane, m.attempt, m.crashes) for m in left} == {(Lane.READY, 0, 0)}
    assert {m.id for m in left} == set(ids) - {line.id for line in fleet.starts()}


def test_the_second_signal_releases_at_once(place: Place) -> None:
    ids = place.fill(*["coroutine", "thread"] * 4)
    fleet = place.start(grace=600.0)
    fleet.until(lambda: len(fleet.starts()) == 4)
    fleet.parent.terminate()
    fleet.until(lambda: len(fleet.lines("draining")) == 2)
    fleet.parent.terminate()
    assert fleet.wait() == 0
    left = place.left(ids)
    assert len(left) == 8 and {(m.lane, m.attempt, m.crashes) for m in left} == {(Lane.READY, 0, 0)}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_signal_while_children_are_starting_ends_them_too(place: Place, share: float) -> None:
    whole_s = _starting_s(place)
    fleet = place.start(processes=3, grace=600.0)
    time.sleep(share * whole_s)
    fleet.parent.terminate()
    assert fleet.wait() in (0, -signal.SIGTERM)  # or before the parent could know what that means
    fleet.until(lambda: not any(lives(pid) for pid in fleet.pids()))
    assert "Traceback" not in fleet.said()


def _starting_s(place: Place) -> float:
    """How long a fleet takes to be up, so that a signal can come between."""
    began_s = time.monotonic()
    fleet = place.start(processes=3)
    fleet.until(lambda: len(fleet.lines("started")) == 3)
    took_s = time.monotonic() - began_s
    fleet.end()
    (place.folder / "journal").unlink()
    return took_s


def test_children_of_a_killed_parent_drain_and_end(place: Place) -> None:
    ids = place.fill(*["coroutine", "thread"] * 4)
    fleet = place.start()
    fleet.until(lambda: len(fleet.starts()) == 4 and place.app.counts().leased == 8)
    fleet.parent.kill()
    fleet.until(lambda: len(fleet.lines("draining")) == 2 and place.app.counts().ready == 4)
    place.go()
    fleet.until(lambda: not any(lives(pid) for pid in fleet.pids()))
    left = place.left(ids)
    assert len(fleet.lines("end")) == 4 == len(left)
    assert {(m.lane, m.attempt, m.crashes) for m in left} == {(Lane.READY, 0, 0)}


def test_a_child_that_cannot_end_is_killed_after_its_grace(place: Place) -> None:
    [id] = place.fill("leaves_a_thread")
    fleet = place.start(processes=1, grace=0.1, end_after=1.0)
    fleet.until(fleet.starts)
    fleet.parent.terminate()
    assert fleet.wait() == 0
    assert not lives(fleet.pids()[0]) and "has not ended in time" in fleet.said()
    [message] = place.left([id])
    assert (message.lane, message.attempt, message.crashes) == (Lane.READY, 0, 0)


def test_a_signal_between_two_starts_starts_no_more_and_breaks_nothing(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from redrive.worker.supervisor import supervise\n"
        "argv = ['sh', '-c', 'kill -TERM $PPID; echo up >> up']\n"
        "sys.exit(supervise(argv, processes=40, state_dir=None, lease_s=30, grace_s=30))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert 1 <= len((tmp_path / "up").read_text().splitlines()) < 40
