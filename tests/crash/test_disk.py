"""A disk that is full or fails: a typed error, nothing acknowledged, nothing half-written, and on it goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.crash.children import Child, balanced, fill, records, run, strace, until
from tests.support.crash.ledger import Ledger, database, produced, read
from tests.support.crash.programs import Plan

from redrive import App, Draft
from redrive.errors import StoreUnavailable
from redrive.message import Counts
from redrive.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

# Call, error, which of the calls fail, and the error that the caller must see. A failed sync is an I/O error to SQLite,
# whatever its cause.
PRODUCER = [
    ("pwrite64", "ENOSPC", "20..27", "StoreFull"),
    ("pwrite64", "EIO", "20..27", "StoreUnavailable"),
    ("pwrite64", "EIO", "33", "StoreUnavailable"),
    ("pwrite64", "ENOSPC", "34", "StoreFull"),
    ("fdatasync", "EIO", "3..5", "StoreUnavailable"),
    ("fdatasync", "ENOSPC", "3..5", "StoreUnavailable"),
]
WORKER = [
    ("pwrite64", "ENOSPC", "40..43"),
    ("pwrite64", "EIO", "90..92"),
    ("fdatasync", "EIO", "5..7"),
    ("pread64", "EIO", "30..31"),
]


def failing(call: str, error: str, when: str) -> list[str]:
    return strace(
        "--seccomp-bpf", "-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"
    )


def refused(place: Path) -> list[str]:
    return [r.note for r in read(produced(place)) if r.what == "refused"]


def went_on(place: Path) -> Ledger:
    """Asserts that refused messages are nowhere, and that those acknowledged before and after them get done."""
    whats = [r.what for r in read(produced(place)) if r.what in ("ack", "refused")]
    assert whats[0] == whats[-1] == "ack" and "refused" in whats
    before = Ledger(place)
    assert before.stored.keys() == before.acknowledged
    assert run("worker", Plan(place=str(place))) == 0
    return balanced(place)


@pytest.mark.fault("the disk fails or is full under a producer")
@pytest.mark.linux
@pytest.mark.parametrize(("call", "error", "when", "expected"), PRODUCER)
def test_failing_disk_refuses_an_enqueue_and_the_next_one_works(
    call: str, error: str, when: str, expected: str, tmp_path: Path
) -> None:
    fill(tmp_path, ["quick"])
    plan = Plan(place=str(tmp_path), count=40, ways=("one", "batch"), patient=True)
    assert run("producer", plan, under=failing(call, error, when)) == 0
    assert set(refused(tmp_path)) == {expected}
    went_on(tmp_path)


@pytest.mark.fault("the disk fails or is full under a worker")
@pytest.mark.linux
@pytest.mark.parametrize(("call", "error", "when"), WORKER)
def test_failing_disk_delays_a_worker_and_repeats_nothing(call: str, error: str, when: str, tmp_path: Path) -> None:
    fill(tmp_path, 60)
    assert run("worker", Plan(place=str(tmp_path), told=True), under=failing(call, error, when)) == 0
    assert records(tmp_path, "notice", "store_unavailable") and records(tmp_path, "notice", "store_back")
    ledger = balanced(tmp_path)
    assert not ledger.killed


def test_file_that_may_not_grow_refuses_an_enqueue_and_the_next_one_works(tmp_path: Path) -> None:
    fill(tmp_path, ["quick"])
    assert run("producer", Plan(place=str(tmp_path), count=40, patient=True, file_limit=100_000)) == 0
    assert set(refused(tmp_path)) == {"StoreUnavailable"} and len(refused(tmp_path)) >= 3
    went_on(tmp_path)


class CountsFailOnce(SqliteStore):
    """A store whose first look at its counts fails."""

    failed = False

    def counts(self, queue: str | None = None) -> Counts:
        if not self.failed:
            self.failed = True
            raise StoreUnavailable("SQLite could not read: disk I/O error")
        return super().counts(queue)


def test_burst_whose_last_look_fails_looks_again(tmp_path: Path) -> None:
    store = CountsFailOnce(database(tmp_path))
    app = App(store=store)
    done: list[int] = []
    app.task(name="note")(lambda object: done.append(object))
    app.enqueue_many([Draft(task="note", body=b'{"object": 7}')])

    async def work() -> None:
        worker = app.worker(burst=True)
        worker.start()
        await worker.wait()

    asyncio.run(work())
    store.close()
    assert (done, store.failed) == ([7], True)


# -- a file system that is really full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A place whose store lies on a file system of 2 MB."""
    disk = database(tmp_path).parent
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True, text=True, check=False
    )
    if mounting.returncode != 0:
        pytest.skip(f"mounting a small file system is not permitted here: {mounting.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def use_up(place: Path) -> Path:
    """A file that takes all the room left."""
    ballast = database(place).with_name("ballast")
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(512))
    return ballast


@pytest.mark.fault("the disk fails or is full under a worker")
@pytest.mark.linux
def test_worker_goes_on_when_a_full_disk_has_room_again(small_disk: Path) -> None:
    fill(small_disk, ["hold", "hold_thread", *["quick", "blocking"] * 8])
    with Child("worker", Plan(place=str(small_disk), told=True)) as worker:
        until("two handlers run", lambda: worker.starts() == 2, child=worker)
        ballast = use_up(small_disk)
        (small_disk / "go").touch()
        until("it notices", lambda: bool(records(small_disk, "notice", "store_unavailable")), child=worker)
        ballast.unlink()
        worker.ends_well()
    assert records(small_disk, "notice", "store_back")
    balanced(small_disk)


@pytest.mark.linux
@pytest.mark.parametrize("others", [False, True])
def test_worker_started_on_a_full_disk_says_so_and_works_when_there_is_room(others: bool, small_disk: Path) -> None:
    fill(small_disk, 10)
    store = SqliteStore(database(small_disk))
    if not others:  # then the files that SQLite keeps while it is open must be made, too
        store.close()
    ballast = use_up(small_disk)
    with Child("worker", Plan(place=str(small_disk), told=True)) as worker:
        waits = lambda: bool(records(small_disk, "notice", "store_unavailable"))  # noqa: E731
        until("it ends or waits", lambda: worker.process.poll() is not None or waits())
        ballast.unlink()
        store.close()
        if waits():
            worker.ends_well()
        else:
            assert worker.wait() == 1, "ended by an exception, not by a signal"
            said = (small_disk / "stderr").read_text()
            assert re.search(r"^redrive\.errors\.Store(Full|Unavailable): ", said, re.M)
    assert run("worker", Plan(place=str(small_disk))) == 0
    balanced(small_disk)


@pytest.mark.linux
def test_worker_ends_after_its_grace_though_the_store_fails_and_loses_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 60)
    plan = Plan(place=str(tmp_path), grace="200ms", told=True)
    with Child("worker", plan, under=failing("pwrite64", "EIO", "60+")) as worker:
        until("the store fails", lambda: bool(records(tmp_path, "notice", "store_unavailable")), child=worker)
        os.kill(records(tmp_path, "up")[0].pid, signal.SIGTERM)
        assert worker.wait() == 1
    assert re.search(r"^redrive\.errors\.StoreUnavailable: ", (tmp_path / "stderr").read_text(), re.M)
    assert run("worker", Plan(place=str(tmp_path))) == 0
    balanced(tmp_path)
