"""What is SQLite's own: group commit, processes on one file, wake sockets, forks, the schema, how its queries run."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import redrive
from redrive.errors import ConfigError, EnqueueError, SchemaError, StoreError, StoreFull, StoreUnavailable, Unsupported
from redrive.message import (
    Ack,
    Cell,
    ClaimRequest,
    DeadLetter,
    Discard,
    Draft,
    Filter,
    Handle,
    Isolate,
    Lane,
    Message,
    Redrive,
    Replace,
    RetryAt,
    Settlement,
    Swap,
    Verdict,
)
from redrive.stores import open_store
from redrive.stores.sqlite import schema, upkeep
from redrive.stores.sqlite import store as sqlite
from redrive.stores.sqlite.store import SqliteStore
from redrive.stores.sqlite.wake import wake_dir
from redrive.stores.upkeep import ddl, upgrade
from redrive.testing import ManualClock

PATIENCE_S = 40.0  # less than FAR_MS
FAR_MS = 60_000
ASK = ClaimRequest("default", 10, 30_000, worker="w")

Opener = Callable[..., SqliteStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
def open_sqlite(path: Path) -> Iterator[Opener]:
    opened: list[SqliteStore] = []

    def open_sqlite(at: Path = path, **parts: object) -> SqliteStore:
        opened.append(SqliteStore(at, **parts))  # type: ignore[arg-type]
        return opened[-1]

    yield open_sqlite
    for store in opened:
        store.close()


@pytest.fixture
def store(open_sqlite: Opener) -> SqliteStore:
    return open_sqlite()


def draft(**parts: object) -> Draft:
    return Draft(task="push", **parts)  # type: ignore[arg-type]


def in_threads(works: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def until(seen: Callable[[], object]) -> None:
    """Wait for what must happen; fail if it does not."""
    end_s = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.002)


# -- group commit


def commit_together(store: SqliteStore, works: list[Callable[[], object]]) -> int:
    """Run the works in a thread each; all that are not in the first commit wait for the second. Counts commits."""
    groups: list[int] = []
    failpoint_was = store.failpoint

    def failpoint(point: str) -> None:
        if point == "put":
            groups[-1] += 1
        if point == "commit":
            if len(groups) == 1:
                until(lambda: groups[0] + len(store._writer.waiting) == len(works))
            groups.append(0)
        failpoint_was(point)

    groups.append(0)
    store.failpoint = failpoint
    in_threads(works)
    store.failpoint = failpoint_was
    return len(groups) - 1


def test_threads_that_put_at_the_same_time_share_syncs(store: SqliteStore) -> None:
    ids: list[str] = []
    commits = commit_together(store, [lambda: ids.append(store.put([draft()])[0].id)] * 8)
    assert commits <= 2
    assert len(set(ids)) == 8
    assert None not in store.find(ids)


def test_a_refused_put_undoes_its_own_part_of_a_shared_commit_only(store: SqliteStore) -> None:
    taken = store.put([draft()])[0].id
    refused: list[int] = []

    def put_taken() -> None:
        with pytest.raises(EnqueueError):
            store.put([draft(key="k"), draft(id=taken)], swaps=[Swap("c", 0, b"1")])
        refused.append(1)

    commits = commit_together(store, [put_taken] * 3 + [lambda: store.put([draft(), draft()])] * 5)
    assert commits <= 2
    assert len(refused) == 3
    assert store.counts().ready == 11
    assert store.cells.read(["c"]) == [None]
    assert not store.put([draft(key="k")])[0].duplicate


def test_a_full_disk_acknowledges_nothing_and_the_store_recovers(store: SqliteStore) -> None:
    kept = store.put([draft()])[0].id
    connection = store._writer._connection
    assert connection is not None
    connection.execute("pragma max_page_count=1")  # as many as there are now: SQLite itself says it is full
    refused: list[int] = []

    def put() -> None:
        with pytest.raises(StoreFull, match="nothing was acknowledged"):
            store.put([draft(body=bytes(100_000))])
        refused.append(1)

    in_threads([put] * 4)
    assert len(refused) == 4
    connection.execute("pragma max_page_count=1000000")
    later = store.put([draft(body=bytes(100_000))])[0].id
    assert [d.message.id for d in store.exchange([], [ASK]).deliveries] == [kept, later]
    assert store.check() == []


def test_a_commit_that_fails_is_no_success_for_those_who_wait(store: SqliteStore) -> None:
    outcomes: list[object] = []

    def broken(point: str) -> None:
        if point == "commit":
            connection = store._writer._connection
            assert connection is not None
            connection.close()  # even its rollback fails now

    store.failpoint = broken

    def put() -> None:
        try:
            outcomes.append(store.put([draft()]))
        except StoreError as error:
            outcomes.append(error)

    commit_together(store, [put] * 4)
    assert len(outcomes) == 4
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    store.failpoint = lambda point: None
    assert store.counts().ready == 0
    store.put([draft()])
    assert store.counts().ready == 1


def test_a_connection_is_synchronous_full_unless_told(store: SqliteStore, open_sqlite: Opener, tmp_path: Path) -> None:
    for opened, level in ((store, 2), (open_sqlite(tmp_path / "n.db", synchronous="normal"), 1)):
        opened.put([])
        connection = opened._writer._connection
        assert connection is not None
        assert connection.execute("pragma synchronous").fetchone() == (level,)
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)


# -- several processes

CHILD = """
import sys, time
from redrive.message import *
from redrive.stores import sqlite
from redrive.stores.sqlite.store import SqliteStore
ASK = ClaimRequest("default", 10, 30_000, worker="w")
"""


def python(script: str, *args: object) -> subprocess.Popen[str]:
    src = str(Path(redrive.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + script, *map(str, args)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": src},
    )


def finish(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate(timeout=2 * PATIENCE_S)
    assert child.returncode == 0
    return out


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.slow
def test_processes_that_open_a_new_file_together_share_it(path: Path, open_sqlite: Opener) -> None:
    script = """
