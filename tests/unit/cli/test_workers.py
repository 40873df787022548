"""`redrive workers`: a line for each process, and with -v what each has under way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Call

from redrive.audit.log import Audit
from redrive.message import ClaimRequest, Draft
from redrive.presence import GONE_MS, HeldMessage, ProcessCell, QueueWork, WorkerInfo, read_workers
from redrive.stores.sqlite.store import SqliteStore


@pytest.fixture
def store(redrive: Call) -> Iterator[SqliteStore]:
    store = SqliteStore(Path("work.db"))
    store.put([Draft(task="push", queue="crm")])
    now_ms = store.now_ms()
    crm = (QueueWork(name="crm", concurrency=20, held=2),)
    runs = HeldMessage(id="m-1", task="push", since_ms=now_ms - 60_000, isolated=True)
    waits = HeldMessage(id="m-2", task="push")
    busy = WorkerInfo(name="vm/a", pid=1, seen_ms=now_ms, queues=crm, held=3, running=1, messages=(runs, waits))
    (taken,) = store.exchange([], [ClaimRequest("crm", 1, 60_000, worker="vm/b")]).deliveries
    ran = HeldMessage(id=taken.message.id, task="push", since_ms=now_ms - 60_000, isolated=True)
    killed = WorkerInfo(name="vm/b", pid=2, seen_ms=now_ms - GONE_MS, queues=crm, held=1, messages=(ran,))
    clock = WorkerInfo(name="scheduler/vm:3", kind="scheduler", pid=3, seen_ms=now_ms, schedules=("nightly",))
    for info in (busy, killed, clock):
        ProcessCell(store).write(info)
    yield store
    store.close()


def test_verbose_shows_what_each_runs_and_what_a_killed_one_held(store: SqliteStore, redrive: Call) -> None:
    said = redrive("workers", "-v", "-o", "table")
    lines = said.out.splitlines()
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["scheduler/vm:3", "scheduler", "3"], ["vm/a", "running", "1"], ["vm/b", "gone", "2"],
    ]  # fmt: skip
    first, *rest = lines[lines.index("vm/a, pid 1, holds 3") + 1 :][:3]
    assert first.startswith("  m-1  push  for 1m") and first.endswith(", isolated")
    assert rest == ["  m-2  push  claimed, not started", "  and 1 more"]
    last = lines[lines.index("vm/b, pid 2, not taken over yet: 1") + 1]
    assert last.endswith("  push  ran for 45s, isolated")
    assert "  schedules: nightly" in lines


def test_json_has_what_the_record_has(store: SqliteStore, redrive: Call) -> None:
    found = {row["name"]: row for row in json.loads(redrive("workers", "-o", "json").out)}
    assert found["vm/a"]["queues"] == {"crm": {"concurrency": 20, "held": 2}}
    assert [message["id"] for message in found["vm/a"]["messages"]] == ["m-1", "m-2"]
    assert (found["vm/b"]["state"], found["vm/b"]["gone"]) == ("gone", True)
    assert set(WorkerInfo.__struct_fields__) - {"started_ms", "seen_ms"} <= set(found["vm/a"])


def test_without_any_the_answer_is_a_note(redrive: Call) -> None:
    SqliteStore(Path("work.db")).close()
    said = redrive("workers")
    assert said.code == 0 and "no worker tells sqlite:///work.db that it is alive" in said.err


def test_drain_asks_the_worker_that_is_named_and_the_log_says_why(store: SqliteStore, redrive: Call) -> None:
    said = redrive("workers", "drain", "vm/a", "--reason", "it leaks", "-o", "json")
    assert said.code == 0 and json.loads(said.out) == {"name": "vm/a", "asked": True}
    assert [info.name for info in read_workers(store) if info.drain_asked] == ["vm/a"]
    (entry,) = Audit(store)
    assert (entry.action, entry.about, entry.reason) == ("drain", "worker/vm/a", "it leaks")
    rows = {row["name"]: row["drain_asked"] for row in json.loads(redrive("workers", "-o", "json").out)}
    assert rows == {"vm/a": True, "vm/b": False, "scheduler/vm:3": False}


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("vm/x", 2, "known: "),
        ("vm/b", 4, "is gone"),
        ("scheduler/vm:3", 4, "is a scheduler"),
    ],
)
def test_drain_refuses_what_cannot_drain(store: SqliteStore, redrive: Call, name: str, code: int, why: str) -> None:
    said = redrive("workers", "drain", name, "--reason", "r")
    assert said.code == code and why in said.err
    assert [*Audit(store)] == [] and not any(info.drain_asked for info in read_workers(store))


def test_the_list_may_be_named(store: SqliteStore, redrive: Call) -> None:
    assert redrive("workers", "list", "-o", "tsv").out == redrive("workers", "-o", "tsv").out
