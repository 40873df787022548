"""A dashboard for Grafana, as `redrive metrics grafana` prints it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .rules import FAILED, RUNS

WIDTH, HEIGHT = 8, 7  # the size of a panel; Grafana has 24 columns
UID = "redrive-overview"


class Panel(NamedTuple):
    """A graph: title, unit as Grafana names it, description, and (query, legend) for each of its lines."""

    title: str
    unit: str
    description: str
    queries: tuple[tuple[str, str], ...]


_Q = 'queue=~"$queue"'
_QT = f'{_Q},task=~"$task"'
_ENDED = 'redrive_deliveries_total{{{},outcome=~"{}"}}'


def _percentiles(name: str, by: str = "task", labels: str = "") -> tuple[tuple[str, str], ...]:
    legend = {"task": "{{task}}", "queue": "{{queue}}"}[by]
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({by}, le) (rate({name}_bucket{{{_QT}{labels}}}[$__rate_interval])))",
            f"p{share * 100:g} {legend}",
        )
        for share in (0.5, 0.95, 0.99)
    )


def _by(metric: str, *labels: str, where: str = _QT) -> tuple[tuple[str, str], ...]:
    by = ", ".join(labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return ((f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))", legend),)


def _lane(lane: str) -> tuple[tuple[str, str], ...]:
    return ((f'max by (queue) (redrive_queue_messages{{{_Q},lane="{lane}"}})', "{{queue}}"),)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What waits",
        (
            Panel("Due", "short", "Messages that are due and wait for a worker.", _lane("ready")),
            Panel(
                "Age of the oldest",
                "s",
                "How long the first message that is due has waited.",
                ((f"max by (queue) (redrive_queue_oldest_age_seconds{{{_Q}}})", "{{queue}}"),),
            ),
            Panel(
                "Due in the next 10 minutes",
                "short",
                "Scheduled messages: a wave of retries shows before it comes.",
                ((f"max by (queue, kind) (redrive_queue_upcoming_messages{{{_Q}}})", "{{queue}} {{kind}}"),),
            ),
            Panel("Dead", "short", "Dead messages that wait for triage.", _lane("dead")),
            Panel("Quarantined", "short", "Poison, out of reach of bulk redrives.", _lane("quarantine")),
            Panel(
                "Age of the oldest dead",
                "s",
                "How long the longest dead message is dead.",
                ((f"max by (queue) (redrive_queue_oldest_dead_age_seconds{{{_Q}}})", "{{queue}}"),),
            ),
        ),
    ),
    (
        "What happens",
        (
            Panel("Enqueued", "ops", "Messages put, a second.", _by("redrive_enqueued_total", "queue", "task")),
            Panel("Runs by outcome", "ops", "Deliveries a second.", _by("redrive_deliveries_total", "outcome")),
            Panel(
                "Error rate",
                "percentunit",
                "The share of the runs that failed.",
                (
                    (
                        f"sum by (task) (rate({_ENDED.format(_QT, FAILED)}[$__rate_interval]))"
                        f" / sum by (task) (rate({_ENDED.format(_QT, RUNS)}[$__rate_interval]))",
                        "{{task}}",
                    ),
                ),
            ),
            Panel("Done by attempt", "ops", "How many tries success takes.", _by("redrive_done_total", "attempt")),
            Panel("Failures by kind", "ops", "Runs that failed.", _by("redrive_faults_total", "kind")),
            Panel("Deaths by reason", "ops", "Messages that died.", _by("redrive_dead_total", "reason")),
        ),
    ),
    (
        "How long it takes",
        (
            Panel("Run", "s", "How long handlers run.", _percentiles("redrive_run_seconds")),
            Panel(
                "To success at the first try",
                "s",
                "From enqueue to success.",
                _percentiles("redrive_time_to_done_seconds", labels=',retried="false"'),
            ),
            Panel(
                "To success after retries",
                "s",
                "From enqueue to success.",
                _percentiles("redrive_time_to_done_seconds", labels=',retried="true"'),
            ),
            Panel("Retry delay", "s", "How long retries wait.", _percentiles("redrive_retry_delay_seconds")),
            Panel(
                "Error budget left",
                "percentunit",
                "Of each objective; below 0 it is overspent.",
                (("max by (kind, name) (redrive_slo_budget_left_ratio)", "{{kind}} {{name}}"),),
            ),
            Panel(
                "Burn rate",
                "short",
                "How fast error budgets burn: 14.4 in 1h and 5m pages.",
                (('max by (name, window) (redrive_slo_burn_rate{window=~"5m|1h|6h"})', "{{name}} {{window}}"),),
            ),
        ),
    ),
    (
        "Who works, and what holds back",
        (
            Panel(
                "Workers",
                "short",
                "By queue and state.",
                ((f"max by (queue, state) (redrive_workers{{{_Q}}})", "{{queue}} {{state}}"),),
            ),
            Panel(
                "Workers wanted",
                "short",
                "By load: arrivals, backlog and service time.",
                ((f"max by (queue) (redrive_wanted_workers{{{_Q}}})", "{{queue}}"),),
            ),
            Panel(
                "Longest run",
                "s",
                "And the lateness of the latest event loop.",
                (
                    ("max(redrive_worker_longest_run_seconds)", "longest run"),
                    ("max(redrive_worker_loop_lag_seconds)", "event loop"),
                ),
            ),
            Panel(
                "Breakers",
                "short",
                "0 closed, 1 half-open, 2 open.",
                (("max by (dependency) (redrive_breaker_state)", "{{dependency}}"),),
            ),
            Panel(
                "Retry budgets",
                "short",
                "Retries that are allowed now.",
                (("max by (dependency) (redrive_budget_left)", "{{dependency}}"),),
            ),
            Panel(
                "Batches",
                "short",
                "Batches that are not over, by name.",
                (("max by (name, state) (redrive_batches)", "{{name}} {{state}}"),),
            ),
            Panel(
                "Redrive runs",
                "short",
                "Messages of open runs.",
                (("max by (state) (redrive_run_messages)", "{{state}}"),),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format. The data source, queues and tasks are variables."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        y += 1
        for number, panel in enumerate(row):
            at = {"x": number % 3 * WIDTH, "y": y + number // 3 * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(panel, at))
        y += -(-len(row) // 3) * HEIGHT
    return {
        "uid": UID,
        "title": "redrive",
        "tags": ["redrive"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_SOURCE, *(_variable(name) for name in ("queue", "task"))]},
        "panels": [panel | {"id": number} for number, panel in enumerate(panels, 1)],
    }


_SOURCE = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": f"label_values(redrive_deliveries_total, {name})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": None, "custom": {"fillOpacity": 8}}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend}
            for number, (expr, legend) in enumerate(panel.queries)
        ],
    }


def dashboard_json() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"
