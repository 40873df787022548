"""The audit log: entries in the commit of their change, none lost among many writers, the newest first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from redrive import Draft
from redrive.audit.actor import signed, user
from redrive.audit.log import (
    CHUNK_MAX,
    IDS_MAX,
    KEPT_MS,
    TEXT_MAX,
    TRIES,
    Audit,
)
from redrive.errors import ConfigError, Conflict
from redrive.message import Swap
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


def test_entries_are_listed_the_newest_first_over_all_cells(store: MemoryStore) -> None:
    audit = Audit(store)
    for number in range(2 * CHUNK_MAX + 5):
        audit.keep(audit.entry("discard", "ann", "because", ids=[str(number)]))
    assert [int(entry.ids[0]) for entry in audit] == list(range(2 * CHUNK_MAX + 5))[::-1]
    cells = store.cells.read(["audit/log", "audit/log/1", "audit/log/2", "audit/log/3"])
    assert [cell is not None for cell in cells] == [True, True, True, False]


def test_a_cell_that_is_large_takes_no_more_entries(store: MemoryStore) -> None:
    audit = Audit(store)
    ids = [f"0199f3a1-0000-7000-8000-{number:012}" for number in range(IDS_MAX + 1)]
    for _ in range(12):
        audit.keep(audit.entry("discard", "ann", "because", "x" * (TEXT_MAX + 1), ids=ids))
    sizes = [len(cell.value) for cell in store.cells.read(["audit/log", "audit/log/1"]) if cell is not None]
    assert len(sizes) == 2 and max(sizes) < 200_000
    entry = next(iter(audit))
    assert len(entry.ids) == IDS_MAX and entry.count == IDS_MAX + 1 and len(entry.text) == TEXT_MAX


def test_an_entry_is_written_with_its_change_or_not_at_all(store: MemoryStore) -> None:
    audit = Audit(store)
    swaps = audit.swaps(audit.entry("put", "ann", "because"))
    with pytest.raises(Conflict):
        store.put([Draft(task="t")], swaps=[*swaps, Swap("elsewhere", 7, b"")])
    assert list(audit) == [] and store.counts().ready == 0
    store.put([Draft(task="t")], swaps=swaps)
    assert [entry.action for entry in audit] == ["put"]


def test_the_commit_is_tried_again_where_another_entry_came_first(store: MemoryStore) -> None:
    audit = Audit(store)
    other: list[Callable[[], None]] = [lambda: audit.keep(audit.entry("note", "bob", "first"))]

    def write(swaps: list[Swap]) -> str:
        if other:
            other.pop()()
        store.put([], swaps=swaps)
        return "done"

    assert audit.commit(audit.entry("rule", "ann", "second"), write) == "done"
    assert [entry.claimed for entry in audit] == ["ann", "bob"]


def test_the_commit_gives_up_after_a_hundred_conflicts(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.audit.log.PAUSE_S", 0.0)
    audit, tried = Audit(store), []

    def write(swaps: list[Swap]) -> None:
        tried.append(swaps)
        raise Conflict("another cell")

    with pytest.raises(Conflict, match="another cell"):
        audit.commit(audit.entry("rule", "ann", "because"), write)
    assert len(tried) == TRIES


def test_no_entry_of_many_writers_is_lost(store: MemoryStore) -> None:
    def write(name: str) -> None:
        audit = Audit(store)
        for _ in range(60):
            audit.keep(audit.entry("note", name, "because"))

    threads = [threading.Thread(target=write, args=(name,)) for name in ("ann", "bob", "cas")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.claimed for entry in Audit(store)) == sorted(["ann", "bob", "cas"] * 60)


def test_an_entry_is_amended_to_what_the_change_came_to(store: MemoryStore) -> None:
    audit = Audit(store)
    some, none = audit.entry("discard", "ann", "a", ids=["1", "2"]), audit.entry("discard", "ann", "b", ids=["3"])
    for entry in (some, none):
        audit.keep(entry)
    audit.amend(some, ids=["2"])
    audit.amend(none, ids=[])
    assert [(entry.ids, entry.count) for entry in audit] == [(("2",), 1)]


def test_entries_since_a_time(store: MemoryStore, clock: ManualClock) -> None:
    audit = Audit(store)
    for number in range(CHUNK_MAX + 3):
        clock.advance("1s")
        audit.keep(audit.entry("note", "ann", str(number)))
    since_ms = store.now_ms() - 4000
    assert [entry.reason for entry in audit.entries(since_ms=since_ms)] == ["102", "101", "100", "99", "98"]


def test_what_is_older_than_its_time_is_gone_and_new_entries_go_on(store: MemoryStore, clock: ManualClock) -> None:
    audit = Audit(store)
    for number in range(CHUNK_MAX + 1):
        audit.keep(audit.entry("note", "ann", str(number)))
    clock.advance(KEPT_MS / 1000 + 1)
    assert list(audit) == []
    audit.keep(audit.entry("note", "ann", "later"))
    assert [entry.reason for entry in audit] == ["later"]


def test_every_change_is_signed() -> None:
    assert signed(None, " because ", "discard") == (user(), "because")
    assert signed("ann", "because", "discard") == ("ann", "because")
    assert signed(None, "", "pause", needed=False) == (user(), "")
    with pytest.raises(ConfigError, match="pause"):  # a blank one is a mistake
        signed(None, "  ", "pause", needed=False)
    for actor, reason in ((None, None), ("ann", " "), ("a" * 201, "because"), ("ann", "b" * 1001)):
        with pytest.raises(ConfigError, match="discard"):
            signed(actor, reason, "discard")


def test_an_entry_holds_no_secrets(store: MemoryStore) -> None:
    entry = Audit(store).entry("note", "ann", "password=x1y2", "token: abc", about="args.token:abc")
    assert (entry.reason, entry.text, entry.about) == ("password=***", "token: ***", "args.token:***")
