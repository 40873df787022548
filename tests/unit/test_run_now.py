"""Run now: what waits for its time is made due by hand, and what else holds it is told and stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.attack.commands import command

from redrive import App, Backoff, Breaker, Retry
from redrive.errors import Unsupported
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Deferral,
    Delivery,
    Draft,
    Lane,
    Message,
    RetryAt,
    Settled,
    Settlement,
)
from redrive.status import RunNow, run_now, told
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage.pauses import pause

NONE = "0199f3a1-0000-7000-8000-000000000001"
FAULT = Fault(Kind.TRANSIENT, "ConnectionError", "refused", "f" * 16, attempt=1)


@dataclass
class Scene:
    app: App
    clock: ManualClock

    def put(self, **parts: object) -> str:
        return self.app.store.put([Draft(**{"task": "push", "delay_ms": 3_600_000, **parts})])[0].id  # type: ignore[arg-type]

    def claimed(self, id: str, queue: str = "default") -> Delivery:
        done = self.app.store.exchange([], [ClaimRequest(queue, 100, 3_600_000)])
        return next(delivery for delivery in done.deliveries if delivery.message.id == id)

    def ended(self, id: str, decision: Decision, fault: Fault | None = FAULT, queue: str = "default") -> str:
        settlement = Settlement(self.claimed(id, queue).receipt, decision, fault)
        assert self.app.store.exchange([settlement], []).settled == [Settled.OK]
        return id

    def look(self, id: str) -> Message:
        (message,) = self.app.store.find([id])
        assert message is not None
        return message

    def run(self, *ids: str) -> list[tuple[str, str]]:
        return [(answer.result, answer.text) for answer in self.app.run_now(*ids, reason="r", actor="ann")]

    @property
    def audited(self) -> list[tuple[str, tuple[str, ...], str]]:
        return [(entry.action, entry.ids, entry.text) for entry in self.app.audit]


@pytest.fixture
def scene() -> Iterator[Scene]:
    clock = ManualClock()
    app = App(store=MemoryStore(clock))
    app.dependency("crm", breaker=Breaker())
    app.task(name="push", retry=Retry(backoff=Backoff(base="1h")))(lambda n=1: None)
    app.task(name="crm.push", queue="crm", dependency="crm")(lambda n=1: None)
    yield Scene(app, clock)
    app.store.close()


def test_what_failed_and_waits_is_due_with_its_attempts_and_its_history(scene: Scene) -> None:
    id = scene.ended(scene.put(delay_ms=0), RetryAt(scene.clock() + 3_600_000, "transient"))
    before = scene.look(id)
    assert scene.run(id) == [("due", "due now, 1h before its time")]
    assert scene.look(id) == replace(before, due_ms=scene.clock()) and before.attempt == 1 and before.faults
    assert scene.audited == [("run-now", (id,), "1h before its time")]
    assert scene.claimed(id).message.attempt == 2


def test_one_answer_for_each_id_and_one_entry_for_those_that_were_changed(scene: Scene) -> None:
    running, done = scene.put(delay_ms=0), scene.put(delay_ms=0, keep_ms=10_000)
    scene.ended(done, Ack(keep_ms=None), None)
    dead = scene.ended(scene.put(delay_ms=0), DeadLetter("permanent"))
    due, later, latest = scene.put(delay_ms=0), scene.put(), scene.put(delay_ms=7_200_000)
    answers = scene.run(running, done, dead, due, later, latest, NONE, "nonsense", later)
    unknown = ("unknown", "no message has this id, or it is done: done messages are deleted")
    assert answers == [
        ("running", "running already"),
        ("too_late", "it is done"),
        ("too_late", "it is dead"),
        ("due", "due now"),
        ("due", "due now, 1h before its time"),
        ("due", "due now, 2h before its time"),
        unknown,
        unknown,
        ("due", "due now, 1h before its time"),
    ]
    assert scene.audited == [("run-now", (later, latest), "")]
    assert scene.run(running, dead, due) == [answers[0], answers[2], answers[3]] and len(scene.audited) == 1


def test_a_pause_holds_what_is_due_now(scene: Scene) -> None:
    id = scene.put()
    pause(scene.app.store, "default", actor="ann", reason="their maintenance")
    text = "held: queue default is paused by ann: their maintenance"
    assert scene.run(id) == [("held", f"due now, and {text}")]
    assert scene.run(id) == [("held", text)]
    assert scene.app.store.counts().ready == 1


def test_a_group_holds_what_is_behind_others_and_lets_in_what_has_a_place(scene: Scene) -> None:
    first, second = scene.put(group="g", delay_ms=0), scene.put(group="g")
    scene.claimed(first)
    assert scene.run(second) == [
        ("held", "due now, and held: group g of queue default has 1 of 1 places taken"),
    ]
    alone = scene.put(group="h")
    assert scene.run(alone) == [("due", "due now, 1h before its time")]
    assert scene.claimed(alone).message.id == alone


def test_a_breaker_holds_a_message_that_has_no_deferral_yet(scene: Scene) -> None:
    id = scene.put(task="crm.push", queue="crm")
    scene.app.flow.open("crm", reason="they asked", actor="ann")
    ((result, text),) = scene.run(id)
    assert (result, text.partition(":")[0]) == ("held", "due now, and held")
    assert "the breaker of crm is held open by ann: they asked" in text


@pytest.mark.parametrize(("why", "says"), [("limit", "the rate of crm was used up"), ("breaker", "the breaker of crm")])
def test_what_flow_control_deferred_keeps_the_time_that_it_was_granted(scene: Scene, why: str, says: str) -> None:
    at_ms = scene.clock() + 60_000
    deferral = Deferral(why, "crm", ("limit crm",), at_ms)
    id = scene.put(task="crm.push", queue="crm", delay_ms=0)
    scene.ended(id, RetryAt(at_ms, counts=False, held=True, deferral=deferral), None, "crm")
    before = scene.look(id)
    ((result, text),) = scene.run(id)
    assert result == "held" and text.startswith(f"held: {says}") and text.endswith("in 1m")
    assert scene.look(id) == before and scene.audited == []


def test_what_a_worker_takes_meanwhile_is_left_to_it_and_the_entry_says_so(scene: Scene) -> None:
    taken, waits = scene.put(delay_ms=1000), scene.put()

    class Taking(MemoryStore):
        """A worker claims and buries a message between the look and the change."""

        def __init__(self, act: Callable[[], object]) -> None:
            super().__init__(scene.clock)
            self._tables, self.act = scene.app.store._tables, act  # type: ignore[attr-defined]

        def triage(self, *args: object, **options: object) -> list[bool]:
            act, self.act = self.act, lambda: None
            act()
            return super().triage(*args, **options)  # type: ignore[arg-type]

    def bury() -> None:
        scene.clock.advance("2s")
        scene.ended(taken, DeadLetter("permanent"))

    answers = run_now(Taking(bury), scene.app, [taken, waits], actor="ann")
    assert [answer.result for answer in answers] == ["too_late", "due"]
    assert scene.look(taken).lane is Lane.DEAD and scene.audited == [("run-now", (waits,), "")]


def test_many_answers_are_told_as_counts() -> None:
    answers = [RunNow("a", "due", "due now"), RunNow("b", "due", "due now"), RunNow("c", "held", "held: x")]
    assert told(answers) == "2 due now; 1 held" and told(answers[2:]) == "held: x"


def test_on_sqs_it_is_refused_with_why() -> None:
    app = App("sqs://eu-central-1/shop?endpoint=http://127.0.0.1:1&track=true&cells=memory://")
    with pytest.raises(Unsupported, match="SQS cannot change the delay of a message that was sent"):
        app.run_now(NONE)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///redrive.db")
    yield app
    app.store.close()


def test_the_command_says_of_each_what_became_of_it(place: App) -> None:
    waits, due = (done.id for done in place.store.put([Draft(task="t", delay_ms=3_600_000), Draft(task="t")]))
    said = command("job", "run", waits, due, "--reason", "up again", "-o", "tsv")
    assert said.code == 0 and [line.split("\t")[1] for line in said.out.splitlines()] == ["result", "due", "due"]
    assert [(entry.action, entry.ids, entry.reason) for entry in place.audit] == [("run-now", (waits,), "up again")]
    pause(place.store, "default", reason="x")
    said = command("job", "run", waits, NONE)
    assert said.code == 1 and "queue resume default" in said.err
    said = command("job", "run", NONE)
    assert said.code == 1 and said.err.startswith("error: no message was made due: none has that id")


def test_the_retry_of_a_message_that_waits_says_when_it_is_due_and_offers_to_run_it(place: App) -> None:
    (waits, due) = (done.id for done in place.store.put([Draft(task="t", delay_ms=3_600_000), Draft(task="t")]))
    said = command("dlq", "retry", waits)
    assert said.code == 1 and "no longer dead" not in said.err
    what, why, next = said.err.splitlines()
    assert what == f"error: message {waits} was not retried: it waits and is not dead"
    assert why.startswith("why: enqueued for later; ends in ") and next.endswith(f" job run {waits}")
    assert f" job run {waits}\n" in command("dlq", "retry", due, waits).err
    assert f" job show {due}\n" in command("dlq", "retry", due).err
    assert f"job run {waits}" in command("job", "show", waits, "-o", "table").out
    assert f"job run {due}" not in command("job", "show", due, "-o", "table").out
