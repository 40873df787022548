"""EMF lines: valid by the format's own rules whatever is counted, and saying what happened."""

from __future__ import annotations

import io
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, Backoff, Reject, Retry
from redrive.aws.cloudwatch import REDRIVER, UNITS, VALUES_MAX, Emf, dimension, line, prefix_of, redriver_line
from redrive.events import DeliveryEvent

_UNIT = (
    "Seconds|Microseconds|Milliseconds|Bytes|Kilobytes|Megabytes|Gigabytes|Terabytes|Bits|Kilobits|Megabits|Gigabits|"
    "Terabits|Percent|Count|Bytes/Second|Kilobytes/Second|Megabytes/Second|Gigabytes/Second|Terabytes/Second|"
    "Bits/Second|Kilobits/Second|Megabits/Second|Gigabits/Second|Terabits/Second|Count/Second|None"
)
_METRIC = {
    "type": "object",
    "required": ["Name"],
    "additionalProperties": False,
    "properties": {
        "Name": {"type": "string", "minLength": 1, "maxLength": 1024},
        "Unit": {"type": "string", "pattern": f"^({_UNIT})$"},
        "StorageResolution": {"enum": [1, 60]},
    },
}
_DIRECTIVE = {
    "type": "object",
    "required": ["Namespace", "Dimensions", "Metrics"],
    "additionalProperties": False,
    "properties": {
        "Namespace": {"type": "string", "pattern": "^[0-9A-Za-z.\\-_/#:]{1,1024}$"},
        "Dimensions": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "maxItems": 30, "items": {"type": "string", "minLength": 1, "maxLength": 250}},
        },
        "Metrics": {"type": "array", "minItems": 1, "maxItems": 100, "items": _METRIC},
    },
}
_METADATA = {
    "type": "object",
    "required": ["Timestamp", "CloudWatchMetrics"],
    "properties": {
        "Timestamp": {"type": "integer", "minimum": 0},
        "CloudWatchMetrics": {"type": "array", "items": _DIRECTIVE},
    },
}
# As its specification has it; made once, as a schema is checked when it is given.
SCHEMA = jsonschema.Draft202012Validator({"type": "object", "required": ["_aws"], "properties": {"_aws": _METADATA}})


def valid(text: str) -> dict[str, Any]:
    """The document of a line, held to the format's schema and to what a schema cannot say."""
    assert text.endswith("\n") and "\n" not in text[:-1] and len(text.encode()) <= 256_000
    found: dict[str, Any] = json.loads(text)
    SCHEMA.validate(found)
    for directive in found["_aws"]["CloudWatchMetrics"]:
        for name in (name for names in directive["Dimensions"] for name in names):
            value = found[name]
            assert isinstance(value, str) and value.strip() and value.isascii() and 1 <= len(value) <= 1024
            assert not value.startswith(":")
        for metric in directive["Metrics"]:
            values = found[metric["Name"]]
            values = values if isinstance(values, list) else [values]
            assert 1 <= len(values) <= 100 and all(type(v) in (int, float) for v in values)
    return found


def documents(stream: io.StringIO) -> list[dict[str, Any]]:
    return [valid(text) for text in stream.getvalue().splitlines(keepends=True)]


def totals(stream: io.StringIO) -> list[dict[str, Any]]:
    """The documents of whole queues and tasks, without those of their attempts and faults."""
    return [d for d in documents(stream) if "Attempt" not in d and "Fault" not in d]


def by(dimension: str, stream: io.StringIO) -> dict[str, dict[str, int]]:
    """What all lines say by the values of a dimension, for a single queue."""
    found: dict[str, dict[str, int]] = {}
    for d in documents(stream):
        if dimension in d:
            [directive] = d["_aws"]["CloudWatchMetrics"]
            assert directive["Dimensions"] == [["Queue", dimension]]
            counts = found.setdefault(d[dimension], {})
            for name in (metric["Name"] for metric in directive["Metrics"]):
                counts[name] = counts.get(name, 0) + d[name]
    return found


