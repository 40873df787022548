"""What observers are told of a settled delivery."""

import io

import pytest
from msgspec.structs import replace

from redrive.events import DeliveryEvent
from redrive.fault import Crash, Fault, Kind, crash_fault
from redrive.history import Flusher, Recorder
from redrive.history.tally import WAIT
from redrive.message import (
    Ack,
    DeadLetter,
    Decision,
    Deferral,
    Delivery,
    Lane,
    Message,
    Quarantine,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
)
from redrive.observe.logs import TextLog
from redrive.present.messages import message_record
from redrive.stores.memory import MemoryStore
from redrive.worker.delivery_events import fate
from redrive.worker.settlement import Outcome
from redrive.worker.telemetry.history import Counted

NOW_MS = 1_000_000


def told(decision: Decision, fault: Fault | None = None, **of: object) -> DeliveryEvent:
    message = Message(id="i", task="t", queue="q", body=b"{}", correlation_id="i", attempt=1, life_ms=500, **of)  # type: ignore[arg-type]
    receipt = Receipt(1, 1)
    return fate(Outcome(Settlement(receipt, decision, fault), Delivery(message, receipt, 0)), Settled.OK, NOW_MS, "w")


def test_what_flow_control_held_says_why_whose_and_until_when_and_spends_nothing() -> None:
    held = told(RetryAt(NOW_MS + 40, "budget", counts=False, held=True, deferral=Deferral("budget", "stripe")))
    assert (held.outcome, held.deferral, held.by, held.delay_ms, held.attempt) == ("held", "budget", "stripe", 40, 0)


@pytest.mark.parametrize("why", ["parked", "newer", "asked", "blob unavailable", "cancelled"])
def test_what_is_held_says_why_whatever_holds_it(why: str) -> None:
    found = told(RetryAt(NOW_MS + 40, why, counts=False, held=True))
    out = io.StringIO()
    TextLog(out)([found])
    assert found.outcome == "held" and found.text, found
    assert f"again in 40ms {found.text}" in out.getvalue()


def test_a_quarantine_carries_the_evidence_of_the_crash_that_convicts_and_every_cause_of_its_life() -> None:
    before = crash_fault(Crash(cause="memory", alone=True), at_ms=400)  # of an earlier life
    first = crash_fault(Crash(cause="signal", signal="SIGSEGV"), at_ms=600)
    last = Crash(cause="timeout", signal="SIGKILL", alone=True)
    found = told(Quarantine("poison"), crash_fault(last), crashes=2, faults=(before, first))
    assert found.crash == last
    assert found.causes == ("signal", "timeout", "")


def test_the_crash_that_convicts_is_counted_and_spends_no_attempt() -> None:
    found = told(Quarantine("poison", crashed=True), crash_fault(Crash(cause="exit", code=3, alone=True)), crashes=2)
    assert (found.outcome, found.attempt, found.crashes, len(found.causes)) == ("quarantined", 0, 3, 3)


def test_a_life_that_goes_on_tells_of_its_last_crash_and_ends_no_count() -> None:
    crashed = crash_fault(Crash(cause="exit", code=3, alone=True))
    again = told(RetryAt(NOW_MS + 5, "crashed", crashed=True), crashed)
    assert (again.crash, again.causes, again.fault) == (crashed.crash, (), Kind.CRASHED)


def test_a_message_that_never_crashed_carries_nothing_of_it() -> None:
    assert (told(Ack()).crash, told(Ack()).causes) == (None, ())


def test_what_dies_without_a_fault_says_why() -> None:
    found = told(Quarantine("its process died 3 times"))
    assert (found.error, found.text) == (None, "its process died 3 times")


def test_job_show_names_the_deferral_while_it_waits_and_not_once_it_is_claimed() -> None:
    held = Message(
        id="i", task="t", queue="q", body=b"{}", correlation_id="i", due_ms=NOW_MS, deferral=Deferral("limit", "stripe")
    )
    assert message_record(held, 0)["deferral"] == {"why": "limit", "by": "stripe", "until": "1970-01-01T00:16:40.000Z"}
    assert message_record(replace(held, lane=Lane.LEASED), 0)["deferral"] is None


def test_only_the_first_run_that_counts_after_a_redrive_is_its_verdict() -> None:
    fault = Fault(Kind.DEFAULT, "ValueError", "no", "f1")
    retry, snooze = RetryAt(NOW_MS, "backoff"), RetryAt(NOW_MS, "snooze", counts=False)
    crashed = RetryAt(NOW_MS, "crashed", crashed=True)
    assert told(Ack(), redrives=1).verdict == "done"
    assert told(retry, fault, redrives=1).verdict == told(DeadLetter("rejected"), fault, redrives=1).verdict == "failed"
    assert told(snooze, redrives=1).verdict is None and told(crashed, fault, redrives=1).verdict is None
    assert told(Ack()).verdict is None
    later = Message(id="i", task="t", queue="q", body=b"{}", correlation_id="i", attempt=2, redrives=1)
    second = Outcome(Settlement(Receipt(1, 1), Ack()), Delivery(later, Receipt(1, 1), 0))
    assert fate(second, Settled.OK, NOW_MS, "w").verdict is None


def test_a_plain_message_counts_the_same_with_and_without_its_event() -> None:
    message = Message(id="i", task="t", queue="q", body=b"{}", correlation_id="i", attempt=1, life_ms=NOW_MS - 500)
    outcome = Outcome(
        Settlement(Receipt(1, 1), Ack()), Delivery(message, Receipt(1, 1), 0, NOW_MS - 400), 0.1, None, 1.0, True
    )
    counts = []
    for event in (None, fate(outcome, Settled.OK, NOW_MS, "w"), fate(outcome, Settled.STALE, NOW_MS, "w")):
        recorder = Recorder({"t": None}, {})
        Counted(Flusher(recorder, MemoryStore()), "w").settled([outcome], [event], NOW_MS)
        [minutes] = recorder.take().values()
        [minute] = minutes.values()
        counts.append({key: count for key, count in minute.items() if key[0] != WAIT})
    assert counts[0] == counts[1]
    assert counts[1]["o0done"] == 1 and counts[2]["o0stale"] == 1


def test_a_worker_whose_messages_are_all_retried_notes_nothing_of_them() -> None:
    message = Message(id="i", task="t", queue="q", body=b"{}", correlation_id="i", attempt=1, life_ms=NOW_MS - 500)
    delivery = Delivery(message, Receipt(1, 1), 0, NOW_MS - 400)
    outcome = Outcome(Settlement(Receipt(1, 1), RetryAt(NOW_MS, "snooze", counts=False)), delivery, 0.1, None, 1.0)
    flusher = Flusher(Recorder({"t": None}, {}), MemoryStore(), 3_600_000)
    counted = Counted(flusher, "w")
    assert flusher.done is not None
    for n in range(100):
        counted.settled([outcome], [fate(outcome, Settled.OK, NOW_MS + n, "w")], NOW_MS + n)
    [log] = flusher.done.logs
    assert (len(log.begun), log.ids) == (1, [])
