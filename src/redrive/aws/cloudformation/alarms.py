"""Alarms for people, the alarm that calls the re-driver, and the dashboard. Metrics are those of `cloudwatch.py`, and
of AWS/SQS, AWS/Lambda and AWS/States."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ...config import RUNBOOKS
from ...counters import BANDS, KINDS, OTHER
from ...errors import ConfigError
from ..cloudwatch import NAMESPACE
from .names import (
    Json,
    Named,
    Resources,
    either,
    ref,
    sub,
    tls_only,
    with_key,
)
from .queues import UNDELIVERED, topic_policy

MINUTE_S = 60
_ALARM_RUNS = 20  # with fewer runs in five minutes, one failure would be too large a share
_URL = "sqs://${AWS::Region}/${Prefix}"
_INGEST = f"redrive dlq ingest --url '{_URL}?triage=URL' moves them to a triage store"
_SAYS = {  # the meaning of each alarm, and the remedy
    "Deep": "Too many messages wait in QUEUE: start more workers.",
    "Old": "The first message of QUEUE waits too long. SQS does not count those received three times: what keeps "
    "failing shows in the dead-letter alarms.",
    "ManyDead": f"Many messages of QUEUE are dead. {_INGEST}, where redrive dlq groups says what died of what.",
    "Poison": f"A message of QUEUE is poison. {_INGEST}, where redrive dlq list --quarantine shows it.",
    "Undelivered": "The topic could not deliver to QUEUE: look at its policy.",
    "RedriveFailed": "The re-driver of QUEUE could not move messages: see its log.",
    "Failing": "Too many runs of QUEUE fail. The workers' log has each failure; redrive dlq groups has those that are "
    "dead, in a triage store.",
    "Slow": "One run in twenty of QUEUE takes too long (p95 of its run time).",
    "Dead": "Messages of QUEUE are dead: they are being driven back.",
}
_WAKES = {"ComparisonOperator": "GreaterThanOrEqualToThreshold"}
_DEPTH, _OLDEST = "ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage"


def shared() -> Resources:
    """Return the topic that alarms are sent to, and its subscription by e-mail."""
    mail = {"TopicArn": ref("Alarms"), "Protocol": "email", "Endpoint": ref("AlarmEmail")}
    return {
        "Alarms": {
            "Type": "AWS::SNS::Topic",
            "Properties": {"TopicName": sub("${Prefix}-alarms"), "KmsMasterKeyId": with_key(ref("KmsKey"))},
        },
        "AllowAlarms": from_alarms("Alarms"),
        "MailAlarms": {"Type": "AWS::SNS::Subscription", "Condition": "HasEmail", "Properties": mail},
    }


def alarms(of: Named) -> Resources:
    """Return the alarms of one redrive queue, by logical name."""
    alarms = {
        "Deep": _sqs(of, "", _DEPTH, ref("DepthThreshold"), minutes=5),
        "Old": _sqs(of, "", _OLDEST, ref("OldestThreshold"), minutes=5),
        "ManyDead": _sqs(of, "-dlq", _DEPTH, ref("DeadLetterThreshold")),
        "Poison": _sqs(of, "-poison", _DEPTH, 0),
        "Undelivered": _sqs(of, UNDELIVERED, _DEPTH, 0),
        "RedriveFailed": _own(of, "RedriveFailures"),
        "Failing": _error_rate(of),
        "Slow": _run_time(of),
        "Dead": _sqs(of, "-dlq", _DEPTH, 1) | _WAKES | {"AlarmActions": [ref(f"{of.id}Redrive")]},
    }
    resources = {f"{of.id}{name}Alarm": _alarm(of, name, _SAYS[name], given) for name, given in alarms.items()}
    resources[f"{of.id}FailingAlarm"]["Condition"] = "HasErrorRate"
    return resources


def _sqs(of: Named, suffix: str, metric: str, above: Json | int, *, minutes: int = 1) -> Json:
    """Return alarm properties: `metric` of the SQS queue with this suffix exceeds `above` for these minutes."""
    return {
        "Namespace": "AWS/SQS",
        "MetricName": metric,
        "Dimensions": [{"Name": "QueueName", "Value": sub(of.sqs(suffix))}],
        "Statistic": "Maximum",
        "Period": MINUTE_S,
        "EvaluationPeriods": minutes,
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": above,
    }


def _own(of: Named, metric: str) -> Json:
    """Return alarm properties: the sum of `metric`, one that redrive writes, is above 0 in five minutes."""
    return {
        "Namespace": NAMESPACE,
        "MetricName": metric,
        "Dimensions": _dimensions(of),
        "Statistic": "Sum",
        "Period": 5 * MINUTE_S,
        "EvaluationPeriods": 1,
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": 0,
    }


def _error_rate(of: Named) -> Json:
    """Return alarm properties: 100 · Failures / Runs over five minutes, with at least _ALARM_RUNS runs, is too high."""
    share = {
        "Id": "share",
        "Expression": f"IF(runs >= {_ALARM_RUNS}, 100 * failures / runs, 0)",
        "Label": "failing runs, %",
        "ReturnData": True,
    }
    return {
        "Metrics": [share, _part(of, "failures", "Failures"), _part(of, "runs", "Runs")],
        "EvaluationPeriods": 1,
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": ref("ErrorRateThreshold"),
    }


def _run_time(of: Named) -> Json:
    """Return alarm properties: the 95th percentile of run times over five minutes is too high."""
    return {
        "Namespace": NAMESPACE,
        "MetricName": "RunTime",
        "Dimensions": _dimensions(of),
        "ExtendedStatistic": "p95",
        "EvaluateLowSampleCountPercentile": "ignore",
        "Period": 5 * MINUTE_S,
        "EvaluationPeriods": 1,
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": ref("RunTimeThreshold"),
    }


def _part(of: Named, id: str, metric: str) -> Json:
    stat = {
        "Metric": {"Namespace": NAMESPACE, "MetricName": metric, "Dimensions": _dimensions(of)},
        "Period": 5 * MINUTE_S,
        "Stat": "Sum",
    }
    return {"Id": id, "MetricStat": stat, "ReturnData": False}


def _alarm(of: Named, name: str, says: str, given: Json) -> Json:
    """Return an alarm with the properties `given`. It is sent to people unless `given` has actions."""
    people = [ref("Alarms")]
    properties = {
        "AlarmName": sub(f"${{Prefix}}-{of.queue}.{_dashed(name)}"),
        "AlarmDescription": _described(says.replace("QUEUE", of.queue), RUNBOOKS.get(name, RUNBOOKS["ManyDead"])),
        **({} if "AlarmActions" in given else {"AlarmActions": people, "OKActions": people}),
        "TreatMissingData": "notBreaching",
    }
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties | given}


def _described(says: str, page: str) -> Json:
    """Return an alarm's description: `says`, and the URL of the runbook `page`, .md or, if published, .html."""
    ending = {"E": either("HasRunbookUrl", ".html", ".md")}
    return {"Fn::Sub": [f"{says} Runbook: ${{RunbookUrl}}/{page}${{E}}", ending]}


