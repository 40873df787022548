"""Check an app by every rule, and set aside what is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError, near_miss
from ..task import TaskSpec
from . import flow, keeping, platform, policy, schedule  # noqa: F401  # their rules register themselves
from .case import Case
from .finding import SEVERITIES, Finding, Hit, Severity, SourceLine, Unclear, Undecided
from .rules import RULES, PolicyRule, RuleAnswers

STALE, BASELINE = "stale-exception", "baseline"
BaselineKey = tuple[str, str, str]  # see Finding.key
TaskTuple = tuple[TaskSpec, ...]


class CheckReport(Struct, frozen=True, kw_only=True):
    """The findings of a check, errors first, and what it could not decide; the same bytes for the same app."""

    findings: tuple[Finding, ...]
    unknown: tuple[Undecided, ...]

    def count(self, severity: Severity) -> int:
        """Return how many findings of a severity are not accepted."""
        return sum(f.severity == severity and f.accepted is None for f in self.findings)

    def fails(self, *, strict: bool = False) -> bool:
        """True if there are errors; with `strict` also if there are warnings. What is unknown never fails."""
        return bool(self.count("error") or (strict and self.count("warning")))

    @property
    def summary(self) -> str:
        """The counts, as one line."""
        accepted = sum(f.accepted is not None for f in self.findings)
        parts = [f"{n} {word}{'s' * (n != 1)}" for word in SEVERITIES for n in [self.count(word)]]
        return ", ".join([*parts, f"{accepted} accepted", f"{len(self.unknown)} unknown"])

    def __str__(self) -> str:
        open_ = [f for f in self.findings if f.accepted is None]
        return "\n".join([*(f"{f.severity} {f.rule}: {f.subject}: {f.text}; {f.fix}" for f in open_), self.summary])


def report_on(case: Case, baseline: Iterable[BaselineKey] = ()) -> CheckReport:
    """Apply the rules to every subject of an app, and mark what a task or the baseline accepts. An exception that
    silences nothing is a finding itself, unless its rule could not decide."""
    hits, unknown, undecided = list[tuple[Finding, TaskTuple]](), set[Undecided](), set[tuple[str, ...]]()
    for one in case.rules:
        for subject, name, tasks in _subjects(case, one.of):
            for answer in _answers(one, case, subject):
                if isinstance(answer, Hit):
                    hits.append((_finding(one.name, name, answer, tasks), tasks))
                    continue
                unknown.add(Undecided(rule=one.name, subject=name, needs=answer.needs))
                undecided |= {(one.name, name), *((one.name, task.name) for task in tasks)}
    old, used = set(baseline), set(undecided)
    findings = [_marked(finding, tasks, old, used) for finding, tasks in hits]
    findings += _stale(case, old, used)
    return CheckReport(
        findings=tuple(sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.subject, f.rule, f.text))),
        unknown=tuple(sorted(unknown, key=lambda u: (u.rule, u.subject, u.needs))),
    )


def _answers(one: PolicyRule, case: Case, subject: Any) -> RuleAnswers:
    """Yield a rule's answers. An error of a function of the app, such as a custom backoff, leaves it undecided."""
    try:
        yield from one.look(case, subject)
    except Exception as error:
        yield Unclear(f"a look at its policy raised {type(error).__name__}: {error}")


def _subjects(case: Case, of: str) -> Iterator[tuple[Any, str, TaskTuple]]:
    """Yield the subjects of a kind, each with its name and the tasks whose exceptions apply to it."""
    match of:
        case "app":
            yield case.app, "app", tuple(case.tasks.values())
        case "task":
            yield from ((task, f"task {task.name}", (task,)) for task in case.tasks.values())
        case "queue":
            yield from ((case.queue(n), f"queue {n}", case.on(n)) for n in sorted(case.app.queue_names))
        case "dependency":
            yield from ((called, f"dependency {name}", called.tasks) for name, called in case.dependencies.items())
        case "schedule":
            yield from ((s, f"schedule {s.name}", (s.task,)) for s in case.schedules.values())
        case _:
            yield from case.celery_subjects(of)


def _finding(rule: str, subject: str, hit: Hit, tasks: TaskTuple) -> Finding:
    place = _place(tasks[0].handler) if tasks and subject != "app" else None
    return Finding(rule=rule, subject=subject, place=place, **hit._asdict())


def _place(handler: Any) -> SourceLine | None:
    code = getattr(handler, "__code__", None)
    if code is None:
        return None
    path = Path(code.co_filename)
    return SourceLine(
        str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path), code.co_firstlineno
    )


def _marked(finding: Finding, tasks: TaskTuple, baseline: set[BaselineKey], used: set[tuple[str, ...]]) -> Finding:
    """Return the finding with the reason why it is accepted, if it is, and note which exceptions were used."""
    if finding.key in baseline:
        used.add(finding.key)
        finding = replace(finding, accepted=BASELINE)
    for task in tasks:
        if (reason := task.accepts.get(finding.rule)) is not None:
            used.add((finding.rule, task.name))
            finding = replace(finding, accepted=reason)
    return finding


def _stale(case: Case, baseline: set[BaselineKey], used: set[tuple[str, ...]]) -> Iterator[Finding]:
    for task in case.tasks.values():
        for name in task.accepts:
            if (name, task.name) not in used:
                near = "" if name in RULES else f"; there is no such rule, the nearest is {near_miss(name, RULES)}"
                text = f"accepts={{{name!r}: …}} silences nothing{near}"
                yield _finding(STALE, f"task {task.name}", Hit("warning", text, f"remove {name!r} from it"), (task,))
    for rule, subject, _ in sorted(key for key in baseline if key not in used and key[:2] not in used):
        hit = Hit("warning", f"the baseline accepts {rule}, which is mended", "write the baseline again")
        yield _finding(STALE, subject, hit, ())


def read_baseline(path: Path) -> list[BaselineKey]:
    """Return the findings that a baseline lists. Raises ConfigError if it is no baseline."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[BaselineKey]])["findings"]
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} is no baseline: {error}; expected what --write-baseline wrote") from None


def baseline_of(report: CheckReport) -> str:
    """Return the text of a baseline with the findings of a report that no task accepts."""
    keys = sorted({f.key for f in report.findings if f.accepted in (None, BASELINE) and f.rule != STALE})
    return json.dumps({"findings": keys}, indent=1, ensure_ascii=False) + "\n"


def record_of(report: CheckReport) -> dict[str, Any]:
    """Return a report as a record for programs."""
    counts: dict[str, int] = {word: report.count(word) for word in SEVERITIES}
    record: dict[str, Any] = msgspec.to_builtins(report)
    return {"ok": not report.fails(), **counts, **record}


def explained(rule: Sequence[str] | str) -> str:
    """Return what a rule is about. Raises ConfigError for an unknown name."""
    name = str(rule)
    if name not in RULES:
        near = near_miss(name, RULES)
        raise ConfigError(f"no rule {name!r}; " + (f"did you mean {near!r}?" if near else f"known: {', '.join(RULES)}"))
    return RULES[name].text
