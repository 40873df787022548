"""kill -9 does not test what a power cut does: the page cache survives it. So look at the order of system calls."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from tests.support.crash.children import strace, until
from tests.support.servers import PostgresServer, RedisServer

from redrive import App
from redrive.message import Draft
from redrive.stores import open_store

pytestmark = [pytest.mark.linux, pytest.mark.slow]
PUTS = 5

PROGRAM = """
import os, sys
from redrive import App
from redrive.message import Draft
from redrive.stores import open_store
app = App("sqlite:///" + sys.argv[1])
@app.task(name="t")
def t(n: int) -> None: ...
t.enqueue(0)
for n in range(5):
    os.write(2, b"<begin>")
    t.enqueue(n)
    os.write(2, b"<acknowledged>")
app.run_worker(burst=True)
"""


def between(words: list[str]) -> list[list[str]]:
    """What happened between each beginning of a put and its acknowledgement."""
    text = " ".join(words)
    return [part.split() for part in re.findall(r"begin ((?:\w+ )*?)acknowledged", text)]


# -- SQLite


def traced(tmp_path: Path, options: str = "") -> list[str]:
    """The calls between each <begin> and its <acknowledged>, as words."""
    log = tmp_path / "strace"
    command = strace("-y", "-e", "trace=pwrite64,write,fdatasync,fsync", "-o", str(log))
    program = [sys.executable, "-c", PROGRAM, f"{tmp_path / 'q.db'}{options}"]
    subprocess.run([*command, *program], check=True, capture_output=True, timeout=60)
    words = []
    for line in log.read_text().splitlines():
        if '"<begin>"' in line:
            words.append("begin")
        elif '"<acknowledged>"' in line:
            words.append("acknowledged")
        elif found := re.search(r"(pwrite64|fdatasync|fsync)\(\d+<[^>]*q\.db-wal>", line):
            words.append("write" if found[1] == "pwrite64" else "sync")
    return words


@pytest.mark.fault("power cut: nothing is acknowledged before it is synced (system calls traced)", store="sqlite")
def test_an_enqueue_is_acknowledged_only_after_what_it_wrote_was_synced(tmp_path: Path) -> None:
    calls = between(traced(tmp_path))
    assert len(calls) == PUTS
    for sequence in calls:
        assert "write" in sequence
        assert sequence[-1] == "sync"


def test_synchronous_normal_gives_exactly_that_up(tmp_path: Path) -> None:
    calls = between(traced(tmp_path, "?synchronous=normal"))
    assert len(calls) == PUTS
    assert all("write" in sequence and "sync" not in sequence for sequence in calls)


# -- PostgreSQL and Redis: the server is traced; what it is sent by another connection tells when a put begins and ends


def enqueue_traced(url: str, mark: Callable[[str], object]) -> None:
    app = App(url)
    app.task(name="t")(lambda n: None)
    with closing(app.store):
        app.enqueue_many([app.tasks["t"].draft(0)])
        for n in range(PUTS):
            mark("begin-mark")
            app.enqueue_many([app.tasks["t"].draft(n)])
            mark("acknowledged-mark")


READ = r"(?:recvfrom\(|read\(|<\.\.\. (?:recvfrom|read) resumed)"


REPLY = r"(?:sendto|write|writev|sendmsg)\(\d+<(?:TCP|socket)"


def words_of(log: Path, file: str, *, sessions: bool = False) -> list[str]:
    """begin and acknowledged as the server read them; its write and sync calls on that file; its replies. `sessions`:
    those of processes that reply, as a process that writes the log now and then may come between."""
    words, pending = [], set()
    calls = [line.split(maxsplit=1) for line in log.read_text(errors="replace").splitlines()]
    heard = {thread for thread, call in calls if not sessions or re.match(REPLY, call)}
    for thread, call in calls:
        if thread not in heard:
            continue
        if found := re.match(rf"{READ}.*?(begin|acknowledged)-mark", call):
            words.append(found[1])
        elif re.match(rf"(?:pwrite64|pwritev|write|writev)\(\d+<[^>]*{file}", call):
            words.append("write")
        elif re.match(rf"(?:fdatasync|fsync)\(\d+<[^>]*{file}", call):
            if "unfinished" in call:
                pending.add(thread)
            else:
                words.append("sync")
        elif re.match(r"<\.\.\. (?:fdatasync|fsync) resumed", call):
            if thread in pending:  # it is done only now
                words.append("sync")
            pending.discard(thread)
        elif re.match(REPLY, call):
            words.append("reply")
    return words


def trace(calls: str) -> list[str]:
    return strace("-y", "-s", "200", "-o", "trace", "-e", f"trace={calls}")


SERVER_CALLS = "recvfrom,read,sendto,sendmsg,write,writev,pwrite64,pwritev,fdatasync,fsync"


@pytest.mark.fault("power cut: nothing is acknowledged before it is synced (system calls traced)", store="postgres")
@pytest.mark.parametrize("options, synced", [("", True), ("?synchronous_commit=off", False)])
def test_postgres_syncs_its_log_before_it_replies_to_a_commit(options: str, synced: bool) -> None:
    # So that nobody else writes the log meanwhile.
    settings = {"wal_writer_delay": "10s", "autovacuum": "off", "wal_level": "minimal", "max_wal_senders": 0}
    with (
        PostgresServer(under=trace(SERVER_CALLS), settings=settings) as server,
        closing(psycopg.connect(server.url, autocommit=True)) as marking,
    ):
        enqueue_traced(server.url + options, lambda text: marking.execute(f"select '{text}'"))  # type: ignore[call-overload]
        sequences = between(words_of(server.folder / "trace", "/pg_wal/", sessions=True))
    assert len(sequences) == PUTS
    texts = [" ".join(words) for words in sequences]
    if synced:
        assert all("write sync reply" in text and "write reply" not in text for text in texts), texts
    else:
        assert any("write" not in text for text in texts), texts


@pytest.mark.fault("power cut: nothing is acknowledged before it is synced (system calls traced)", store="redis-always")
@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_redis_writes_its_log_before_it_replies_and_syncs_it_as_told(appendfsync: str) -> None:
    with RedisServer(appendonly=True, appendfsync=appendfsync, under=trace(SERVER_CALLS)) as server:
        enqueue_traced(server.url, lambda text: server.command("ECHO", text))
        sequences = between(words_of(server.folder / "trace", r"/appendonlydir/"))
    assert len(sequences) == PUTS
    for words in sequences:
        text = " ".join(words)
        if appendfsync == "always":
            assert "write sync reply" in text and "write reply" not in text, text
        else:
            assert "write reply" in text, text


def test_redis_everysec_loses_what_it_held_back_during_a_sync_when_it_is_killed(tmp_path: Path) -> None:
    """What the page on reliability says of a slow disk: a reply may come before the write, for up to two seconds."""
    slow = strace("--seccomp-bpf", "-o", "trace", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1500000")
    with RedisServer(appendonly=True, under=slow) as server:
        with closing(open_store(server.url)) as store:
            [kept] = store.put([Draft(task="t")])
            held = kept
            for _ in range(100):
                until("a sync is under way", lambda: "aof_pending_bio_fsync:1" in server.command("INFO", "persistence"))
                [held] = store.put([Draft(task="t")])
                if "aof_pending_bio_fsync:1" in server.command("INFO", "persistence"):
                    break
        server.kill()
        server.restart()
        with closing(open_store(server.url)) as store:
            assert [m is None for m in store.find([kept.id, held.id])] == [False, True]
            assert store.check() == []
