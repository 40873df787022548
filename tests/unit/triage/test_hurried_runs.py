"""A run that makes waiting messages due: what it moves, counts and takes back, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from tests.support.redrives import AT_ONCE, BAD, Ends, Scene, dies, works

from redrive.errors import ConfigError, SelectorError
from redrive.message import Ack, Decision, Deferral, Delivery, Draft, Handle, Hasten, Lane, Message, RetryAt, Settlement
from redrive.triage.redrive import records
from redrive.triage.redrive.run import Run

HOUR_MS = 3_600_000


def fails(delivery: Delivery) -> Decision:
    """Each attempt is put off by an hour."""
    return RetryAt(delivery.until_ms + HOUR_MS, "retry")


class Waiting(Scene):
    """An app whose messages wait."""

    def put(self, *drafts: Draft) -> list[str]:
        return [put.id for put in self.store.put([*drafts])]

    def fresh(self, count: int, **parts: object) -> list[str]:
        """Put messages that are due in an hour."""
        return self.put(*[Draft(task="t", delay_ms=HOUR_MS, **parts) for _ in range(count)])  # type: ignore[arg-type]

    def retried(self, count: int) -> list[str]:
        """Put messages that fail once, and wait for an hour."""
        ids = self.put(*[Draft(task="t") for _ in range(count)])
        self.work(fails)
        self.ran.clear()
        return ids

    def hurry(self, selector: str = "lane:scheduled", **options: object) -> Run:
        made = self.app.select(selector).plan(**AT_ONCE | options)  # type: ignore[arg-type]
        run = made.start(reason="it is back", actor="ann")
        self.carrier = self.carry(run.id)
        return run

    def give(self, run: Run, count: int) -> None:
        """Carry on until so many were given away, with nobody to work them."""
        for _ in range(100):
            if sum(run.counts[name] for name in ("moved", "changed")) >= count:
                return
            self.carrier.tick()
            self.clock.advance("0.05s")
        raise AssertionError(run.counts)

    def waiting(self) -> Sequence[Message]:
        messages = self.store.peek(Lane.READY, limit=10_000).messages
        return [message for message in messages if (message.due_ms or 0) > self.clock()]

    def all(self) -> dict[str, Message]:
        return {message.id: message for message in self.store.peek(None, limit=10_000).messages}


@pytest.fixture
def scene() -> Waiting:
    return Waiting()


def counts(**said: int) -> dict[str, int]:
    words = ("planned", "moved", "done", "failed", "skipped", "changed", "waiting")
    return dict.fromkeys(words, 0) | said


def test_all_that_waits_is_made_due_at_the_rate_and_runs_once(scene: Waiting) -> None:
    ids = [*scene.fresh(20), *scene.retried(30)]
    run = scene.hurry(rate="10/s")
    began_ms = scene.clock()
    scene.over(run)
    assert run.counts == counts(planned=50, moved=50, done=50) and scene.ran == dict.fromkeys(ids, 1)
    assert 4000 <= scene.clock() - began_ms <= 7000


def test_they_keep_their_lives(scene: Waiting) -> None:
    fresh, retried = scene.fresh(1), scene.retried(1)
    before = scene.all()
    run = scene.hurry()
    scene.give(run, 2)
    for id in (*fresh, *retried):
        message = scene.all()[id]
        assert message == msgspec.structs.replace(before[id], due_ms=message.due_ms, run=message.run)
    scene.over(run, fails)
    after = scene.all()
    assert [after[id].attempt for id in (*fresh, *retried)] == [1, 2]
    assert [len(after[id].faults) for id in (*fresh, *retried)] == [1, 2]
    assert [after[id].redrives for id in (*fresh, *retried)] == [0, 0]


def test_the_first_settlement_after_the_hurry_is_the_outcome(scene: Waiting) -> None:
    scene.retried(4)
    run = scene.hurry(stop_if="never")
    failed: list[str] = []

    def first_two_fail(delivery: Delivery) -> Decision:
        if delivery.message.attempt == 2 and len(failed) < 2:
            failed.append(delivery.message.id)
            return RetryAt(0, "retry")  # it runs again at once
        return Ack()

    scene.over(run, first_two_fail)
    assert run.counts == counts(planned=4, moved=4, done=2, failed=2)
    assert {failure.id for failure in run.failures()} == {*failed} and run.failures()[0].error == "ValueError"
    scene.tick(times=50)
    assert scene.all() == {} and run.counts["failed"] == 2


def test_a_free_delivery_is_no_outcome(scene: Waiting) -> None:
    scene.retried(2)
    put_off: set[str] = set()

    def by_a_breaker(delivery: Delivery) -> Decision:
        if delivery.message.id in put_off:
            return Ack()
        put_off.add(delivery.message.id)
        return RetryAt.deferred(scene.clock() + 500, "breaker", Deferral("breaker", "crm"))

    run = scene.hurry()
    scene.tick(by_a_breaker, times=4)
    assert run.counts == counts(planned=2, moved=2, waiting=2)
    scene.over(run, by_a_breaker)
    assert run.counts == counts(planned=2, moved=2, done=2)


def test_a_canary_that_fails_stops_the_run_and_the_rest_keeps_its_due_times(scene: Waiting) -> None:
    scene.retried(50)
    dues = {message.id: message.due_ms for message in scene.waiting()}
    scene.clock.advance("1m")
    run = scene.hurry(canary=5, rate="100/s")
    scene.over(run, fails)
    assert run.state == "stopped" and "5 of 5 failed" in run.why
    assert run.counts == counts(planned=50, moved=5, failed=5, skipped=45)
    assert sum(dues[message.id] == message.due_ms for message in scene.waiting()) == 45


def test_a_canary_that_holds_lets_the_rest_go(scene: Waiting) -> None:
    scene.retried(50)
    run = scene.hurry(canary=5, rate="500/s")
    scene.tick(works)
    assert run.counts["moved"] <= 5
    scene.over(run)
    assert run.counts == counts(planned=50, moved=50, done=50)


def test_a_stop_rule_stops_it_in_the_middle(scene: Waiting) -> None:
    scene.retried(200)
    run = scene.hurry(rate="50/s", stop_if="failed>20%")
    scene.tick(works, times=15)
    scene.over(run, fails)
    assert run.state == "stopped" and 0 < run.counts["failed"] < 60
    assert len(scene.waiting()) == 200 - run.counts["done"]


def test_an_undo_puts_back_the_due_times_that_are_unused(scene: Waiting) -> None:
    scene.fresh(6)
    scene.retried(4)
    before = scene.all()
    run = scene.hurry()
    scene.give(run, 10)
    claimed = {delivery.message.id: delivery for delivery in scene.claim(3)}
    scene.carrier.release()
    assert run.undo(reason="not yet") == 7
    assert {id: message for id, message in scene.all().items() if id not in claimed} == {
        id: message for id, message in before.items() if id not in claimed
    }
    scene.settle([*claimed.values()])
    scene.tick(times=3)
    assert run.counts == counts(planned=10, moved=3, done=3, skipped=7) and run.view().returned == 7
    assert len(scene.waiting()) == 7


def test_an_undo_leaves_what_another_run_made_due(scene: Waiting) -> None:
    (id,) = scene.fresh(1)
    first = scene.hurry()
    scene.carrier.tick()
    scene.carrier.release()
    scene.store.triage([scene.all()[id].handle], Hasten())
    assert first.undo() == 1
    second = scene.hurry()
    scene.carrier.tick()
    scene.carrier.release()
    assert first.undo() == 1, "the run counts what it returned before"
    assert scene.all()[id].run_id == second.id and (scene.all()[id].due_ms or 0) <= scene.clock()


def test_what_has_moved_on_since_the_plan_counts_as_changed(scene: Waiting) -> None:
    done, ran, due, hurried, cancelled, rest = scene.fresh(6)
    plan = scene.app.select("lane:scheduled").plan(**AT_ONCE)  # type: ignore[arg-type]
    scene.store.triage([scene.all()[id].handle for id in (done, ran, hurried)], Hasten())
    scene.store.cancel([cancelled])
    for delivery in scene.claim(2):
        first = delivery.message.id == done
        decision: Decision = Ack() if first else RetryAt(scene.clock() + 2 * HOUR_MS, "retry")
        scene.store.exchange([Settlement(delivery.receipt, decision, None if first else BAD)], [])
    before = scene.all()
    assert {done} == {done, ran, due, hurried, cancelled, rest} - before.keys()
    run = plan.start(reason="now")
    scene.carrier = scene.carry(run.id)
    scene.give(run, 6)
    assert run.counts == counts(planned=6, moved=2, changed=4, waiting=2)
    assert scene.all()[ran] == before[ran] and scene.all()[hurried] == before[hurried]


def test_what_is_due_by_itself_before_its_turn_counts_as_changed(scene: Waiting) -> None:
    scene.put(Draft(task="t", delay_ms=500))
    scene.fresh(1)
    plan = scene.app.select("lane:scheduled").plan(**AT_ONCE)  # type: ignore[arg-type]
    scene.clock.advance("1s")
    run = plan.start(reason="now")
    scene.carrier = scene.carry(run.id)
    scene.over(run)
    assert run.counts == counts(planned=2, moved=1, done=1, changed=1)


def test_what_flow_control_holds_is_left_out_and_counted(scene: Waiting) -> None:
    scene.put(Draft(task="t"))
    why = Deferral("breaker", "crm", ("slot",), scene.clock() + HOUR_MS)
    scene.work(lambda _: RetryAt.deferred(scene.clock() + HOUR_MS, "breaker", why))
    scene.fresh(2)
    plan = scene.app.select("lane:scheduled").plan()
    assert (plan.total, dict(plan.excluded)) == (2, {"held": 1})


def test_what_a_pause_holds_stays_held_until_it_is_resumed(scene: Waiting) -> None:
    scene.fresh(3)
    scene.store.configure("default", paused=True)
    run = scene.hurry()
    scene.tick(times=20)
    assert run.counts == counts(planned=3, moved=3, waiting=3) and not scene.ran
    scene.store.configure("default", paused=False)
    scene.over(run)
    assert run.counts == counts(planned=3, moved=3, done=3)


def test_members_of_a_group_go_one_after_the_other(scene: Waiting) -> None:
    scene.fresh(5, group="g")
    run = scene.hurry()
    scene.give(run, 5)
    (delivery,) = scene.claim()
    assert scene.store.check() == []
    scene.carrier.release()
    assert run.undo() == 4 and scene.claim() == [] and scene.store.check() == []
    scene.settle([delivery])
    scene.tick(times=3)
    assert run.counts == counts(planned=5, moved=1, done=1, skipped=4) and len(scene.waiting()) == 4


def test_a_delay_gives_each_another_due_time(scene: Waiting) -> None:
    ids = scene.fresh(10)
    run = scene.hurry(delay="10m", spread="5m")
    scene.tick(times=3)
    left_ms = [(message.due_ms or 0) - scene.clock() for message in scene.waiting()]
    assert len(left_ms) == len(ids) and len({*left_ms}) > 1 and all(590_000 < ms < 900_000 for ms in left_ms)
    scene.carrier.release()
    assert run.undo() == 10
    assert all((message.due_ms or 0) - scene.clock() > 3_590_000 for message in scene.waiting())


def test_a_pause_and_a_cancel_leave_the_rest_waiting(scene: Waiting) -> None:
    scene.fresh(100)
    run = scene.hurry(rate="50/s")
    scene.tick(times=3)
    run.pause(actor="bob", reason="lunch")
    scene.tick()
    moved = run.counts["moved"]
    scene.tick(times=20)
    assert run.counts["moved"] == moved < 100
    run.cancel(actor="bob", reason="no")
    scene.tick(times=3)
    assert run.state == "cancelled" and len(scene.waiting()) == 100 - moved
    assert [line.text for line in run.story()][1:] and "cancelled by bob: no" in run.story()[-1].text


def test_a_kill_after_the_move_is_made_up_for_by_the_next_runner(scene: Waiting) -> None:
    ids = scene.retried(6)
    run = scene.hurry(rate="20/s")
    scene.carrier.tick()
    scene.carrier = scene.carry(run.id, "two")  # the first runner is gone, with all that it remembered
    scene.work()
    scene.clock.advance(records.LEASE_MS / 1000 + 1)
    scene.over(run)
    assert run.counts == counts(planned=6, moved=6, done=6) and scene.ran == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("ends", [fails, dies])
def test_a_failure_that_an_older_worker_settled_is_found(scene: Waiting, ends: Ends) -> None:
    scene.retried(3)
    run = scene.hurry(stop_if="never")
    scene.give(run, 3)
    for delivery in scene.claim():  # it left no outcome: its message had failed before
        decision = ends(delivery)
        scene.store.exchange([Settlement(delivery.receipt, decision, BAD)], [])
    scene.over(run)
    assert run.counts == counts(planned=3, moved=3, failed=3)
    assert [failure.error for failure in run.failures()] == ["ValueError"] * 3


def test_the_chunks_cannot_be_read_by_a_program_that_does_not_know_them(scene: Waiting) -> None:
    scene.fresh(2)
    plan = scene.app.select("lane:scheduled").plan()
    (cell,) = scene.store.cells.read([records.chunk_cell(plan.id, 0)])
    assert cell is not None and all(len(row) == 5 for row in msgspec.json.decode(cell.value))
    scene.work()
    scene.bury(1)
    redrive = scene.app.dlq.select().plan()
    (cell,) = scene.store.cells.read([records.chunk_cell(redrive.id, 0)])
    assert cell is not None and [len(row) for row in msgspec.json.decode(cell.value)] == [3]
    assert list(redrive.handles()) == [Handle(m.id, m.redrives, m.lane) for m in scene.dead()]


def test_the_audit_log_has_the_run(scene: Waiting) -> None:
    scene.fresh(2)
    run = scene.hurry("lane:scheduled task:t")
    entry = next(iter(scene.app.audit))
    assert (entry.action, entry.reason, entry.count, entry.about) == ("run-now", "it is back", 2, run.id)


@pytest.mark.parametrize(
    "selector",
    ["lane:scheduled or task:t", "lane:(scheduled,dead)", "lane:(scheduled,ready)", "lane:leased", "lane:parked"],
)
def test_a_plan_never_mixes_what_waits_with_other_lanes(scene: Waiting, selector: str) -> None:
    scene.fresh(1)
    with pytest.raises(SelectorError, match="lane:scheduled alone"):
        scene.app.select(selector).plan()


@pytest.mark.parametrize("option", [{"attempts": 3}, {"keep_deadline": True}])
def test_what_waits_gets_no_new_life(scene: Waiting, option: dict[str, object]) -> None:
    scene.fresh(1)
    with pytest.raises(ConfigError, match="keeps its attempts"):
        scene.app.select("lane:scheduled").plan(**option)  # type: ignore[arg-type]


def test_a_selector_that_names_arguments_and_due_times_is_frozen(scene: Waiting) -> None:
    scene.fresh(2, body=b'{"tenant":"acme"}')
    scene.fresh(3, body=b'{"tenant":"other"}')
    plan = scene.app.select("lane:scheduled task:t args.tenant:acme").plan(rate="20/s", canary=5)
    assert plan.total == 2 and dict(plan.by_age) == {"<6h": 2}
    scene.fresh(1, body=b'{"tenant":"acme"}')
    run = plan.start(reason="acme is back")
    scene.carrier = scene.carry(run.id)
    scene.over(run)
    assert run.counts["done"] == 2 and len(scene.waiting()) == 4
