"""Check the policies of an app in a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..check import Assumptions, Case, CeleryCase, CheckReport, StoreFacts, report_on
from ..duration import Duration, seconds
from ..flow.limits import read_rate
from ..stores import engine_of


def policy_report(
    app: Any, *, rate: str | Mapping[str, str] = "", facts: StoreFacts | None = None, **assumed: Duration | None
) -> CheckReport:
    """Return what `redrive policy check` says of an app, one of Celery included.

    `rate` is that of each task, such as "50/s", or rates by task. `outage`, `run`, `retry_after`, `deadline`, `lease`,
    `function` and `blobs` are durations, `failing` is a share, `processes` and `connections` are counts, as the options
    of the command. `facts` stands for what it reads from a store. In a test: `assert not report.fails(), report`.

    Raises ConfigError, ValueError or TypeError.
    """
    rates = {"": rate} if isinstance(rate, str) else rate
    plain = ("failing", "processes", "connections")
    named: dict[str, Any] = {n: v for n, v in assumed.items() if n in plain}
    named |= {f"{n}_s": seconds(v, n) for n, v in assumed.items() if n not in plain and v is not None}
    assume = Assumptions(rates_per_s={task: read_rate(text) for task, text in rates.items() if text}, **named)
    if hasattr(app, "conf"):
        return report_on(CeleryCase(app, assume))
    return report_on(Case(app, assume, facts, "" if app.url is None else engine_of(app.url)))
