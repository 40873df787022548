"""A plan freezes what a redrive would move, counts it, and moves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from redrive import App
from redrive.errors import ConfigError, PlanRefused
from redrive.fault import Fault, Kind
from redrive.message import Ack, ClaimRequest, DeadLetter, Decision, Draft, Handle, Lane, Quarantine, Settlement, Swap
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock
from redrive.triage.redrive import plan as planning
from redrive.triage.redrive import records
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.plan import PlanHandle, draw_up, estimate_s
from redrive.triage.redrive.records import (
    RedriveSettings,
    chunk_cell,
    keep,
    plan_cell,
    read_chunk,
    read_plan,
    state_cell,
)
from redrive.triage.selection import Selection

HOUR_S, DAY_S = 3600, 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[MemoryStore]:
    store = MemoryStore(clock)
    yield store
    store.close()


def kill(
    store: MemoryStore,
    count: int = 1,
    *,
    queue: str = "crm",
    task: str = "push",
    decision: Decision = DeadLetter("exhausted"),  # noqa: B008 - frozen
    fault: Fault | None = None,
) -> list[str]:
    """Put that many messages and let them die, or what `decision` says."""
    ids = [put.id for put in store.put([Draft(task=task, queue=queue, keep_ms=DAY_S * 1000) for _ in range(count)])]
    deliveries = store.exchange([], [ClaimRequest(queue, count, 1000)]).deliveries
    store.exchange([Settlement(d.receipt, decision, fault) for d in deliveries], [])
    return ids


def refusal(plan: PlanHandle, *, reason: str = "the CRM is up again", max_age: str | None = "24h") -> PlanRefused:
    with pytest.raises(PlanRefused) as refused:
        plan.check(reason=reason, max_age=max_age)
    return refused.value


def alter(store: MemoryStore, key: str, old: bytes, new: bytes) -> None:
    (cell,) = store.cells.read([key])
    assert cell is not None and old in cell.value
    assert store.cells.swap([Swap(key, cell.version, cell.value.replace(old, new, 1))]) == [True]


def test_a_plan_holds_each_message_as_it_was_seen_and_moves_nothing(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "CHUNK", 4)
    ids = kill(store, 10)
    plan = draw_up(store, Selection(store), "", RedriveSettings())
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
    plan = draw_up(store, Selection(store), "", RedriveSettings())
    assert plan.by_queue == {"crm": 3, "mail": 3} and plan.by_task == {"push": 3, "send": 3}
    assert list(plan.by_age.items()) == [("<1h", 2), ("<6h", 3), ("<30d", 1)]


def test_beyond_a_thousand_queues_the_smaller_ones_are_counted_together(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "NAMES_MAX", 2)
    for n, queue in enumerate("abcd", start=1):
        kill(store, n, queue=queue)
    plan = draw_up(store, Selection(store), "", RedriveSettings())
    assert list(plan.by_queue.items()) == [("d", 4), ("c", 3), ("…", 3)] and plan.by_task == {"push": 10}


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
        draw_up(store, cut_off(), "", RedriveSettings())  # type: ignore[arg-type]
    assert read_plan(store.cells, made[0]) is None
    assert len(read_chunk(store.cells, made[0], 0)) == 4
    clock.advance(7 * DAY_S + 1)
    with pytest.raises(PlanRefused, match="chunk 0"):
        read_chunk(store.cells, made[0], 0)


def test_a_plan_that_cannot_be_read_is_called_altered(store: MemoryStore) -> None:
    kill(store)
    plan = draw_up(store, Selection(store), "", RedriveSettings())
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
    plan = draw_up(store, Selection(store), "", read_settings(rate="20/s", slow_start=False, canary=0))
    (cell,) = store.cells.read([plan_cell(plan.id)])
    assert cell is not None
    written = msgspec.json.decode(cell.value)
    assert set(written["settings"]) == {"rate", "stop_if"}
    assert msgspec.json.encode(msgspec.json.decode(cell.value, type=records.Plan)) == cell.value


@pytest.mark.parametrize(
    "settings, total, seconds",
    [
        (RedriveSettings(), 1000, 2),
        (RedriveSettings(rate=20.0), 100, 5),
        (RedriveSettings(rate=20.0), 0, 0),
        (RedriveSettings(rate=0.5), 3, 6),
        (RedriveSettings(rate=0.5, slow_start=True), 3, 6),
        (RedriveSettings(rate=100.0, slow_start=True), 10, 10),
        (RedriveSettings(rate=100.0, slow_start=True), 1270, 70),
        (RedriveSettings(rate=100.0, slow_start=True), 10_000, 70 + 87.3),
        (RedriveSettings(rate=20.0, canary=5), 100, 6),
        (RedriveSettings(rate=20.0, canary=5), 5, 0.25),
        (RedriveSettings(rate=20.0, delay_ms=60_000, spread_ms=30_000), 100, 95),
    ],
)
def test_the_estimate_is_the_time_at_the_rate_with_slow_start_canary_delay_and_spread(
    settings: RedriveSettings, total: int, seconds: float
) -> None:
    assert estimate_s(settings, total) == pytest.approx(seconds, abs=0.01)


def test_settings_are_read_from_what_people_write() -> None:
    assert read_settings() == RedriveSettings(canary=5, slow_start=True, stop_if="failed>20%")
    assert read_settings(canary=0, slow_start=False, stop_if="never") == RedriveSettings()
    assert read_settings(
        rate="5000/h", canary=5, slow_start=False, delay="1m", spread="30s", attempts=3, to_queue="bulk"
    ) == RedriveSettings(
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


# -- of a selection


def test_a_selection_is_planned_and_the_plan_is_found_again(store: MemoryStore) -> None:
    ids = kill(store, 3)
    kill(store, 2, queue="mail")
    app = App(store=store)
    plan = app.dlq.select("queue:crm failed:<6h").plan(
        rate="20/s", canary=2, slow_start=True, halve_on_failures=True, stop_if="failed>20%", attempts=3
    )
    assert (plan.total, plan.by_queue, plan.by_task, plan.by_age) == (3, {"crm": 3}, {"push": 3}, {"<1h": 3})
    assert plan.plan.selector == "queue:crm failed:<6h" and plan.plan.settings.attempts == 3
    assert list(plan.ids()) == ids and store.counts().dead == 5
    again = app.dlq.plan(plan.id)
    assert again.plan == plan.plan and again.eta_s == plan.eta_s > 3
    again.check(reason="the CRM is up again")


def test_what_dies_after_the_selection_was_taken_is_not_in_its_plan(store: MemoryStore, clock: ManualClock) -> None:
    kill(store)
    selection = App(store=store).dlq.select()
    clock.advance(1)
    kill(store)
    assert selection.plan().total == 1


def test_quarantined_messages_are_left_out_and_counted_unless_they_are_named(store: MemoryStore) -> None:
    kill(store, 2)
    kill(store, 3, decision=Quarantine("poison"))
    kill(store, 1, queue="mail", decision=Quarantine("poison"))
    dlq = App(store=store).dlq
    assert (dlq.select().plan().total, dlq.select().plan().excluded) == (2, {"quarantined": 4})
    assert dlq.select("queue:crm").plan().excluded == {"quarantined": 3}
    assert dlq.select("lane:dead").plan().excluded == {}
    named = dlq.select("queue:crm lane:(dead,quarantine)").plan()
    assert (named.total, named.excluded) == (5, {})
    assert {handle.lane for handle in named.handles()} == {Lane.DEAD, Lane.QUARANTINE}


def test_tasks_that_the_app_does_not_have_are_left_out_and_counted(store: MemoryStore) -> None:
    kill(store, 2)
    kill(store, 3, task="gone")
    app = App(store=store)
    assert app.dlq.select().plan().total == 5  # an app that declares nothing knows of no task

    @app.task(name="push", dependency="crm-api")
    def push() -> None: ...

    plan = app.dlq.select().plan()
    assert (plan.total, plan.by_task, plan.excluded) == (2, {"push": 2}, {"no such task": 3})
    assert plan.plan.dependencies == {"push": "crm-api"}
    app.dependency("push")  # that of a task that names another is not meant
    app.dependency("send")

    @app.task(name="send")
    def send() -> None: ...

    kill(store, 1, task="send")
    assert app.dlq.select().plan().plan.dependencies == {"push": "crm-api", "send": "send"}


def test_what_a_standing_rule_holds_is_left_out_and_counted(store: MemoryStore) -> None:
    kill(store, 2, fault=Fault(Kind.DEFAULT, "ValueError", "bad", "f1"))
    kill(store, 3, fault=Fault(Kind.DEFAULT, "ValueError", "worse", "f2"))
    retried_then_dead = kill(store, 1)  # of no fault: its deadline passed, say
    dlq = App(store=store).dlq
    dlq.rule("f2", "hold", reason="wait for the vendor")
    dlq.rule("f1", "auto", reason="heals by itself")
    plan = dlq.select().plan()
    assert (plan.total, plan.excluded) == (3, {"held": 3})
    assert retried_then_dead[0] in set(plan.ids())
    dlq.rule("f2", None, reason="the vendor has mended it")
    assert dlq.select().plan().total == 6


def test_no_plan_of_an_unknown_id(store: MemoryStore) -> None:
    with pytest.raises(PlanRefused, match="there is no plan 'x'; a plan that is not applied is kept for 7d") as refused:
        App(store=store).dlq.plan("x")
    assert refused.value.word == "unknown"


# -- what speaks against a start


def test_a_plan_is_refused_without_a_reason(store: MemoryStore) -> None:
    kill(store)
    plan = App(store=store).dlq.select().plan()
    for reason in ("", "  ", None):
        assert refusal(plan, reason=reason).word == "reason"  # type: ignore[arg-type]


def test_a_plan_is_refused_once_it_was_applied(store: MemoryStore) -> None:
    kill(store)
    plan = App(store=store).dlq.select().plan()
    store.cells.swap([Swap(state_cell(plan.id), 0, b"{}")])
    assert refusal(plan).word == "applied"


def test_a_plan_is_refused_when_it_is_older_than_allowed(store: MemoryStore, clock: ManualClock) -> None:
    kill(store)
    plan = App(store=store).dlq.select().plan()
    clock.advance(DAY_S)
    plan.check(reason="in time")
    clock.advance(1)
    assert refusal(plan).word == "old" and "drawn up 1d ago; at most 1d" in str(refusal(plan))
    plan.check(reason="allowed", max_age="2d")
    plan.check(reason="allowed", max_age=None)
    clock.advance(6 * DAY_S)
    assert refusal(plan, max_age=None).word == "unknown"


@pytest.mark.parametrize(
    "where, old, new",
    [
        ("plan", b'"rate":20.0', b'"rate":99.0'),
        ("plan", b'"total":3', b'"total":2'),
        ("chunk", b'",0,"dead"', b'",1,"dead"'),
        ("chunk", b'[["0', b'[["1'),
    ],
)
def test_a_plan_is_refused_when_any_of_it_was_altered(store: MemoryStore, where: str, old: bytes, new: bytes) -> None:
    kill(store, 3)
    app = App(store=store)
    plan = app.dlq.select().plan(rate="20/s")
    alter(store, plan_cell(plan.id) if where == "plan" else chunk_cell(plan.id, 0), old, new)
    assert refusal(plan).word == "altered"
    assert refusal(app.dlq.plan(plan.id)).word == "altered"


def test_a_plan_is_refused_when_a_chunk_is_gone(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "CHUNK", 2)
    kill(store, 25)
    plan = App(store=store).dlq.select().plan()
    (cell,) = store.cells.read([chunk_cell(plan.id, 11)])
    assert cell is not None and plan.plan.chunks == 13
    plan.check(reason="whole")
    store.cells.swap([Swap(chunk_cell(plan.id, 11), cell.version, None)])
    assert refusal(plan).word == "altered"


def test_an_empty_plan_is_refused(store: MemoryStore) -> None:
    plan = App(store=store).dlq.select("queue:none").plan()
    assert plan.total == 0 and plan.eta_s == 0
    assert refusal(plan).word == "empty"


def test_a_plan_is_kept_longer_for_a_run(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "CHUNK", 1)
    kill(store, 12)
    plan = App(store=store).dlq.select().plan()
    keep(store.cells, plan.plan, 30 * DAY_S * 1000)
    clock.advance(29 * DAY_S)
    plan.check(reason="whole", max_age=None)
    clock.advance(2 * DAY_S)
    with pytest.raises(PlanRefused):
        keep(store.cells, plan.plan, 1000)


# -- done ones, to be done again


def test_done_messages_are_meant_only_where_their_lane_is_named_and_cancelled_ones_never(
    store: MemoryStore, clock: ManualClock
) -> None:
    dead = kill(store, 1)
    early = kill(store, 1, decision=Ack(keep_ms=DAY_S * 1000))
    clock.advance(HOUR_S)
    late = kill(store, 2, decision=Ack(keep_ms=DAY_S * 1000))
    waits = store.put([Draft(task="push", queue="crm")])[0].id
    store.cancel([waits])
    dlq = App(store=store).dlq
    assert list(dlq.select().ids()) == list(dlq.select("-lane:quarantine").ids()) == dead
    assert list(dlq.select("lane:done").ids()) == early + late
    assert list(dlq.select("lane:done age:<30m task:push").ids()) == late
    assert list(dlq.select("lane:done failed:>=30m").ids()) == early
    assert list(dlq.select("lane:(dead,done)").ids()) == dead + early + late
    assert list(dlq.select('lane:done reason:(rejected,"cancelled") or lane:done error:*').ids()) == []
    assert dlq.select("lane:done -error:*").count() == 3
    plan = dlq.select("lane:done age:<30m").plan()
    assert list(plan.handles()) == [Handle(id, 0, Lane.DONE) for id in late] and plan.excluded == {}
