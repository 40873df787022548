"""The policy check of the apps that a page declares: none has a finding, unless a reason stands here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tests.docs.pages import ROOT, Block

from redrive import App
from redrive.check import Case, report_on
from redrive.errors import ConfigError

# By page and rule: why the page has what the rule finds.
ACCEPTED = {
    ("docs/howto/flow-control.md", "unused-setting"): "each block declares one limit, without the tasks",
    ("docs/howto/rate-limits.md", "unused-setting"): "each block declares one limit, without the tasks",
    ("docs/operate/capacity.md", "unused-setting"): "it declares a limit, without the tasks",
    ("docs/howto/poison.md", "poison-never-fires"): "it shows how a worker refuses such a window",
    ("docs/howto/retries.md", "timeout-cannot-end-thread"): "it is about delays",
    ("docs/why/budgets.md", "unused-setting"): "it has a queue of drafts, without their task",
    ("docs/howto/schedules.md", "timeout-cannot-end-thread"): "it is about the time between ticks",
    ("docs/reference/policy-rules.md", "*"): "it has an app for each rule",
    ("docs/howto/policy-check.md", "*"): "it shows findings",
}


def findings_of(page: str, found: list[Block], namespace: Mapping[str, Any]) -> list[str]:
    """Return the findings about the page's apps that have no reason here, one line each."""
    name = page.removeprefix(f"{ROOT}/")
    lines = []
    for app in dict.fromkeys(_apps(found, namespace)):
        for one in report_on(Case(app)).findings:
            known = {(name, one.rule), (name, "*")} & ACCEPTED.keys()
            if one.rule != "nothing-declared" and one.accepted is None and not known:
                lines.append(f"{name}: {one.rule}: {one.subject}: {one.text}")
    return lines


def _apps(found: list[Block], namespace: Mapping[str, Any]) -> Iterator[App]:
    """Yield the apps in the namespace of the blocks, and those of modules that commands name as MODULE:APP."""
    yield from (value for value in namespace.values() if isinstance(value, App))
    typed = "".join(block.text for block in found if block.language == "console")
    for block in found:
        module = (block.file or "").removesuffix(".py").replace("/", ".")
        if not (block.file or "").endswith(".py") or "App(" not in block.text or f"{module}:" not in typed:
            continue
        try:
            loaded = sys.modules.get(module) or importlib.import_module(module)
        except ConfigError:  # it reads variables that only the page's shell has
            continue
        yield from (value for value in vars(loaded).values() if isinstance(value, App))
