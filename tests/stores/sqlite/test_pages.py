"""Pages of the SQLite store by every way that it takes to them, against a filter in plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from redrive.fault import Fault, Kind
from redrive.ids import new_id
from redrive.message import FailureGroup, Filter, Lane, Message
from redrive.stores import lifecycle
from redrive.stores.sqlite import search
from redrive.stores.sqlite.store import SqliteStore

KINDS = ("a", "a", "a", "a", "b", "b", "c", "d")  # some are frequent
WAYS = {"as it is": {}, "many": {"FEW": 0, "MANY": 0}, "some listed": {"FEW": 0, "MANY": 30}, "all listed": {"FEW": 0}}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqliteStore, list[Message]]]:
    draw = random.Random(5)
    store = SqliteStore(tmp_path_factory.mktemp("pages") / "work.db")
    messages = [_dead(store.now_ms() - draw.randrange(10_000_000) // 1000 * 1000, draw) for _ in range(300)]
    assert all(store.restore(messages))
    yield store, messages
    store.close()


def _dead(rested_ms: int, draw: random.Random) -> Message:
    task, queue, reason, error, name = (draw.choice(KINDS) for _ in range(5))
    faults = (Fault(Kind.DEFAULT, error, "text", name * 16),) if draw.random() < 0.9 else ()
    id, lane = new_id(rested_ms), draw.choice((Lane.DEAD, Lane.DEAD, Lane.QUARANTINE))
    redrives = draw.randrange(3)
    return Message(
        id, task, queue, b"1", id, lane, reason=reason, rested_ms=rested_ms, faults=faults, redrives=redrives
    )


def _wheres(now_ms: int) -> Iterator[Filter]:
    draw = random.Random(7)
    for _ in range(60):
        named: dict[str, object] = {}
        for field in draw.sample(("queue", "task", "reason", "error", "fingerprint"), draw.choice((1, 1, 2, 2, 3, 5))):
            many = draw.choice((0, 0, 2, 3))
            names = [name * (16 if field == "fingerprint" else 1) for name in "abcde"]
            named[field] = tuple(draw.sample(names, many)) if many else draw.choice(names)
        if draw.random() < 0.3:
            named["since_ms"], named["until_ms"] = now_ms - 8_000_000, now_ms - 1_000_000
        if draw.random() < 0.2:
            named["redrives"] = 1
        yield Filter(**named)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lane", [Lane.DEAD, Lane.QUARANTINE])
def test_each_way_to_a_page_finds_the_same(
    filled: tuple[SqliteStore, list[Message]], lane: Lane, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, messages = filled
    for name, value in WAYS[way].items():
        monkeypatch.setattr(search, name, value)
    monkeypatch.setattr(search, "VALUES_MAX", 2)
    for where in _wheres(store.now_ms()):
        meant = [m for m in messages if m.lane is lane and _meant(m, where)]
        found, cursor = [], None
        while cursor is not None or not found:
            page = store.peek(lane, where=where, limit=7, cursor=cursor)
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                break
        assert {m.id for m in found} == {m.id for m in meant} and len(found) == len(meant), where
        assert [m.rested_ms for m in found] == sorted(m.rested_ms or 0 for m in meant), where


def test_groups_off_their_index_are_those_of_the_messages(filled: tuple[SqliteStore, list[Message]]) -> None:
    store, messages = filled
    for where in (
        Filter(),
        Filter(task="a"),
        Filter(task=("b", "c")),
        Filter(fingerprint="a" * 16),
        Filter(until_ms=10**15),
    ):
        meant = [m for m in messages if m.lane is Lane.DEAD and _meant(m, where)]
        for group in store.failure_groups(where=where):
            mine = [m for m in meant if (_name(m), m.task) == (group.fingerprint, group.task)]
            rested = [m.rested_ms or 0 for m in mine]
            assert _told(group) == (len(mine), min(rested), max(rested)), (where, group)
            assert group.sample_id in {m.id for m in mine}
            meant = [m for m in meant if m not in mine]
        assert not meant, where


def _meant(message: Message, where: Filter) -> bool:
    return lifecycle.matches(message, message.faults[-1] if message.faults else None, where)


def _name(message: Message) -> str:
    return message.faults[-1].fingerprint if message.faults else ""


def _told(group: FailureGroup) -> tuple[int, int, int]:
    return group.count, group.first_ms, group.last_ms