store = SqliteStore(sys.argv[1])
for n in range(30):
    store.put([Draft(task="push", body=f"{sys.argv[2]}.{n}".encode())])
taken = []
while found := store.exchange([], [ClaimRequest("default", 3, 60_000)]).deliveries:
    taken += [d.message.body.decode() for d in found]
    store.exchange([Settlement(d.receipt, Ack()) for d in found], [])
print(" ".join(taken))
"""
    children = [python(script, path, n) for n in range(3)]
    taken = [body for child in children for body in finish(child).split()]
    assert sorted(taken) == sorted(f"{child}.{n}" for child in range(3) for n in range(30))
    assert open_sqlite().check() == []


WAIT = """
sqlite.LOOK_EVERY_S = float(sys.argv[2])
store = SqliteStore(sys.argv[1])
store.put([Draft(task="push", queue="first")])
print("ready", flush=True)
store.wait([ASK], timeout_ms=60_000)
print(*[d.message.id for d in store.exchange([], [ASK]).deliveries], flush=True)
"""


def waiting_child(path: Path, look_every_s: float) -> subprocess.Popen[str]:
    child = python(WAIT, path, look_every_s)
    assert line(child) == "ready"
    until(lambda: list(wake_dir(path).glob("*")))
    return child


def test_a_put_wakes_a_waiter_in_another_process_through_its_socket(path: Path, store: SqliteStore) -> None:
    child = waiting_child(path, 3600)  # it does not look by itself
    id = store.put([draft()])[0].id
    start_s = time.monotonic()
    assert finish(child).strip() == id
    assert time.monotonic() - start_s < PATIENCE_S


@pytest.mark.parametrize("case", ["retry", "next of its group"])
def test_what_a_settlement_brings_wakes_who_waits_elsewhere(path: Path, store: SqliteStore, case: str) -> None:
    group = "g" if case == "next of its group" else None
    ids = [put.id for put in store.put([draft(group=group), draft(group=group)])]
    deliveries = store.exchange([], [ASK]).deliveries
    child = waiting_child(path, 3600)  # it does not look by itself
    now_ms = store.now_ms()
    decision = RetryAt(now_ms) if group is None else Ack()
    store.exchange([Settlement(deliveries[0].receipt, decision)], [])  # with no room for more
    assert finish(child).strip() == ids[0 if group is None else 1]


def test_a_cancel_wakes_and_an_ack_that_is_kept_does_not(store: SqliteStore) -> None:
    store.put([draft(group="g"), draft()])
    deliveries = store.exchange([], [ASK]).deliveries
    [waits] = store.put([draft(group="g")])
    woken: list[object] = []
    store._waker.wake_all = lambda but=None: woken.append(but)  # type: ignore[method-assign]
    [kept] = [delivery for delivery in deliveries if delivery.message.group is None]
    store.exchange([Settlement(kept.receipt, Ack(keep_ms=None))], [])
    assert not woken  # it brings nothing that anybody could run
    store.cancel([waits.id])
    assert woken


def test_a_waiter_whose_wake_up_is_lost_looks_by_itself(path: Path, store: SqliteStore) -> None:
    child = waiting_child(path, 0.05)
    for socket in wake_dir(path).glob("*"):
        socket.unlink()
    id = store.put([draft()])[0].id
    assert finish(child).strip() == id


def test_the_socket_of_a_killed_waiter_is_removed(path: Path, store: SqliteStore) -> None:
    child = waiting_child(path, 3600)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert len(list(wake_dir(path).glob("*"))) == 1
    store.put([draft()])
    assert list(wake_dir(path).glob("*")) == []
    assert store.counts("default").ready == 1


def test_the_last_store_that_closes_leaves_nothing(path: Path, store: SqliteStore, open_sqlite: Opener) -> None:
    other = open_sqlite()
    for waiting in (store, other):
        waiting.wait([ASK], timeout_ms=1)
    assert len(list(wake_dir(path).glob("*"))) == 2
    store.close()
    assert len(list(wake_dir(path).glob("*"))) == 1
    other.close()
    assert not wake_dir(path).exists()


def test_waiters_that_come_and_go_together_find_their_folder(open_sqlite: Opener) -> None:
    def come_and_go() -> None:
        for _ in range(20):
            store = open_sqlite()
            store.wait([ASK], timeout_ms=0)
            store.close()
        gone.append(1)

    gone: list[int] = []
    open_sqlite()
    in_threads([come_and_go] * 4)
    assert gone == [1] * 4


def test_a_deep_path_wakes_too(tmp_path: Path, open_sqlite: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOOK_EVERY_S", 3600.0)
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    waiting, putting = open_sqlite(deep / "work.db"), open_sqlite(deep / "work.db")
    folder = wake_dir(deep / "work.db")
    assert folder.parent == deep
    thread = threading.Thread(target=waiting.wait, args=([ASK],), kwargs={"timeout_ms": FAR_MS}, daemon=True)
    thread.start()
    until(lambda: list(folder.glob("*")))
    putting.put([draft()])
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


# -- forks


def in_child(work: Callable[[], object]) -> int:
    """Fork; the child does the work and exits with 0 if it returns."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_and_its_parent_use_the_store_side_by_side(path: Path, store: SqliteStore) -> None:
    store.put([draft(body=b"before")])
    store.counts()

    def child() -> None:
        assert store.counts().ready >= 1
        for _ in range(20):
            store.put([draft(body=b"child")])
        store.close()

    pid = in_child(child)
    for _ in range(20):
        store.put([draft(body=b"parent")])
    assert exit_code(pid) == 0
    bodies = [d.message.body for d in store.exchange([], [ClaimRequest("default", 100, 1000)]).deliveries]
    assert sorted(bodies) == [b"before"] + [b"child"] * 20 + [b"parent"] * 20
    assert store.check() == []


