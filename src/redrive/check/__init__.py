"""Say what will go wrong with the policies of an app before it does: `redrive policy check`.

Begin with `report_on`: it applies the rules (`rules`) to a `Case`, which is an app, what is assumed of its load, and
what `facts_of` reads from its store. The rules are small generator functions by subject: `policy` has those about one
task's retries, `flow` dependencies and load, `platform` workers, Lambda and SQS, `schedule`, and `keeping` what is
kept. They ask the product's own functions (previews, budgets, breakers, `decide`). `celery` reads an app of Celery by
the same rules. `sarif` writes a report for editors.
"""

from __future__ import annotations

from .case import Assumptions, Case, Measured, StoreFacts
from .celery import CeleryCase
from .finding import Finding, Hit, Unclear, Undecided
from .report import CheckReport, baseline_of, explained, read_baseline, record_of, report_on
from .rules import RULES, PolicyRule, rule
from .sarif import sarif_of
from .store import facts_of

__all__ = [
    "RULES",
    "Assumptions",
    "Case",
    "CeleryCase",
    "CheckReport",
    "Finding",
    "Hit",
    "Measured",
    "PolicyRule",
    "StoreFacts",
    "Unclear",
    "Undecided",
    "baseline_of",
    "explained",
    "facts_of",
    "read_baseline",
    "record_of",
    "report_on",
    "rule",
    "sarif_of",
]
