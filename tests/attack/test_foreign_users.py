"""Several users on one database file: a put that was acknowledged never raises, whatever lies where waiters would be
woken; and who shares the file by group shares the work."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.attack.users import (
    ALICE,
    ANNE,
    BEN,
    BOB,
    TEAM,
    User,
    acting_as,
    begin,
    common_ground,
    home_of,
    needs_root,
    team_folder,
)

from redrive import Draft
from redrive.errors import StoreUnavailable
from redrive.message import Ack, ClaimRequest, Message, Settlement
from redrive.stores.sqlite import store as sqlite
from redrive.stores.sqlite import wake
from redrive.stores.sqlite.store import SqliteStore
from redrive.stores.sqlite.wake import SqliteWaiter, wake_dir
from redrive.worker.crash.ledger import hold, left_behind
from redrive.worker.identity import identity

ASK = ClaimRequest("default", 10, 30_000, worker="w")
PATIENCE_S, FAR_MS = 40.0, 60_000


@pytest.fixture
def ground() -> Iterator[Path]:
    with common_ground() as folder:
        yield folder


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_SHARE", "group")


def until(seen: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.005)


def put(path: Path) -> str:
    with closing(SqliteStore(path)) as store:
        return store.put([Draft(task="t")])[0].id


def run_all(path: Path) -> list[str]:
    with closing(SqliteStore(path)) as store:
        found = store.exchange([], [ASK]).deliveries
        store.exchange([Settlement(one.receipt, Ack()) for one in found], [])
        return [one.message.id for one in found]


def wait_and_run(path: Path, look_every_s: float = 3600.0) -> list[str]:
    """Waits until it is woken, then runs what is there."""
    sqlite.LOOK_EVERY_S = look_every_s
    with closing(SqliteStore(path)) as store:
        store.wait([ASK], timeout_ms=FAR_MS)
        return [one.message.id for one in store.exchange([], [ASK]).deliveries]


# -- whatever lies there


def file(path: Path) -> None:
    path.write_text("x")


def loop(path: Path) -> None:
    path.symlink_to(path)


def nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize("lay", [file, loop, nowhere, os.mkfifo, listener, open_to_all])
def test_put_is_acknowledged_and_found_whatever_the_wake_folder_is(tmp_path: Path, lay: Callable[[Path], None]) -> None:
    path = tmp_path / "work.db"
    lay(wake_dir(path))
    with closing(SqliteStore(path)) as waiting:
        thread = begin_thread(lambda: waiting.wait([ASK], timeout_ms=FAR_MS))
        assert put(path)
        thread()
        assert len(waiting.exchange([], [ASK]).deliveries) == 1
        nudged = begin_thread(lambda: waiting.wait([ASK], timeout_ms=FAR_MS))
        waiting.nudge()
        nudged()


def begin_thread(work: Callable[[], object]) -> Callable[[], None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    return join


def test_path_that_is_too_long_for_a_socket_leaves_waiters_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "_HAS_DESCRIPTORS", False)  # as where there is no /proc
    path = tmp_path / ("d" * 100) / "work.db"
    path.parent.mkdir()
    with closing(SqliteStore(path)) as waiting:
        thread = begin_thread(lambda: waiting.wait([ASK], timeout_ms=FAR_MS))
        assert put(path)
        thread()
        assert len(waiting.exchange([], [ASK]).deliveries) == 1 and not list(wake_dir(path).iterdir())


def test_wake_folder_that_is_mended_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOOK_EVERY_S", 3600.0)
    path = tmp_path / "work.db"
    open_to_all(wake_dir(path))
    with closing(SqliteStore(path)) as putting, closing(SqliteStore(path)) as waiting:
        putting.put([Draft(task="t", queue="other")])
        wake_dir(path).chmod(0o700)
        woken = begin_thread(lambda: waiting.wait([ASK], timeout_ms=FAR_MS))
        until(lambda: list(wake_dir(path).iterdir()))
        putting.put([Draft(task="t")])
        woken()


# -- users


@needs_root
def test_user_who_may_not_enter_the_wake_folder_puts_and_claims(ground: Path) -> None:
    """As an earlier version made it: for its first user alone."""
    folder = team_folder(ground)
    path = folder / "work.db"

    def begun() -> None:
        put(path)
        path.chmod(0o660)
        wake_dir(path).mkdir(mode=0o700)

    acting_as(ANNE, begun)
    waiting = begin(BEN, lambda: wait_and_run(path, 0.05))
    assert len(waiting.result()) == 1
    again = begin(ANNE, lambda: wait_and_run(path, 0.05))
    until(lambda: list(wake_dir(path).iterdir()))
    id = acting_as(BEN, lambda: put(path))
    assert again.result() == [id]


@needs_root
@pytest.mark.parametrize(("first", "second"), [(ANNE, BEN), (BEN, ANNE)], ids=["anne", "ben"])
def test_users_who_share_a_file_by_group_wake_each_other(ground: Path, first: User, second: User, shared: None) -> None:
    path = team_folder(ground) / "work.db"
    assert acting_as(first, lambda: run_all(path)) == []
    for waits, puts in ((first, second), (second, first)):
        waiting = begin(waits, lambda: wait_and_run(path))
        until(lambda: wake_dir(path).is_dir() and list(wake_dir(path).iterdir()))
        id = acting_as(puts, lambda: put(path))
        assert waiting.result() == [id]
        acting_as(puts, lambda: run_all(path))
    assert (path.stat().st_gid, path.stat().st_mode & 0o777) == (TEAM, 0o660)


@needs_root
def test_users_who_share_a_file_by_group_take_back_what_the_others_dead_held(ground: Path, shared: None) -> None:
    path = team_folder(ground) / "work.db"
    folder = path.with_name("work.db-workers")

    def die() -> str:
        id = put(path)
        slots = hold(folder, "worker")
        slots.open(4)
        slots.start(*slots.take([Message(id, "t", "q", b"", id, fence=1)]))
        return id

    def find(id: str) -> bool:
        mine = hold(folder, "worker")  # the other's is free, and this one keeps what it held
        return [one.id for one in mine.started or []] == [id] or any(
            one.id == id for left in left_behind(folder) for one in left.started or []
        )

    id = acting_as(ANNE, die)
    assert acting_as(BEN, lambda: find(id))


@needs_root
def test_what_one_user_keeps_for_himself_another_does_not_open(ground: Path) -> None:
    home = home_of(ALICE, ground)
    path = home / "work.db"
    acting_as(ALICE, lambda: put(path), umask=0)
    with pytest.raises(StoreUnavailable):
        acting_as(BOB, lambda: put(path))
    assert acting_as(ALICE, lambda: len(run_all(path))) == 1


@needs_root
def test_root_and_a_user_work_on_the_users_file_and_neither_shuts_the_other_out(ground: Path) -> None:
    home = home_of(ALICE, ground)
    path = home / "work.db"
    acting_as(ALICE, lambda: put(path))
    waiting = begin(ALICE, lambda: (run_all(path), wait_and_run(path))[1])
    until(lambda: wake_dir(path).is_dir() and list(wake_dir(path).iterdir()))
    id = put(path)  # as root
    assert waiting.result() == [id]

    def name_of(user_path: Path) -> str:
        with closing(SqliteStore(user_path)) as store:
            made = identity(store, None)
            assert made.slots is not None, made.complaint
            made.slots.close()
            return made.slots.name

    assert acting_as(ALICE, lambda: name_of(path)) == name_of(path) == "worker-0"
    assert acting_as(ALICE, lambda: name_of(path)) == "worker-0"
    assert acting_as(ALICE, lambda: put(path))
    assert {one.stat().st_uid for one in home.iterdir()} == {ALICE.uid}


@needs_root
def test_what_root_makes_beside_a_users_file_is_the_users(ground: Path) -> None:
    home = home_of(ALICE, ground)
    path = home / "work.db"
    acting_as(ALICE, lambda: put(path))
    with closing(SqliteStore(path)) as store:  # as root, and first
        made = identity(store, None)
        assert made.slots is not None, made.complaint
        waiting = SqliteWaiter(wake_dir(path))
        assert waiting.name
        found = [*home.iterdir(), *(home / "work.db-workers").iterdir()]
        assert wake_dir(path) in found and {one.stat().st_uid for one in found} == {ALICE.uid}
        waiting.close()
        made.slots.close()
    assert len(acting_as(ALICE, lambda: run_all(path))) == 1
