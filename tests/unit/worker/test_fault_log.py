"""The logger `redrive` gets a WARNING for each retry and an ERROR for each death, without secrets, once per stream."""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Iterator

import pytest
from tests.support.workers import SOON, Heard

from redrive import App
from redrive.events import DeliveryEvent, Events
from redrive.fault import classify, stand_in
from redrive.message import Lane
from redrive.observe.logs import JsonLog
from redrive.redact import redact, shown_traceback
from redrive.worker.fault_log import log_faults

SECRET = "hunter2-of-ann"


class Records(logging.Handler):
    """The records that a logger got."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record)

    @property
    def levels(self) -> list[str]:
        return [record.levelname for record in self.all]


@pytest.fixture
def records() -> Iterator[Records]:
    logger, handler = logging.getLogger("redrive"), Records()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def app() -> Iterator[App]:
    made = App("memory://")

    @made.task(name="charge", retry=SOON)
    def charge(number: int) -> None:
        password = SECRET
        if number % 2:
            try:
                raise ConnectionError(f"https://ann:{password}@bank.example")
            except ConnectionError as error:
                raise ValueError(f"no. {number} failed, password={password}") from error

    yield made
    made.store.close()


def shown(record: logging.LogRecord) -> str:
    """All that a handler can make of it."""
    assert record.exc_info is not None
    parts = [logging.Formatter().format(record), *traceback.format_exception(*record.exc_info), repr(vars(record))]
    step = record.exc_info[2]
    while step is not None:
        parts.append(repr(step.tb_frame.f_locals))
        step = step.tb_next
    return "\n".join(parts)


def test_each_retry_is_one_warning_and_each_death_one_error_with_traceback_and_no_secret(
    app: App, records: Records
) -> None:
    ids = [ref.id for ref in app.enqueue_many(app.tasks["charge"].draft(number) for number in range(20))]
    app.run_worker(drain=True)
    by_id = {id: [r.levelname for r in records.all if r.redrive["id"] == id] for id in ids}  # type: ignore[attr-defined]
    assert by_id == {id: ["WARNING", "WARNING", "ERROR"] if n % 2 else [] for n, id in enumerate(ids)}
    for record in records.all:
        text = shown(record)
        assert SECRET not in text and "password=***" in text and record.name == "redrive"
        assert "in charge" in text and "ConnectionError: https://ann:***@bank.example" in text
        assert record.exc_info is not None and record.exc_info[0] is ValueError
    figures = records.all[-1].redrive  # type: ignore[attr-defined]
    assert (figures["task"], figures["attempt"], figures["reason"]) == ("charge", 3, "exhausted")


def test_a_record_is_logged_after_the_settlement_and_also_where_observers_listen(app: App, records: Records) -> None:
    heard, lanes = Heard(app), list[Lane]()

    def look(record: logging.LogRecord) -> bool:
        (found,) = app.store.find([record.redrive["id"]])  # type: ignore[attr-defined]
        lanes.append(found.lane if found is not None else Lane.DONE)
        return True

    records.addFilter(look)
    app.tasks["charge"].enqueue(1)
    app.run_worker(drain=True)
    assert lanes == [Lane.READY, Lane.READY, Lane.DEAD] and heard.outcomes == ["retry", "retry", "dead"]


def test_a_handler_that_raises_costs_its_record_and_nothing_else(
    app: App, records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise OSError("the log's disk is full")

    records.addFilter(broken)
    app.enqueue_many(app.tasks["charge"].draft(number) for number in range(6))
    app.run_worker(drain=True)
    assert (app.counts().dead, app.counts().leased, records.all) == (3, 0, [])
    assert "a handler of the logger 'redrive' failed" in capsys.readouterr().err


def test_the_level_of_the_logger_says_what_is_logged(app: App, records: Records) -> None:
    logging.getLogger("redrive").setLevel(logging.ERROR)
    app.tasks["charge"].enqueue(1)
    app.run_worker(drain=True)
    assert records.levels == ["ERROR"]


def test_a_death_is_once_on_a_stream_to_which_an_event_log_and_a_handler_write(app: App, records: Records) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("redrive").addHandler(handler)
    try:
        ends = app.subscribe(JsonLog(stream))
        app.tasks["charge"].enqueue(1)
        app.run_worker(drain=True)
        assert stream.getvalue().count('"outcome":"dead"') == 1 and "is dead" not in stream.getvalue()
        assert records.levels == ["WARNING", "WARNING", "ERROR"]  # another handler gets all
        ends()
        app.tasks["charge"].enqueue(1)
        app.run_worker(drain=True)
        assert stream.getvalue().count("is dead") == 1
    finally:
        logging.getLogger("redrive").removeHandler(handler)


UNLOGGED = ("done", "held", "snoozed", "released", "cancelled", "stale", "lost")
OUTCOMES = [("retry", "WARNING"), ("crashed", "WARNING"), ("dead", "ERROR"), ("quarantined", "ERROR")]


def test_only_retries_and_deaths_are_logged(records: Records) -> None:
    outcomes, text = [*UNLOGGED, *(outcome for outcome, _ in OUTCOMES)], "its deadline\npassed"
    fates = [DeliveryEvent(outcome=outcome, id="i", task="t", queue="q", attempt=1, text=text) for outcome in outcomes]
    log_faults(fates, Events())
    assert records.levels == [level for _, level in OUTCOMES]
    assert all("\n" not in record.getMessage() and record.exc_info is None for record in records.all)


# -- stand-ins


class Declined(Exception):
    pass


def fault_of_chain() -> tuple[str, str, str]:
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise Declined("no password=abcdefgh")  # noqa: B904 - a context and no cause
    except Declined as error:
        fault = classify(error)
    return fault.error, redact(fault.text), shown_traceback(fault.traceback)


def test_a_stand_in_has_class_text_frames_and_context_of_the_exception_but_no_variables() -> None:
    kind, value, last = stand_in(*fault_of_chain())
    assert kind is Declined and type(value).__name__ == "Declined" and str(value) == "no password=***"
    assert last is not None and last.tb_frame.f_code.co_name == "fault_of_chain" and last.tb_frame.f_locals == {}
    assert isinstance(value.__context__, Exception) and str(value.__context__) == "'a'" and value.__cause__ is None
    text = "".join(traceback.format_exception(value))
    assert "abcdefgh" not in text and "KeyError: 'a'" in text and "During handling" in text
    source = last.tb_frame.f_globals["__loader__"].get_source()
    assert 'raise Declined("no password=***")' in source  # as error trackers show it


@pytest.mark.parametrize("shown", ["", "ValueError: cut", 'Traceback (most recent call last):\n  File "x', "\n\n \n"])
def test_a_stand_in_is_made_of_any_text(shown: str) -> None:
    kind, value, step = stand_in("no.such.Class", "why", shown)
    assert (kind.__name__, kind.__module__, str(value), step) == ("Class", "no.such", "why", None)
