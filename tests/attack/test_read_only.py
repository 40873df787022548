"""A file, a role and a user that may only look: what looks works and says so, what would change anything is refused
with the reason, and nothing is changed, made or migrated."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.support.attack.hosts import RedisHost
from tests.support.attack.users import ALICE, BOB, acting_as, begin, common_ground, home_of, needs_root
from tests.support.crash.mounts import mounted
from tests.support.servers import PostgresServer, RedisServer

from redrive import App, Draft, Retry
from redrive.errors import ConfigError, ReadOnly, Refused, SchemaError, StoreError, StoreUnavailable
from redrive.message import Ack, BatchCounts, ClaimRequest, DeadLetter, Filter, Lane, Settlement, Swap
from redrive.program.main import run
from redrive.store import Store
from redrive.stores import open_store
from redrive.stores.postgres import schema
from redrive.stores.postgres.schema import sql
from redrive.stores.redis import preflight
from redrive.stores.redis.session import LOOKS, Session
from redrive.stores.sqlite.store import SqliteStore
from redrive.stores.sqlite.wake import wake_dir
from redrive.stores.upkeep import upgrade

ASK = ClaimRequest("default", 10, 30_000, worker="w")
LOOKS_OF_PEOPLE = (
    ["queue", "list"],
    ["task", "list"],
    ["upcoming"],
    ["views"],
    ["dlq", "list"],
    ["dlq", "groups"],
    ["dlq", "show", "{dead}"],
    ["dlq", "audit"],
    ["job", "show", "{dead}"],
    ["job", "list"],
    ["group", "list", "default"],
    ["run", "list"],
    ["flow", "list"],
    ["store", "info"],
    ["store", "check"],
    ["store", "doctor"],
)
CHANGES = (
    ["enqueue", "t", "{}"],
    ["queue", "pause", "default", "--reason", "x"],
    ["task", "pause", "t", "--reason", "x"],
    ["dlq", "discard", "{dead}", "--reason", "x", "--yes"],
    ["dlq", "retry", "{dead}", "--reason", "x"],
    ["job", "cancel", "{waiting}"],
    ["job", "run", "{waiting}"],
    ["dlq", "note", "{fingerprint}", "x", "--reason", "x"],
    ["dlq", "plan"],
    ["dlq", "export", "{dead}", "-f", "{nowhere}"],
    ["group", "width", "default", "2"],
)


class Held(NamedTuple):
    """Messages in a store, by what they are good for."""

    dead: str
    waiting: str
    fingerprint: str


class Said(NamedTuple):
    code: int
    out: str
    err: str


def fill(url: str) -> Held:
    app = App(url)
    fails = app.task(name="fails", retry=Retry(max_attempts=1))(lambda: 1 / 0)
    fails.enqueue()
    app.run_worker(burst=True)
    [dead] = app.store.peek(Lane.DEAD).messages
    ids = [
        app.store.put([Draft(task="t", group="g")])[0].id,
        app.store.put([Draft(task="t", delay_ms=3_600_000)])[0].id,
    ]
    [group] = app.store.failure_groups()
    app.store.close()
    assert group.fingerprint is not None
    return Held(dead.id, ids[1], group.fingerprint)


def redrive(held: Held, *words: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([word if word == "{}" else word.format(**held._asdict(), nowhere=os.devnull) for word in words])
    return Said(code, out.getvalue(), err.getvalue())


def look_through(url: str, held: Held) -> dict[str, Said]:
    return {" ".join(words): redrive(held, *words, "--url", url) for words in LOOKS_OF_PEOPLE}


def try_all(url: str, held: Held) -> dict[str, Said]:
    return {" ".join(words): redrive(held, *words, "--url", url) for words in CHANGES}


def calls_that_change(store: Store, held: Held) -> list[str]:
    """Those that were not refused as they should be."""
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put([Draft(task="t")]),
        "exchange": lambda: store.exchange([], [ASK]),
        "cancel": lambda: store.cancel([held.waiting]),
        "configure": lambda: store.configure("default", paused=True),
        "swap": lambda: store.cells.swap([Swap("k", 0, b"v")]),
        "release": lambda: store.reclaim("w", None),
        "retain": lambda: store.retain("default"),
    }
    return [name for name, call in calls.items() if not refuses(call)]


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except ReadOnly as error:
        return "nothing was changed" in str(error)
    return False


class Seen(NamedTuple):
    """What a reader met. Plain values: it may have been another user, in another process."""

    looks: dict[str, Said]
    changes: dict[str, Said]
    not_refused: list[str]
    why: str
    worker: str


def seen_by_a_reader(url: str, held: Held) -> Seen:
    looks, changes = look_through(url, held), try_all(url, held)
    app = App(url)
    app.task(name="fails")(lambda: None)
    app.queue("default", group_width=3)
    app.periodic("* * * * *")(app.task(name="ticks")(lambda: None))
    with closing(app.store) as store:
        why = store.traits.read_only
        not_refused = calls_that_change(store, held)
        try:
            app.run_worker(burst=True)
            worker = "it ran"
        except Refused as error:
            worker = str(error)
        if not refuses(app.run_scheduler):
            not_refused.append("run_scheduler")
    return Seen(looks, changes, not_refused, why, worker)


def assert_only_looked(seen: Seen, held: Held, why: str) -> None:
    for words, said in seen.looks.items():
        assert said.code in ((0, 1) if "doctor" in words else (0,)), (words, said)
        assert f"{seen.why}: nothing can be changed from here" in said.err, (words, said)
    queues = seen.looks["queue list"].out
    assert "default" in queues and held.dead in seen.looks["dlq list"].out + seen.looks["dlq show {dead}"].out
    for words, said in seen.changes.items():
        assert said.code == 4 and why in said.err and "a user who may write" in said.err, (words, said)
    assert not seen.not_refused and why in seen.why
    assert "a worker cannot work here" in seen.worker and why in seen.worker


# -- SQLite


@pytest.fixture
def ground() -> Iterator[Path]:
    with common_ground() as folder:
        yield folder


def bytes_of(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.is_file()}


def bobs_store(ground: Path, mode: int = 0o644, folder_mode: int = 0o755) -> tuple[str, Held]:
    """A database of Bob's that others may read."""
    home = home_of(BOB, ground, mode=folder_mode)
    url = f"sqlite:///{home / 'work.db'}"
    held = fill(url)
    for path in (home, *home.iterdir()):
        os.lchown(path, BOB.uid, BOB.uid)
    (home / "work.db").chmod(mode)
    return url, held


