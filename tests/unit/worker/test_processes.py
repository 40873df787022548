"""Handlers in child processes: what they say comes across whole, and what kills them ends nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import isolated_tasks as isolated
from tests.support.workers import Heard, store_in, stored, until

from redrive import App, Draft
from redrive.errors import ConfigError
from redrive.events import Notice
from redrive.message import ClaimRequest, Lane
from redrive.stores.memory.store import MemoryStore
from redrive.worker.executors.ipc import (
    Checkpoint,
    Ended,
    FrameDecoder,
    Stop,
    ToWorker,
    pack,
)


@pytest.fixture
def app() -> Iterator[App]:
    """The module's app on a store of its own, in memory."""
    made = isolated.fresh(MemoryStore())
    yield made
    made.store.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[App]:
    made = isolated.fresh(store_in(tmp_path, "sqlite"))
    yield made
    made.store.close()


def is_alive(pid: int) -> bool:
    """Whether it runs: what is dead and not reaped does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


# -- the same as in the worker's own process

ENDS = (
    "value",
    "partial",
    "vague",
    "follow",
    "fault",
    "rule",
    "reject",
    "quarantine",
    "retry_after",
    "snooze",
    "exit",
    "object",
)


def test_what_a_handler_says_is_the_same_in_a_child(app: App) -> None:
    heard = Heard(app)
    refs = {(t, end): app.tasks[t].enqueue(end) for end in ENDS for t in ("thread", "loop", "sync", "async")}
    app.run_worker(["default"], burst=True)
    first = {fate.id: fate for fate in reversed(heard.fates)}

    def said(task: str, end: str) -> Any:
        fate, message = first[refs[task, end].id], stored(app, refs[task, end].id)
        faults = [(f.kind, f.error, f.errors, f.text, f.fingerprint, f.retry_after_s, f.steer, f.traceback)
                  for f in message.faults[:1]]  # fmt: skip
        result = None if end in ("value", "follow") else message.result
        return fate.outcome, fate.attempt, fate.degraded, fate.reason, faults, result

    for end in ENDS:
        assert said("sync", end) == said("thread", end), end
        assert said("async", end) == said("loop", end), end
    told = [event.text for event in heard.events if isinstance(event, Notice) and event.name == "result_dropped"]
    assert len(told) == 4 and {text.partition("without result: ")[2][:30] for text in told} != set()


def test_a_child_runs_in_a_process_of_its_own_and_stays_warm(app: App) -> None:
    refs = [app.tasks[task].enqueue("value") for task in ("sync", "async", "sync")]
    app.run_worker({"default": 1}, burst=True)
    found = [ref.wait(0) for ref in refs]
    assert {value["same"] for value in found} == {True} and [value["attempt"] for value in found] == [1, 1, 1]
    [pid] = {value["pid"] for value in found}
    assert pid != os.getpid() and not is_alive(pid)


def test_where_the_thread_of_the_children_cannot_start_messages_go_back_uncounted(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, heard, start = list[str](), Heard(app), threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "redrive-processes" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    app.enqueue_many([app.tasks["sync"].draft("value") for _ in range(3)])

    async def main() -> None:
        async with app.worker({"default": 1}, grace=0):
            await until(lambda: app.store.counts("default").done == 3)

    asyncio.run(main())
    assert len(refused) == 2
    assert sorted((fate.outcome, fate.attempt) for fate in heard.fates) == [("done", 1)] * 3 + [("held", 0)] * 2


def test_a_follow_up_of_a_child_goes_with_the_ack(app: App) -> None:
    ref = app.tasks["sync"].enqueue("follow")
    app.run_worker(["default"], burst=True)
    id, collected = ref.wait(0)
    message = stored(app, id)
    assert collected == 1 and (message.task, message.queue, message.body, message.priority) == (
        "rest",
        "later",
        b'{"n":7}',
        1,
    )
    assert (
        message.causation_id == ref.id
        and message.due_ms is not None
        and message.due_ms > app.store.now_ms() + 3_000_000
    )


def test_remaining_counts_from_the_start_of_the_run(app: App) -> None:
    ref = app.tasks["sync"].enqueue("remaining")
    app.run_worker(["default"], burst=True)
    remaining, cancelled, key, fence = ref.wait(0)
    assert 200 < remaining <= 300 and not cancelled and (key, fence) == (ref.id, 1)


@pytest.mark.parametrize("task", ["pages", "apages"])
def test_the_next_attempt_goes_on_from_a_checkpoint_of_a_child(app: App, task: str) -> None:
    ref = app.tasks[task].enqueue()
    app.run_worker(["default"], drain=True)
    assert ref.wait(0) == [{"page": 2, "of": [3, None]}, {"page": 3, "of": [3, None]}]


def test_wraps_run_in_the_child(app: App, capfd: pytest.CaptureFixture[str]) -> None:
    ref = app.tasks["sync"].enqueue("wrapped")
    app.run_worker(["default"], burst=True)
    assert f"before {ref.id}" in capfd.readouterr().err


def test_large_bodies_reach_a_child(tmp_path: Path) -> None:
    app = isolated.fresh(App(f"sqlite:///{tmp_path}/work.db", blobs=f"file://{tmp_path}/blobs").store)
    refs = [app.tasks["sync"].enqueue(what) for what in ("x" * 300_000, "x" * 100_000)]
    app.run_worker(["default"], drain=True)
    assert [len(stored(app, ref.id).faults[-1].text) for ref in refs] == [2000, 2000]
    assert {stored(app, ref.id).faults[-1].error for ref in refs} == {"AssertionError"}
    app.store.close()


def test_a_store_that_fails_unexpectedly_fails_the_run_and_holds_no_child_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = isolated.fresh(App(f"sqlite:///{tmp_path}/work.db", blobs=f"file://{tmp_path}/blobs").store)
    refs = [app.tasks["sync"].enqueue("x" * 300_000), app.tasks["pages"].enqueue()]

    def failing(*_: object) -> bytes:
        raise RuntimeError("it is broken")

    monkeypatch.setattr(app.store, "body", failing)
    monkeypatch.setattr(app.store, "checkpoint", failing)
    app.run_worker({"default": 2}, drain=True)
    assert [stored(app, ref.id).faults[-1].text for ref in refs] == ["it is broken"] * 2
    app.store.close()


def test_an_unreadable_body_is_dead_uncounted(app: App) -> None:
    draft = app.tasks["sync"].draft("value")
    [put] = app.store.put([type(draft)(task="sync", body=b'{"nothing": 1}')])
    app.run_worker(["default"], burst=True)
    message = stored(app, put.id)
    assert (message.lane, message.reason, message.attempt) == (Lane.DEAD, "unreadable", 0)


def test_arguments_that_a_child_does_not_know_wait_for_a_newer_worker(app: App) -> None:
    app.park_for_s = 3600.0
    [put] = app.store.put([Draft(task="sync", body=b'{"what":"value","color":"blue"}')])
    app.run_worker(["default"], burst=True)
    parked = stored(app, put.id)
    assert (parked.lane, parked.attempt, parked.faults[0].kind) == (Lane.READY, 0, "unroutable")
    assert "no argument 'color' is known here" in parked.faults[0].text
    app.park_for_s = 0.0
    [put] = app.store.put([Draft(task="sync", body=b'{"what":"value","color":"blue"}')])
    app.run_worker(["default"], burst=True)
    dead = stored(app, put.id)
    assert (dead.lane, dead.reason, dead.attempt) == (Lane.DEAD, "unroutable", 0)
    app.park_for_s = None


def test_a_child_uses_a_shared_store_itself_and_has_none_in_another_s_memory(tmp_path: Path) -> None:
    app = isolated.fresh(url=f"sqlite:///{tmp_path}/work.db")
    ref = app.tasks["puts"].enqueue()
    app.run_worker(["default"], burst=True)
    assert stored(app, ref.wait(0)).queue == "later"
    app.store.close()
    app = isolated.fresh(MemoryStore())
    ref = app.tasks["puts"].enqueue()
    app.run_worker(["default"], burst=True)
    assert "is in the memory of the worker" in stored(app, ref.id).faults[0].text


def test_a_key_holds_in_a_child_and_its_result_is_stored(app: App) -> None:
    first, other, again = (app.tasks["once"].enqueue(n) for n in (1, 2, 1))
    app.run_worker({"default": 1}, drain=True)
    assert (first.wait(0)[0], other.wait(0)[0]) == ("order-1", "order-2")
    assert again.wait(0) == first.wait(0)


# -- told to end


@pytest.mark.parametrize("task, outcome", [("waits", "cancelled"), ("awaits", "done")])
def test_a_cancel_reaches_a_child(app: App, tmp_path: Path, task: str, outcome: str) -> None:
    heard = Heard(app)
    ref = app.tasks[task].enqueue(str(tmp_path))

    async def work() -> None:
        async with app.worker(["default"], lease="600ms"):
            await until(lambda: [*tmp_path.glob("began-*")])
            assert app.cancel(ref.id) == "requested"
            await until(lambda: heard.fates)

    asyncio.run(work())
    assert heard.outcomes == [outcome]


@pytest.mark.linux
def test_a_cancel_with_kill_ends_a_child_that_does_not_listen_and_nothing_else(app: App, tmp_path: Path) -> None:
    heard = Heard(app)
    ref, other = app.tasks["silent"].enqueue(str(tmp_path)), app.tasks["waits"].enqueue(str(tmp_path))

    async def work() -> None:
        async with app.worker(["default"], lease="600ms"):
            await until(lambda: len([*tmp_path.glob("began-*")]) == 2)
            assert app.cancel(ref.id, reason="it hangs") == "requested"
            await asyncio.sleep(1.0)  # several renewals: asking alone ends nothing
            assert not heard.fates
            assert app.cancel(ref.id, kill=True, reason="it hangs") == "requested"
            await until(lambda: heard.fates)
            (tmp_path / "go").touch()
            await until(lambda: len(heard.fates) == 2)

    asyncio.run(work())
    assert {fate.id: fate.outcome for fate in heard.fates} == {ref.id: "cancelled", other.id: "done"}
    assert not any(is_alive(int(path.name.partition("-")[2])) for path in tmp_path.glob("began-*"))


@pytest.mark.parametrize("task", ["waits", "awaits"])
def test_a_child_is_told_of_the_grace_s_end_and_its_message_goes_back_free(app: App, tmp_path: Path, task: str) -> None:
    heard = Heard(app)
    if task == "awaits":
        (tmp_path / "deaf").touch()  # it ends by being cancelled, not by itself before that
    ref = app.tasks[task].enqueue(str(tmp_path))

    async def work() -> None:
        async with app.worker(["default"], grace="50ms"):
            await until(lambda: [*tmp_path.glob("began-*")])

    asyncio.run(work())
    assert (stored(app, ref.id).attempt, stored(app, ref.id).lane) == (0, Lane.READY)
    assert heard.outcomes == ["released"]


def test_a_child_that_does_not_listen_is_killed_at_the_end_of_the_grace(app: App, tmp_path: Path) -> None:
    ref = app.tasks["refused"].enqueue(str(tmp_path))
    heard = Heard(app)

    async def work() -> None:
        async with app.worker(["default"], grace=0):
            await until((tmp_path / "began").exists)

    asyncio.run(work())
    message = stored(app, ref.id)
    assert (message.lane, message.attempt, message.crashes, message.faults) == (Lane.READY, 0, 0, ())
    assert heard.outcomes == ["released"]


def test_a_lost_lease_refuses_a_child_s_checkpoint(app: App, tmp_path: Path) -> None:
    ref = app.tasks["refused"].enqueue(str(tmp_path))
    heard = Heard(app)

    async def work() -> None:
        async with app.worker(["default"]) as worker:
            await until((tmp_path / "began").exists)
            app.store.extend([run.delivery.receipt for run in worker._in_flight.all()], lease_ms=0)
            [delivery] = app.store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
            assert delivery.message.id == ref.id
            (tmp_path / "go").touch()
            await until(lambda: heard.fates)

    asyncio.run(work())
    assert "no longer leased" in (tmp_path / "refused").read_text() and heard.outcomes == ["stale"]


def test_past_its_timeout_a_coroutine_is_cancelled_as_in_the_worker(app: App) -> None:
    ref = app.tasks["naps"].enqueue()
    heard = Heard(app)
    app.run_worker(["naps"], burst=True)
    [fault] = stored(app, ref.id).faults[:1]
    assert (fault.kind, fault.text) == ("timeout", "ran longer than its timeout of 0.3 s") and heard.outcomes[
        0
    ] == "retry"


@pytest.mark.linux
def test_what_a_killed_handler_had_started_dies_with_it(app: App, tmp_path: Path) -> None:
    ref = app.tasks["parent"].enqueue(str(tmp_path))
    heard = Heard(app)

    async def work() -> None:
        async with app.worker(["parent"]):
            await until(lambda: heard.fates)

    asyncio.run(work())
    assert stored(app, ref.id).faults[0].kind == "crashed"
    asyncio.run(until(lambda: not is_alive(int((tmp_path / "started").read_text()))))


def test_what_a_handler_forks_ends_with_it_and_says_nothing_in_its_name(app: App) -> None:
    refs = [app.tasks[task].enqueue("forks") for task in ("sync", "async", "sync")]
    app.run_worker({"default": 1}, burst=True)
    assert [ref.wait(0) for ref in refs] == [0, 0, 0]


# -- deaths

EVIDENCE = {
    "SIGKILL": r"killed by SIGKILL after \d",
    "exit": r"exit code 7 after \d",
    "segfault": r"killed by SIGSEGV after \d",
    "memory": r"ran out of memory after \d",
    "loop": r"ran past its timeout; its process was killed by SIGKILL after \d",
}


@pytest.mark.slow
@pytest.mark.linux
@pytest.mark.parametrize("kind", ["memory", pytest.param("sqlite", marks=pytest.mark.soak)])
def test_poison_is_quarantined_with_evidence_and_nothing_else_is_harmed(tmp_path: Path, kind: str) -> None:
    """One of each kind of poison among eleven good ones for each."""
    app = isolated.fresh(store_in(tmp_path, kind))
    heard = Heard(app)
    drafts, poison = [], {}
    for how in EVIDENCE:
        for place in range(12):
            n = len(drafts)
            if place == 5:
                poison[n] = how
            task = app.tasks["endless" if poison.get(n) == "loop" else "deadly"]
            drafts.append(task.draft(n, poison.get(n, "good"), str(tmp_path)))
    refs = app.enqueue_many(drafts)
    app.run_worker({"deadly": 4}, drain=True)
    fates: dict[str, list[str]] = {}
    for fate in heard.fates:
        fates.setdefault(fate.id, []).append(fate.outcome)
    for n, ref in enumerate(refs):
        if n not in poison:
            assert fates[ref.id] == ["done"] and app.job(ref.id) is None
            continue
        message = stored(app, ref.id)
        assert (message.lane, message.reason) == (Lane.QUARANTINE, "crashed"), poison[n]
        assert fates[ref.id] == ["crashed", "crashed", "quarantined"] and message.attempt <= 2
        assert (message.attempt, message.crashes, message.crashes_alone) == (0, 3, 3)
        assert [fault.attempt for fault in message.faults] == [0, 0, 0]
        assert len(set((tmp_path / f"ran-{n}").read_text().split())) == 3
        for fault in message.faults:
            assert re.search(EVIDENCE[poison[n]], fault.text), fault.text
            assert fault.kind == "crashed" and "alone in its process" in fault.text
            assert fault.crash is not None and fault.crash.alone and fault.crash.started == (ref.id,)
            assert fault.crash.peak_bytes is not None and fault.crash.peak_bytes > 10_000_000
            if poison[n] in ("loop", "segfault"):
                assert re.search(r'isolated_tasks.py", line \d+, in die$', fault.traceback, re.MULTILINE), (
                    fault.traceback
                )
                assert "executors/child_main.py" not in fault.traceback
            if poison[n] == "memory":
                assert "kept.append" in fault.traceback and fault.crash.peak_bytes > 100_000_000
    app.store.close()


def test_one_that_cuts_its_process_off_from_the_worker_has_crashed(app: App, tmp_path: Path) -> None:
    ref = app.tasks["deadly"].enqueue(0, "closes", str(tmp_path))
    heard = Heard(app)

    async def work() -> None:
        async with app.worker(["deadly"], grace=0):
            await until(lambda: heard.fates)

    asyncio.run(work())
    assert heard.outcomes[0] == "crashed" and stored(app, ref.id).crashes_alone >= 1


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_suspect_that_no_child_can_run_runs_alone_in_the_worker(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is declared in no module, or it needs the worker's own memory."""
    app = isolated.fresh(store_in(tmp_path, kind))
    monkeypatch.setattr(app, "tasks", {**app.tasks})

    @app.task(name="local", keep_result="1h")
    def local() -> int:
        app.tasks["rest"].enqueue(1)
        return os.getpid()

    ref = local.enqueue()
    app.store.exchange([], [ClaimRequest("default", 1, 600_000, worker="dead")])
    app.store.reclaim("dead", None)
    app.run_worker({"default": 1}, drain=True)
    assert ref.wait(0) == os.getpid()
    app.store.close()


