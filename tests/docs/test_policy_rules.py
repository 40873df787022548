"""Each rule of the policy check has its section on the page of rules, whose first app it hits, and not the second."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from celery import _state
from tests.docs.pages import ROOT, blocks

from redrive.check import RULES, CheckReport
from redrive.check.report import STALE

PAGE = "docs/reference/policy-rules.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
HEADS = {match[1]: TEXT[: match.start()].count("\n") + 1 for match in re.finditer(r"(?m)^##+ ([a-z-]+)$", TEXT)}


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """An app of Celery gets the tasks of all others in the process: end that with the test."""
    before = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers = before


def apps_of(rule: str) -> list[str]:
    """The code of the blocks in a rule's section."""
    start = HEADS[rule]
    end = min((line for line in HEADS.values() if line > start), default=10**9)
    return [block.text for block in blocks(PAGE) if start < block.line < end and "import" not in block.text]


def report_of(code: str) -> CheckReport:
    imports = [block.text for block in blocks(PAGE) if block.text.startswith("from ")]
    namespace: dict[str, Any] = {"__name__": "page"}
    for text in (*imports, code):
        exec(text, namespace)
    _state._on_app_finalizers = {each for each in _state._on_app_finalizers if each.__module__ == "celery.app.builtins"}
    report: CheckReport = namespace["report"]
    return report


def test_each_rule_has_one_section_and_each_section_is_a_rule() -> None:
    assert sorted(HEADS) == sorted([*RULES, STALE])


@pytest.mark.parametrize("rule", sorted([*RULES, STALE]))
def test_the_first_app_of_a_section_is_hit_and_its_neighbour_is_not(rule: str) -> None:
    hit, neighbour = (report_of(code) for code in apps_of(rule))
    (finding, *_) = [one for one in hit.findings if one.rule == rule]
    assert finding.text and finding.fix and finding.accepted is None
    assert [one for one in neighbour.findings if one.rule == rule and one.accepted is None] == []
    assert [one for one in neighbour.unknown if one.rule == rule] == []


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_section_begins_with_what_explain_prints(rule: str) -> None:
    section = TEXT[re.search(rf"(?m)^##+ {rule}$", TEXT).end() :].split("```")[0]  # type: ignore[union-attr]
    assert " ".join(section.replace("`", "").split()) == " ".join(RULES[rule].text.split())
