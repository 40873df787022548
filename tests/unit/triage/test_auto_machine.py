"""The machines that drive dead messages back: who goes when, what is given up, what is left alone, and that a kill
between any two commits changes nothing of that."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.support.auto_redrives import World, dies, works

from redrive import AutoRedrive, Breaker, Gates
from redrive.audit.log import Audit
from redrive.errors import ConfigError, Refused
from redrive.flow import auto_redrive
from redrive.flow.health import HealthChecks
from redrive.message import Ack, DeadLetter, Decision, Delivery, Discard, Handle, Lane, Swap
from redrive.triage.annotations import Annotations
from redrive.triage.auto import machine, scan
from redrive.triage.auto.runner import AutoRunner
from redrive.triage.redrive import records
from redrive.triage.redrive.run import Run

SOON = AutoRedrive(base="10s", cap="40s", max_redrives=5, jitter=0)


def test_dead_messages_go_back_after_their_wait_and_not_before() -> None:
    world = World(SOON)
    world.bury(3)
    world.turn(times=10)
    assert not world.ran and world.machine().phase == "asleep"
    world.turn(times=3)
    assert sorted(world.ran.values()) == [1, 1, 1] and world.dead() == 0
    world.turn(times=2)
    machine = world.machine()
    assert (machine.redriven, machine.done, machine.failed, machine.run) == (3, 3, 0, "")


def test_the_waits_grow_with_each_death_and_the_sixth_is_poison_with_its_reason() -> None:
    world = World(SOON)
    (id,) = world.bury(1)
    began_ms, died = world.clock(), [world.clock()]

    def once_more(delivery: Delivery) -> Decision:
        died.append(world.clock())
        return dies(delivery)

    world.until(lambda: not world.dead(), once_more)
    world.until(lambda: world.lane(Lane.QUARANTINE), once_more)
    waits_s = [(b - a) // 1000 for a, b in pairwise(died)]
    assert [min(wanted, got) for wanted, got in zip((10, 20, 40, 40, 40), waits_s, strict=True)] == [10, 20, 40, 40, 40]
    assert all(got - wanted <= 3 for wanted, got in zip((10, 20, 40, 40, 40), waits_s, strict=True))
    (given_up,) = world.lane(Lane.QUARANTINE)
    assert (given_up.id, given_up.redrives) == (id, 5)
    assert given_up.reason == "poison: dead again after 5 redrives"
    assert world.ran == {id: 5} and world.clock() - began_ms < 200_000
    machine = world.machine()
    assert (machine.redriven, machine.failed, machine.isolated) == (5, 5, 1)
    entry = next(e for e in Audit(world.store) if e.action == "isolate")
    assert (entry.claimed, entry.reason, entry.ids, entry.about) == (
        "auto-redrive",
        "poison: dead again after 5 redrives",
        (id,),
        "queue/crm",
    )


@pytest.mark.parametrize("small", [False, True])
def test_137_dead_messages_are_all_redriven_or_isolated_in_batches_and_none_is_left(
    small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:  # so that it looks in many steps, and remembers few
        for name, few in (("PAGE", 7), ("READ_MAX", 20), ("POISON_MAX", 5), ("KNOWN_MAX", 10)):
            monkeypatch.setattr(scan, name, few)
    world = World(AutoRedrive(base="60s", cap="2m", max_redrives=2, batch=10, concurrency=5, jitter=0))
    ids = world.bury(137)
    hopeless = set(ids[::3])
    most = 0

    def some_die(delivery: Delivery) -> Decision:
        return DeadLetter("exhausted") if delivery.message.id in hopeless else Ack()

    def over() -> bool:
        nonlocal most
        counts = world.store.counts()
        most = max(most, counts.ready + counts.scheduled + counts.leased)
        return not counts.dead and not counts.ready and not world.machine().run if world.mortal.commits else False

    world.until(over, some_die, within=300)  # and not by the walk that comes every ten minutes
    assert {m.id for m in world.lane(Lane.QUARANTINE)} == hopeless
    assert world.ran == {id: 2 if id in hopeless else 1 for id in ids} and most <= 50
    machine = world.machine()
    assert (machine.redriven, machine.done, machine.failed) == (
        137 + len(hopeless),
        137 - len(hopeless),
        2 * len(hopeless),
    )
    assert machine.isolated == len(hopeless)
    begun = [re.sub(r"run \S+ ", "", line) for line in world.story() if "begins" in line]
    assert small or begun[:2] == ["begins with 100 messages", "begins with 37 messages"]
    for id in records.index(world.store).auto:
        run = Run(world.store, id, world.app).view()
        assert (run.actor, run.cause, run.selector) == ("auto-redrive", "auto", "queue:crm")


@pytest.mark.parametrize("batch, concurrency", [(10, 5), (7, 1)])
def test_no_more_go_back_than_the_rate_allows_however_many_runs_it_takes(batch: int, concurrency: int) -> None:
    world = World(AutoRedrive(base="1s", batch=batch, concurrency=concurrency))  # 10/s
    world.bury(300)
    times_ms: list[int] = []

    def noted(delivery: Delivery) -> Decision:
        times_ms.append(world.clock())
        return Ack()

    world.until(lambda: not world.dead() and not world.machine().run, noted, within=120)
    assert len(times_ms) == 300 and len(records.index(world.store).auto) >= 300 // 100
    for n, at_ms in enumerate(times_ms):
        for span_ms in (1000, 10_000):
            within = sum(at_ms <= other_ms < at_ms + span_ms for other_ms in times_ms[n : n + 200])
            assert within <= 1.05 * 10 * span_ms / 1000 + 1, (n, span_ms)


@pytest.mark.parametrize("rate", [100, 600])
def test_thousands_go_back_at_the_rate_and_few_at_once(rate: int) -> None:
    world = World(AutoRedrive(base="1s", rate=rate, jitter=0))
    for _ in range(10):
        world.bury(500)
    world.clock.advance("6s")
    times_ms: list[int] = []

    def noted(delivery: Delivery) -> Decision:
        times_ms.append(world.clock())
        return Ack()

    world.until(lambda: not world.dead(), noted, within=200)
    took_s = (times_ms[-1] - times_ms[0]) / 1000
    print(f"5,000 at {rate}/s took {took_s:.1f} s")
    assert 5000 / rate - 1 <= took_s <= 1.5 * 5000 / rate


def test_a_slow_rate_holds_from_run_to_run_and_survives_a_kill() -> None:
    world = World(AutoRedrive(base="1s", rate="2/m", batch=1, concurrency=1, jitter=0))
    world.bury(3)
    times_ms: list[int] = []

    def noted(delivery: Delivery) -> Decision:
        times_ms.append(world.clock())
        return Ack()

    world.until(lambda: len(times_ms) == 1, noted, within=10)
    world.turn(noted, times=5)
    assert world.machine().phase == "asleep" and world.machine().slot_ms - times_ms[0] == 30_000
    world.born()
    world.until(lambda: len(times_ms) == 3, noted, within=120)
    first_ms, second_ms = (b - a for a, b in pairwise(times_ms))
    assert first_ms >= 30_000  # the other process waits for the killed one's lease
    assert 30_000 <= second_ms <= 33_000


def test_messages_come_back_spread_over_the_jitter_of_their_wait() -> None:
    world = World(AutoRedrive(base="60s", rate="100/s"))
    world.bury(200)
    died_ms, waits_s = world.clock(), []

    def noted(delivery: Delivery) -> Decision:
        waits_s.append((world.clock() - died_ms) / 1000)
        return Ack()

    world.until(lambda: not world.dead() and not world.machine().run, noted, within=120)
    assert len(waits_s) == 200 and 48 <= min(waits_s) < 52 and 70 < max(waits_s) <= 76
    fifths = Counter(min(4, int((wait_s - 48) // 4.8)) for wait_s in waits_s)
    assert min(fifths.values()) >= 15


def test_what_comes_due_beside_what_a_breaker_holds_goes_at_once() -> None:
    world = World(AutoRedrive(base="10s", jitter=0))
    for task in ("stripe", "crm"):
        world.app.dependency(task, breaker=Breaker())
        world.app.task(name=task, queue="crm")(lambda: None)
    world.app.flow.open("stripe", reason="down", actor="ann")
    world.bury(1, task="stripe")
    world.turn(times=5)
    world.bury(1, task="crm")
    world.turn(times=13)  # and not once half a minute is over
    assert [m.task for m in world.lane(Lane.DEAD)] == ["stripe"]


def test_a_clock_that_is_set_back_stops_no_machine() -> None:
    world = World(SOON)
    world.turn(times=2)
    world.clock._now_ms -= 3_600_000
    world.bury(3)
    world.turn(times=45)
    assert sorted(world.ran.values()) == [1, 1, 1]
    world.clock._now_ms -= 3_600_000
    world.born()  # and the process is another
    world.bury(3)
    world.turn(times=45)
    assert sorted(world.ran.values()) == [1, 1, 1]


def test_a_wait_may_last_a_year() -> None:
    world = World(AutoRedrive(base="365d", cap=None, max_redrives=1, jitter=0))
    world.bury(2)
    world.turn()
    world.clock.advance("364d")
    world.turn(times=3)
    assert not world.ran
    world.born()  # nobody remembers anything but the store
    world.clock.advance("1d")
    world.turn(dies, times=4)
    assert sorted(world.ran.values()) == [1, 1]
    world.until(lambda: len(world.lane(Lane.QUARANTINE)) == 2, dies, within=60)


def test_messages_that_were_redriven_more_often_than_is_allowed_now_are_given_up_too() -> None:
    world = World(AutoRedrive(base="1h", cap="1h", max_redrives=2))
    ids = world.bury(250)
    for _ in range(4):
        world.app.dlq.retry(all=True)
        world.work(dies)
    assert {m.redrives for m in world.lane(Lane.DEAD)} == {4}
    world.until(lambda: not world.dead(), within=30)
    assert {m.id for m in world.lane(Lane.QUARANTINE)} == set(ids)
    assert {m.reason for m in world.lane(Lane.QUARANTINE)} == {"poison: dead again after 4 redrives"}


def test_what_is_imported_as_dead_for_long_is_found_within_ten_minutes() -> None:
    world = World(AutoRedrive(base="1m", cap="1m"))
    world.bury(3)
    world.turn()
    kept = world.lane(Lane.DEAD)
    world.clock.advance("1h")
    assert all(world.store.triage([Handle(m.id, m.redrives, m.lane) for m in kept], Discard("to come back")))
    world.turn(times=40)
    assert all(world.store.restore(kept)) and not world.ran
    world.until(lambda: not world.dead(), within=610)


def test_a_death_whose_commit_took_long_is_seen_all_the_same() -> None:
    world = World(AutoRedrive(base="1m", cap="1m"))
    world.bury(1)
    world.turn(times=2)
    late = [replace(m, id=m.id[:-4] + "beef", rested_ms=world.clock() - 5000) for m in world.lane(Lane.DEAD)]
    world.turn(times=2)
    assert all(world.store.restore(late))
    world.until(lambda: not world.dead(), within=100)


def test_other_queues_are_left_alone() -> None:
    world = World(SOON)
    world.bury(2, queue="mail")
    world.turn(times=60)
    assert world.dead() == 2 and world.machine().redriven == 0


# -- gates


def test_a_shut_gate_holds_everything_back_until_it_opens_and_the_story_says_why() -> None:
    up = False
    world = World(AutoRedrive(base="1s", gates=Gates(health="crm-up")))
    world.app._health_checks = HealthChecks(clock_s=lambda: world.clock() / 1000, first_s=20)
    asked: list[int] = []

    def check() -> bool:
        asked.append(world.clock())
        return up

    world.app.dlq.health("crm-up", check)
    world.turn(times=20, ms=11_000)
    assert not asked  # nothing is dead
    world.bury(7)
    world.turn(times=30, ms=11_000)  # so that no answer is fresh, and each one waited for
    assert world.dead() == 7 and world.machine().phase == "waiting" and not records.index(world.store).open
    up = True
    world.until(lambda: not world.dead() and not world.machine().run, within=20, ms=11_000)
    told = [re.sub(r"run \S+", "run ID", line) for line in world.story()]
    assert told == [
        "waits: health check 'crm-up' says no",
        "goes on",
        "run ID begins with 7 messages",
        "run ID is done: 7 done, 0 failed",
    ]


def test_messages_whose_breaker_is_open_wait_and_the_others_go() -> None:
    world = World(AutoRedrive(base="1s", gates=Gates()))
    for task in ("stripe", "crm"):
        world.app.dependency(task, breaker=Breaker())
        world.app.task(name=task, queue="crm")(lambda: None)
        world.bury(3, task=task)
    world.app.flow.open("stripe", reason="down", actor="ann")
    world.turn(times=10)
    assert {m.task for m in world.lane(Lane.DEAD)} == {"stripe"} and world.dead() == 3
    machine = world.machine()
    assert (machine.phase, machine.why) == ("waiting", "the breaker of stripe is held open")
    world.app.flow.close("stripe", reason="up", actor="ann")
    world.until(lambda: not world.dead(), within=10)
    assert world.machine().redriven + 3 >= 6


def test_many_whose_breaker_is_open_do_not_keep_those_behind_them_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "READ_MAX", 100)
    world = World(AutoRedrive(base="1s"))
    for task, count in (("stripe", 1000), ("crm", 5)):
        world.app.dependency(task)
        world.app.task(name=task, queue="crm")(lambda: None)
        world.bury(count, task=task)
        world.clock.advance("1s")
    world.app.flow.open("stripe", reason="down", actor="ann")
    world.until(lambda: len(world.ran) == 5, within=25)
    world.until(lambda: world.machine().phase == "waiting", within=60)
    assert world.dead() == 1000 and world.machine().why == "the breaker of stripe is held open"


def test_a_key_whose_breaker_is_open_holds_only_its_own_messages_back() -> None:
    world = World(AutoRedrive(base="1s"))
    world.app.dependency("api", breaker=Breaker(), per="args.tenant")

    @world.app.task(name="api", queue="crm")
    def call(tenant: str) -> None: ...

    world.store.put([call.draft(t) for t in ("acme", "zen", "acme")])
    world.work(dies)
    world.ran.clear()
    world.app.flow.open("api", key="acme", reason="down")
    world.turn(times=10)
    assert [m.body for m in world.lane(Lane.DEAD)] == [b'{"tenant":"acme"}'] * 2


def test_a_run_waits_for_the_approval_that_its_gates_ask_for() -> None:
    world = World(AutoRedrive(base="1s", jitter=0, gates=Gates(approval="ann")))
    world.bury(4)
    world.turn(times=20)
    (id,) = records.index(world.store).open
    run = Run(world.store, id, world.app)
    assert world.dead() == 4 and run.view().phase == "awaiting approval"
    with pytest.raises(Refused, match="approval of ann, not of bob"):
        run.approve(actor="bob", reason="I think so")
    run.approve(actor="ann", reason="it is fixed")
    world.until(lambda: not world.dead(), within=10)


# -- people


def test_what_is_paused_begins_nothing_until_it_is_resumed_and_both_are_in_the_audit_log() -> None:
    world = World(AutoRedrive(base="1s"))
    world.turn()
    world.app.dlq.pause_auto("crm", reason="the fix is on its way", actor="ann")
    world.bury(2)
    world.turn(times=60)
    assert world.dead() == 2 and world.machine().phase == "paused"
    world.app.dlq.resume_auto("queue/crm", reason="fixed", actor="ann")
    world.until(lambda: not world.dead(), within=10)
    assert world.story()[:2] == ["paused by ann: the fix is on its way", "resumed by ann: fixed"]
    assert [(e.action, e.claimed) for e in Audit(world.store)][1:] == [("auto-resume", "ann"), ("auto-pause", "ann")]
    with pytest.raises(ConfigError, match="no machine redrives 'cmr'; did you mean 'crm'"):
        world.app.dlq.pause_auto("cmr", reason="x")
    with pytest.raises(ConfigError, match="no reason"):
        world.app.dlq.pause_auto("crm", reason=" ")


def test_a_run_that_a_person_cancels_is_not_begun_anew_until_somebody_resumes_it() -> None:
    world = World(AutoRedrive(base="1s", jitter=0, gates=Gates(approval="anyone")))
    world.bury(2)
    world.turn(times=5)
    (id,) = records.index(world.store).open
    Run(world.store, id, world.app).cancel(actor="bob", reason="not now")
    world.turn(times=60)
    assert world.dead() == 2 and len(records.index(world.store).auto) == 1 and not records.index(world.store).open
    assert world.machine().phase == "paused" and "cancelled" in world.machine().why
    world.app.dlq.resume_auto("crm", reason="now", actor="bob")
    world.turn(times=3)
    assert len(records.index(world.store).open) == 1


def test_messages_that_others_move_meanwhile_are_not_moved_twice() -> None:
    world = World(AutoRedrive(base="1s", jitter=0, gates=Gates(approval="anyone")))
    world.bury(4)
    world.turn(times=5)
    (id,) = records.index(world.store).open
    world.app.dlq.retry(all=True)
    world.work(works)
    Run(world.store, id, world.app).approve(actor="ann")
    world.until(lambda: not world.machine().run, within=10)
    assert (world.machine().redriven, world.machine().changed) == (0, 4) and set(world.ran.values()) == {1}


# -- standing rules


def test_what_has_a_standing_rule_is_left_to_it() -> None:
    world = World(AutoRedrive(base="1s"))
    sayings = Annotations(world.store)
    for task in ("1", "2", "3", "4"):
        world.bury(3, task=task)
    sayings.rule("f1", "hold", reason="wait for the fix", actor="ann")
    sayings.rule("f2", "auto", auto=AutoRedrive(base="1m", max_redrives=1), reason="flaky", actor="ann")
    sayings.rule("f3", "discard", reason="test data", actor="ann")
    world.turn(times=20)
    left = sorted(m.task for m in world.lane(Lane.DEAD))
    assert left == ["1", "1", "1", "2", "2", "2"] and set(world.ran.values()) == {1} and len(world.ran) == 3
    world.until(lambda: len(world.lane(Lane.QUARANTINE)) == 3, dies, within=120)
    assert sorted(m.task for m in world.lane(Lane.DEAD)) == ["1", "1", "1"]
    assert world.machine("fingerprint/f2").isolated == 3 and world.machine("fingerprint/f3").discarded == 3
    entry = next(e for e in Audit(world.store) if e.action == "discard")
    assert (entry.claimed, entry.reason, entry.count) == ("rule by ann", "test data", 3)
    sayings.rule("f1", None, reason="fixed", actor="ann")
    world.until(lambda: not world.dead(), works, within=40)
    sayings.rule("f2", None, reason="fixed", actor="ann")
    world.turn(times=2)
    assert world.machine("fingerprint/f2").phase == "ended"
    assert world.story("fingerprint/f2")[-1] == "ended: its rule was removed"


def test_a_rule_discards_in_batches_what_is_dead_and_what_dies_later_each_with_its_entry() -> None:
    world = World(None)
    world.bury(250)
    kept = world.bury(2, task="2")
    Annotations(world.store).rule("f1", "discard", reason="test data", actor="ann")
    world.turn()
    assert {m.id for m in world.lane(Lane.DEAD)} == set(kept)
    world.bury(3)
    world.until(lambda: world.dead() == 2, within=35)
    entries = [e for e in Audit(world.store) if e.action == "discard"]
    assert [e.count for e in entries] == [3, 50, 100, 100] and len({id for e in entries for id in e.ids}) == 253
    assert world.machine("fingerprint/f1").discarded == 253 and not world.ran.keys() & set(kept)


def test_many_held_messages_in_front_do_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "READ_MAX", 200)
    world = World(AutoRedrive(base="1s"))
    world.bury(700, task="1")
    world.clock.advance("1s")
    ids = world.bury(5, task="2")
    Annotations(world.store).rule("f1", "hold", reason="wait", actor="ann")
    world.until(lambda: world.ran.keys() == set(ids), within=20)
    assert world.dead() == 700


def test_what_is_kept_of_the_runs_of_a_machine_does_not_grow_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "AUTO_KEPT", 5)
    monkeypatch.setattr(auto_redrive, "RUN_S", 0)  # a run for each message
    world = World(AutoRedrive(base="1s", batch=1, concurrency=1))
    world.bury(20)
    begun: set[str] = set()
    for _ in range(100):
        world.turn()
        begun |= {*records.index(world.store).open, *records.index(world.store).auto}
    assert len(begun) == 20
    world.clock.advance("2h")
    kinds = "", "/plan", "/c/0", "/r/0", "/story", "/failed"
    kept = {id for id in begun for kind in kinds if world.store.cells.read([f"run/{id}{kind}"]) != [None]}
    assert kept == {*records.index(world.store).auto} and len(kept) == 5
    world.clock.advance("40d")
    assert all(world.store.cells.read([f"run/{id}{kind}"]) == [None] for id in begun for kind in kinds)


def test_the_runs_of_people_are_still_listed_after_hundreds_that_no_person_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "AUTO_KEPT", 3)
    monkeypatch.setattr(auto_redrive, "RUN_S", 0)  # a run for each message
    world = World(AutoRedrive(base="1s", batch=1, concurrency=1))
    world.bury(1, queue="mail")
    run = world.app.dlq.select("queue:mail").plan().start(reason="fixed", actor="ann")
    world.turn(times=5)
    world.work(queue="mail")
    world.turn(times=5)
    assert run.view().closed
    world.bury(10)
    world.until(lambda: not world.dead() and not records.index(world.store).open, within=100)
    listed = world.app.dlq.runs()
    assert [view.cause for view in listed] == ["auto", "auto", "auto", ""]
    assert [view.id for view in listed] == sorted((view.id for view in listed), reverse=True)


def test_a_machine_whose_cell_was_altered_does_not_stop_the_others() -> None:
    world = World(AutoRedrive(base="1s"))
    world.app.queue("mail", auto_redrive=AutoRedrive(base="1s"))
    world.turn()
    (cell,) = world.store.cells.read([machine.state_cell("queue/crm")])
    assert cell is not None
    world.store.cells.swap([Swap(machine.state_cell("queue/crm"), cell.version, b"{")])
    world.bury(1)
    world.bury(2, queue="mail")
    for _ in range(10):
        world.turn()
        world.work(queue="mail")
    assert (world.store.counts("mail").dead, world.dead()) == (0, 1)
    assert [(name, about) for name, _, about in world.notices if name == "auto_failed"] == [
        ("auto_failed", "queue/crm")
    ]


# -- several processes, and kills


def test_one_process_at_a_time_works_a_machine_and_another_takes_over_when_it_is_gone() -> None:
    world = World(AutoRedrive(base="1s"))
    other = AutoRunner(world.app, "other")
    world.bury(1)
    for _ in range(5):
        world.turn()
        other.tick()
    assert world.machine().owner == "p1" and set(world.ran.values()) == {1}
    world.autos.close()
    assert not world.machine().worked(world.clock())
    for _ in range(6):
        world.clock.advance("1s")
        other.tick()
    assert world.machine().owner == "other"


def _ledger(world: World, ids: list[str], hopeless: set[str]) -> None:
    assert {m.id for m in world.lane(Lane.QUARANTINE)} == hopeless
    assert world.ran == {id: 2 if id in hopeless else 1 for id in ids}
    machine = world.machine()
    assert (machine.redriven, machine.isolated) == (len(ids) + len(hopeless), len(hopeless))
    assert machine.done + machine.failed == machine.redriven
    isolated = [e for e in Audit(world.store) if e.action == "isolate"]
    assert sorted(id for e in isolated for id in e.ids) == sorted(hopeless)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_commit_leaves_nothing_undone_and_does_nothing_twice(after: bool) -> None:
    """Machine and carrier die together with their n-th commit, for every n; another process goes on."""
    n = 0
    while True:
        n += 1
        world = World(AutoRedrive(base="2s", cap="4s", max_redrives=2, batch=2, concurrency=2))
        ids = world.bury(7)
        hopeless = set(ids[:2])

        def some_die(delivery: Delivery, hopeless: set[str] = hopeless) -> Decision:
            return DeadLetter("exhausted") if delivery.message.id in hopeless else Ack()

        def over(world: World = world) -> bool:
            counts = world.store.counts()
            begun = machine.machines(world.store)
            return bool(begun) and not counts.dead and not counts.ready and not begun[0].run

        world.mortal.left, world.mortal.after = n, after
        killed = world.until_killed_and_on(over, some_die)
        _ledger(world, ids, hopeless)
        if not killed:
            assert n > 20
            return


def test_it_survives_being_killed_again_and_again() -> None:
    world = World(AutoRedrive(base="2s", cap="4s", max_redrives=2))
    ids = world.bury(137)
    hopeless = set(ids[::5])

    def some_die(delivery: Delivery) -> Decision:
        return DeadLetter("exhausted") if delivery.message.id in hopeless else Ack()

    def over() -> bool:
        counts = world.store.counts()
        begun = machine.machines(world.store)
        return bool(begun) and not counts.dead and not counts.ready and not begun[0].run

    n = 0
    while not over():
        n += 1
        world.mortal.left, world.mortal.after = 1 + n % 7, bool(n % 2)
        world.until_killed_and_on(lambda: over() or world.mortal.left is None, some_die)
        assert n < 500
    _ledger(world, ids, hopeless)
    assert world.processes > 5