# -- children


@pytest.mark.linux
def test_a_child_has_no_file_of_the_worker_s(on_disk: App, tmp_path: Path) -> None:
    ref = on_disk.tasks["about"].enqueue()
    on_disk.run_worker(["default"], burst=True)
    found = ref.wait(0)
    mine = [target for target in found["files"] if str(tmp_path) in target]
    sockets = [target for target in found["files"] if target.startswith("socket:")]
    assert mine == [] and len(sockets) == 1 and found["group"] == found["pid"]


def test_children_are_recycled_after_so_many_messages(app: App) -> None:
    app.recycle_after = 2
    refs = [app.tasks["sync"].enqueue("value") for _ in range(5)]
    app.run_worker({"default": 1}, burst=True)
    pids = [ref.wait(0)["pid"] for ref in refs]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] and pids[0] != pids[4]


def test_tasks_of_other_memory_limits_share_the_places(app: App) -> None:
    refs = [app.tasks[task].enqueue(*args) for task, args in [("sync", ["value"]), ("small", []), ("about", [])] * 6]
    app.run_worker({"default": 2}, burst=True)
    assert [app.job(ref.id) is not None and stored(app, ref.id).lane for ref in refs] == [Lane.DONE] * 18


@pytest.mark.linux
def test_children_are_recycled_after_so_much_memory(app: App) -> None:
    app.recycle_memory = 300 * 2**20
    refs = [app.tasks["grows"].enqueue(mib) for mib in (1, 400, 1)]
    app.run_worker({"default": 1}, burst=True)
    first, second, third = (ref.wait(0) for ref in refs)
    assert first == second != third