def test_what_a_forked_child_commits_outlives_its_parents_close(store: SqliteStore, open_sqlite: Opener) -> None:
    store.put([draft()])
    store.counts()
    go_on, parent_closed = os.pipe()

    def child() -> None:
        store.put([draft()])
        os.read(go_on, 1)
        store.put([draft()])

    pid = in_child(child)
    again = open_sqlite()
    until(lambda: again.counts().ready == 2)
    again.close()
    store.close()  # the last in this process: it takes the write-ahead log along if nobody else seems to use it
    os.write(parent_closed, b"!")
    assert exit_code(pid) == 0
    os.close(go_on)
    os.close(parent_closed)
    assert open_sqlite().counts().ready == 3


def test_a_fork_beside_a_busy_thread_gives_the_child_a_working_store(store: SqliteStore) -> None:
    stop = threading.Event()

    def put_on() -> None:
        while not stop.wait(0.002):  # without a pause it can keep the child from the file's lock for a whole timeout
            store.put([draft(queue="busy")])
            store.counts()

    thread = threading.Thread(target=put_on, daemon=True)
    thread.start()
    until(lambda: store.counts("busy").ready)
    codes = [exit_code(in_child(lambda: (store.put([draft()]), store.counts()))) for _ in range(5)]
    stop.set()
    thread.join(PATIENCE_S)
    assert codes == [0] * 5
    assert store.counts("default").ready == 5


def test_a_child_leaves_the_sockets_of_its_parent(path: Path, store: SqliteStore) -> None:
    store.wait([ASK], timeout_ms=1)
    assert exit_code(in_child(store.close)) == 0
    assert len(list(wake_dir(path).glob("*"))) == 1


