"""Selections of messages that wait or run: named by their lane, and matched as dead ones are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from redrive import App
from redrive.errors import SelectorError
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, Draft, RetryAt, Settlement
from redrive.store import Store, paging
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing.clock import ManualClock
from redrive.triage.paging import Counted
from redrive.triage.selection import Selection

FAULT = Fault(Kind.TRANSIENT, "httpx.ReadTimeout", "no answer from acme", "f1", ("ReadTimeout",))
LANES = "lane:(scheduled,ready,parked,leased)"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[App]:
    store: Store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "w.db", clock_ms=clock)
    yield App(store=store)
    store.close()


def put(app: App, *drafts: Draft) -> list[str]:
    return [put.id for put in app.store.put(drafts)]


def fill(app: App) -> dict[str, str]:
    """One message of each kind: leased, failed and waiting for its retry, delayed, due, in line, and in two queues."""
    store = app.store
    retrying, leased = put(app, Draft(task="a.b", queue="q", body=b'{"n": 1}'), Draft(task="a.b", queue="q"))
    first, second = store.exchange([], [ClaimRequest("q", 2, 60_000, worker="w")]).deliveries
    assert [first.message.id, second.message.id] == [retrying, leased]
    store.exchange(
        [Settlement(first.receipt, RetryAt(store.now_ms() + 5_000), replace(FAULT, at_ms=store.now_ms()))], []
    )
    group = [Draft(task="a.c", queue="q", group="g", key=f"k{n}", body=b'{"tenant": "acme"}') for n in range(2)]
    later = Draft(task="a.c", queue="r", delay_ms=60_000, headers={"redrive-label-customer": "7"})
    names = ("due", "parked", "delayed")
    return {"retrying": retrying, "leased": leased, **dict(zip(names, put(app, *group, later), strict=True))}


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("lane:scheduled", {"retrying", "delayed"}),
        ("lane:ready", {"due"}),
        ("lane:parked", {"parked"}),
        ("lane:leased", {"leased"}),
        (LANES, {"retrying", "leased", "due", "parked", "delayed"}),
        (f"{LANES} task:a.c", {"due", "parked", "delayed"}),
        (f"{LANES} queue:r", {"delayed"}),
        (f"{LANES} group:g", {"due", "parked"}),
        (f"{LANES} -group:*", {"retrying", "leased", "delayed"}),
        (f"{LANES} key:k1", {"parked"}),
        (f"{LANES} label:customer=7", {"delayed"}),
        (f"{LANES} args.tenant:acme", {"due", "parked"}),
        (f"{LANES} error:*Timeout", {"retrying"}),
        (f"{LANES} text:ACME", {"retrying"}),
        (f"{LANES} failed:<1h", {"retrying"}),
        (f"{LANES} due:<30s", {"retrying", "due"}),
        (f"{LANES} due:>30s", {"delayed"}),
        (f"{LANES} worker:w", {"retrying", "leased"}),
        (f"{LANES} header.redrive-label-customer:7", {"delayed"}),
        (f"{LANES} Acme", {"retrying", "due", "parked"}),
        (f"{LANES} K1", {"parked"}),
        (f"{LANES} -acme", {"leased", "delayed"}),
        (f"{LANES} readtimeout", {"retrying"}),
        (f"{LANES} tenant", set()),
        (f"{LANES} -lane:parked", {"retrying", "leased", "due", "delayed"}),
        ("lane:ready or (lane:scheduled task:a.b)", {"due", "retrying"}),
        ("lane:(dead,parked)", {"parked"}),
        ("task:a.b", set()),
        ("-lane:dead", set()),
    ],
)
def test_messages_that_wait_or_run_are_found_only_by_the_name_of_their_lane(
    app: App, selector: str, found: set[str]
) -> None:
    ids = fill(app)
    selection = app.select(selector)
    names = {id: name for name, id in ids.items()}
    assert {names[message.id] for message in selection} == found
    assert selection.count() == len(found)
    assert {names[m.id] for m in app.store.find([*names]) if m is not None and selection.matches(m)} == found


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_pages_of_what_waits_are_the_selection_cut_in_pieces(app: App, limit: int) -> None:
    fill(app)
    selection, ids, cursor = app.select(LANES), list[str](), None
    while True:
        page = selection.page(limit, cursor)
        assert len(page.messages) <= limit
        ids += [message.id for message in page.messages]
        if (cursor := page.cursor) is None:
            break
    assert ids == list(selection.ids())


def test_a_page_continues_behind_a_queue_that_is_empty_by_now(app: App) -> None:
    ids = put(app, *(Draft(task="t", queue=queue) for queue in "abc" for _ in range(2)))
    cursor = app.select("lane:ready").page(3).cursor
    app.store.cancel(ids[2:4])
    assert [message.id for message in app.select("lane:ready").page(9, cursor).messages] == ids[4:]


def test_what_is_enqueued_later_is_not_in_a_selection(app: App, clock: ManualClock) -> None:
    (id,) = put(app, Draft(task="t"))
    selection = app.select("lane:ready")
    clock.advance("1s")
    put(app, Draft(task="t"))
    assert list(selection.ids()) == [id]


def test_a_selection_of_every_lane_needs_no_name(app: App) -> None:
    ids = fill(app)
    assert set(Selection(app.store, "", every=True).ids()) == set(ids.values())
    assert list(Selection(app.store, "lane:parked", every=True).ids()) == [ids["parked"]]
    assert Selection(app.store, "-lane:parked", every=True).count() == len(ids) - 1


@pytest.mark.parametrize("selector", ["lane:ready", "lane:(dead,leased)", "queue:q or lane:parked"])
def test_dead_letters_are_not_selected_by_the_lane_of_what_waits(app: App, selector: str) -> None:
    with pytest.raises(SelectorError, match=r"app[.]select find"):
        app.dlq.select(selector)


def test_a_bare_word_finds_any_part_of_an_id(app: App) -> None:
    ids = put(app, Draft(task="t"), Draft(task="t"))
    assert list(app.select(f"lane:ready {ids[1][20:].upper()}").ids()) == [ids[1]]


def test_what_waits_is_counted_by_the_counts_of_queues_or_by_a_bounded_look(app: App) -> None:
    ids = fill(app)
    for selector, number in (("lane:parked", 1), ("lane:(scheduled,ready) queue:q", 2), ("lane:leased", 1)):
        assert app.select(selector).counted() == Counted(number, 0, 0)
    assert Selection(app.store, "", every=True).counted() == Counted(len(ids), 0, 0)
    assert app.select("lane:(scheduled,ready,parked) task:a.c").counted() == Counted(3, 4, 4)
    short = app.select("lane:(scheduled,ready,parked) task:a.c").counted(looked=1)
    assert short == Counted(None, 3, 4) and str(short) == "looked at the first 3 of 4; no count"


def test_a_bounded_pass_says_that_it_ended_early(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "FIRST_PAGE", 2)
    ids = put(app, *(Draft(task="t", key=f"k{n}") for n in range(9)))
    whole = app.select("lane:ready key:k8").bounded(100)
    assert list(whole.ids()) == [ids[8]] and not whole.cut
    short = app.select("lane:ready key:k8").bounded(2)
    assert list(short.ids()) == [] and short.cut and short.looked == 2
    every = app.select("lane:ready key:*").bounded(2)
    assert list(every.ids()) == ids and not every.cut