@needs_root
@pytest.mark.parametrize("folder_mode", [0o755, 0o1777], ids=["folder of the writer's", "folder of everybody's"])
def test_file_of_another_user_is_looked_at_and_left_as_it_is(ground: Path, folder_mode: int) -> None:
    url, held = bobs_store(ground, folder_mode=folder_mode)
    home = ground / f"home-{BOB.uid}"
    redrive_once(url, held)
    before = bytes_of(home)
    seen = acting_as(ALICE, lambda: seen_by_a_reader(url, held))
    assert_only_looked(seen, held, f"this user may only read {home / 'work.db'}")
    assert bytes_of(home) == before and not wake_dir(home / "work.db").exists()
    assert acting_as(BOB, lambda: put(url))


def redrive_once(url: str, held: Held) -> None:
    """As root, so that what commands import is imported; the file stays as it was."""
    for words in (*LOOKS_OF_PEOPLE, *CHANGES):
        with contextlib.suppress(SystemExit):
            redrive(held, *words, "--url", "sqlite:////nowhere/at/all.db")
    look_through(url, held)
    with contextlib.suppress(Refused):
        App("memory://").run_worker(burst=True)


def put(url: str) -> str:
    with closing(open_store(url)) as store:
        return store.put([Draft(task="t")])[0].id


@needs_root
def test_file_is_looked_at_while_its_owner_writes_it(ground: Path) -> None:
    url, held = bobs_store(ground)
    redrive_once(url, held)

    def write() -> int:
        for first in range(0, 2000, 100):  # comes and goes, and its log with it
            with closing(open_store(url)) as store:
                for n in range(first, first + 100):
                    store.put([Draft(task="t", queue="busy", body=b"%d" % n)])
        with closing(open_store(url)) as store:
            return store.counts("busy").ready

    def look() -> list[int]:
        counts: list[int] = []
        while not counts or counts[-1] < 2000:
            with contextlib.suppress(StoreUnavailable), closing(open_store(url)) as store:  # it may come again
                counts += [store.counts("busy").ready for _ in range(20)]
        return counts

    writing, looking = begin(BOB, write), begin(ALICE, look)
    assert writing.result() == 2000
    counts = looking.result()
    assert counts == sorted(counts) and counts[-1] == 2000


