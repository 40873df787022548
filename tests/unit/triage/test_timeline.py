"""The timeline of a message: every attempt kept, what was done by hand, how it came to rest, in order."""

from __future__ import annotations

from redrive import App, Draft
from redrive.audit.log import Audit, Entry
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Lane, Message, Settlement
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage.timeline import by_hand, ended_by, timeline

ID = "0199f3a1-0000-7000-8000-000000000001"


def fault(attempt: int, at_ms: int) -> Fault:
    return Fault(Kind.TRANSIENT, "OSError", "down", at_ms=at_ms, attempt=attempt, worker="w", delay_ms=50)


def dead(**fields: object) -> Message:
    made = {"lane": Lane.DEAD, "reason": "exhausted", "enqueued_ms": 1000, "life_ms": 1000, "rested_ms": 3000} | fields
    return Message(ID, "t", "q", b"{}", ID, **made)  # type: ignore[arg-type]


def told(message: Message, *entries: Entry) -> list[tuple[int, str, int | None]]:
    return [(moment.at_ms, moment.what, moment.after_ms) for moment in timeline(message, entries)]


def test_attempts_stand_between_enqueue_and_rest_each_with_the_time_since_the_last() -> None:
    assert told(dead(faults=(fault(1, 1500), fault(2, 3000)))) == [
        (1000, "enqueued", None),
        (1500, "attempt 1", 500),
        (3000, "attempt 2", 1500),
        (3000, "dead", 0),
    ]


def test_what_people_did_stands_where_it_happened() -> None:
    entries = Entry(1600, "quarantine", "ann", "poison", ids=(ID,)), Entry(1700, "readmit", "bob", "no", ids=(ID,))
    assert [what for _, what, _ in told(dead(faults=(fault(1, 1500), fault(2, 1800))), *entries)] == [
        "enqueued", "attempt 1", "quarantine", "readmit", "attempt 2", "dead",
    ]  # fmt: skip


def test_attempts_that_were_not_kept_are_counted() -> None:
    kept = [fault(n, 1000 + n) for n in (*range(1, 11), *range(26, 36))]
    (gap,) = [moment for moment in timeline(dead(faults=tuple(kept))) if moment.what == "…"]
    assert gap.text == "15 attempts in between are not kept" and gap.at_ms == 1026
    lives = [fault(n, 1000 + n) for n in (*range(1, 11), *range(1, 11))]
    assert not [moment for moment in timeline(dead(faults=tuple(lives))) if moment.what == "…"]


def test_the_last_redrive_is_told_once() -> None:
    message = dead(redrives=2, life_ms=2000, run="r1", faults=(fault(1, 1500), fault(1, 2500)))
    assert [(m.what, m.text) for m in timeline(message)][2] == ("redriven", "for the 2nd time by run r1")
    entry = Entry(2000, "retry", "ann", "fixed", ids=(ID,))
    assert [what for _, what, _ in told(message, entry)].count("retry") == 1
    assert "redriven" not in [what for _, what, _ in told(message, entry)]


def test_an_edited_message_says_in_whose_place_it_is() -> None:
    assert timeline(dead(headers={"redrive-replaces": "x"}))[0].text == "in place of x"


def test_the_log_is_asked_for_a_message_and_for_the_run_that_moved_it() -> None:
    store = MemoryStore(ManualClock())
    audit = Audit(store)
    audit.keep(audit.entry("pause", "ann", "lunch", about="r1"))
    audit.keep(audit.entry("pause", "ann", "lunch", about="r2"))
    audit.keep(audit.entry("quarantine", "bob", "poison", ids=[ID]))
    found = by_hand(store, dead(enqueued_ms=store.now_ms(), run="r1"))
    assert [(entry.action, entry.about) for entry in found] == [("pause", "r1"), ("quarantine", "")]


def test_who_took_a_message_away_is_known() -> None:
    app = App(store=MemoryStore())

    @app.task(name="t")
    def t(n: int = 0) -> None: ...

    a, b = (put.id for put in app.store.put([Draft(task="t", queue="q"), Draft(task="t", queue="q")]))
    for each in app.store.exchange([], [ClaimRequest("q", 2, 30_000)]).deliveries:
        app.store.exchange([Settlement(each.receipt, DeadLetter("rejected"))], [])
    new = app.dlq.edit(a, args={"n": 1}, reason="typo").id
    app.dlq.discard([b], reason="noise")
    edit, discard = ended_by(app.store, a), ended_by(app.store, b)
    assert edit is not None and edit.ids == (a, new) and ended_by(app.store, new) is None
    assert discard is not None and discard.reason == "noise"