# -- schema and opening


@pytest.mark.parametrize("exists", [False, True])
def test_an_empty_file_is_migrated(path: Path, open_sqlite: Opener, exists: bool) -> None:
    if exists:
        path.touch()
    open_sqlite().put([draft()])
    with sqlite3.connect(path) as c:
        assert schema.version(c.execute) == schema.MIGRATIONS[-1]
    c.close()


def test_a_new_file_that_another_is_about_to_write_is_waited_for(path: Path, open_sqlite: Opener) -> None:
    """SQLite says at once that it is locked, and does not wait, where a file is made WAL beside that."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("begin immediate")
        done = threading.Timer(0.3, other.execute, ["commit"])
        done.start()
        try:
            assert open_sqlite().put([draft()])
        finally:
            done.join()


def test_a_newer_schema_is_refused_and_left_alone(path: Path, open_sqlite: Opener) -> None:
    c = sqlite3.connect(path)
    c.execute("pragma user_version=99")
    c.execute("create table from_the_future(x)")
    with pytest.raises(SchemaError, match=r"schema 99.*upgrade redrive"):
        open_sqlite()
    assert c.execute("select name from sqlite_master").fetchall() == [("from_the_future",)]
    c.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, open_sqlite: Opener) -> None:
    text = b"this is somebody's diary\n" * 100
    path.write_bytes(text)
    with pytest.raises(StoreError, match=re.escape(str(path))):
        open_sqlite()
    assert path.read_bytes() == text


def test_a_folder_that_is_missing_is_named(tmp_path: Path, open_sqlite: Opener) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        open_sqlite(tmp_path / "nowhere" / "work.db")


def test_damage_is_found(path: Path, open_sqlite: Opener) -> None:
    store = open_sqlite()
    store.put([draft(body=bytes(500)) for _ in range(1000)])  # so many that the middle is not the schema
    store.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = b"\xa5" * 4096
    path.write_bytes(data)
    assert open_sqlite().check() != []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "work.db",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://work.db",
        "sqlite://host/work.db",
        "sqlite:///work.db?sync=normal",
        "sqlite:///work.db?synchronous=off",
        "sqlite:///work.db?synchronous=",
        "sqlite:///work#1.db",
        "sqlite://[/work.db",
        "memory://host",
        "memory:///work.db",
        "memory://?size=1",
        "mysql://localhost/work",
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(repr(url)) if "synchronous" not in url else "synchronous"):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


def test_urls_name_relative_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, name in (
        ("sqlite:///a.db", "a.db"),
        (f"sqlite:///{tmp_path}/b.db?synchronous=normal", "b.db"),
        ("sqlite:///c%23%20d.db", "c# d.db"),
    ):
        store = open_store(url)
        store.put([draft()])
        store.close()
        assert (tmp_path / name).exists()
    open_store("memory://").close()


# -- how its queries run


def plan(path: Path, name: str, args: int) -> list[str]:
    c = sqlite3.connect(path)
    sql = schema.statements()[name]
    details = [row[3] for row in c.execute(f"explain query plan {sql}", ["[]"] * args)]
    c.close()
    return details


@pytest.mark.parametrize(
    ("name", "args", "walks"),
    [("claimable", 3, 4), ("claimable_but", 4, 4), ("clogged", 2, 4), ("next_due", 1, 4), ("next_due_but", 2, 8)],
)
def test_claims_and_waits_walk_the_due_index_in_its_order(
    store: SqliteStore, path: Path, name: str, args: int, walks: int
) -> None:
    details = plan(path, name, args)
    touched = [detail for detail in details if "message" in detail]
    found = [detail for detail in touched if detail != "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"]
    if name.startswith("next_due"):
        assert "INDEX message_wake (queue=? AND wake_ms>?)" in found.pop()  # who waits without a place in its group
    assert len(found) == walks  # one or two per priority; what they find is looked up by seq
    assert all(walk.startswith("SEARCH message USING ") for walk in found)
    assert all("INDEX message_due (queue=? AND priority=?" in walk for walk in found)
    assert not [detail for detail in details if "TEMP B-TREE" in detail]


@pytest.mark.parametrize(
    ("name", "args", "index"),
    [
        ("claim", 3, "INTEGER PRIMARY KEY"),
        ("ack", 1, "INTEGER PRIMARY KEY"),
        ("settle", 2, "INTEGER PRIMARY KEY"),
        ("held_now", 1, "INTEGER PRIMARY KEY"),
        ("extend", 2, "INTEGER PRIMARY KEY"),
        ("checkpoint", 3, "INTEGER PRIMARY KEY"),
        ("cancel", 2, "message_id"),
        ("as_seen", 3, "message_id"),
        ("can_return", 2, "INTEGER PRIMARY KEY"),
        ("redrive", 6, "INTEGER PRIMARY KEY"),
        ("discard", 1, "INTEGER PRIMARY KEY"),
        ("isolate", 3, "INTEGER PRIMARY KEY"),
        ("readmit", 1, "INTEGER PRIMARY KEY"),
        ("return", 1, "INTEGER PRIMARY KEY"),
        ("stored", 1, "message_id"),
        ("sweep", 1, "message_expires"),
        ("keep_keys", 1, "message_id"),
        ("sweep_keys", 1, "message_id"),
        ("admit", 4, "message_group (queue=? AND grp=? AND turn"),
        ("admit_several", 4, "message_group (queue=? AND grp=? AND turn"),
        ("woken", 3, "message_wake (queue=? AND wake_ms<?)"),
        ("touched", 1, "INTEGER PRIMARY KEY"),
        ("settled_in_groups", 5, "INTEGER PRIMARY KEY"),
        ("park", 2, "INTEGER PRIMARY KEY"),
        ("resume", 2, "message_group (queue=? AND grp=? AND turn=?)"),
        ("retry", 1, "INTEGER PRIMARY KEY"),
        ("defer", 1, "INTEGER PRIMARY KEY"),
    ],
)
def test_no_statement_of_the_hot_path_scans_the_messages(
    store: SqliteStore, path: Path, name: str, args: int, index: str
) -> None:
    touching = [detail for detail in plan(path, name, args) if re.search(r"\b(message|m|p|t)\b", detail)]
    assert any(index in detail for detail in touching), touching
    assert not [detail for detail in touching if detail.startswith("SCAN")], touching


@pytest.mark.parametrize(
    ("name", "args", "index"),
    [
        ("counts_by_queue", 1, "COVERING INDEX message_due"),
        ("lapse", 2, "INDEX message_due"),  # at most once per start of a worker
        ("give_back", 3, "INDEX message_due"),
    ],
)
def test_what_looks_at_all_that_can_become_due_reads_an_index_for_it(
    store: SqliteStore, path: Path, name: str, args: int, index: str
) -> None:
    scan, *rest = [detail for detail in plan(path, name, args) if "message" in detail]
    assert scan == f"SCAN message USING {index}"
    # counts read three more: who is parked, who waits without a place in its group, and who rests
    assert [re.search("message_[a-z]+", detail)[0] for detail in rest] == (  # type: ignore[index]
        ["message_group", "message_wake", "message_rest"] if name == "counts_by_queue" else []
    )


def steps(store: SqliteStore, work: Callable[[], object]) -> int:
    """About how many instructions of SQLite's machine the work takes."""
    ticks = [0]

    def tick() -> int:
        ticks[0] += 1
        return 0

    connections = [c for c in (store._writer._connection, store._reader) if c is not None]
    assert len(connections) == 2
    for c in connections:
        c.set_progress_handler(tick, 10)
    work()
    for c in connections:
        c.set_progress_handler(None, 0)
    return 10 * ticks[0]