@needs_root
def test_log_that_a_killed_writer_left_is_read(ground: Path) -> None:
    url, held = bobs_store(ground)
    home = ground / f"home-{BOB.uid}"
    redrive_once(url, held)

    def write_and_die() -> None:
        store = open_store(url)
        store.put([Draft(task="t", queue="logged")])
        os._exit(0)

    with contextlib.suppress(AssertionError):  # it ends without a word
        begin(BOB, write_and_die).result()
    assert (home / "work.db-wal").stat().st_size > 0

    def look() -> int:
        with closing(open_store(url)) as store:
            return store.counts("logged").ready

    assert acting_as(ALICE, look) == 1
    (home / "work.db-shm").unlink()  # as in a copy of the file and its log
    with pytest.raises(StoreUnavailable, match="which a reader does not make"):
        acting_as(ALICE, look)


@needs_root
def test_file_whose_log_cannot_be_made_is_looked_at(ground: Path) -> None:
    """It may be written, and its folder not."""
    url, held = bobs_store(ground, mode=0o666)
    redrive_once(url, held)
    seen = acting_as(ALICE, lambda: seen_by_a_reader(url, held))
    assert_only_looked(seen, held, "but cannot make its log in")


@needs_root
def test_log_lies_beside_the_file_and_not_beside_a_link_to_it(ground: Path) -> None:
    _, held = bobs_store(ground, mode=0o666)
    own = home_of(ALICE, ground) / "link.db"
    own.symlink_to(ground / f"home-{BOB.uid}" / "work.db")
    os.lchown(own, ALICE.uid, ALICE.uid)
    redrive_once(f"sqlite:///{own}", held)
    seen = acting_as(ALICE, lambda: seen_by_a_reader(f"sqlite:///{own}", held))
    assert_only_looked(seen, held, f"cannot make its log in {ground / f'home-{BOB.uid}'}")


@needs_root
def test_reader_migrates_nothing(ground: Path) -> None:
    url, held = bobs_store(ground)
    path = ground / f"home-{BOB.uid}" / "work.db"
    redrive_once(url, held)
    with closing(sqlite3.connect(path)) as c:
        c.execute("pragma user_version=5")
        c.execute("drop table schema_at")
        c.commit()
    before = bytes_of(path.parent)
    with pytest.raises(SchemaError, match=r"has schema 5, .* this user may only read .*; let a user who may write run"):
        acting_as(ALICE, lambda: open_store(url))
    said = acting_as(ALICE, lambda: redrive(held, "queue", "list", "--url", url))
    assert said.code == 4 and "store upgrade" in said.err
    said = acting_as(ALICE, lambda: redrive(held, "store", "upgrade", "--url", url))
    assert said.code == 4 and "this user may only read" in said.err and "nothing was changed" in said.err
    assert bytes_of(path.parent) == before


@needs_root
def test_file_that_may_not_be_read_is_said_to_be_so(ground: Path) -> None:
    url, held = bobs_store(ground, mode=0o600)
    redrive_once(url, held)
    said = acting_as(ALICE, lambda: redrive(held, "queue", "list", "--url", url))
    assert said.code == 3 and "cannot open" in said.err


@needs_root
@pytest.mark.linux
def test_disk_that_is_mounted_for_reading_is_looked_at(tmp_path: Path) -> None:
    """By root, who may write anywhere else."""
    disk = tmp_path / "disk"
    with mounted(disk, "20m"):
        url = f"sqlite:///{disk / 'work.db'}"
        held = fill(url)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert_only_looked(seen_by_a_reader(url, held), held, "lies on a file system that is mounted read-only")


