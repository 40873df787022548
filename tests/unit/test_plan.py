"""A plan freezes what a redrive would move, counts it, and moves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from redrive.errors import ConfigError, PlanRefused
from redrive.message import Ask, DeadLetter, Draft, Handle, Lane, Settlement, Swap
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import ManualClock
from redrive.triage import plan as planning
from redrive.triage.plan import chunk_cell, draw_up, plan_cell, read_chunk, read_plan
from redrive.triage.select import Selection
from redrive.triage.settings import Settings, estimate_s, read_settings

HOUR_S, DAY_S = 3600, 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[MemoryStore]:
    store = MemoryStore(clock)
    yield store
    store.close()


def kill(store: MemoryStore, count: int = 1, *, queue: str = "crm", task: str = "push") -> list[str]:
    """Put that many messages and let them die."""
    ids = [put.id for put in store.put([Draft(task=task, queue=queue) for _ in range(count)])]
    deliveries = store.exchange([], [Ask(queue, count, 1000)]).deliveries
    store.exchange([Settlement(d.receipt, DeadLetter("exhausted")) for d in deliveries], [])
    return ids


def test_a_plan_holds_each_message_as_it_was_seen_and_moves_nothing(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "CHUNK", 4)
    ids = kill(store, 10)
    plan = draw_up(store, Selection(store), "", Settings())
    assert (plan.total, plan.chunks) == (10, 3)
    frozen = [handle for n in range(3) for handle in read_chunk(store.cells, plan.id, n)]
    assert frozen == [Handle(id, 0, Lane.DEAD) for id in ids]
    assert store.counts().dead == 10
    assert read_plan(store.cells, plan.id) == plan


def test_a_plan_counts_by_queue_by_task_and_by_how_long_they_have_been_dead(
    store: MemoryStore, clock: ManualClock
) -> None:
    kill(store, 1)
    clock.advance(10 * DAY_S)
    kill(store, 3, queue="mail", task="send")
    clock.advance(HOUR_S)
    kill(store, 2)
    plan = draw_up(store, Selection(store), "", Settings())
    assert plan.by_queue == {"crm": 3, "mail": 3} and plan.by_task == {"push": 3, "send": 3}
    assert list(plan.by_age.items()) == [("<1h", 2), ("<6h", 3), ("<30d", 1)]


def test_a_plan_that_is_cut_off_was_never_there_and_what_it_wrote_expires(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "CHUNK", 4)
    kill(store, 10)
    made: list[str] = []

    def new_id(now_ms: int) -> str:
        made.append("0199f3a1-0000-7000-8000-000000000001")
        return made[-1]

    def cut_off() -> Iterator[object]:
        yield from list(Selection(store))[:5]
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "new_id", new_id)
    with pytest.raises(KeyboardInterrupt):
        draw_up(store, cut_off(), "", Settings())  # type: ignore[arg-type]
    assert read_plan(store.cells, made[0]) is None
    assert len(read_chunk(store.cells, made[0], 0)) == 4
    clock.advance(7 * DAY_S + 1)
    with pytest.raises(PlanRefused, match="chunk 0"):
        read_chunk(store.cells, made[0], 0)


def test_a_plan_that_cannot_be_read_is_called_altered(store: MemoryStore) -> None:
    kill(store)
    plan = draw_up(store, Selection(store), "", Settings())
    for key in (plan_cell(plan.id), chunk_cell(plan.id, 0)):
        (cell,) = store.cells.read([key])
        assert cell is not None
        store.cells.swap([Swap(key, cell.version, b'{"id":')])
    with pytest.raises(PlanRefused) as refused:
        read_plan(store.cells, plan.id)
    assert refused.value.word == "altered"
    with pytest.raises(PlanRefused, match="altered"):
        read_chunk(store.cells, plan.id, 0)


def test_a_field_that_is_added_later_alters_no_plan_drawn_up_before(store: MemoryStore) -> None:
    kill(store)
    plan = draw_up(store, Selection(store), "", read_settings(rate="20/s", canary=5))
    (cell,) = store.cells.read([plan_cell(plan.id)])
    assert cell is not None
    written = msgspec.json.decode(cell.value)
    assert set(written["settings"]) == {"rate", "canary", "stop_if"}
    assert msgspec.json.encode(msgspec.json.decode(cell.value, type=planning.Plan)) == cell.value


@pytest.mark.parametrize(
    "settings, total, seconds",
    [
        (Settings(), 1000, 2),
        (Settings(rate=20.0), 100, 5),
        (Settings(rate=20.0), 0, 0),
        (Settings(rate=0.5), 3, 6),
        (Settings(rate=0.5, slow_start=True), 3, 6),
        (Settings(rate=100.0, slow_start=True), 10, 10),
        (Settings(rate=100.0, slow_start=True), 1270, 70),
        (Settings(rate=100.0, slow_start=True), 10_000, 70 + 87.3),
        (Settings(rate=20.0, canary=5), 100, 6),
        (Settings(rate=20.0, canary=5), 5, 0.25),
        (Settings(rate=20.0, delay_ms=60_000, spread_ms=30_000), 100, 95),
    ],
)
def test_the_estimate_is_the_time_at_the_rate_with_slow_start_canary_delay_and_spread(
    settings: Settings, total: int, seconds: float
) -> None:
    assert estimate_s(settings, total) == pytest.approx(seconds, abs=0.01)


def test_settings_are_read_from_what_people_write() -> None:
    assert read_settings() == Settings()
    assert read_settings(rate="5000/h", canary=5, delay="1m", spread="30s", attempts=3, to_queue="bulk") == Settings(
        rate=5000 / 3600,
        canary=5,
        stop_if="failed>20%",
        delay_ms=60_000,
        spread_ms=30_000,
        attempts=3,
        to_queue="bulk",
    )
    assert read_settings(rate=20) == read_settings(rate="20/s")
    assert read_settings(canary=5, stop_if="").stop_if == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": "fast"},
        {"rate": 0},
        {"rate": -1},
        {"canary": -1},
        {"canary": True},
        {"canary": 1.5},
        {"attempts": 0},
        {"to_queue": ""},
        {"delay": "-1s"},
        {"spread": "soon"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((ConfigError, ValueError), match=next(iter(wrong))):
        read_settings(**wrong)  # type: ignore[arg-type]