def fate(outcome: str = "done", **words: Any) -> DeliveryEvent:
    return DeliveryEvent(
        **{"outcome": outcome, "id": "1", "task": "t", "queue": "q", "attempt": 1, "run_ms": 1.5} | words
    )


def test_a_worker_writes_what_became_of_its_messages() -> None:
    app, stream = App("memory://"), io.StringIO()

    @app.task(name="flaky", queue="orders", retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    def flaky(times: int) -> None:
        if times == 9:
            raise Reject("never")
        if times:
            raise ConnectionError("not now")

    emf = Emf(app, stream, prefix="shop")
    for times in (0, 0, 1, 9):
        flaky.enqueue(times)
    app.run_worker(drain=True)
    emf.close()
    assert {d["Queue"] for d in documents(stream)} == {"shop-orders"}
    found = totals(stream)
    sums = {name: sum(d.get(name, 0) for d in found) for name in ("Runs", "Failures", "Done", "Retries", "Dead")}
    assert sums == {"Runs": 5, "Failures": 3, "Done": 2, "Retries": 1, "Dead": 2}
    assert sum(len(d.get("RunTime", ())) for d in found) == 5
    assert by("Attempt", stream) == {"1": {"Done": 2, "Retries": 1, "Dead": 1}, "2": {"Dead": 1}}
    assert by("Fault", stream) == {"transient": {"Faults": 2}, "permanent": {"Faults": 1}}


def test_outcomes_are_told_by_attempt_and_failures_by_kind() -> None:
    app, stream = App("memory://"), io.StringIO()
    emf = Emf(app, stream, every=None)
    emf([fate("retry", attempt=n, fault="timeout", delay_ms=10) for n in range(1, 13)])
    emf([fate("done", attempt=12), fate("dead", attempt=5, fault="newer than this version")])
    emf([fate("quarantined", attempt=2, fault="crashed"), fate("held", attempt=1, run_ms=None), fate("snoozed")])
    emf.flush()
    bands = {"1": 1, "2": 1, "3": 1, "4-5": 2, "6-10": 5, "11+": 2}
    more = {"11+": {"Done": 1}, "4-5": {"Dead": 1}, "2": {"Quarantined": 1}}
    assert by("Attempt", stream) == {band: {"Retries": count} | more.get(band, {}) for band, count in bands.items()}
    faults = {kind: counts["Faults"] for kind, counts in by("Fault", stream).items()}
    assert faults == {"timeout": 12, "(other)": 1, "crashed": 1}


def test_the_time_to_done_is_told_apart_for_the_first_try_and_after_retries() -> None:
    app, stream = App("memory://"), io.StringIO()
    emf = Emf(app, stream, every=None)
    emf([fate(age_ms=5), fate(age_ms=7), fate(attempt=2, age_ms=900), fate(crashes=1, age_ms=800), fate("retry")])
    emf.flush()
    [found] = totals(stream)
    assert (found["DoneFirstTry"], found["DoneAfterRetries"]) == (2, 2)
    assert (found["TimeToDoneFirstTry"], found["TimeToDoneAfterRetries"]) == ([5, 7], [900, 800])
    assert sorted(found["TimeToDone"]) == [5, 7, 800, 900]


def test_without_detail_a_queue_has_one_line() -> None:
    app, stream = App("memory://"), io.StringIO()
    emf = Emf(app, stream, detail=False, every=None)
    emf([fate(), fate("retry", attempt=3, fault="timeout")])
    emf.flush()
    [found] = documents(stream)
    assert (found["Queue"], found["Runs"]) == ("q", 2)


def test_by_task_there_is_a_line_for_the_queue_and_one_for_each_registered_task() -> None:
    app, stream = App("memory://"), io.StringIO()
    app.task(name="t")(lambda: None)
    emf = Emf(app, stream, by_task=True, every=None)
    emf([fate(), fate(task="made up")])
    emf.flush()
    found = totals(stream)
    assert [(d["Queue"], d.get("Task"), d["Runs"]) for d in found] == [
        ("q", None, 2),
        ("q", "t", 1),
        ("q", "(other)", 1),
    ]
    assert found[1]["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["Queue", "Task"]]


def test_any_number_of_runs_is_counted_and_a_hundred_of_their_times_are_told() -> None:
    app, stream = App("memory://"), io.StringIO()
    emf = Emf(app, stream, every=None)
    emf([fate(run_ms=float(n)) for n in range(1000)])
    emf.flush()
    [found] = totals(stream)
    assert found["Runs"] == 1000
    times = found["RunTime"]
    assert VALUES_MAX / 2 <= len(times) <= VALUES_MAX and min(times) == 0 and max(times) > 950
    assert abs(sum(times) / len(times) - 500) < 25  # evenly chosen, so that means and percentiles hold


def test_what_did_not_run_is_no_failure() -> None:
    app, stream = App("memory://"), io.StringIO()
    emf = Emf(app, stream, every=None)
    emf([fate("dead", run_ms=None, reason="deadline"), fate("held", run_ms=None, deferral="breaker"), fate("snoozed")])
    emf([fate("crashed", run_ms=None, fault="crashed")])
    emf.flush()
    [found] = totals(stream)
    assert (found["Runs"], found["Failures"]) == (2, 1)  # the snoozed one ran, and did not fail
    assert (found["Dead"], found["Deferrals"], found["Crashes"]) == (1, 1, 1)


def test_nothing_is_written_where_nothing_happened_and_a_broken_stream_loses_no_work() -> None:
    app, stream = App("memory://"), io.StringIO()
    emf = Emf(app, stream, every=None)
    emf.flush()
    assert stream.getvalue() == ""
    emf([fate()])
    stream.close()
    emf.flush()
    emf.close()
    assert not app.events


@given(
    queue=st.text(max_size=300),
    task=st.text(max_size=300),
    run_ms=st.floats(0, 1e9),
    delay_ms=st.integers(0, 10**10),
    outcome=st.sampled_from(["done", "retry", "dead", "quarantined", "crashed", "held", "snoozed", "odd"]),
    times=st.integers(1, 300),
    attempt=st.integers(0, 10**6),
    fault=st.none() | st.text(max_size=300),
)
def test_lines_are_valid_whatever_is_counted(
    queue: str, task: str, run_ms: float, delay_ms: int, outcome: str, times: int, attempt: int, fault: str | None
) -> None:
    app, stream = App("memory://"), io.StringIO()
    emf = Emf(app, stream, by_task=True, every=None)
    words = {"queue": queue, "task": task, "run_ms": run_ms, "delay_ms": delay_ms, "age_ms": delay_ms}
    emf([fate(outcome, attempt=attempt, fault=fault, **words)] * times)
    emf.flush()
    assert len(totals(stream)) == 2 and len(documents(stream)) <= 4


def test_the_redriver_tells_its_three_metrics_and_the_queue_it_drives_back_to() -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/shop-orders.fifo"
    found = valid(redriver_line(url, 8, 1, 2, request_id="r-1").decode())
    assert (found["SuccessfulRedrives"], found["PoisonPillsIsolated"], found["RedriveFailures"]) == (8, 1, 2)
    assert (found["Queue"], found["request_id"]) == ("shop-orders", "r-1")
    assert tuple(m["Name"] for m in found["_aws"]["CloudWatchMetrics"][0]["Metrics"]) == REDRIVER


def test_the_prefix_is_that_of_the_url() -> None:
    assert prefix_of("sqs://eu-central-1/shop?mode=requeue") == "shop"
    assert prefix_of("sqlite:///work.db") == prefix_of(None) == ""
    assert dimension("shop-orders") == "shop-orders"


def test_a_metric_without_a_unit_is_a_slip() -> None:
    with pytest.raises(KeyError):
        line({"Nonsense": 1}, {"Queue": "q"})
    assert set(REDRIVER) <= set(UNITS)