def test_where_no_child_can_begin_messages_are_put_off_uncounted(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.tasks["sync"], "memory_bytes", 40 * 2**20)
    ref = app.tasks["sync"].enqueue("value")
    heard = Heard(app)
    app.run_worker(["default"], burst=True)
    message = stored(app, ref.id)
    assert (message.attempt, message.faults, heard.outcomes) == (0, (), ["held"])
    assert any("is less than" in event.text for event in heard.events if isinstance(event, Notice))


# -- where the app is


def test_an_app_in_a_function_is_refused_with_what_to_do() -> None:
    local = App("memory://")

    @local.task(isolation="process")
    def f() -> None: ...

    with pytest.raises(ConfigError, match="at the top of a module"):
        local.worker()


@pytest.mark.parametrize(
    "options",
    [
        {"isolation": "thread"},
        {"memory": "1GiB"},
        {"isolation": "process", "memory": "1 lot"},
        {"isolation": "process", "memory": 0},
    ],
)
def test_nonsense_is_refused_where_it_is_declared(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"expected|give isolation"):
        App("memory://").task(**options)


@pytest.mark.parametrize("options", [{"recycle_after": 0}, {"recycle_memory": "x"}, {"recycle_after": "3"}])
def test_nonsense_about_recycling_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        App("memory://", **options)


