"""The pages of the docs that explain alerts and needs, under `docs/runbooks/`, and links to them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# By alert, the name of its page: rules of Prometheus, names of `app.on`, and alarms of CloudWatch (as the template
# names them). Of a need that is no alert, its area.
RUNBOOKS: Mapping[str, str] = MappingProxyType(
    {
        "RedriveDeadLettersGrowing": "dead-letters-growing",
        "RedriveDeadLetters": "dead-letters",
        "RedriveQuarantined": "quarantined",
        "RedriveOldestTooOld": "oldest-too-old",
        "RedriveBacklog": "backlog",
        "RedriveErrorRate": "error-rate",
        "RedriveRetryStorm": "retry-storm",
        "RedriveComingWave": "coming-wave",
        "RedriveNoWorkers": "no-workers",
        "RedriveWorkerStuck": "worker-stuck",
        "RedriveWorkerHung": "worker-stuck",
        "RedriveRunStalled": "run-stalled",
        "RedriveCanaryFailed": "canary-failed",
        "RedriveBreakerOpen": "breaker-open",
        "RedriveStoreErrors": "store-errors",
        "RedriveSloBurn": "slo-burn",
        "RedriveClockSkew": "clock-skew",
        "RedriveScheduleLate": "schedule-late",
        "RedriveBatchPartial": "batch-partial",
        "RedriveBatchUnsealed": "batch-partial",
        "RedriveSlow": "slow",
        "dead_growth": "dead-letters-growing",
        "dead": "dead-letters",
        "regressed": "dead-letters-growing",
        "quarantined": "quarantined",
        "age": "oldest-too-old",
        "depth": "backlog",
        "error_rate": "error-rate",
        "no_workers": "no-workers",
        "worker_hung": "worker-stuck",
        "run_stopped": "canary-failed",
        "breaker_opened": "breaker-open",
        "slo_burn": "slo-burn",
        "schedule_late": "schedule-late",
        "p95": "slow",
        "batch_partial": "batch-partial",
        "batch_unsealed": "batch-partial",
        "batches": "batch-partial",
        "Dead": "dead-letters-growing",
        "ManyDead": "dead-letters",
        "Undelivered": "dead-letters",
        "RedriveFailed": "dead-letters",
        "Poison": "quarantined",
        "Old": "oldest-too-old",
        "Deep": "backlog",
        "Failing": "error-rate",
        "Slow": "slow",
    }
)


def runbook_url(page: str, base: str | None = None) -> str:
    """Return the link to a page of RUNBOOKS. `base` is the setting `runbook_url`: the address above the pages, or a
    template with `{page}`. Without it, the link is the page's path in the source.

    >>> runbook_url("backlog", "https://docs.example.com/redrive/runbooks")
    'https://docs.example.com/redrive/runbooks/backlog.html'
    >>> runbook_url("backlog", "https://wiki.example.com/{page}?space=ops")
    'https://wiki.example.com/backlog?space=ops'
    >>> runbook_url("backlog")
    'docs/runbooks/backlog.md'
    """
    if not base:
        return f"docs/runbooks/{page}.md"
    return base.replace("{page}", page) if "{page}" in base else f"{base.rstrip('/')}/{page}.html"