def any_above(of: Named, id: str, metric: tuple[str, str, str, str], text: str) -> Resources:
    """Return an alarm for a count above 0. `metric`: namespace, name, dimension, and the function or machine."""
    namespace, name, dimension, resource = metric
    properties = {
        "Namespace": namespace,
        "MetricName": name,
        "Dimensions": [{"Name": dimension, "Value": ref(resource)}],
        "Statistic": "Sum",
        "Period": 5 * MINUTE_S,
        "EvaluationPeriods": 1,
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": 0,
    }
    return {f"{of.id}{id}Alarm": _alarm(of, id, text, properties) | {"Condition": "HasCode"}}


def from_alarms(topic: str) -> Json:
    """Return the statement that lets alarms of this account publish to the topic."""
    allow = {
        "Sid": "FromAlarms",
        "Effect": "Allow",
        "Principal": {"Service": "cloudwatch.amazonaws.com"},
        "Action": "sns:Publish",
        "Resource": ref(topic),
        "Condition": {"StringEquals": {"aws:SourceAccount": ref("AWS::AccountId")}},
    }
    return topic_policy(topic, [allow, tls_only("sns:Publish", ref(topic))])


# -- the dashboard


def dashboard(queues: Sequence[Named]) -> Resources:
    """Return one dashboard with graphs for each queue. Raises ConfigError if CloudWatch would refuse it."""
    widgets = [widget for n, of in enumerate(queues) for widget in _row(of, n)]
    if len(widgets) > 500:
        raise ConfigError(f"{len(queues)} queues make {len(widgets)} graphs; CloudWatch takes 500 on a dashboard")
    body = json.dumps({"widgets": widgets}, separators=(",", ":"))
    properties = {"DashboardName": sub("${Prefix}"), "DashboardBody": sub(body)}
    return {"Dashboard": {"Type": "AWS::CloudWatch::Dashboard", "Properties": properties}}