@pytest.mark.slow
@pytest.mark.parametrize("backlog", ["later", "due in one millisecond"])
def test_a_backlog_costs_a_claim_nothing(open_sqlite: Opener, backlog: str) -> None:
    clock = ManualClock()
    store = open_sqlite(synchronous="normal", clock_ms=clock)

    def work() -> None:
        deliveries = store.exchange([], [ASK]).deliveries
        store.exchange([Settlement(d.receipt, RetryAt(clock() + 1000)) for d in deliveries], [])
        store.wait([ASK], timeout_ms=0)

    def prepare() -> None:
        store.put([draft(priority=1, due_ms=clock() - 1) for _ in range(20)])

    prepare()
    work()
    alone = steps(store, work)
    prepare()
    delay_ms = 60_000 if backlog == "later" else 0
    for _ in range(50):
        store.put([draft(delay_ms=delay_ms) for _ in range(1000)])
    assert steps(store, work) < 2 * alone + 1000
    assert store.counts().ready + store.counts().scheduled == 50_040


@pytest.mark.slow
def test_a_claim_out_of_one_millisecond_reads_what_it_takes(open_sqlite: Opener) -> None:
    store = open_sqlite(synchronous="normal", clock_ms=ManualClock())
    store.put([draft() for _ in range(20)])

    def work() -> None:
        deliveries = store.exchange([], [ASK]).deliveries
        assert len(deliveries) == 10
        store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], [])

    store.counts()
    alone = steps(store, work)
    for _ in range(10):
        store.put([draft() for _ in range(1000)])
    assert steps(store, work) < 2 * alone


