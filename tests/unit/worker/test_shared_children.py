"""Suspects in child processes that they share: how many there are, and what a death means for each of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support import isolated_tasks as isolated
from tests.support.workers import Heard, store_in, stored, until

from redrive import App
from redrive.fault import Crash, crash_fault
from redrive.message import ClaimRequest, Lane, Message
from redrive.worker.crash import suspects as suspects_module
from redrive.worker.executors import children
from redrive.worker.executors.memory import available_bytes, fits, resident_of


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = isolated.fresh(store_in(tmp_path, "sqlite"))
    (tmp_path / "met").mkdir()
    yield made
    made.store.close()


@pytest.fixture
def place(tmp_path: Path, app: App) -> str:
    return str(tmp_path / "met")


def suspects(app: App, *calls: tuple[Any, ...], times: int = 1, of_children: bool = False) -> list[Any]:
    """These messages, as a worker left them that was killed with all of them under way, so often; or a child."""
    refs = app.enqueue_many([app.tasks[task].draft(*args) for task, *args in calls])
    crash = Crash(cause="signal", signal="SIGKILL", started_count=len(refs), child=of_children)
    died = crash_fault(crash, app.store.now_ms())
    for _ in range(times):
        assert len(
            app.store.exchange([], [ClaimRequest("default", len(refs), 600_000, worker="dead")]).deliveries
        ) == len(refs)
        app.store.reclaim("dead", None, fault=died)
    return refs


def evidence(message: Message) -> list[Crash]:
    """Of the deaths of children."""
    return [fault.crash for fault in message.faults if fault.crash is not None and fault.crash.child]


def children_now() -> int:
    """How many this process has now."""
    found = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            found += parent == os.getpid() and b"redrive.worker.executors.child_main" in (path / "cmdline").read_bytes()
    return found


@contextlib.contextmanager
def counted_children() -> Iterator[list[int]]:
    """How many children there were, looked at all the time."""
    over, found = threading.Event(), [0]

    def look() -> None:
        while not over.wait(0.01):
            found.append(children_now())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


# -- who runs where


def test_suspects_share_one_child_whatever_their_handlers_are(app: App, place: str) -> None:
    calls = [(task, place, 8) for task in ("meets", "ameets") * 4]
    refs = suspects(app, *calls)
    fresh = app.tasks["loop"].enqueue("value")
    app.run_worker({"default": 10}, burst=True)
    [pid] = {ref.wait(0) for ref in refs}
    assert pid != os.getpid() == fresh.wait(0)["pid"], "the others stay where they are"
    assert {stored(app, ref.id).attempt for ref in refs} == {1} and {stored(app, ref.id).crashes for ref in refs} == {1}


def test_suspects_of_two_crashes_run_in_two_halves_side_by_side(app: App, place: str) -> None:
    refs = suspects(app, *[("ameets", place, 8)] * 8, times=2)
    app.run_worker({"default": 10}, burst=True)
    pids = [ref.wait(0) for ref in refs]
    assert len({*pids}) == 2 and {pids.count(pid) for pid in pids} == {4}


def test_a_suspect_s_checkpoint_is_its_own(app: App, place: str) -> None:
    refs = suspects(app, *[("keeps", place, 4)] * 4)
    app.run_worker({"default": 10}, drain=True)
    assert [ref.wait(0) for ref in refs] == [True] * 4


def test_what_a_suspect_s_handler_forks_ends_and_says_nothing_in_its_name(app: App) -> None:
    refs = suspects(app, ("thread", "forks"), ("loop", "forks"), ("thread", "forks"))
    app.run_worker({"default": 1}, burst=True)
    assert [ref.wait(0) for ref in refs] == [0, 0, 0]


def test_what_suspects_say_is_the_same_as_in_the_worker(app: App) -> None:
    ends = ("value", "partial", "follow", "fault", "rule", "reject", "retry_after", "snooze", "exit")
    refs = suspects(app, *[(task, end) for end in ends for task in ("thread", "loop")])
    plain = app.enqueue_many([app.tasks[task].draft(end) for end in ends for task in ("thread", "loop")])
    heard = Heard(app)
    app.run_worker({"default": 40}, burst=True)
    first = {fate.id: fate for fate in reversed(heard.fates)}

    def said(ref: Any) -> tuple[Any, ...]:
        fate, faults = first[ref.id], [fault for fault in stored(app, ref.id).faults if fault.crash is None]
        told = [(fault.kind, fault.error, fault.text, fault.fingerprint, fault.traceback) for fault in faults[:1]]
        return fate.outcome, fate.attempt, fate.degraded, fate.reason, told

    assert [said(ref) for ref in refs] == [said(ref) for ref in plain]


def test_isolated_tasks_and_suspects_use_the_same_children_one_after_the_other(app: App, place: str) -> None:
    refs = suspects(app, *[("meets", place, 1)] * 3)
    others = [app.tasks["sync"].enqueue("value") for _ in range(3)]
    app.run_worker({"default": 1}, burst=True)
    assert len({ref.wait(0) for ref in refs} | {ref.wait(0)["pid"] for ref in others} - {os.getpid()}) <= 2


def test_a_drain_ends_suspects_uncounted(app: App, place: str) -> None:
    refs = suspects(app, *[("lasts", place)] * 3)

    async def work() -> None:
        async with app.worker({"default": 5}, grace="50ms"):
            await until(lambda: len([*Path(place).iterdir()]) == 3)

    asyncio.run(work())
    left = [stored(app, ref.id) for ref in refs]
    assert {(m.lane, m.attempt, m.crashes, m.suspect) for m in left} == {(Lane.READY, 0, 1, True)}


def test_a_cancel_reaches_one_suspect_and_no_other(app: App, place: str) -> None:
    refs = suspects(app, *[("lasts", place)] * 3)
    heard = Heard(app)

    async def work() -> None:
        async with app.worker({"default": 5}, lease="600ms"):
            await until(lambda: len([*Path(place).iterdir()]) == 3)
            assert app.cancel(refs[0].id) == "requested"
            Path(place, "go").touch()
            await until(lambda: len(heard.fates) == 3)

    asyncio.run(work())
    assert heard.outcomes == ["done"] * 3, "the effect happened"


# -- deaths


@pytest.mark.linux
def test_a_death_halves_the_group_until_the_guilty_one_is_alone_and_convicted(app: App, place: str) -> None:
    calls: list[tuple[Any, ...]] = (
        [("meets", place, 8, 0.3)] * 3 + [("kills", place, 8)] + [("ameets", place, 8, 0.3)] * 4
    )
    refs = suspects(app, *calls)
    heard = Heard(app)
    app.run_worker({"default": 10}, drain=True)
    poison = stored(app, refs[3].id)
    assert (poison.lane, poison.reason, poison.attempt) == (Lane.QUARANTINE, "crashed", 0)
    deaths = evidence(poison)
    sizes = [crash.started_count for crash in deaths if not crash.alone]
    assert sizes[0] == 8 and all(later <= max(1, first // 2) for first, later in pairwise(sizes))
    assert [crash.alone for crash in deaths[-3:]] == [True] * 3
    assert all(crash.alone is False for crash in deaths[:-3])
    assert (poison.crashes, poison.crashes_alone) == (1 + len(deaths), 3)
    for ref in refs[:3] + refs[4:]:
        message = stored(app, ref.id)
        assert (message.lane, message.attempt) == (Lane.DONE, 1) and message.crashes <= 1 + len(sizes)
    assert heard.notices.count("child_died") == sum(size > 1 for size in sizes)


@pytest.mark.linux
def test_one_that_runs_past_its_time_is_to_blame_and_not_those_beside_it(app: App, place: str) -> None:
    *refs, late = suspects(app, *[("lasts", place)] * 3, ("overruns", place))
    heard = Heard(app)

    async def work() -> None:
        async with app.worker({"default": 5}, lease="5s"):
            await until(lambda: "quarantined" in heard.outcomes)
            Path(place, "go").touch()
            await until(lambda: heard.outcomes.count("done") == 3)

    asyncio.run(work())
    message = stored(app, late.id)
    told = [(crash.cause, crash.started_count, crash.alone) for crash in evidence(message)]
    assert told == [("timeout", 1, False)] + [("timeout", 1, True)] * 3
    assert {(stored(app, ref.id).attempt, stored(app, ref.id).crashes) for ref in refs} == {(1, 1)}


def test_one_that_never_had_company_has_died_alone(app: App, place: str) -> None:
    [ref] = suspects(app, ("kills", place, 1))
    app.run_worker({"default": 5}, drain=True)
    assert [crash.alone for crash in evidence(stored(app, ref.id))] == [True] * 3


# -- how many


@pytest.mark.parametrize("left", [2**10, 2**30])
def test_where_there_is_no_memory_for_a_child_suspects_run_in_the_worker(
    app: App, place: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "available_bytes", lambda: left)
    refs = suspects(app, *[("meets", place, 3)] * 3)
    app.run_worker({"default": 5}, burst=True)
    [pid] = {ref.wait(0) for ref in refs}
    assert (pid == os.getpid()) is (left == 2**10 and resident_of("self") is not None)


@pytest.mark.linux
@pytest.mark.parametrize("bound", ["set", "memory"])
def test_no_more_children_have_suspects_than_the_bound_or_the_memory_allows(
    app: App, place: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bound == "memory":
        own = resident_of("self")
        assert own is not None
        monkeypatch.setattr(children, "available_bytes", lambda: own + own // 2)  # for one, and not for two
    refs = suspects(app, *[("ameets", place, 1)] * 6, times=6, of_children=True)
    with counted_children() as seen:
        app.run_worker({"default": 10}, drain=True, suspect_processes=1 if bound == "set" else None)
    assert max(seen) == 1 and {stored(app, ref.id).lane for ref in refs} == {Lane.DONE}


@pytest.mark.linux
def test_children_of_suspects_end_when_nothing_comes_for_them(
    app: App, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "IDLE_S", 0.1)
    monkeypatch.setattr(app, "tasks", {name: app.tasks[name] for name in ("meets", "ameets")})
    monkeypatch.setattr(app, "spec", f"{isolated.__name__}:app")
    suspects(app, *[("ameets", place, 3)] * 3)

    async def work() -> None:
        async with app.worker({"default": 5}):
            await until(lambda: children_now() == 1)
            await until(lambda: children_now() == 0)

    asyncio.run(work())
    assert app.counts().done == 3


def test_suspects_whose_turn_does_not_come_give_their_places_back(
    app: App, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects_module, "HOLD_S", (0.05, 0.2))
    refs = suspects(app, *[("lasts", place)] * 4, times=6, of_children=True)  # one at a time
    heard = Heard(app)

    async def work() -> None:
        async with app.worker({"default": 4}, suspect_processes=1):
            await until(lambda: "held" in heard.outcomes)
            fresh = await app.tasks["loop"].aenqueue("value")
            await until(lambda: stored(app, fresh.id).lane is Lane.DONE)
            assert not Path(place, "go").exists()
            Path(place, "go").touch()
            await until(lambda: heard.outcomes.count("done") == 5)

    asyncio.run(work())
    assert {(stored(app, ref.id).attempt, stored(app, ref.id).crashes) for ref in refs} == {(1, 6)}


def test_where_no_child_can_begin_suspects_run_in_the_worker(
    app: App, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "PAUSE_S", (0.01, 0.01))
    monkeypatch.setattr(app, "tasks", {name: app.tasks[name] for name in ("meets", "ameets")})
    monkeypatch.setattr(app, "spec", "tests.unit.nowhere:app")
    monkeypatch.setattr("redrive.worker.executors.app_import._names_of", lambda app: iter(["tests.unit.nowhere:app"]))
    refs = suspects(app, *[("ameets", place, 3)] * 3)
    heard = Heard(app)
    app.run_worker({"default": 5}, drain=True)
    assert {ref.wait(0) for ref in refs} == {os.getpid()}
    assert heard.notices.count("child_failed") == children.FAILURES_MAX


@pytest.mark.parametrize(
    ("count", "each", "left", "expected"),
    [(1, 100, None, True), (1, 100, 200, True), (1, 100, 199, False), (3, 100, 600, True), (3, 100, 599, False)],
)
def test_further_children_take_half_of_the_memory_at_most(
    count: int, each: int, left: int | None, expected: bool
) -> None:
    assert fits(count, each, left) is expected


def test_what_is_available_is_the_least_of_the_machine_s_and_the_groups(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert available_bytes(tmp_path) is None
    write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:   5000 kB\n")
    assert available_bytes(tmp_path) == 5000 * 1024
    write("proc/self/cgroup", "4:cpu,memory:/m\n0::/a/b\n")
    assert available_bytes(tmp_path) == 5000 * 1024, "no group is bounded"
    write("sys/fs/cgroup/a/memory.max", "3000000\n")
    write("sys/fs/cgroup/a/memory.current", "1000000\n")
    write("sys/fs/cgroup/a/memory.stat", "anon 500000\ninactive_file 250000\n")
    write("sys/fs/cgroup/a/b/memory.max", "max\n")
    assert available_bytes(tmp_path) == 2_250_000
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1500000\n")
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n")
    assert available_bytes(tmp_path) == 500_000


def test_here_it_is_known_how_much_memory_there_is() -> None:
    found = available_bytes()
    assert (found is not None and found > 0) == Path("/proc/meminfo").exists()
