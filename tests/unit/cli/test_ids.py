"""Ids that people shorten: every command that takes one, messages, plans and runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.attack.commands import Said, command

from redrive import Draft
from redrive.ids import first_and_last
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.store import queries
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.lookup import message_ids, run_ids
from redrive.triage.redrive.records import RECENT_MAX, note_recent

IDS = ("0199f3a1-2a5b-7000-8000-0000000000a1", "0199f3a1-2a5b-7000-8000-0000000000b2",
       "0199f3c4-0000-7000-8000-000000000001")  # fmt: skip
SURE, BOTH = "0199f3c4", "0199f3a1-2a"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///work.db")
    store = SqliteStore("work.db")
    store.put([Draft(task="t", queue="crm", id=id) for id in IDS])
    yield store
    store.close()


def die(store: SqliteStore) -> None:
    taken = store.exchange([], [ClaimRequest("crm", 10, 30_000)]).deliveries
    store.exchange([Settlement(each.receipt, DeadLetter("exhausted")) for each in taken], [])


def ambiguous(said: Said, *ids: str) -> None:
    assert said.code == 2 and said.out == "" and len(said.err.splitlines()) == 3, said
    assert all(id in said.err.splitlines()[1] for id in ids), said.err


@pytest.mark.parametrize("begin", [SURE, SURE.upper(), IDS[2].replace("-", "")[:14], IDS[2]])
def test_message_is_found_by_the_beginning_of_its_id(store: SqliteStore, begin: str) -> None:
    said = command("job", "show", begin, "-o", "ids")
    assert (said.code, said.out) == (0, f"{IDS[2]}\n")


@pytest.mark.parametrize(
    "words",
    [
        "job show {}", "dlq show {}", "job cancel {}", "job run {}", "dlq retry {}", "dlq discard {} --reason x --yes",
        "dlq quarantine {} --reason x", "dlq readmit {} --reason x", "dlq export {}", "dlq audit --id {}",
        "dlq edit {} --set n=1 --unchecked --reason x --yes",
    ],
)  # fmt: skip
def test_ambiguous_beginning_is_a_usage_error_that_lists_the_ids(store: SqliteStore, words: str) -> None:
    die(store)
    ambiguous(command(*words.format(BOTH).split()), *IDS[:2])
    assert store.counts().dead == 3


def test_beginnings_act_like_whole_ids(store: SqliteStore) -> None:
    assert command("job", "cancel", SURE).out.splitlines()[1].split() == [IDS[2], "cancelled"]
    die(store)
    for words in ("dlq quarantine {} --reason x", "dlq readmit {} --reason x", "dlq discard {} --reason x --yes"):
        said = command(*words.format(f"{IDS[0][:-1]}").split(), "-o", "ids")
        assert (said.code, said.out) == (0, f"{IDS[0]}\n"), said
    said = command("dlq", "retry", BOTH, "-o", "ids")
    assert (said.code, said.out) == (0, f"{IDS[1]}\n")  # the other one is gone


@pytest.mark.parametrize("begin", ["0199", "beef", "beefbeef", "no-id", "019", IDS[2] + "1"])
def test_beginning_of_no_message_is_told_as_it_was_typed(store: SqliteStore, begin: str) -> None:
    store.cancel(IDS)
    if begin == "0199":
        ambiguous(command("job", "show", begin), *IDS)
    else:
        said = command("job", "show", begin)
        assert said.code == 1 and begin in said.err.splitlines()[0]


def test_plan_and_run_are_found_by_the_beginning_of_their_id(store: SqliteStore) -> None:
    die(store)
    id = command("dlq", "plan", "-o", "ids").out.strip()
    said = command("dlq", "apply", id[:18], "--reason", "fixed", "-o", "ids")
    assert (said.code, said.out) == (0, f"{id}\n"), said
    for words in ("run show {}", "run pause {} --reason x", "run resume {} --reason x", "run cancel {} --reason x",
                  "run undo {} --reason x"):  # fmt: skip
        said = command(*words.format(id[:18]).split(), "-o", "ids")
        assert (said.code, said.out) == (0, f"{id}\n"), said
    other = command("dlq", "plan", "lane:done", "-o", "ids").out.strip()
    ambiguous(command("run", "show", id[:6]), id, other)


def test_only_the_last_plans_are_remembered() -> None:
    store = MemoryStore()
    ids = [f"0199f3a1-{n:04x}-7000-8000-000000000000" for n in range(RECENT_MAX + 1)]
    for id in ids:
        note_recent(store.cells, id)
    assert run_ids(store, ids[0][:13]).found == () and run_ids(store, ids[1][:13]).found == (ids[1],)


def test_store_without_an_index_of_ids_says_how_far_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    store, bounds = MemoryStore(), first_and_last("0199")
    ids = sorted(put.id for put in store.put([Draft(task="t") for _ in range(1200)]))
    assert bounds is not None
    found = queries.QueryOperations.ids_from(store, ids[5], ids[7], limit=10)
    assert (found.found, found.whole) == (tuple(ids[5:8]), True)
    monkeypatch.setattr(queries, "LOOKED_MAX", 1000)
    assert not queries.QueryOperations.ids_from(store, ids[5], ids[7], limit=10).whole
    assert message_ids(store, random.choice(ids)).whole