@pytest.mark.parametrize("lane", [Lane.READY, Lane.DEAD])
def test_a_page_of_a_long_lane_costs_no_more_than_one_of_a_short_lane(open_sqlite: Opener, lane: Lane) -> None:
    store, costs = open_sqlite(), []
    for count in (200, 2000):
        store.put([draft() for _ in range(count)])
        if lane is Lane.DEAD:
            claimed = store.exchange([], [ClaimRequest("default", count, 1000)]).deliveries
            store.exchange([Settlement(d.receipt, DeadLetter("permanent")) for d in claimed], [])
        cursor = store.peek(lane, limit=50).cursor
        costs.append(steps(store, lambda: store.peek(lane, where=Filter(queue="default"), limit=50, cursor=cursor)))  # noqa: B023
    assert 0 < costs[1] < 1.5 * costs[0], costs


def test_a_greater_width_costs_no_more_for_each_that_it_lets_in(store: SqliteStore) -> None:
    costs = []
    for count in (100, 1000):
        store.put([draft(queue=f"of {count}", group="g") for _ in range(count)])
        assert store.counts(f"of {count}").ready == 1
        costs.append(steps(store, lambda: store.configure(f"of {count}", group_width=count)))  # noqa: B023
        assert store.counts(f"of {count}").ready == count
    assert 0 < costs[1] < 15 * costs[0], costs


def test_bodies_too_long_together_for_one_answer_are_claimed_in_parts(store: SqliteStore) -> None:
    ids = [done.id for done in store.put([draft(body=bytes(10_000)) for _ in range(8)])]
    connection = store._writer._connection
    assert connection is not None
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 60_000)  # in hex two fit, three do not
    taken: list[str] = []
    while deliveries := store.exchange([], [ASK]).deliveries:
        taken += [d.message.id for d in deliveries]
    assert taken == ids
    assert all(message and message.attempt == 1 for message in store.find(ids))


def test_cells_and_keys_stay_when_a_dead_message_is_all_that_is_left(open_sqlite: Opener) -> None:
    store = open_sqlite()
    store.put([draft(key="k")], swaps=[Swap("c", 0, b"1")])
    (delivery,) = store.exchange([], [ASK]).deliveries
    store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    store.close()
    again = open_sqlite()
    assert again.put([draft(key="k")])[0].duplicate
    assert again.cells.read(["c"]) == [Cell(1, b"1")]


# -- verdicts

NEW = "01977420-dc00-7f34-b430-ecb3b173b124"


def judged(store: SqliteStore, seen: Handle, what: str) -> None:
    verdicts: dict[str, Verdict] = {"redrive": Redrive(run="r"), "discard": Discard("no"), "isolate": Isolate("no")}
    if what == "restore":
        store.restore([Message(NEW, "push", "default", b"1", NEW, Lane.DEAD, key="new")])
        return
    verdict = Replace(draft(id=NEW, key="k"), "a typo") if what == "replace" else verdicts[what]
    store.triage([seen], verdict, swaps=[Swap("c", 0, b"1")])


@pytest.mark.parametrize("point", ["triaged", "commit", "committed"])
@pytest.mark.parametrize("what", ["redrive", "discard", "isolate", "replace", "restore"])
def test_a_verdict_is_whole_or_not_there_when_its_process_is_killed(
    path: Path, open_sqlite: Opener, what: str, point: str
) -> None:
    store = open_sqlite()
    (put,) = store.put([draft(key="k")])
    (delivery,) = store.exchange([], [ASK]).deliveries
    store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    (before,) = store.find([put.id])
    point = "restored" if (what, point) == ("restore", "triaged") else point
    child = os.fork()
    if child == 0:
        store.failpoint = lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == point else None
        judged(store, Handle(put.id, 0, Lane.DEAD), what)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    old, new = store.find([put.id, NEW])
    done = point == "committed"
    if what in ("discard", "replace") and done:
        assert old is None
    elif what != "restore" and done:
        assert old is not None and old.lane is (Lane.READY if what == "redrive" else Lane.QUARANTINE)
    else:
        assert old == before
    assert (new is not None) == (done and what in ("replace", "restore"))
    assert (store.cells.read(["c"]) != [None]) == (done and what != "restore")
    assert store.put([draft(key="k")])[0].duplicate == (not done or what != "discard")
    assert store.check() == []