def test_writer_is_none_who_only_looks(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        assert store.traits.read_only == "" and store.put([Draft(task="t")])


# -- PostgreSQL


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    """The URL of a writer, that of a role that may only look, and a way to speak to the server."""
    name = f"look_{secrets.token_hex(4)}"

    def say(text: str) -> None:
        with psycopg.connect(postgres_server.url, autocommit=True) as c:
            c.execute(text.encode())

    url = f"{postgres_server.url}?schema={name}"
    yield url, url.replace("postgres@", f"{name}@"), say
    say(f"drop schema if exists {name} cascade")
    with contextlib.suppress(psycopg.Error):
        say(f"drop owned by {name} cascade")
    say(f"drop role if exists {name}")


def grants(url: str, role: str) -> str:
    """What `redrive store sql` says that a reader needs."""
    text = sql(url).partition("Who only looks")[2].partition("\n\n")[0]
    return "\n".join(line.removeprefix("--   ") for line in text.splitlines()[1:]).replace("ROLE", role)


def test_role_that_may_only_select_looks(postgres: tuple[str, str, Callable[[str], None]]) -> None:
    url, looking, say = postgres
    held = fill(url)
    role = url.partition("schema=")[2]
    say(f"create role {role} login; {grants(url, role)}")
    seen = seen_by_a_reader(looking, held)
    assert_only_looked(seen, held, f"role '{role}' may only look: it has none of INSERT, UPDATE and DELETE")
    with closing(open_store(url)) as store:
        assert (store.traits.read_only, store.counts().ready, store.counts().dead) == ("", 1, 1)


def test_role_that_may_only_select_migrates_nothing(
    postgres: tuple[str, str, Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, looking, say = postgres
    fill(url)
    role = url.partition("schema=")[2]
    say(f"create role {role} login; {grants(url, role)}")
    parts = schema.statements()
    later = 1 + max(step.number for step in schema.migrations(parts))
    monkeypatch.setattr(schema, "statements", lambda: {**parts, f"migration_{later}": "select 1"})
    with pytest.raises(SchemaError, match=r"this redrive reads \d+, and role .* may only look"):
        open_store(looking)
    with pytest.raises(ReadOnly, match=r"may only look.*; nothing was changed"):
        upgrade(looking)


@pytest.mark.parametrize("where", ["role", "URL"])
def test_role_or_url_that_is_set_to_read_only_looks(
    postgres: tuple[str, str, Callable[[str], None]], where: str
) -> None:
    """What it may do otherwise: redrive does not set itself above that."""
    url, looking, say = postgres
    held = fill(url)
    role = url.partition("schema=")[2]
    say(f"create role {role} login superuser")
    if where == "role":
        say(f"alter role {role} set default_transaction_read_only = on")
    else:
        looking += "&options=-c%20default_transaction_read_only%3Don"
    assert_only_looked(seen_by_a_reader(looking, held), held, f"role '{role}' only looks: its default_transaction")


def test_database_that_is_fenced_off_for_a_while_is_none_to_look_at(
    postgres: tuple[str, str, Callable[[str], None]],
) -> None:
    """As when another server takes over: workers wait or go on, and do not end."""
    url, _, say = postgres
    name = f"fenced_{secrets.token_hex(4)}"
    say(f"create database {name}")
    parts = urlsplit(url)
    fenced = parts._replace(path=f"/{name}").geturl()
    fill(fenced)
    say(f"alter database {name} set default_transaction_read_only = on")
    with closing(open_store(fenced)) as store:
        assert store.traits.read_only == "" and store.put([Draft(task="t")])
    say(f"drop database {name} with (force)")


def test_role_that_may_not_even_look_is_told_what_it_lacks(postgres: tuple[str, str, Callable[[str], None]]) -> None:
    url, looking, say = postgres
    fill(url)
    role = url.partition("schema=")[2]
    say(f"create role {role} login; grant usage on schema {role} to {role}")
    with pytest.raises(StoreError, match="grant this role the rights"):
        open_store(looking)


# -- Redis


@pytest.fixture
def looker(redis_server: RedisServer) -> Iterator[Callable[[str, str], str]]:
    """Makes a user with these rights, and gives its URL of a namespace."""
    users: list[str] = []

    def make(namespace: str, rights: str) -> str:
        name = f"looker{secrets.token_hex(3)}"
        users.append(name)
        redis_server.command(
            "ACL", "SETUSER", name, *rights.replace("PASSWORD", "pw").replace("redrive", namespace).split()
        )
        return f"{redis_server.url.replace('://', f'://{name}:pw@')}?namespace={namespace}"

    yield make
    for name in users:
        redis_server.command("ACL", "DELUSER", name)


def rights_of_a_reader() -> str:
    """As the documents have them."""
    return (preflight.__doc__ or "").partition("ACL SETUSER looker")[2].partition("\n\n")[0]


@pytest.mark.parametrize("version", ["7", "6.2"])
def test_user_who_may_only_read_looks(
    redis_server: RedisServer, looker: Callable[[str, str], str], version: str
) -> None:
    namespace = f"look{secrets.token_hex(4)}"
    url = f"{redis_server.url}?namespace={namespace}"
    held = fill(url)
    rights = rights_of_a_reader()
    if version == "6.2":
        rights = rights.replace("%R~", "~").replace("evalsha_ro", "evalsha")
    reader = looker(namespace, rights)
    seen = seen_by_a_reader(reader, held)
    assert_only_looked(seen, held, "may only look: it has no right to write")
    with closing(open_store(url)) as store:
        assert (store.traits.read_only, store.counts().ready, store.counts().dead) == ("", 1, 1)


def test_user_who_may_write_and_lacks_another_right_is_told_so(
    redis_server: RedisServer, looker: Callable[[str, str], str]
) -> None:
    reader = looker("redrive", "on >PASSWORD ~* resetchannels +@all")
    with pytest.raises(ConfigError, match="lacks a right"):
        open_store(reader)


def test_scripts_that_a_reader_calls_are_called_as_ones_that_do_not_write(
    redis_server: RedisServer, looker: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis refuses one that does. All of them are called here, or the test says which is not."""
    namespace, called = f"look{secrets.token_hex(4)}", set[str]()
    url = f"{redis_server.url}?namespace={namespace}"
    held = fill(url)
    set_one_aside(url, RedisHost(redis_server.url, namespace))
    call = Session.call

    def counted(self: Session, script: str, *args: Any, **options: Any) -> Any:
        called.add(script)
        return call(self, script, *args, **options)

    monkeypatch.setattr(Session, "call", counted)
    reader = looker(namespace, rights_of_a_reader())
    seen_by_a_reader(reader, held)
    with closing(open_store(reader)) as store:
        assert [m.id for m in store.peek(Lane.DEAD, where=Filter(fingerprint=held.fingerprint)).messages] == [held.dead]
        store.peek(None)
        list(store.groups("default"))
        with contextlib.suppress(StoreError):  # it may not listen; it looked before
            store.wait([ASK], timeout_ms=1)
        assert store.paused() == frozenset()
        assert (store.batch_counts(["b"]), store.changed_batches(), store.batch_ids()) == ([BatchCounts()], [], [])
        assert held.dead in store.ids_from(held.dead, held.dead, limit=1).found
    assert LOOKS - called <= {
        "scan",
        "look",
    }  # the one is for sets of thousands; the other may come after a subscription


def test_done_messages_and_results_are_seen_by_readers(
    redis_server: RedisServer, looker: Callable[[str, str], str]
) -> None:
    namespace = f"look{secrets.token_hex(4)}"
    with closing(open_store(f"{redis_server.url}?namespace={namespace}")) as store:
        id = store.put([Draft(task="t", keep_ms=60_000)])[0].id
        [held] = store.exchange([], [ASK]).deliveries
        store.exchange([Settlement(held.receipt, Ack(keep_ms=60_000), result=b"1")], [])
        put_dead(store)
    with closing(open_store(looker(namespace, rights_of_a_reader()))) as reading:
        found = reading.find([id])[0]
        assert found is not None and found.result == b"1"
        assert [one.count for one in reading.failure_groups()] == [1] and reading.paused() == frozenset()
        assert reading.groups("default") == [] and reading.check() == []


def set_one_aside(url: str, host: RedisHost) -> None:
    """A message that a claim could not read."""
    with closing(host), closing(open_store(url)) as store:
        id = store.put([Draft(task="t", queue="spoilt")])[0].id
        host.spoil(id, host.rare, "garbage")
        assert store.exchange([], [ClaimRequest("spoilt", 1, 30_000, worker="w")]).damaged


def put_dead(store: Store) -> None:
    store.put([Draft(task="dies")])
    [held] = store.exchange([], [ASK]).deliveries
    store.exchange([Settlement(held.receipt, DeadLetter("rejected", "no"))], [])
