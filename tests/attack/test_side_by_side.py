"""Two versions work one store: what the newer writes, the other carries through."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import redrive
from redrive import Draft
from redrive.errors import SchemaError
from redrive.message import Message
from redrive.store import Store
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.store import SqliteStore

MESSAGES = 2000
PATIENCE_S = 120
TASKS = """
import os, time
from pathlib import Path

from redrive import App, Backoff, Context, Reject, Retry

app = App("sqlite:///work.db")

@app.task(name="work", ctx=True, retry=Retry(max_attempts=5, backoff=Backoff.fixed("10ms")))
def work(ctx: Context, n: int) -> None:
    Path(f"at-work-{os.getpid()}").touch()
    while len(list(Path().glob("at-work-*"))) < 2:  # neither goes on before both have some of it
        time.sleep(0.01)
    time.sleep(0.002)
    if n % 3 == 0 and ctx.attempt < 3:
        raise RuntimeError("not yet")
    if n % 10 == 0:
        raise Reject("never")
"""
FAULT = "class Fault(Struct, frozen=True, gc=False"
CRASH = "    crash: Crash | None = None"
NEWER = (
    ("fault/model.py", 'DEFAULT = "default"', 'DEFAULT = "cosmic"'),
    ("fault/model.py", f"{FAULT}, omit_defaults=True):", f"{FAULT}):"),
    ("fault/model.py", CRASH, f'    mood: str = "blue"\n{CRASH}'),
    ("message/message.py", 'DEAD = "dead"', 'DEAD = "graveyard"'),
    ("stores/sqlite/schema.py", "MIGRATIONS = (5, 6, 7)", "MIGRATIONS = (5, 6, 7, 8)"),
    (
        "stores/sqlite/statements.sql",
        "-- name: put\n",
        "-- name: migration_8\n-- older programs go on beside it\n"
        "create index if not exists message_newer on message(seq);\n\n-- name: put\n",
    ),
)


def newer_version(folder: Path) -> None:
    """A copy of this version that writes a kind, a lane and a field which this one does not know, and adds an index."""
    package = folder / "redrive"
    shutil.copytree(Path(redrive.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in NEWER:
        text = (package / name).read_text()
        assert text.count(old) == 1, (name, old)
        (package / name).write_text(text.replace(old, new))


@pytest.mark.slow
def test_versions_side_by_side_lose_and_damage_nothing(tmp_path: Path) -> None:
    newer_version(tmp_path / "newer")
    (tmp_path / "tasks.py").write_text(TASKS)
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        store.put([Draft(task="work", body=b'{"n":%d}' % n) for n in range(MESSAGES)])
    with ExitStack() as stack:
        workers = []
        for path in ("", str(tmp_path / "newer")):
            env = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_")}
            env |= {"PYTHONPATH": os.pathsep.join(filter(None, (path, str(tmp_path))))}
            words = [sys.executable, "-m", "redrive", "worker", "--app", "tasks:app", "--drain", "--log", "off"]
            worker = stack.enter_context(
                subprocess.Popen(
                    words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
            stack.callback(worker.kill)
            workers.append(worker)
        told = [worker.communicate(timeout=PATIENCE_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        left = everything(store)
        assert not any(message.damage for message in left)
        lanes = Counter(str(message.lane) for message in left)
        assert lanes.keys() == {"dead", "graveyard"}, lanes  # both did some of it
        assert lanes.total() == MESSAGES // 10
        assert any(fault.kind == "cosmic" for message in left for fault in message.faults)
        (faults,) = store._read('select count(*) from message where faults like \'%"mood":"blue"%\'')
        assert faults[0] > 0
        assert store.check() == [] and store.info()["schema"] == 8


LOOKS = ("status", "queue list", "dlq list", "store check", "doctor", "store upgrade")


def test_this_version_works_a_file_that_a_newer_one_gave_an_index(tmp_path: Path) -> None:
    newer_version(tmp_path / "newer")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "newer")}
    told = []
    for n, words in enumerate(LOOKS, 1):
        with closing(SqliteStore(tmp_path / "work.db")) as store:
            store.put([Draft(task="work", body=b"{}")])
            told.append((store.counts("default").ready, store._read("pragma user_version")[0][0]))
            assert store.info()["schema"] == (7 if n == 1 else 8)
        command = [sys.executable, "-m", "redrive", *words.split(), "--url", "sqlite:///work.db"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
    assert told == [(n, 7) for n in range(1, len(LOOKS) + 1)]
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        assert store.check() == []


@pytest.mark.parametrize("known", [1, 2])  # of the first release, and of the one before there were batches
def test_a_release_that_counts_no_members_refuses_the_file_and_leaves_it_alone(
    tmp_path: Path, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        store.put([Draft(task="work", body=b"{}", batch="b")])
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:known])
    with pytest.raises(SchemaError, match=rf"has schema 7, this redrive knows up to {4 + known}; upgrade redrive"):
        SqliteStore(tmp_path / "work.db")
    monkeypatch.undo()
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        assert store.batch_counts(["b"])[0].open == 1 and store.check() == []


@pytest.mark.parametrize("made", ["no table", "no row", "no number", "twice"])
def test_a_note_of_the_schema_that_is_damaged_costs_nothing_but_an_index_made_again(tmp_path: Path, made: str) -> None:
    damage = {
        "no table": "drop table schema_at",
        "no row": "delete from schema_at",
        "no number": "update schema_at set version = 'six'",
        "twice": "insert into schema_at values (1)",
    }
    SqliteStore(tmp_path / "work.db").close()
    with closing(sqlite3.connect(tmp_path / "work.db")) as c:
        c.execute(damage[made])
        c.commit()
    with closing(SqliteStore(tmp_path / "work.db")) as store:
        store.put([Draft(task="work", body=b"{}")])
        assert store.info()["schema"] == 7 and store.check() == []


def everything(store: Store) -> list[Message]:
    page = store.peek(None, limit=500)
    found = [*page.messages]
    while page.cursor is not None:
        page = store.peek(None, limit=500, cursor=page.cursor)
        found += page.messages
    return found
