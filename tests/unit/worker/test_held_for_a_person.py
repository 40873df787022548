"""`Retry(on_exhausted="hold")`: a message whose retries are used up waits for a person, and is no death to anyone."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from tests.support.workers import Heard, stored

from redrive import SLO, App, AutoRedrive, Backoff, Reject, Retry
from redrive.counters import counts_of
from redrive.decide import Policy, decide
from redrive.fault import Fault, Kind
from redrive.message import DeadLetter, Lane, Message
from redrive.observe.alert import Alert
from redrive.observe.alerts import Watch
from redrive.policy import preview
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage.auto.runner import AutoRunner

HOLD = Retry(max_attempts=2, backoff=Backoff.fixed("1ms"), on_exhausted="hold")


def failing(app: App, error: Exception, **options: Any) -> str:
    """Enqueue a message that fails with this error until its policy ends it; return its id."""

    @app.task(name=f"pay {len(app.tasks)}", **({"retry": HOLD} | options))
    def pay() -> None:
        raise error

    ref = pay.enqueue()
    app.run_worker(drain=True)
    return ref.id


def test_it_rests_in_the_dead_lane_with_a_reason_of_its_own(app: App) -> None:
    message = stored(app, failing(app, ConnectionError("down")))
    assert (message.lane, message.reason, message.attempt, len(message.faults)) == (Lane.DEAD, "held", 2, 2)
    assert [m.id for m in app.dlq.select("reason:held")] == [message.id]
    assert not [*app.dlq.select("reason:exhausted")]


def test_only_used_up_retries_are_held(app: App) -> None:
    assert stored(app, failing(app, Reject("no"))).reason == "rejected"
    assert stored(app, failing(app, ConnectionError("x"), retry=Retry(max_attempts=1))).reason == "exhausted"


@pytest.mark.parametrize(
    ("retry", "reason"),
    [
        (Retry(max_attempts=1, on_exhausted="hold"), "held"),
        (Retry(max_elapsed=0, on_exhausted="hold"), "held"),
        (Retry(max_attempts=1, never=(ValueError,), on_exhausted="hold"), "permanent"),
        (Retry(max_attempts=1, on={"default": Retry(max_attempts=1, on_exhausted="hold")}), "held"),
        (Retry(max_attempts=1, on={"default": Retry(max_attempts=1)}, on_exhausted="hold"), "exhausted"),
        (Retry(max_attempts=1, on={"default": Backoff.fixed("1s")}, on_exhausted="hold"), "held"),
        (Retry(on_exhausted="hold", override=lambda m, f, d: DeadLetter("mine")), "mine"),
    ],
)
def test_the_policy_that_applies_to_the_fault_says_so(retry: Retry, reason: str) -> None:
    fault = Fault(Kind.DEFAULT, "ValueError", "x", errors=("ValueError",))
    message = Message("0" * 32, "t", "q", b"", "0" * 32, lane=Lane.LEASED, fence=1, attempt=1)
    decision = decide(message, fault, Policy(retry), 1000)
    assert isinstance(decision, DeadLetter) and decision.reason == reason
    if retry.override is None:
        assert pickle.loads(pickle.dumps(retry)) == retry and hash(pickle.loads(pickle.dumps(retry))) == hash(retry)


def test_another_word_is_refused() -> None:
    with pytest.raises(ValueError, match="on_exhausted 'stay' is refused: expected 'dead_letter' or 'hold'"):
        Retry(on_exhausted="stay")  # type: ignore[arg-type]
    assert Retry(on_exhausted="hold") != Retry()


def test_no_on_dead_task_is_called(app: App) -> None:
    @app.task(name="refund")
    def refund() -> None: ...

    failing(app, ConnectionError("down"), on_dead=refund)
    assert app.counts().dead == 1 and app.counts().ready == app.counts().done == 0


def test_no_count_alert_or_objective_takes_it_for_a_death(app: App, caplog: pytest.LogCaptureFixture) -> None:
    heard, told = Heard(app), list[Alert]()
    watch = Watch(app, ["dead_growth"], told.append, channel="c", every_ms=0, gather_s=0)
    app.subscribe(watch)
    with caplog.at_level(logging.WARNING, "redrive"):
        failing(app, ConnectionError("down"), slo=SLO("99% within 1m"))
    watch.flush(10)
    assert heard.outcomes == ["retry", "stayed"] and told == []
    (last,) = [fate for fate in heard.fates if fate.outcome == "stayed"]
    counted = dict(counts_of(last))
    assert counted["deliveries", "stayed"] == 1 and counted["faults", "transient"] == 1
    assert not any(counter in ("dead", "quarantined", "attempts") for counter, _ in counted)
    assert app.flusher is not None
    app.flusher.finish()
    tally = app.history(task="pay 0").total
    assert (tally.outcomes, tally.dead, tally.slo_all) == ({"retry": 1, "stayed": 1}, {}, 0)
    assert tally.failed == 2 and tally.error_rate == 1.0
    (record,) = [r for r in caplog.records if "held for a person" in r.getMessage()]
    assert record.levelno == logging.WARNING


def test_it_is_a_need_of_its_own_and_not_one_of_death(app: App) -> None:
    failing(app, ConnectionError("down"))
    needs = [need for need in app.status().needs if need.area == "failures"]
    assert [(need.text, need.next) for need in needs] == [
        ("1 message is held for a person, who retries, edits or discards", "dlq list reason:held")
    ]
    failing(app, Reject("no"))
    texts = [need.text for need in app.status().needs if need.area == "failures"]
    assert texts[0] == "1 message is dead, in 1 failure group" and len(texts) == 2


def test_a_person_retries_edits_or_discards_it_as_any_dead_letter(app: App) -> None:
    one, two = failing(app, ConnectionError("down")), failing(app, ConnectionError("down"))
    assert app.dlq.retry(select="reason:held", reason="up again").ids == (one, two)
    app.run_worker(drain=True)
    assert stored(app, one).reason == "held", "held again once its new life is used up"
    assert app.dlq.discard([one, two], reason="not needed").ids == (one, two)


def test_a_queues_automatic_redrive_leaves_it_and_a_rule_of_its_group_moves_it() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock))
    app.queue("default", auto_redrive=AutoRedrive(base="1s", max_redrives=1))
    once = Retry(max_attempts=1, on_exhausted="hold")
    held = failing(app, ConnectionError("down"), retry=once)
    runner = AutoRunner(app)
    for _ in range(5):
        clock.advance("1m")
        runner.tick()
    assert stored(app, held).lane is Lane.DEAD and not app.dlq.runs()
    app.dlq.rule(app.store.failure_groups()[0].fingerprint, "discard", reason="noise")
    for _ in range(3):
        clock.advance("1m")
        runner.tick()
    assert app.job(held) is None


def test_a_batch_waits_for_it_as_for_a_dead_member(app: App) -> None:
    @app.task(name="pay", retry=HOLD)
    def pay() -> None:
        raise ConnectionError("down")

    @app.task(name="report")
    def report() -> None: ...

    batch = app.batch([pay.draft()], name="month", on_success=report.draft()).enqueue()
    app.run_worker(drain=True)
    assert (batch.info().state, batch.info().counts.dead, app.counts().ready) == ("partial", 1, 0)


def test_the_preview_says_so() -> None:
    assert preview(HOLD).chosen.on_exhausted == "hold" and preview(Retry()).chosen.on_exhausted == "dead_letter"
