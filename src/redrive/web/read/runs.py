"""Redrive runs: the list, and one run."""

from __future__ import annotations

from collections.abc import Sequence

from ...audit import user
from ...crypto import shown_text
from ...errors import ConfigError, PlanRefused
from ...present.formats import timestamp
from ...present.runs import failed_again_record, run_record
from ...status import Reasons
from ...triage.lookup import run_ids
from ...triage.redrive.options import settings_words
from ...triage.redrive.records import FAILURES_MAX, FINAL, Line, Plan, RunState, state_of
from ...triage.redrive.run import Run, RunView
from ..ask import PageRequest, Problem, Record
from . import fields
from .plans import missing

ROWS = 50  # number of runs on a page
RUNS_MAX = 10_000
STORY = 500  # the most lines of a run's story that its page shows
CANARY = "canary: "  # the prefix of texts about the canary, in stories and in reasons of stopped runs


def runs(ask: PageRequest) -> Record:
    """Return open runs, then closed ones, the newest first."""
    number = ask.number("page", 1, least=1, most=RUNS_MAX // ROWS)
    views = ask.dlq.runs(number * ROWS + 1)
    return {
        "missing": missing(ask, "Redrive runs"),
        "runs": [run_record(view) for view in views[(number - 1) * ROWS : number * ROWS]],
        "number": number,
        "more": len(views) > number * ROWS,
        "command": ask.command("run", "list"),
    }


def run_of(ask: PageRequest, given: str) -> Run:
    """Return the run whose id is `given`, or the only one whose id begins so. Raises Problem if there is none."""
    ids = run_ids(ask.store, given).found
    id = ids[0] if len(ids) == 1 else ""
    if not id or state_of(ask.store, id) is None:
        why = "the id is wrong, its plan was not applied, or it was over more than a month ago"
        raise Problem(f"there is no run {given}", why, "", 404)
    return Run(ask.store, id, ask.registry)


def run(ask: PageRequest) -> Record:
    """Return one run: stages and counts, the verdict on its canary, its story, and the messages that failed again."""
    handle = run_of(ask, ask.path["id"])
    view, story, plan = handle.view(), handle.story(), plan_of(handle)
    state = state_of(ask.store, handle.id)
    assert state is not None  # `run_of` has read the state, and a run that a page may show is not deleted
    return {
        **run_record(view),
        "undoing": state.undo >= 0,
        "approved_by": state.approved_by or None,
        "approval": approval_of(plan),
        "how": [] if plan is None else list(settings_words(plan.settings)),
        "planned_at": None if plan is None else timestamp(plan.made_ms),
        "average_per_s": _average(view),
        "stages": stages(view, state, plan),
        "canary": canary(view, state, plan, story),
        "held": [fields.hold(ask, each) for each in Reasons(ask.store, ask.registry).of_run(view, plan)],
        "can": can(ask, view, state, plan),
        "story": [{"at": timestamp(line.at_ms), "text": line.text} for line in reversed(story[-STORY:])],
        "failures": _failures(ask, handle, view),
        "command": ask.command("run", "show", handle.id),
    }


def plan_of(handle: Run) -> Plan | None:
    """Return the plan of a run; None if it has expired or was altered."""
    try:
        return handle.plan
    except (ConfigError, PlanRefused):
        return None


def approval_of(plan: Plan | None) -> str | None:
    """Return the name of the approver that the plan's run needs; None if it needs no approval."""
    gates = None if plan is None else plan.settings.gates
    return None if gates is None else gates.approval


def _average(view: RunView) -> float | None:
    """Return how many messages a second a closed run has moved, on average; None for an open run."""
    took_s = (view.over_ms - view.started_ms) / 1000
    return round(view.counts["moved"] / took_s, 3) if view.over_ms and took_s > 0 else None


def can(ask: PageRequest, view: RunView, state: RunState, plan: Plan | None) -> Record:
    """Return which actions apply to a run in this state; `undo`: how many of its messages have not settled."""
    over, wanted = view.state in FINAL, approval_of(plan)
    gates = None if plan is None else plan.settings.gates
    waits = wanted is not None and not state.approved_by and not over
    return {
        "pause": view.state == "running",
        "resume": view.state == "paused",
        "cancel": not over,
        "undo": view.counts["waiting"] if state.undo < 0 else 0,
        "approve": waits and gates is not None and gates.may_approve(ask.actor, user()),
        "waits_for": wanted if waits else None,
    }


def canary(view: RunView, state: RunState, plan: Plan | None, story: Sequence[Line]) -> Record | None:
    """Return the verdict on the canary of a run: `failed`, `passed`, `waiting` for outcomes, or `undecided` if the run
    ended first; None if the plan has no canary."""
    size = 0 if plan is None else plan.settings.canary
    if not size:
        return None
    sizes = {"size": min(size, view.counts["planned"]), "moved": min(size, view.counts["moved"])}
    if view.state == "stopped" and view.why.startswith(CANARY):
        return {**sizes, "verdict": "failed", "text": view.why.removeprefix(CANARY)}
    if state.canary_over:
        passed = [line.text.removeprefix(CANARY) for line in story if line.text.startswith(CANARY)]
        return {**sizes, "verdict": "passed", "text": passed[0] if passed else "it goes on"}
    if view.state in FINAL:
        return {**sizes, "verdict": "undecided", "text": "the run ended before its outcomes were known"}
    return {**sizes, "verdict": "waiting", "text": "the rest moves once their outcomes are known"}


def stages(view: RunView, state: RunState, plan: Plan | None) -> list[Record]:
    """Return the stages of a run as records, each with a word: `done`, `failed`, `now`, `next` or `not reached`."""
    names = ["canary"] if plan is not None and plan.settings.canary else []
    names += ["moving", "settling", "over"]
    if approval_of(plan):
        names.insert(0, "approval")
    reached = names.index(_reached(view, state, names))
    over = view.state in FINAL
    words = ["done" if n < reached else "not reached" if over else "next" for n in range(len(names))]
    words[-1 if over else reached] = "now"
    if view.why.startswith(CANARY) and "canary" in names:
        words[names.index("canary")] = "failed"
    return [{"name": name, "state": word} for name, word in zip(names, words, strict=True)]


def _reached(view: RunView, state: RunState, names: Sequence[str]) -> str:
    """Return the first of the stages `names` that the run has not completed."""
    if "approval" in names and not state.approved_by:
        return "approval"
    if "canary" in names and not state.canary_over:
        return "canary"
    if state.at < state.total:
        return "moving"
    return "settling" if view.counts["waiting"] else "over"


def _failures(ask: PageRequest, handle: Run, view: RunView) -> Record:
    number = ask.number("page", 1, least=1, most=FAILURES_MAX // ROWS)
    kept = handle.failures()
    rows = [failed_again_record(each) for each in kept[(number - 1) * ROWS : number * ROWS]]
    return {
        "rows": [row | {"text": shown_text(row["text"])} for row in rows],
        "number": number,
        "pages": -(-len(kept) // ROWS),
        "kept": len(kept),
        "failed": view.counts["failed"],
    }
