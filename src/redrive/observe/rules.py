"""Recording and alerting rules for Prometheus, as `redrive metrics rules` prints them.

Several processes on a store export the same depths, so rules take their `max`; counters of several processes add up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from ..config import RUNBOOKS, runbook_url, web_link
from ..duration import show
from ..history.objectives import WINDOWS


class Thresholds(Struct, frozen=True, kw_only=True):
    """The values above which alerts fire. `errors` is a share of runs; durations are in seconds."""

    waiting: float = 5000
    dead: float = 100
    growth: float = 10
    age_s: float = 900
    errors: float = 0.3
    wave: float = 5000
    slow_s: float = 30
    stuck_s: float = 3600
    skew_s: float = 5
    late_s: float = 60
    unsealed_s: float = 3600


class Alerting(NamedTuple):
    """An alerting rule: name, expression, how long that must hold, severity, summary and description."""

    name: str
    expr: str
    for_: str
    severity: str
    summary: str
    description: str


RUNS = "done|retry|dead|quarantined|crashed"
FAILED = "retry|dead|quarantined|crashed"
RECORDED = (
    ("redrive:runs:rate15m", f'sum by (queue, task) (rate(redrive_deliveries_total{{outcome=~"{RUNS}"}}[15m]))'),
    ("redrive:failures:rate15m", f'sum by (queue, task) (rate(redrive_deliveries_total{{outcome=~"{FAILED}"}}[15m]))'),
    ("redrive:error_ratio:rate15m", "redrive:failures:rate15m / (redrive:runs:rate15m > 0)"),
    ("redrive:ready", 'max by (queue) (redrive_queue_messages{lane="ready"})'),
    ("redrive:dead", 'max by (queue) (redrive_queue_messages{lane="dead"})'),
    ("redrive:workers", 'sum by (queue) (max by (queue, state) (redrive_workers{state=~"running|idle"}))'),
    (
        "redrive:run_seconds:p95_15m",
        "histogram_quantile(0.95, sum by (queue, task, le) (rate(redrive_run_seconds_bucket[15m])))",
    ),
)
RUNS_MIN = 20  # the least runs in 15 minutes for an error rate; with fewer, a share means little
_NOT_PAUSED = "unless on (queue) max by (queue) (redrive_queue_paused) == 1"


def alerting(of: Thresholds) -> Iterator[Alerting]:
    """Yield the alerting rules with these thresholds."""
    queue, task, value = "{{ $labels.queue }}", "{{ $labels.task }}", "{{ $value | humanize }}"
    duration = "{{ $value | humanizeDuration }}"
    yield Alerting(
        "RedriveDeadLettersGrowing", f"delta(redrive:dead[15m]) > {of.growth:g}", "5m", "page",
        f"Messages of queue {queue} die",
        f"{value} messages died in 15 minutes, more than {of.growth:g}.",
    )  # fmt: skip
    yield Alerting(
        "RedriveDeadLetters", f"redrive:dead > {of.dead:g}", "5m", "ticket",
        f"Queue {queue} has {value} dead messages", f"More than {of.dead:g} wait for triage.",
    )  # fmt: skip
    yield Alerting(
        "RedriveQuarantined", "sum by (queue, task) (increase(redrive_quarantined_total[1h])) > 0", "0m", "ticket",
        f"Task {task} has poison messages", f"{value} messages of queue {queue} were quarantined in an hour.",
    )  # fmt: skip
    yield Alerting(
        "RedriveOldestTooOld",
        f"max by (queue) (redrive_queue_oldest_age_seconds) > {of.age_s:g} {_NOT_PAUSED}", "2m", "page",
        f"Queue {queue} is late", f"Its oldest message has been due for {duration}, more than {show(of.age_s)}.",
    )  # fmt: skip
    yield Alerting(
        "RedriveBacklog", f"redrive:ready > {of.waiting:g} {_NOT_PAUSED}", "5m", "ticket",
        f"Queue {queue} has a backlog", f"{value} messages are due, more than {of.waiting:g}.",
    )  # fmt: skip
    yield Alerting(
        "RedriveErrorRate",
        f"redrive:error_ratio:rate15m > {of.errors:g} and redrive:runs:rate15m * 900 >= {RUNS_MIN}", "5m", "page",
        f"Task {task} fails", "{{ $value | humanizePercentage }} of its runs in 15 minutes failed.",
    )  # fmt: skip
    yield Alerting(
        "RedriveRetryStorm",
        'sum by (queue) (rate(redrive_deliveries_total{outcome="retry"}[10m])) * 600 >= 100 unless on (queue) '
        '(sum by (queue) (rate(redrive_deliveries_total{outcome="done"}[10m])) >= '
        'sum by (queue) (rate(redrive_deliveries_total{outcome="retry"}[10m])))', "5m", "page",
        f"Queue {queue} retries more than it does", f"{value} retries in 10 minutes, more than messages done.",
    )  # fmt: skip
    yield Alerting(
        "RedriveComingWave",
        f'max by (queue) (redrive_queue_upcoming_messages{{kind="retry"}}) > {of.wave:g}', "2m", "ticket",
        f"A wave of retries comes to queue {queue}",
        f"{value} retries come due in 10 minutes, more than {of.wave:g}.",
    )  # fmt: skip
    yield Alerting(
        "RedriveNoWorkers",
        f"redrive:ready > 0 {_NOT_PAUSED} unless on (queue) redrive:workers > 0 and on () count(redrive_workers) > 0",
        "2m", "page", f"No worker runs queue {queue}", f"{value} messages are due there.",
    )  # fmt: skip
    yield Alerting(
        "RedriveWorkerStuck",
        f"max(redrive_worker_longest_run_seconds) > {of.stuck_s:g} or max(redrive_worker_loop_lag_seconds) > 5", "2m",
        "ticket", "A worker is stuck", f"A run, or the lateness of an event loop, has lasted {duration}.",
    )  # fmt: skip
    yield Alerting(
        "RedriveWorkerHung", "max(redrive_worker_hung_seconds) > 0", "0m", "page", "A worker is hung",
        f"It has not been able to begin a message for {duration}; `redrive status` names it and what blocks it.",
    )  # fmt: skip
    yield Alerting(
        "RedriveRunStalled",
        'max(redrive_runs{status="running"}) > 0 and on () '
        'changes(max(redrive_run_messages{state=~"moved|done|failed|changed|skipped"})[15m:1m]) == 0', "5m", "ticket",
        "A redrive run does not move", f"{value} runs are open, and nothing moved in 15 minutes.",
    )  # fmt: skip
    yield Alerting(
        "RedriveCanaryFailed", 'sum(increase(redrive_worker_notices_total{notice="run_stopped"}[15m])) > 0', "0m",
        "ticket", "A redrive run stopped itself", "Its canary or its stop rule says that messages fail again.",
    )  # fmt: skip
    yield Alerting(
        "RedriveBreakerOpen", "max by (dependency) (redrive_breaker_state) == 2", "5m", "page",
        "The breaker of {{ $labels.dependency }} is open", "Its messages wait, and spend no attempt.",
    )  # fmt: skip
    yield Alerting(
        "RedriveStoreErrors",
        'min(redrive_store_up) == 0 or sum(increase(redrive_worker_notices_total{notice="store_unavailable"}[5m])) > 0',
        "1m", "page", "The store cannot be reached", "Nothing is lost; nothing is claimed or settled meanwhile.",
    )  # fmt: skip
    yield from _burning()
    yield Alerting(
        "RedriveClockSkew", f"max(abs(redrive_worker_clock_ahead_seconds)) > {of.skew_s:g}", "5m", "ticket",
        "The clock of a worker is wrong", f"It is {duration} away from the store's.",
    )  # fmt: skip
    yield Alerting(
        "RedriveScheduleLate", f"max by (schedule) (redrive_schedule_late_seconds) > {of.late_s:g}", "1m", "page",
        "Schedule {{ $labels.schedule }} is late", f"A tick has been due for {duration}: does a scheduler run?",
    )  # fmt: skip
    yield Alerting(
        "RedriveBatchPartial", 'max by (name) (redrive_batches{state="partial"}) > 0', "5m", "ticket",
        "Batches named {{ $labels.name }} wait for a redrive", f"{value} are partial, and what follows them waits.",
    )  # fmt: skip
    yield Alerting(
        "RedriveBatchUnsealed", f"max by (name) (redrive_batch_unsealed_seconds) > {of.unsealed_s:g}", "1m", "ticket",
        "A batch named {{ $labels.name }} is not sealed", f"Nothing was added for {duration}: was its producer killed?",
    )  # fmt: skip
    yield Alerting(
        "RedriveSlow",
        f"redrive:run_seconds:p95_15m > {of.slow_s:g} and redrive:runs:rate15m * 900 >= {RUNS_MIN}", "10m", "ticket",
        f"Task {task} is slow", f"5% of its runs took longer than {duration}.",
    )  # fmt: skip


def _burning() -> Iterator[Alerting]:
    """Yield the alerting rules on the error budgets of objectives: a long and a short window for each threshold."""
    burn = 'max by (kind, name) (redrive_slo_burn_rate{{window="{}"}}) >= {:g}'
    for severity in ("page", "ticket"):
        pairs = [
            "({} and {})".format(*(burn.format(show(ms / 1000), window.threshold) for ms in window[2:]))
            for window in WINDOWS
            if window.severity == severity
        ]
        yield Alerting(
            "RedriveSloBurn", " or ".join(pairs), "1m", severity,
            "The error budget of {{ $labels.kind }} {{ $labels.name }} burns",
            "It burns {{ $value | humanize }} times as fast as it may.",
        )  # fmt: skip


# By alert, the web page about its subject: the first part of the page's path.
PAGES = {
    "RedriveDeadLettersGrowing": "groups", "RedriveDeadLetters": "groups", "RedriveErrorRate": "groups",
    "RedriveRetryStorm": "groups", "RedriveNoWorkers": "workers", "RedriveWorkerStuck": "workers",
    "RedriveWorkerHung": "workers",
    "RedriveClockSkew": "workers", "RedriveRunStalled": "runs", "RedriveCanaryFailed": "runs",
    "RedriveBreakerOpen": "flow", "RedriveScheduleLate": "schedules", "RedriveStoreErrors": "system",
    "RedriveBatchPartial": "batches", "RedriveBatchUnsealed": "batches",
    "RedriveSloBurn": "", "RedriveQuarantined": "queues", "RedriveOldestTooOld": "queues",
    "RedriveBacklog": "queues", "RedriveComingWave": "queues", "RedriveSlow": "queues",
}  # fmt: skip


def prometheus_rules(of: Thresholds, runbooks: str | None = None, pages: str | None = None) -> str:
    """Return the rules with these thresholds as YAML. `runbooks` is the address of the runbook pages, as in the setting
    `runbook_url`; `pages` that of the web pages, as in `web_url` (None: alerts do not link to them)."""
    lines = ["groups:", "  - name: redrive-recording", "    rules:"]
    for name, expr in RECORDED:
        lines += [f"      - record: {name}", f"        expr: {json.dumps(expr)}"]
    lines += ["  - name: redrive", "    rules:"]
    for rule in alerting(of):
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.expr)}",
            f"        for: {rule.for_}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
            f"          description: {json.dumps(rule.description)}",
            f"          runbook_url: {json.dumps(runbook_url(RUNBOOKS[rule.name], runbooks))}",
        ]
        if pages is not None:
            lines.append(f"          page_url: {json.dumps(web_link(PAGES[rule.name], base=pages))}")
    return "\n".join(lines) + "\n"
