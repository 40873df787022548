"""The names that every surface completes and offers."""

from __future__ import annotations

from redrive import App
from redrive.present.confirm import CONFIRM_ABOVE, needs_number
from redrive.present.names import declared_names, queue_names, selector_terms
from redrive.triage.select.parser import parse


def test_a_queue_that_only_a_schedule_names_is_known() -> None:
    app = App("memory://")
    app.periodic("@hourly", queue="night")(app.task(name="report")(lambda: None))
    app.enqueue_many([app.tasks["report"].draft()])
    assert queue_names(app.store, app) == ["default", "night"]
    assert [name for name, _ in declared_names("queues", app)] == ["default", "night"]
    assert queue_names(app.store, None) == ["default"]


def test_a_term_that_is_offered_means_the_name_whatever_its_characters() -> None:
    terms = selector_terms(["a b", 'c"d', "*"], ["e,f"], ["g)"])
    assert [str(parse(term)) for term in terms[:5]] == list(terms[:5])


def test_above_a_hundred_messages_their_number_is_typed() -> None:
    assert (needs_number(CONFIRM_ABOVE), needs_number(CONFIRM_ABOVE + 1)) == (False, True)