# -- cells


def rows_of_cells(store: SqliteStore) -> int:
    return int(store._read("select count(*) from cell")[0][0])


def test_a_swap_that_need_not_be_durable_is_not_synced(store: SqliteStore) -> None:
    levels = []

    def failpoint(point: str) -> None:
        if point == "commit" and store._writer._connection is not None:
            levels.append(store._writer._connection.execute("pragma synchronous").fetchone()[0])

    store.failpoint = failpoint
    for key, durable in (("a", True), ("b", False), ("c", True)):
        assert store.cells.swap([Swap(key, 0, b"")], durable=durable) == [True]
    assert levels == [2, 1, 2]  # full, normal, full


@pytest.mark.parametrize("by", ["exchange", "swap"])
def test_the_rows_of_cells_that_are_gone_go_too(open_sqlite: Opener, by: str) -> None:
    clock = ManualClock()
    store = open_sqlite(clock_ms=clock)
    store.cells.swap([Swap(f"old{n}", 0, b"", ttl_ms=1000) for n in range(2500)])
    store.cells.swap([Swap("stays", 0, b""), Swap("lives", 0, b"", ttl_ms=86_400_000), Swap("deleted", 0, b"")])
    (deleted,) = store.cells.read(["deleted"])
    assert deleted is not None and store.cells.swap([Swap("deleted", deleted.version, None)]) == [True]
    clock.advance("2m")
    before = rows_of_cells(store)
    for left in (before - 1000, before - 2000, 2, 2):  # bounded, each time
        if by == "exchange":
            store.exchange([], [])
        else:
            store.cells.swap([Swap("stays", 0, b"")])
        assert rows_of_cells(store) == left
    assert store.cells.swap([Swap("deleted", deleted.version, b"x"), Swap("deleted", 0, b"")]) == [False, True]
    (anew,) = store.cells.read(["deleted"])
    assert anew is not None and anew.version > deleted.version


def test_keys_whose_time_is_over_are_looked_at_once_and_a_thousand_at_a_time(open_sqlite: Opener) -> None:
    store = open_sqlite(clock_ms=(clock := ManualClock()))
    store.put([draft(key=f"waits{n}", key_for_ms=1000) for n in range(300)])
    store.put([draft(key=f"old{n}", key_for_ms=2000, queue="q") for n in range(2500)])
    done = store.exchange([], [ClaimRequest("q", 2500, 30_000)]).deliveries
    store.exchange([Settlement(d.receipt, Ack()) for d in done], [])
    clock.advance("2m")
    for left, to_look_at in ((1800, 1500), (800, 500), (300, 0), (300, 0)):
        store.exchange([], [])
        assert store._read("select count(*), sum(until_ms > 0) from unique_key") == [(left, to_look_at)]
    assert store.put([draft(key="waits0")])[0].duplicate
    waited = store.exchange([], [ClaimRequest("default", 300, 30_000)]).deliveries
    store.exchange([Settlement(d.receipt, Ack()) for d in waited], [])
    assert store._read("select count(*) from unique_key") == [(0,)]


