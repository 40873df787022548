"""Rules about schedules."""

from __future__ import annotations

from itertools import islice, pairwise

from ..duration import show
from ..schedule import Schedule
from ..schedule.cron import Cron, Every
from .case import RUN_NEEDED, Case
from .finding import Hit, Unclear
from .rules import RuleAnswers, rule

_FROM_MS = 1_767_225_600_000  # 2026-01-01: ticks from a fixed time on, so that a report is the same each time
_TICKS = 50


def period_s(times: Cron | Every) -> float:
    """Return the shortest time between two of the next ticks, in seconds."""
    ticks = islice(times.after(_FROM_MS), _TICKS)
    return min((later - earlier for earlier, later in pairwise(ticks)), default=10**12) / 1000


@rule("schedule")
def schedule_faster_than_run(case: Case, schedule: Schedule) -> RuleAnswers:
    """A schedule ticks before the run of its last tick has ended. So runs overlap. If the schedule has key=, ticks are
    skipped instead. It is an error if more runs overlap than the fleet has slots."""
    every_s, run_s = period_s(schedule.times), case.run_s(schedule.task)
    if run_s is None:
        if schedule.task.policy.timeout_s > every_s:
            yield Unclear(f"{RUN_NEEDED}; or give {schedule.task.name} a timeout up to {show(every_s)}")
        return
    if run_s <= every_s:
        return
    at_once, slots = run_s / every_s, case.slots(schedule.queue)
    keyed = schedule.options.get("key") is not None
    effect = "ticks are skipped meanwhile" if keyed else f"{at_once:.3g} runs overlap, of {slots} slots"
    yield Hit(
        "error" if at_once > slots and not keyed else "warning",
        f"it ticks every {show(every_s)}, and a run takes {show(run_s)}: {effect}",
        f"tick every {show(2 * run_s)}" + ("" if keyed else f", or give it key={schedule.name!r}, which skips ticks"),
        {"period_s": every_s, "run_s": run_s, "at_once": round(at_once, 3), "slots": slots},
    )