def _row(of: Named, n: int) -> Iterator[Json]:
    """Yield the widgets of the n-th queue: a heading, and four lines of four graphs."""
    name, y = of.queue, 25 * n
    yield {
        "type": "text",
        "x": 0,
        "y": y,
        "width": 24,
        "height": 1,
        "properties": {"markdown": f"## {name}: {_URL}"},
    }
    for i, (title, metrics, stat) in enumerate(_graphs(of)):
        properties = {
            "title": title,
            "region": "${AWS::Region}",
            "metrics": _shorter(metrics),
            "stat": stat,
            "period": MINUTE_S,
        }
        at = {"x": 6 * (i % 4), "y": y + 1 + 6 * (i // 4)}  # the default graph is 6 wide and 6 high
        yield {"type": "metric", **at, "properties": properties}


def _graphs(of: Named) -> Iterator[tuple[str, list[list[Any]], str]]:
    """Yield the title, the metrics and the statistic of each graph of a queue."""

    def sqs(*names: str) -> list[list[Any]]:
        return [["AWS/SQS", name, "QueueName", of.sqs()] for name in names]

    def own(*names: str) -> list[list[Any]]:
        return [_own_metric(of, name) for name in names]

    def percentiles(*names: str) -> list[list[Any]]:
        return [_own_metric(of, name, stat=p) for name in names for p in ("p50", "p95", "p99")]

    def by_attempt(name: str) -> list[list[Any]]:
        return [[*_own_metric(of, name), "Attempt", value] for value in BANDS]

    rest = [["AWS/SQS", _DEPTH, "QueueName", of.sqs(s), {"label": s[1:]}] for s in ("-dlq", "-poison", UNDELIVERED)]
    running, delayed = (f"ApproximateNumberOfMessages{kind}" for kind in ("NotVisible", "Delayed"))
    yield "waiting, running, delayed", sqs(_DEPTH, running, delayed), "Maximum"
    yield "dead, poison, undelivered", rest, "Maximum"
    yield "oldest, s", sqs(_OLDEST), "Maximum"
    yield (
        "sent, received, deleted",
        sqs(*(f"NumberOfMessages{what}" for what in ("Sent", "Received", "Deleted"))),
        "Sum",
    )
    yield "runs and failures", own("Runs", "Failures", "Done", "Retries", "Dead"), "Sum"
    yield "failing runs, %", _share(of), "Sum"
    yield "failures by kind", [[*_own_metric(of, "Faults"), "Fault", kind] for kind in (*KINDS, OTHER)], "Sum"
    yield "run time, ms", percentiles("RunTime"), "p50"
    yield "done by attempt", by_attempt("Done"), "Sum"
    yield "retries by attempt", by_attempt("Retries"), "Sum"
    yield "dead by attempt", by_attempt("Dead"), "Sum"
    yield "retry delay, s", percentiles("RetryDelay"), "p50"
    yield "done at the first try, after retries", own("DoneFirstTry", "DoneAfterRetries"), "Sum"
    yield (
        "to done at the first try, after retries, ms",
        percentiles("TimeToDoneFirstTry", "TimeToDoneAfterRetries"),
        "p50",
    )
    yield "to done, ms", percentiles("TimeToDone"), "p50"
    yield "redriven", own("SuccessfulRedrives", "PoisonPillsIsolated", "RedriveFailures"), "Sum"


def _shorter(metrics: list[list[Any]]) -> list[list[Any]]:
    """Return the metrics in CloudWatch's short form: "." repeats one word of the metric before, "..." several."""
    rows, before = [], list[str]()
    for metric in metrics:
        names = [part for part in metric if isinstance(part, str)]
        if names and names[:-1] == before[:-1]:
            short = ["..."] if names == before else ["...", names[-1]]
        elif len(names) == len(before):
            short = ["." if part == other else part for part, other in zip(names, before, strict=True)]
        else:
            short = names
        rows.append([*short, *metric[len(names) :]])
        before = names
    return rows


def _own_metric(of: Named, metric: str, **options: object) -> list[object]:
    [dimension] = _plain_dimensions(of)
    return [NAMESPACE, metric, *dimension, *([options] if options else [])]


def _share(of: Named) -> list[list[object]]:
    share = {"expression": "100 * failures / runs", "label": "%", "id": "share"}
    parts = [_own_metric(of, m, id=m.lower(), visible=False) for m in ("Failures", "Runs")]
    return [[share], *parts]


def _plain_dimensions(of: Named) -> list[tuple[str, str]]:
    return [("Queue", of.sqs(fifo=False))]


def _dimensions(of: Named) -> list[Json]:
    return [{"Name": name, "Value": sub(value)} for name, value in _plain_dimensions(of)]


def _dashed(name: str) -> str:
    """
    >>> _dashed("ManyDead")
    'many-dead'
    """
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