PROGRAM = """
import os, sys
from redrive import App, Draft
app = App(sys.argv[1])

@app.task(isolation="process", keep_result="1h")
def where(n: int) -> list:
    return [os.getpid(), __name__]

{guard}
    app.worker()
    ref = where.enqueue(1)
    app.run_worker(burst=True)
    found = ref.wait(0)
    print(found is not None and found[0] != os.getpid())
"""


def run_program(folder: Path, guard: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM.format(guard=guard))
    return subprocess.run(
        [sys.executable, *command, f"sqlite:///{folder}/work.db"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("command", [("program.py",), ("-m", "program")])
def test_a_program_s_own_tasks_are_had_by_importing_it_again(tmp_path: Path, command: tuple[str, ...]) -> None:
    found = run_program(tmp_path, 'if __name__ == "__main__":', *command)
    assert found.stdout == "True\n", found.stderr


def test_a_program_that_starts_a_worker_when_imported_is_told(tmp_path: Path) -> None:
    found = run_program(tmp_path, "if True:", "program.py")
    assert "put it under" in found.stderr


@pytest.mark.linux
def test_children_end_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, sys, time\nfrom pathlib import Path\nfrom redrive import App\n"
        f"app = App('sqlite:///{tmp_path}/work.db')\n"
        "@app.task(isolation='process')\n"
        "def hangs(n: int) -> None:\n"
        f"    Path('{tmp_path}', f'pid-{{n}}').write_text(str(os.getpid()))\n"
        "    import re; re.match(r'(a+)+$', 'a' * 64 + 'b')\n"
        "if __name__ == '__main__':\n"
        "    app.enqueue_many([hangs.draft(n) for n in range(3)])\n"
        "    app.run_worker({'default': 3})\n"
    )
    worker = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path)
    try:
        asyncio.run(until(lambda: len([p for p in tmp_path.glob("pid-*") if p.read_text()]) == 3))
    finally:
        worker.kill()
        worker.wait()
    pids = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in pids)))


# -- frames


def test_frames_come_whole_however_they_are_cut() -> None:
    frames = [Stop(1, "x"), Stop(2, "y" * 1000), Stop(3, "")]
    data = b"".join(pack(frame) for frame in frames)
    for size in (1, 3, 7, 1000, len(data)):
        inbox: FrameDecoder[Stop] = FrameDecoder(Stop)
        assert [f for at in range(0, len(data), size) for f in inbox.feed(data[at : at + size])] == frames
    back: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
    assert [*back.feed(pack(Ended(1, result=b"\0\xff")) + pack(Checkpoint(1, b"", 1)))] == [
        Ended(1, result=b"\0\xff"),
        Checkpoint(1, b"", 1),
    ]