@pytest.mark.parametrize("count", [5_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_cells_that_come_and_go_leave_the_file_and_the_time_as_they_were(open_sqlite: Opener, count: int) -> None:
    """As with idempotency: each settlement writes one, which lives for a while."""
    clock = ManualClock()
    store = open_sqlite(synchronous="normal", clock_ms=clock)
    batch, lives = 100, 1_000
    sizes: list[int] = []
    costs: list[int] = []

    def settle(first: int) -> None:
        store.put([draft()] * batch)
        held = store.exchange([], [ClaimRequest("default", batch, 1000)]).deliveries
        ttl_ms = lives // batch * 60_000
        swaps = [Swap(f"idem/push/{first + n}", 0, b"done", ttl_ms) for n in range(batch)]
        store.exchange([Settlement(d.receipt, Ack(), swaps=(s,)) for d, s in zip(held, swaps, strict=True)], [])
        clock.advance("1m")

    settle(0)
    for first in range(batch, count, batch):
        if first % (count // 5) == 0:
            costs.append(steps(store, lambda: settle(first)))  # noqa: B023
            sizes.append(int(store._read("pragma page_count")[0][0]))
        else:
            settle(first)
    assert rows_of_cells(store) <= lives + 2 * batch
    assert len(costs) == 4 and max(costs) <= 1.2 * costs[0] and sizes[-1] <= sizes[0] + 2, (costs, sizes)
    clock.advance("1h")
    store.exchange([], [])
    store.exchange([], [])
    assert rows_of_cells(store) == 0


# -- upkeep


def test_a_sound_set_up_has_no_findings(store: SqliteStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_file_system("ext4", monkeypatch, tmp_path)
    assert store.doctor() == []


def on_file_system(kind: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As if `folder` were a mount of that kind, below one that lies on a disk."""
    mounts = folder / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nx /nowhere nfs4 rw 0 0\nx {folder} {kind} rw 0 0\n")
    monkeypatch.setattr(upkeep, "MOUNTS", mounts)


@pytest.mark.parametrize(
    "kind, said",
    [("nfs4", "network"), ("fuse.sshfs", "network"), ("tmpfs", "in memory"), ("overlay", "container"), ("fuseblk", "")],
)
def test_a_file_on_a_file_system_that_loses_or_damages_it_is_a_finding(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, said: str
) -> None:
    on_file_system(kind, monkeypatch, tmp_path)
    found = store.doctor()
    assert len(found) == bool(said) and all(said in line and kind in line and str(store.path) in line for line in found)


def test_less_than_full_sync_and_a_full_disk_are_findings(
    open_sqlite: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_file_system("ext4", monkeypatch, tmp_path)
    monkeypatch.setattr(upkeep, "FREE_LEAST", 2**70)
    sync, free = open_sqlite(synchronous="normal").doctor()
    assert sync.startswith("synchronous=normal") and "are free on the disk" in free


def test_a_log_that_a_reader_holds_up_is_a_finding_and_a_large_one_is_not(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_file_system("ext4", monkeypatch, tmp_path)
    monkeypatch.setattr(upkeep, "WAL_MOST", 100_000)
    store.put([draft(body=bytes(300_000))])
    assert store.doctor() == []
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("begin")
    reader.execute("select count(*) from message").fetchone()
    store.put([draft(body=bytes(300_000))])
    assert "old transaction" in store.doctor()[0]
    reader.close()
    assert store.doctor() == []


def test_the_statements_that_are_shown_make_the_schema(path: Path, store: SqliteStore) -> None:
    by_hand = sqlite3.connect(":memory:")
    by_hand.executescript(ddl(f"sqlite:///{path}"))
    ours = sqlite3.connect(path)
    schemas = [c.execute("select sql from sqlite_schema order by name").fetchall() for c in (by_hand, ours)]
    versions = [(schema.needed(c.execute), schema.version(c.execute)) for c in (by_hand, ours)]
    by_hand.close()
    ours.close()
    assert schemas[0] == schemas[1] and versions[0] == versions[1]


def test_an_upgrade_says_from_where_to_where(path: Path) -> None:
    first, latest = schema.MIGRATIONS[0], schema.MIGRATIONS[-1]
    with closing(sqlite3.connect(path)) as c:
        c.executescript(schema.statements()[f"migration_{first}"])
        c.execute(f"pragma user_version={first}")
    assert upgrade(f"sqlite:///{path}") == (first, latest) and upgrade(f"sqlite:///{path}") == (latest, latest)


@pytest.mark.parametrize("at", [1, schema.MIGRATIONS[0] - 1])
def test_a_schema_of_before_the_first_release_is_refused_and_left_alone(
    path: Path, open_sqlite: Opener, at: int
) -> None:
    with closing(sqlite3.connect(path)) as c:
        c.execute(f"pragma user_version={at}")
        c.execute("create table message(x)")
        for open_it in (open_sqlite, lambda: upgrade(f"sqlite:///{path}")):
            with pytest.raises(SchemaError, match=f"schema {at}, which no release had.*name a new file"):
                open_it()
        assert c.execute("select name from sqlite_master").fetchall() == [("message",)]


def test_an_upgrade_of_a_newer_file_is_refused(path: Path) -> None:
    c = sqlite3.connect(path)
    c.execute("pragma user_version=99")
    c.close()
    with pytest.raises(SchemaError, match="upgrade redrive"):
        upgrade(f"sqlite:///{path}")


@pytest.mark.parametrize("url", ["memory://", "redis://localhost", "valkeys://localhost/0"])
def test_a_store_without_a_schema_says_so(url: str) -> None:
    for call in (ddl, upgrade):
        with pytest.raises(Unsupported, match="no schema"):
            call(url)
