"""Logs hold a line per event, in one write per batch, without secrets and without lines of their reader's making."""

import io
import json

import pytest

from redrive import App, Reject, Retry
from redrive.events import DeliveryEvent, Event, Notice
from redrive.observe.logs import TEXT_MAX, JsonLog, TextLog
from redrive.redact import redact

RETRY = DeliveryEvent(
    outcome="retry", id="i1", task="crm.push", queue="crm", attempt=2, correlation_id="c1", worker="w", run_ms=1.5,
    at_ms=1_700_000_000_007, delay_ms=2000, fault="transient", error="ConnectionError", text="refused",
)  # fmt: skip


class Writes(io.StringIO):
    """A stream that counts its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def write(self, text: str) -> int:
        self.count += 1
        return super().write(text)


def json_lines(*events: Event) -> list[dict[str, object]]:
    stream = io.StringIO()
    JsonLog(stream)(events)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line_of_an_event_holds_what_happened_and_why() -> None:
    assert json_lines(RETRY) == [
        {
            "time": "2023-11-14T22:13:20.007Z",
            "level": "warning",
            "outcome": "retry",
            "id": "i1",
            "task": "crm.push",
            "queue": "crm",
            "attempt": 2,
            "delay_ms": 2000,
            "fault": "transient",
            "error": "ConnectionError",
            "text": "refused",
            "correlation_id": "c1",
            "run_ms": 1.5,
            "worker": "w",
        }
    ]


def test_what_is_done_in_part_says_why() -> None:
    part = DeliveryEvent(
        outcome="done", id="i1", task="t", queue="q", attempt=1, degraded="no prices\nKEY=sk_live_0123456789abcdef"
    )
    (line,) = json_lines(part)
    stream = io.StringIO()
    TextLog(stream)([part])
    assert str(line["degraded"]).startswith("no prices")
    assert " attempt 1 degraded: no prices\\n" in stream.getvalue()
    assert "0123456789" not in stream.getvalue() + str(line)


def test_json_line_of_a_notice_names_it() -> None:
    assert json_lines(Notice(name="started", worker="w", at_ms=0, text="queues crm")) == [
        {"time": "1970-01-01T00:00:00.000Z", "level": "info", "notice": "started", "text": "queues crm", "worker": "w"}
    ]


def test_lines_of_what_flow_control_put_off_say_why_and_whose_it_is() -> None:
    held = DeliveryEvent(
        outcome="held", id="i", task="t", queue="q", attempt=0, delay_ms=1500, deferral="budget", by="stripe"
    )
    (line,) = json_lines(held)
    stream = io.StringIO()
    TextLog(stream)([held])
    assert (line["deferral"], line["by"], line["level"]) == ("budget", "stripe", "info")
    assert "again in 1.5s budget of stripe" in stream.getvalue()


def test_an_open_breaker_is_a_warning_and_names_its_dependency() -> None:
    opened = Notice(name="breaker_opened", about="stripe", text="12 of 20 failed", worker="w")
    (line,) = json_lines(opened)
    stream = io.StringIO()
    TextLog(stream)([opened])
    assert (line["level"], line["about"]) == ("warning", "stripe")
    assert "breaker_opened stripe: 12 of 20 failed" in stream.getvalue()


def test_death_is_an_error_with_its_reason() -> None:
    line = json_lines(DeliveryEvent(outcome="dead", id="i", task="t", queue="q", attempt=1, reason="exhausted"))[0]
    assert (line["level"], line["reason"]) == ("error", "exhausted")


def test_a_failure_that_no_rule_knows_is_unclassified_for_people_and_default_for_programs() -> None:
    event = DeliveryEvent(
        outcome="retry", id="i", task="t", queue="q", attempt=1, fault="default", error="KeyError", text="'DE'"
    )
    stream = io.StringIO()
    TextLog(stream)([event])
    assert "unclassified: KeyError: 'DE'" in stream.getvalue() and json_lines(event)[0]["fault"] == "default"


@pytest.mark.parametrize("log", [JsonLog, TextLog])
def test_a_batch_is_one_write(log: type[JsonLog] | type[TextLog]) -> None:
    stream = Writes()
    log(stream)([RETRY] * 50)
    assert (stream.count, stream.getvalue().count("\n")) == (1, 50)


@pytest.mark.parametrize("log", [JsonLog, TextLog])
def test_text_from_outside_cannot_forge_a_line_or_steer_a_terminal(log: type[JsonLog] | type[TextLog]) -> None:
    stream = io.StringIO()
    event = DeliveryEvent(
        outcome="dead", id="i", task="t\x1b[31m", queue="q", attempt=1, error="E", text="a\n12:00 done \x9b2J\r"
    )
    log(stream)([event])
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


@pytest.mark.parametrize("log", [JsonLog, TextLog])
def test_secrets_in_a_fault_are_hidden_also_where_the_text_is_cut(log: type[JsonLog] | type[TextLog]) -> None:
    stream = io.StringIO()
    text = (
        "cannot reach redis://app:hunter2@cache/0, Authorization: Bearer abc.def.ghi, api_key=k-123 " + "x" * TEXT_MAX
    )
    log(stream)([DeliveryEvent(outcome="dead", id="i", task="t", queue="q", attempt=1, error="E", text=text)])
    for secret in ("hunter2", "abc.def.ghi", "k-123"):
        assert secret not in stream.getvalue()
    assert "redis://app:***@cache/0" in stream.getvalue()
    assert len(stream.getvalue()) < TEXT_MAX + 400


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"password": "p1", "user": "ann"}', '{"password": "***", "user": "ann"}'),
        ("DB_PASSWORD=p1 retry", "DB_PASSWORD=*** retry"),
        ("signed with whsec_MfKQ9r8GKYqrTwjU", "signed with ***"),
        ("basic dXNlcjpwYXNz was refused", "basic *** was refused"),
        ("invalid token at line 3", "invalid token at line 3"),
        ("see https://example.com/a:b@c", "see https://example.com/a:b@c"),
    ],
)
def test_redact_hides_what_names_or_looks_like_a_secret(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_closed_stream_loses_lines_and_raises_nothing() -> None:
    stream = io.StringIO()
    log = JsonLog(stream)
    stream.close()
    log([RETRY])


def test_streams_with_bytes_below_get_utf8_whatever_their_encoding() -> None:
    below = io.BytesIO()
    stream = io.TextIOWrapper(below, encoding="ascii")
    JsonLog(stream)([DeliveryEvent(outcome="done", id="i", task="größe", queue="q", attempt=1)])
    assert "größe" in below.getvalue().decode()


def test_worker_logs_each_event_once_and_no_body() -> None:
    app = App("memory://")

    @app.task(name="ok")
    def ok(secret: str) -> None: ...

    @app.task(name="bad", retry=Retry(max_attempts=1))
    def bad(secret: str) -> None:
        raise Reject("no")

    stream = io.StringIO()
    app.subscribe(JsonLog(stream))
    ids = [ok.enqueue("b0dy").id, bad.enqueue("b0dy").id]
    app.run_worker(burst=True)
    events = [line for line in map(json.loads, stream.getvalue().splitlines()) if "outcome" in line]
    assert {(f["id"], f["outcome"], f.get("reason")) for f in events} == {
        (ids[0], "done", None),
        (ids[1], "dead", "rejected"),
    }
    assert len(events) == 2 and "b0dy" not in stream.getvalue()


def test_text_log_colours_a_terminal_only_and_not_under_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, coloured = io.StringIO(), Terminal()
    TextLog(plain)([RETRY])
    TextLog(coloured)([RETRY])
    monkeypatch.setenv("NO_COLOR", "1")
    quiet = Terminal()
    TextLog(quiet)([RETRY])
    assert "\x1b" in coloured.getvalue()
    assert plain.getvalue() == quiet.getvalue()
    assert plain.getvalue() == (
        "22:13:20.007 retry     crm.push i1 attempt 2 ran 2ms again in 2s transient: ConnectionError: refused\n"
    )
