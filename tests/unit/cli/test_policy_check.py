"""`redrive policy check`: exit codes, forms, the baseline, and what a store adds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.aws.places import REGION, client
from tests.support.commands import Call

from redrive.testing.sqs import SqsServer

APP = """
from redrive import App, Backoff, Retry
app = App("sqlite:///work.db")
@app.task(name="push", queue="crm", retry=Retry(max_attempts=5, backoff=Backoff.fixed("10s")))
def push(n: int = 0) -> None: ...
"""
HERD = ("policy", "check", "--app", "herd:app", "--rate", "50/s")


@pytest.fixture(autouse=True)
def app(redrive: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("herd.py").write_text(APP)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    sys.modules.pop("herd", None)


def test_warnings_exit_0_and_with_strict_1_and_errors_1(redrive: Call) -> None:
    assert redrive(*HERD).code == 0 and redrive(*HERD, "--strict").code == 1
    said = redrive(*HERD, "--outage", "2h", "-o", "table")
    assert said.code == 1 and "herd.py:4: error short-horizon: task push" in said.out
    assert said.err.strip() == "1 error, 1 warning, 0 accepted, 1 unknown"
    assert not Path("work.db").exists()


def test_a_rate_is_of_one_task_or_of_each(redrive: Call) -> None:
    assert "no-spread" in redrive("policy", "check", "--app", "herd:app", "--rate", "push=50/s").out
    assert (
        "no-spread" not in redrive("policy", "check", "--app", "herd:app", "--rate", "push=1/s", "--rate", "50/s").out
    )
    said = redrive("policy", "check", "--app", "herd:app", "--rate", "fast")
    assert said.code == 2 and "fast" in said.err


def test_json_and_sarif_hold_the_same_findings_in_the_same_bytes_each_time(redrive: Call) -> None:
    record = redrive(*HERD, "-o", "json").record
    assert record["ok"] and record["warning"] == 1
    log = redrive(*HERD, "-o", "sarif").out
    assert [r["ruleId"] for r in json.loads(log)["runs"][0]["results"]] == [f["rule"] for f in record["findings"]]
    assert redrive(*HERD, "-o", "sarif").out == log


def test_a_baseline_is_written_and_accepts_what_it_has(redrive: Call) -> None:
    assert redrive(*HERD, "--write-baseline", "base.json").code == 0
    said = redrive(*HERD, "--strict", "--baseline", "base.json")
    assert said.code == 0 and "1 accepted" in said.err
    assert (
        redrive("policy", "check", "--app", "herd:app", "--rate", "1/s", "--baseline", "base.json", "--strict").code
        == 1
    )
    assert redrive(*HERD, "--baseline", "none.json").code == 2


def test_a_rule_is_explained_and_an_unknown_one_gets_the_nearest_name(redrive: Call) -> None:
    assert "no jitter" in redrive("policy", "check", "--explain", "no-spread").out
    assert "did you mean 'no-spread'?" in redrive("policy", "check", "--explain", "no-spred").err


def test_what_is_no_app_of_celery_is_refused(redrive: Call) -> None:
    said = redrive("policy", "check", "--celery", "herd:app")
    assert said.code == 2 and "no app of Celery" in said.err


def test_a_url_that_leads_nowhere_is_refused_and_one_that_does_is_only_read(redrive: Call) -> None:
    assert redrive(*HERD, "--url", "sqlite:///none.db").code == 3
    assert redrive("enqueue", "push", "--app", "herd:app", "{}").code == 0
    before = Path("work.db").read_bytes()
    assert redrive(*HERD, "--url", "sqlite:///work.db").code == 0
    assert Path("work.db").read_bytes() == before


def test_the_attributes_of_a_queue_on_sqs_are_read(redrive: Call) -> None:
    with SqsServer() as server:
        arn = "arn:aws:sqs:eu-central-1:000000000000:shop-crm-dlq"
        boto = client("sqs", server.url)
        boto.create_queue(QueueName="shop-crm-dlq")
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "2"})
        boto.create_queue(QueueName="shop-crm", Attributes={"RedrivePolicy": policy})
        url = f"sqs://{REGION}/shop?endpoint={server.url}&triage=sqlite:///dead.db"
        said = redrive(*HERD, "--url", url, "--outage", "2h", "-o", "json")
    texts = {f["text"]: f["severity"] for f in json.loads(said.out)["findings"] if f["rule"] == "sqs-queue"}
    assert said.code == 1
    assert [s for text, s in texts.items() if text.startswith("maxReceiveCount is 2")] == ["error"]
    assert [s for text, s in texts.items() if "wait in flight" in text] == ["error"]
    assert [s for text, s in texts.items() if "visibility timeout is 30 s" in text] == ["warning"]
