"""The slot files of the crash ledger: who holds an identity, what it had started, and what a damaged one means."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App
from redrive.fault import Crash, Kind, crash_fault
from redrive.files import boot_id
from redrive.ids import new_id
from redrive.message import ClaimRequest, Lane, Message
from redrive.worker.crash.ledger import (
    CrashSlots,
    WorkerDeath,
    all_beats,
    hold,
    left_behind,
    note_death,
    place,
)

IDS = [new_id(n) for n in range(4)]


def claimed(id: str, fence: int) -> Message:
    return Message(id, "task", "default", b"{}", id, fence=fence)


def opened(folder: Path, name: str = "w") -> CrashSlots:
    slots = hold(folder, name)
    slots.open(10)
    return slots


def test_an_identity_is_the_first_number_that_nobody_holds(tmp_path: Path) -> None:
    first, second = hold(tmp_path / "new" / "folder", "w"), hold(tmp_path / "new" / "folder", "w")
    assert [first.name, second.name] == ["w-0", "w-1"]
    assert first.worker.startswith(f"{os.uname().nodename}.") and first.worker.endswith("/w-0")
    other = hold(tmp_path / "new" / "folder", "other")
    assert other.name == "other-0"
    first.close()
    third = hold(tmp_path / "new" / "folder", "w")
    assert third.name == "w-0"
    for slots in (second, third, other):
        slots.close()


def test_the_next_holder_knows_what_had_started_and_was_not_settled(tmp_path: Path) -> None:
    slots = opened(tmp_path)
    started, unstarted, settled, again = slots.take([claimed(id, 7) for id in IDS])
    slots.start(started)
    slots.start(settled)
    slots.give([settled])
    slots.start(again)
    slots.give([again])
    slots.take([claimed(IDS[3], 8)])  # the same slot, not started this time
    assert unstarted >= 0
    slots.close()
    after = hold(tmp_path, "w")
    assert (after.same_boot, after.started) == (True, [(IDS[0], 7)])
    after.open(10)
    after.close()
    last = hold(tmp_path, "w")
    assert last.started == []  # opening forgets
    last.close()


def test_a_run_without_a_slot_starts_nothing(tmp_path: Path) -> None:
    slots = opened(tmp_path)
    slots.start(-1)
    slots.close()
    after = hold(tmp_path, "w")
    assert after.started == []
    after.close()


def test_what_the_dead_left_is_found_once_and_never_the_livings_or_the_settled(tmp_path: Path) -> None:
    dead, living, settled = (opened(tmp_path, name) for name in ("dead", "living", "settled"))
    dead.start(*dead.take([claimed(IDS[0], 1)]))
    dead.close()
    settled.settle()
    settled.close()
    found = [(slots.name, slots.started) for slots in left_behind(tmp_path)]
    assert found == [("dead-0", [(IDS[0], 1)])]
    for slots in left_behind(tmp_path):
        slots.settle()
    assert list(left_behind(tmp_path)) == []
    living.close()


def test_what_is_found_is_held_while_it_is_looked_at(tmp_path: Path) -> None:
    opened(tmp_path, "dead").close()
    looking = left_behind(tmp_path)
    next(looking)
    assert hold(tmp_path, "dead").name == "dead-1"
    assert list(looking) == []


def test_after_settling_a_late_write_is_an_error_and_no_bus_fault(tmp_path: Path) -> None:
    slots = opened(tmp_path)
    [slot] = slots.take([claimed(IDS[0], 1)])
    slots.settle()
    with pytest.raises(ValueError, match="closed"):
        slots.start(slot)
    slots.close()


def test_beats_tell_of_every_holder(tmp_path: Path) -> None:
    before_s = time.monotonic()
    slots = opened(tmp_path)
    slots.beat(before_s + 1)
    slots.beat_loop(before_s + 2)
    slots.beat_store(before_s + 3, before_s + 9)
    (tmp_path / "garbage-0.slots").write_bytes(b"nonsense")
    (tmp_path / "empty-0.slots").touch()
    [beats] = all_beats(tmp_path)
    assert beats == (before_s + 1, before_s + 9, before_s + 2, os.getpid(), before_s + 3)
    slots.close()


def test_a_name_is_of_one_folder_and_stays_the_same_in_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = place(tmp_path / "a"), place(tmp_path / "b")
    assert one != other and one == place(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "image")
    assert place(tmp_path / "image") == one  # on this machine; elsewhere the boot or the container tells them apart


def test_a_token_is_made_once_however_many_begin_together(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: place(tmp_path), range(50)))) == 1


def test_a_token_that_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    whole = place(tmp_path)
    (tmp_path / "token").write_bytes((tmp_path / "token").read_bytes()[:5])
    assert place(tmp_path) != whole and place(tmp_path) == place(tmp_path)


def test_what_was_held_under_another_name_is_taken_back_under_it(tmp_path: Path) -> None:
    """A container that comes back has another host name, and its volume still."""
    opened(tmp_path, "w").close()
    before = hold(tmp_path, "w")
    before.close()
    (tmp_path / "token").write_bytes(b"0" * 16)
    after = hold(tmp_path, "w")
    assert after.last == before.worker != after.worker
    after.close()


def test_beats_of_another_container_in_the_same_folder_are_not_ours(tmp_path: Path) -> None:
    slots = opened(tmp_path)
    assert len(all_beats(tmp_path)) == 1
    (tmp_path / "token").write_bytes(b"0" * 16)  # as if another place had written it: pids are counted there anew
    assert all_beats(tmp_path) == []
    slots.close()


@given(st.binary(max_size=900), st.sampled_from([b"", b"redrive3", b"redrive3" + boot_id().encode()]))
def test_a_damaged_file_holds_nobody_up(tail: bytes, head: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "w-0.slots").write_bytes(head + tail)
        for slots in left_behind(path):
            assert slots.started is None or all(isinstance(one.id, str) for one in slots.started)
        slots = hold(path, "w")
        for one in slots.started or []:
            one.id.encode()
        all_beats(path)
        slots.open(1)
        slots.close()
        again = hold(path, "w")
        assert again.started == []
        again.close()


# -- how the holder died


def died(folder: Path, death: WorkerDeath | None, *, alone: bool = False, count: int = 1) -> Crash:
    """The evidence that a next holder finds of one that had started so many."""
    slots = hold(folder, "w")
    slots.open(30)
    for number in range(count):
        slots.start(*slots.take([claimed(new_id(number), 7)]), alone)
    slots.close()
    if death is not None:
        assert note_death(folder, os.getpid(), 0.0, death)
    after = hold(folder, "w")
    crash = after.crash()
    after.open(30)
    after.close()
    return crash


def test_the_supervisor_s_note_is_evidence_for_the_next_holder(tmp_path: Path) -> None:
    crash = died(tmp_path, WorkerDeath(-signal.SIGSEGV, 2**29))
    assert (crash.cause, crash.signal, crash.code, crash.peak_bytes) == ("signal", "SIGSEGV", None, 2**29)
    assert len(crash.started) == crash.started_count == 1 and not crash.alone
    assert crash.worker.endswith("/w-0") and crash.host == os.uname().nodename
    assert crash_fault(crash).text.startswith("killed by SIGSEGV, peak memory 512 MiB; the only message that had been")


@pytest.mark.parametrize(
    ("death", "told"),
    [
        (WorkerDeath(-signal.SIGKILL, 0), {"cause": "signal", "signal": "SIGKILL"}),
        (WorkerDeath(-signal.SIGKILL, 0, hung=True), {"cause": "hung", "signal": "SIGKILL"}),
        (WorkerDeath(3, 5), {"cause": "exit", "code": 3, "peak_bytes": 5}),
        (WorkerDeath(0, 5), {"cause": "exit", "code": 0, "peak_bytes": 5}),
        (WorkerDeath(-40, 0), {"cause": "signal", "signal": "signal 40"}),
        (None, {"cause": ""}),
    ],
    ids=str,
)
def test_each_way_to_die_is_told(tmp_path: Path, death: WorkerDeath | None, told: dict[str, object]) -> None:
    crash = died(tmp_path, death)
    assert {name: getattr(crash, name) for name in told} == told
    assert crash_fault(crash).kind is Kind.CRASHED


def test_at_most_twenty_ids_are_named_and_all_are_counted(tmp_path: Path) -> None:
    crash = died(tmp_path, None, count=25)
    assert (len(crash.started), crash.started_count) == (20, 25)
    assert "; 25 messages had been started in its process; worker " in crash_fault(crash).text
    assert crash_fault(crash).text.endswith(f", {crash.started[-1]} and 5 more")


def test_what_ran_alone_says_so(tmp_path: Path) -> None:
    crash = died(tmp_path, WorkerDeath(-9, 0), alone=True)
    assert crash.alone and "; alone in its process; " in crash_fault(crash).text


def test_a_note_about_another_process_or_an_earlier_life_of_its_pid_is_none(tmp_path: Path) -> None:
    slots = opened(tmp_path)
    assert not note_death(tmp_path, os.getpid() + 1, 0.0, WorkerDeath(-9, 0))
    assert not note_death(tmp_path, os.getpid(), time.monotonic() + 60, WorkerDeath(-9, 0))
    slots.settle()
    assert not note_death(tmp_path, os.getpid(), 0.0, WorkerDeath(0, 0)), "it ended in order"
    slots.close()
    [of_another] = [hold(tmp_path, "w")]
    of_another.open(1)
    os.pwrite(of_another._file, struct.pack("<IiQB", os.getpid() + 1, -9, 1, 0), 480)
    of_another.close()
    after = hold(tmp_path, "w")
    assert after.crash().cause == ""
    after.close()


# -- what a worker makes of it


def work(tmp_path: Path, before: Callable[[Path, str], None]) -> tuple[App, str]:
    """A message leased to a dead worker, its slot file as `before` leaves it, and a worker that comes after."""
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    folder = app.store.state_dir
    assert folder is not None

    @app.task(name="t")
    async def task() -> None: ...

    dead = opened(folder, "dead")
    ref = task.enqueue()
    [delivery] = app.store.exchange([], [ClaimRequest("default", 1, 600_000, worker=dead.worker)]).deliveries
    dead.start(*dead.take([delivery.message]))
    dead.close()
    before(folder / "dead-0.slots", delivery.message.id)
    app.run_worker(["another queue"], burst=True, name="new")
    return app, ref.id


def test_a_file_from_before_the_machine_started_takes_nothing_back(tmp_path: Path) -> None:
    def reboot(path: Path, id: str) -> None:
        path.write_bytes(path.read_bytes().replace(boot_id().encode(), b"0" * len(boot_id())))

    app, id = work(tmp_path, reboot)
    message = app.job(id)
    assert message is not None and message.lane is Lane.LEASED and message.worker is not None
    app.store.close()


def test_a_file_that_cannot_be_read_counts_a_crash_for_all_it_held(tmp_path: Path) -> None:
    app, id = work(tmp_path, lambda path, id: path.write_bytes(b"not ours any more"))
    [delivery] = app.store.exchange([], [ClaimRequest("default", 1, 1000, worker="me")]).deliveries
    assert (delivery.message.id, delivery.message.attempt, delivery.message.crashes) == (id, 1, 1)
    app.store.close()


def test_a_slot_that_was_not_started_goes_back_free(tmp_path: Path) -> None:
    def unstart(path: Path, id: str) -> None:
        path.write_bytes(path.read_bytes().replace(id.encode() + b"\x01\0\0\0\x01", id.encode() + b"\x01\0\0\0\0"))

    app, id = work(tmp_path, unstart)
    message = app.job(id)
    assert message is not None and (message.lane, message.attempt, message.crashes) == (Lane.READY, 0, 0)
    app.store.close()
