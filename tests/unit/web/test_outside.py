"""Links out: templates of settings, in which each value is quoted; and links in, where `web_url` is set."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.commands import Call
from tests.support.sites import FP, Browser, Tags, died

from redrive import App, Retry
from redrive.config import settings, web_link
from redrive.errors import ConfigError
from redrive.events import DeliveryEvent
from redrive.observe.alert import page_of
from redrive.observe.logs import JsonLog, TextLog
from redrive.observe.rules import PAGES, Thresholds, alerting, prometheus_rules
from redrive.web import outside
from redrive.web.table import PAGES as SITE

WEB = "https://ops.example.com/jobs/"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- out


def test_a_template_is_filled_with_quoted_values() -> None:
    template = "https://logs.example.com/search?q={message_id}&w={worker}&from={at}"
    values = {"message_id": 'a" b&c=d#/', "worker": "ä\n<", "at": "2026-11-23T16:00:00+01:00"}
    assert outside.link(template, values) == (
        "https://logs.example.com/search?q=a%22%20b%26c%3Dd%23%2F&w=%C3%A4%0A%3C&from=2026-11-23T16%3A00%3A00%2B01%3A00"
    )


@pytest.mark.parametrize("value", ["../../x", "//evil.example", "{task}", "?a=b", "#x", "%2e%2e", "\\"])
def test_no_value_leaves_its_place(value: str) -> None:
    found = outside.link("https://traces.example.com/t/{trace_id}/spans", {"trace_id": value, "task": "t"})
    assert found is not None and found.startswith("https://traces.example.com/t/") and found.endswith("/spans")
    assert found.count("/") == 5 and not set("?#{}\\") & set(found)


@pytest.mark.parametrize(
    "template", [None, "javascript:alert({line})", "data:text/html,{line}", "//x/{line}", "ftp://x/{line}"]
)
def test_only_http_leads_out(template: str | None) -> None:
    assert outside.link(template, {"line": 1}) is None


def test_a_value_that_is_missing_makes_no_link() -> None:
    assert outside.link("https://x.example/{trace_id}", {}) is None
    assert outside.link("https://x.example/{trace_id}", {"trace_id": ""}) is None
    assert outside.link("https://x.example/", {}) == "https://x.example/"


@pytest.mark.parametrize(
    ("parent", "trace"),
    [
        (TRACEPARENT, "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("", None),
        (None, None),
        ("00-" + "0" * 32 + TRACEPARENT[35:], None),
        (TRACEPARENT.upper(), None),
        (f"{TRACEPARENT}\n", None),
        ("00-4bf9-x-01", None),
    ],
)
def test_the_trace_and_the_span_are_read_of_a_traceparent(parent: str | None, trace: str | None) -> None:
    assert outside.ids_of(parent) == ({"trace_id": trace, "span_id": "00f067aa0ba902b7"} if trace else {})


def test_settings_lead_to_traces_logs_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outside.links(TRACEPARENT, worker="w") == {} and outside.code("/srv/app/a.py", 3) is None
    monkeypatch.setenv("REDRIVE_TRACE_URL", "https://traces.example.com/{trace_id}")
    monkeypatch.setenv("REDRIVE_LOGS_URL", "https://logs.example.com/?id={message_id}")
    monkeypatch.setenv("REDRIVE_CODE_URL", "https://git.example.com/shop/blob/main/{file}#L{line}")
    monkeypatch.setenv("REDRIVE_CODE_ROOT", "/srv/app")
    trace = "https://traces.example.com/4bf92f3577b34da6a3ce929d0e0e4736"
    assert outside.links(TRACEPARENT, worker="w") == {"trace": trace}
    assert outside.links("", worker="w") == {}
    assert outside.links(None, message_id="1", worker="w") == {"logs": "https://logs.example.com/?id=1"}
    assert outside.code("/srv/app/shop/crm a.py", 31) == "https://git.example.com/shop/blob/main/shop/crm%20a.py#L31"
    for elsewhere in ("/usr/lib/python3/json.py", "/srv/app/../etc/passwd", "/srv/application/a.py", "<string>"):
        assert outside.code(elsewhere, 1) is None


def test_the_page_of_a_message_leads_to_its_trace_and_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")
    (id,) = died(app, 1, traceparent=TRACEPARENT)
    browser = Browser(app.dashboard())
    assert browser.json(f"/messages/{id}")["links"] == {}
    monkeypatch.setenv("REDRIVE_TRACE_URL", "https://traces.example.com/{trace_id}")
    monkeypatch.setenv("REDRIVE_LOGS_URL", "https://logs.example.com/?q={message_id}&queue={queue}")
    links = browser.json(f"/messages/{id}")["links"]
    assert links["logs"] == f"https://logs.example.com/?q={id}&queue=crm"
    assert links["trace"] == f"https://traces.example.com/{TRACEPARENT[3:35]}"
    assert {*links.values()} <= {*Tags(browser.get(f"/messages/{id}").text).links()}


def test_each_attempt_leads_to_its_own_span(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")
    (id,) = died(app, 1, traceparent=TRACEPARENT)
    (message,) = app.store.find([id])
    assert message is not None
    own = f"00-{'a' * 32}-{'b' * 16}-01"
    again = replace(message, faults=tuple(replace(fault, traceparent=own) for fault in message.faults))
    monkeypatch.setattr(app.store, "find", lambda ids: [again])
    monkeypatch.setenv("REDRIVE_TRACE_URL", "https://traces.example.com/{trace_id}?span={span_id}")
    page = Browser(app.dashboard()).json(f"/messages/{id}")
    links = [moment["links"] for moment in page["timeline"] if moment["links"]]
    assert links == [{"trace": f"https://traces.example.com/{'a' * 32}?span={'b' * 16}"}] == [page["links"]]


def test_frames_of_a_traceback_lead_to_their_lines_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("memory://")

    @app.task(name="push", retry=Retry(max_attempts=1))
    def push(record_id: int) -> None:
        json.loads('<a href="x">')

    push.enqueue(1)
    app.run_worker(burst=True)
    (message,) = app.dlq.select("").messages()
    own, browser = Path(__file__), Browser(app.dashboard())
    place = f"/messages/{message.id}", f"/groups/{message.faults[-1].fingerprint}"
    before = [browser.get(path).text for path in place]
    monkeypatch.setenv("REDRIVE_CODE_URL", "https://git.example.com/{file}?l={line}")
    monkeypatch.setenv("REDRIVE_CODE_ROOT", str(own.parent))
    browser = Browser(app.dashboard())  # one that knows no sums of before
    line = own.read_text().splitlines().index("""        json.loads('<a href="x">')""") + 1
    to = f"https://git.example.com/{own.name}?l={line}"
    for path, plain in zip(place, before, strict=True):
        page = browser.get(path).text
        out = [address for address in Tags(page).links() if address.startswith("https://git.example.com/")]
        assert {*out} == {to} and "git.example.com" not in plain  # none of the library's own files
        ages = re.compile(r"\b\d+(ms|s|m)\b|\bnow\b")  # the pages were read one after another
        shown, bare = (ages.sub("…", "".join(Tags(each).words)).split() for each in (page, plain))
        assert shown == bare
    frames = browser.json(place[1])["frames"]
    assert [frame["code"] for frame in frames if frame["code"]] == [to] and len(frames) > 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trace_url", "https://x.example/{trace}"),
        ("trace_url", "https://{trace_id}.example/"),
        ("trace_url", "javascript:{trace_id}"),
        ("logs_url", "https://x.example/{file}"),
        ("code_url", "https://x.example/{message_id}"),
        ("code_root", ""),
        ("web_url", "ops.example.com"),
        ("web_url", "ftp://ops.example.com"),
    ],
)
def test_a_template_that_leads_nowhere_is_refused(name: str, value: str, place: Path) -> None:
    (place / "redrive.toml").write_text(f"{name} = {json.dumps(value)}\n")
    with pytest.raises(ConfigError, match=f"{name} = .* is refused"):
        settings()


# -- in


def test_a_page_has_an_address_where_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert web_link("queues", "crm") is None
    monkeypatch.setenv("REDRIVE_WEB_URL", WEB)
    assert web_link("queues", "a b/c?d") == "https://ops.example.com/jobs/queues/a%20b%2Fc%3Fd"
    assert web_link("") == "https://ops.example.com/jobs/"
    assert (
        web_link("messages", q="queue:crm & x", lane=None)
        == "https://ops.example.com/jobs/messages?q=queue%3Acrm+%26+x"
    )


@pytest.mark.parametrize(
    ("name", "task", "queue", "about", "ids", "path"),
    [
        ("dead_growth", "push", "crm", FP, (), f"groups/{FP}"),
        ("dead_growth", None, None, None, (), "groups"),
        ("breaker_opened", None, None, "crm/acme", (), "flow/crm"),
        ("run_stopped", None, None, "run-1", (), "runs/run-1"),
        ("quarantined", "push", "crm", None, ("id-1",), "messages/id-1"),
        ("quarantined", "push", "crm", None, ("id-1", "id-2"), "queues/crm"),
        ("depth", None, "a/b", None, (), "queues/a%2Fb"),
        ("no_workers", None, "crm", None, (), "workers"),
        ("schedule_late", None, None, "nightly", (), "schedules"),
        ("batch_partial", None, None, "import", (), "batches?state=partial"),
        ("batch_unsealed", None, None, "import", (), "batches?state=filling"),
        ("store_errors", None, None, None, (), ""),
    ],
)
def test_an_alert_leads_to_its_page(
    name: str, task: str | None, queue: str | None, about: str | None, ids: tuple[str, ...], path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert page_of(name, task, queue, about, ids) is None
    monkeypatch.setenv("REDRIVE_WEB_URL", WEB)
    assert page_of(name, task, queue, about, ids) == WEB + path


def fate(outcome: str) -> DeliveryEvent:
    return DeliveryEvent(at_ms=1, outcome=outcome, id="id-1", task="push", queue="crm", attempt=1, worker="w")  # type: ignore[arg-type]


def test_lines_of_deaths_lead_to_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for url, expected in ((None, None), (WEB, f"{WEB}messages/id-1")):
        if url:
            monkeypatch.setenv("REDRIVE_WEB_URL", url)
        stream = io.StringIO()
        JsonLog(stream)([fate("dead"), fate("done"), fate("quarantined")])
        pages = [json.loads(line).get("page") for line in stream.getvalue().splitlines()]
        assert pages == [expected, None, expected]
        text = io.StringIO()
        TextLog(text)([fate("dead")])
        assert (f"{WEB}messages/id-1" in text.getvalue()) is bool(url)


def test_every_rule_leads_to_a_page_that_there_is() -> None:
    assert {*PAGES} == {rule.name for rule in alerting(Thresholds())}
    assert {f"/{path}" for path in PAGES.values()} <= {page.path for page in SITE}
    assert "page_url" not in prometheus_rules(Thresholds())
    rules = prometheus_rules(Thresholds(), None, WEB)
    assert rules.count("page_url:") == rules.count("runbook_url:") and f'page_url: "{WEB}flow"' in rules


def test_status_and_rules_lead_to_pages_on_the_command_line(redrive: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("sqlite:///work.db")
    died(app, 2)
    app.store.close()
    assert "ops.example.com" not in redrive("status").out + redrive("status", "-o", "json").out
    monkeypatch.setenv("REDRIVE_WEB_URL", WEB)
    assert f"{WEB}groups/{FP}" in redrive("status", "-o", "table").out
    needs = json.loads(redrive("status", "-o", "json").out)["needs"]
    assert f"{WEB}groups" in [need["page"] for need in needs]
    assert f'page_url: "{WEB}groups"' in redrive("metrics", "rules").out
