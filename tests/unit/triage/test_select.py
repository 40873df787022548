"""A selection is the same set however it is had: by indexes, by streaming, counted, grouped, listed or retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.selecting import World, fill
from tests.support.selections import check_selection

from redrive import App
from redrive.errors import ConfigError, SelectorError
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Draft, FailureGroup, Filter, Lane, Message, Page, Settlement
from redrive.store import Store, paging
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing.clock import ManualClock
from redrive.triage.dlq import DeadLetters
from redrive.triage.select.terms import as_node
from redrive.triage.selection import Selection


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    clock = ManualClock()
    path = tmp_path_factory.mktemp("select") / "work.db"
    store: Store = MemoryStore(clock) if request.param == "memory" else SqliteStore(path, clock_ms=clock)
    yield fill(store, lambda ms: clock.advance(ms / 1000))
    store.close()


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE", 7)
    monkeypatch.setattr(paging, "FIRST_PAGE", 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=120)
@given(st.data())
def test_indexes_and_streams_find_what_brute_force_finds(world: World, short_pages: None, draw: st.DataObject) -> None:
    check_selection(world, draw)


@pytest.mark.parametrize("where", [Filter(), Filter(queue="crm"), Filter(task="mail"), Filter(reason="exhausted")])
def test_streamed_groups_are_those_of_the_index(world: World, where: Filter) -> None:
    every = Selection(world.store, as_node(where), world.now_ms)
    streamed = Selection(world.store, f"{every} (attempt:>=0)", world.now_ms)
    assert every.exact and not streamed.exact
    assert every.groups() == streamed.groups() == world.store.failure_groups(where=where)
    trends = world.store.failure_groups(where=where, trend=True)
    assert every.groups(trend=True) == streamed.groups(trend=True) == trends
    assert any(group.recent or group.earlier for group in trends)


@pytest.mark.parametrize(
    "recent, earlier, word",
    [(0, 0, "quiet"), (1, 0, "rising"), (3, 10, "steady"), (4, 10, "rising"), (2, 15, "steady"), (2, 20, "falling"),
     (0, 900, "falling")],
)  # fmt: skip
def test_a_trend_compares_deaths_a_minute_of_the_last_ten_with_those_of_the_fifty_before(
    recent: int, earlier: int, word: str
) -> None:
    assert FailureGroup("f", "t", "", "", 9, 0, 0, "i", recent, earlier).trend == word


@pytest.mark.parametrize(
    "text, where",
    [
        ("", Filter(until_ms=1001)),
        (
            "queue:a task:b reason:permanent fingerprint:f error:e",
            Filter("a", "b", "permanent", "f", "e", until_ms=1001),
        ),
        ("id:(x,y)", Filter(ids=("x", "y"), until_ms=1001)),
        ("failed:<400ms", Filter(since_ms=601, until_ms=1001)),
        ("failed:<=400ms failed:>100ms", Filter(since_ms=600, until_ms=900)),
        ("failed:>=100ms", Filter(until_ms=901)),
        ("failed:>1970-01-01T00:00:00.5Z", Filter(since_ms=501, until_ms=1001)),
        ("failed:>=1970-01-01T00:00:00.5Z failed:<1970-01-01T00:00:00.7Z", Filter(since_ms=500, until_ms=700)),
        ("failed:<=1970-01-01T00:00:00.7Z lane:dead", Filter(until_ms=701)),
        ("-lane:quarantine queue:a", Filter(queue="a", until_ms=1001)),
    ],
)
def test_what_indexes_answer_is_asked_of_them(text: str, where: Filter) -> None:
    selection = Selection(MemoryStore(), text, 1000)
    assert selection.exact and selection.where == where


@pytest.mark.parametrize("text", ["queue:a queue:b", "queue:a*", "-queue:a", "queue:a or task:b", "age:>1s", "key:k"])
def test_what_indexes_do_not_answer_is_judged(text: str) -> None:
    assert not Selection(MemoryStore(), text, 1000).exact


class FewIndexes(MemoryStore):
    """Groups by tasks and fingerprints without reading, as Redis does."""

    traits = replace(MemoryStore.traits, groups_by=("task", "fingerprint"))


def test_a_selection_knows_whether_the_store_counts_it_without_reading() -> None:
    for text in ("", "task:b", "fingerprint:(f,g) task:b"):
        assert Selection(FewIndexes(), text, 1000).indexed, text
    for text in ("queue:a", "error:E", "failed:<400ms", "lane:done", "queue:a*"):
        assert not Selection(FewIndexes(), text, 1000).indexed, text
    assert Selection(MemoryStore(), "queue:a error:E failed:<400ms", 1000).indexed


def test_a_selection_knows_the_queues_that_are_all_it_asks_for() -> None:
    for text, queues in (("queue:a", ("a",)), ("queue:(a,b) lane:dead", ("a", "b"))):
        assert Selection(FewIndexes(), text, 1000).only_queues == queues
    for text in ("", "queue:a task:b", "queue:a*", "queue:a failed:<400ms", "queue:a lane:done", "-queue:a"):
        assert Selection(FewIndexes(), text, 1000).only_queues is None, text


def test_the_width_of_a_selection_is_what_an_index_tells_of_it(world: World) -> None:
    task = world.ones[0].message.task
    dead = sum(one.message.lane is Lane.DEAD and one.message.task == task for one in world.ones)
    assert Selection(world.store, f"task:{task} key:none", world.now_ms).width() == dead
    assert Selection(FewIndexes(), "queue:a key:none", 1000).width() is None


class Counting(MemoryStore):
    """Counts what is read of it."""

    read = 0

    def peek(self, lane: Lane | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None) -> Page:
        page = super().peek(lane, where=where, limit=limit, cursor=cursor)
        self.read += len(page.messages)
        return page


def bury(store: Store, count: int = 1, body: bytes = b"{}", fault: Fault | None = None) -> list[str]:
    ids = [put.id for put in store.put([Draft(task="t", body=body) for _ in range(count)])]
    deliveries = store.exchange([], [ClaimRequest("default", count, 1000)]).deliveries
    store.exchange([Settlement(d.receipt, DeadLetter("exhausted"), fault) for d in deliveries], [])
    return ids


def test_a_count_by_index_reads_no_message_and_a_listing_only_what_it_needs() -> None:
    store = Counting(ManualClock())
    bury(store, 300)
    assert Selection(store, "reason:exhausted").count() == 300 and store.read == 0
    assert len(list(Selection(store, "attempt:1").messages(10))) == 10 and store.read == paging.FIRST_PAGE
    store.close()


def test_large_bodies_make_short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", 5000)
    asked: list[int] = []

    class Asking(MemoryStore):
        def peek(
            self, lane: Lane | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
        ) -> Page:
            asked.append(limit)
            return super().peek(lane, where=where, limit=limit, cursor=cursor)

    store = Asking(ManualClock())
    bury(store, 110, b'"' + b"x" * 998 + b'"')
    assert Selection(store, "attempt:1").count() == 110
    assert asked == [paging.FIRST_PAGE, 4, 4, 4]
    store.close()


def test_what_dies_after_its_moment_is_not_in_a_selection() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    early = bury(store)
    selection, streamed = Selection(store), Selection(store, "attempt:>0")
    clock.advance("1s")
    bury(store)
    for one in (selection, streamed):
        assert list(one.ids()) == early and one.count() == 1
        assert [(g.count, g.sample_id) for g in one.groups()] == [(1, early[0])]
    assert Selection(store).count() == 2
    store.close()


def test_retry_moves_the_selection_and_nothing_else() -> None:
    store = MemoryStore(ManualClock())
    one, two = bury(store, body=b'{"id": 1}'), bury(store, body=b'{"id": 2}')
    letters = DeadLetters(store)
    assert letters.retry(select="args.id:2").ids == tuple(two)
    assert letters.retry(select=letters.select("queue:default")).ids == tuple(one)
    for wrong in ({"all": True}, {"ids": one}, {"where": Filter(queue="q")}):
        with pytest.raises(ConfigError):
            letters.retry(select="queue:default", **wrong)  # type: ignore[arg-type]
    store.close()


def test_app_dlq_select_points_at_a_mistake() -> None:
    app = App("memory://")
    assert str(app.dlq.select("queue:crm failed:<6h")) == "queue:crm failed:<6h"
    with pytest.raises(SelectorError, match=r"did you mean failed:.*\n  queue:crm faild:<6h\n            \^\^\^\^\^"):
        app.dlq.select("queue:crm faild:<6h")
    app.store.close()


def test_bodies_in_blobs_are_read_where_it_hangs_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_BLOB_THRESHOLD", "100")
    app = App(store=MemoryStore(ManualClock()), blobs=f"file://{tmp_path}/blobs")
    store = app.store
    large = bury(store, body=b'{"id": 1, "text": "%s"}' % (b"x" * 500))
    bury(store, body=b'{"id": 2}')
    assert list(app.dlq.select("args.id:1").ids()) == large
    assert app.dlq.select("args.id:(1,2)").count() == 2 and app.dlq.select("-args.id:2").count() == 1
    for file in (tmp_path / "blobs").rglob("*"):
        if file.is_file() and file.stat().st_size > 400:
            file.unlink()
    for text in ("args.id:1", "-args.id:2", "args.id:1 or args.id:3"):  # of what is not known, nothing is said
        selection = app.dlq.select(text)
        assert list(selection) == [] and selection.unread == 1
    decided = app.dlq.select("args.id:1 or attempt:1")
    assert decided.count() == 2 and decided.unread == 0
    message = store.find(large)[0]
    assert message is not None and not app.dlq.select("-args.id:2").matches(message)
    store.close()


def test_matches_takes_the_last_fault_for_the_one_it_died_of_unless_told() -> None:
    store = MemoryStore(ManualClock())
    fault = Fault(Kind.DEFAULT, "ValueError", "bad", "f")
    dead = store.find(bury(store, fault=fault))[0]
    selection = Selection(store, "error:ValueError")
    assert isinstance(dead, Message)
    assert selection.matches(dead) and selection.matches(dead, fault) and not selection.matches(dead, None)
    assert selection.groups() == [
        FailureGroup("f", "t", "ValueError", "bad", 1, dead.rested_ms or 0, dead.rested_ms or 0, dead.id)
    ]
    waiting = store.put([Draft(task="t")])[0].id
    found = store.find([waiting])[0]
    assert found is not None and not Selection(store).matches(found)
    store.close()
