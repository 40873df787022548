"""Rules about dependencies, and about the load that queues carry."""

from __future__ import annotations

import math

from ..duration import show
from ..flow import breaker as breakers
from ..flow import budget as budgets
from ..flow import limits
from ..flow.breaker import Breaker, Call, State
from ..flow.budget import Budget, BudgetState
from ..message import GroupOrder
from ..policy import preview
from ..registry import Queue
from ..task import TaskSpec
from .case import FAILING_NEEDED, RATE_NEEDED, RUN_NEEDED, Called, Case
from .finding import Hit, Unclear
from .policy import HOUR_S, opens_after_s
from .rules import RuleAnswers, rule

_PLAYED_S = 120  # how long ordinary times are played for; a reserve of the default budget lasts 10 s
_RETRIES_MAX = 2_000  # the most retries that are played
_FROM_MS = 1_000_000_000_000


@rule("dependency")
def budget_below_retries(case: Case, called: Called) -> RuleAnswers:
    """The retry budget of a dependency grants fewer retries than ordinary failures need, so retries queue up without an
    outage."""
    budget = called.declared.budget
    if budget is None:
        return
    rate, failing = case.rate_of_all(called.tasks), [case.failing(task) for task in called.tasks]
    if rate is None or called.declared.per is not None:
        yield Unclear(RATE_NEEDED if rate is None else f"how many messages of {called.declared.per} come")
        return
    if None in failing:
        yield Unclear(FAILING_NEEDED)
        return
    shares = [min(share or 0.0, 0.99) for share in failing]
    needed = sum((case.rate_of(task) or 0.0) * f / (1 - f) for task, f in zip(called.tasks, shares, strict=True))
    granted = _granted_per_s(budget, rate, needed)
    if granted < 0.99 * needed:
        yield Hit(
            "warning",
            f"ordinary failures need {needed:.3g} retries/s at {rate:g} messages/s; the budget grants {granted:.3g}/s",
            f"raise Budget(ratio=…) above {needed / rate:.2g}, or floor= above {needed:.3g}",
            {"rate_per_s": rate, "needed_per_s": round(needed, 3), "granted_per_s": round(granted, 3)},
        )


def _granted_per_s(budget: Budget, rate: float, needed: float) -> float:
    """Return how many retries a second the budget grants in the second half of a time of ordinary failures."""
    seconds = max(4, min(_PLAYED_S, int(_RETRIES_MAX / max(needed, 1))))
    state, firsts, asked, granted, failed = BudgetState(), 0.0, 0.0, 0, 0.0
    share = needed / (rate + needed) if rate else 0.0
    for second in range(seconds):
        now_ms = _FROM_MS + second * 1000
        firsts, asked, failed = firsts % 1 + rate, asked % 1 + needed, failed % 1 + rate * share
        state = budgets.deposit(state, budget, int(firsts), now_ms)
        state = budgets.earn(state, budget, int(firsts) - int(failed), int(failed), now_ms)
        for _ in range(int(asked)):
            left, at_ms = budgets.ask(state, budget, now_ms)
            if at_ms > now_ms:
                break
            state, granted = left, granted + (second >= seconds // 2)
    return granted / (seconds - seconds // 2)


@rule("dependency")
def breaker_never_opens(case: Case, called: Called) -> RuleAnswers:
    """A breaker never opens, even if every call fails. At the rate of its tasks, retries included, the breaker's window
    never contains min_calls calls. So in an outage every message spends its attempts."""
    breaker = called.declared.breaker
    if breaker is None:
        return
    opened_s = opens_after_s(case, called, breaker)
    if opened_s is None:
        yield Unclear(f"how many calls of each {called.declared.per} come" if called.declared.per else RATE_NEEDED)
    elif opened_s == math.inf:
        rate = case.rate_of_all(called.tasks) or 0.0
        outage_s = case.assume.outage_s or HOUR_S
        firsts = rate * breaker.window
        yield Hit(
            "warning",
            f"the breaker does not open in an outage of {show(outage_s)}: at {rate:g} messages/s, {firsts:.3g} first "
            f"attempts fall in its window of {show(breaker.window)}, and it judges from {breaker.min_calls} calls on",
            f"Breaker(window={show(min(_window_s(breaker, rate), 86_400.0))!r}), or a lower min_calls",
            {"rate_per_s": rate, "window_s": breaker.window, "calls": round(firsts, 3), "min_calls": breaker.min_calls},
        )


def _window_s(breaker: Breaker, rate: float) -> float:
    """Return the window in seconds in which first attempts alone reach min_calls at this rate, and some more."""
    return math.ceil(1.2 * breaker.min_calls / rate) if rate > 0 else math.inf


@rule("dependency")
def breaker_never_closes(case: Case, called: Called) -> RuleAnswers:
    """An open breaker never closes, even if the dependency has recovered. The cause is that its probes run longer than
    slow_call or probe_lease. Such a probe counts as failed."""
    breaker = called.declared.breaker
    if breaker is None:
        return
    for task in called.tasks:
        run_s = case.run_s(task)
        if run_s is None:
            if task.policy.timeout_s > breaker.probe_lease or breaker.slow_call is not None:
                yield Unclear(RUN_NEEDED)
            continue
        if _closes(breaker, run_s):
            continue
        lease = run_s >= breaker.probe_lease
        bound, bound_s = ("probe_lease", breaker.probe_lease) if lease else ("slow_call", breaker.slow_call or 0.0)
        yield Hit(
            "error",
            f"a run of {task.name} takes {show(run_s)}, and {bound} is {show(bound_s)}: its probes fail though it "
            "succeeds, and the breaker opens again each time",
            f"Breaker({bound}={show(2 * run_s)!r})",
            {"run_s": run_s, f"{bound}_s": bound_s},
            task.name,
        )


def _closes(breaker: Breaker, run_s: float) -> bool:
    """True if a half-open breaker closes whose probes all succeed after `run_s`."""
    state, now_ms = State("half_open"), _FROM_MS
    for n in range(breaker.probes):
        owner = f"m{n} 1"
        state, _ = breakers.ask(state, breaker, now_ms, owner)
        now_ms += math.ceil(run_s * 1000)
        slow = breaker.slow_call is not None and run_s > breaker.slow_call
        state = breakers.record(state, breaker, Call.SLOW if slow else Call.SUCCESS, now_ms, owner)
        if state.status == "open":
            return False
    return state.status == "closed"


@rule("dependency")
def more_processes_than_limit(case: Case, called: Called) -> RuleAnswers:
    """A fleet has more processes than the number of calls that a dependency's concurrency limit allows. Each process
    may always make one call, so the fleet exceeds the limit."""
    aimd, processes = called.declared.concurrency, case.assume.processes
    if aimd is None:
        return
    names = [f"w{n}" for n in range(processes)]
    calls = sum(limits.share(aimd.most, names, name) for name in names)
    if calls > aimd.most:
        yield Hit(
            "error",
            f"{processes} processes may make {calls} calls at once, and its limit is {aimd.most:g}",
            f"run at most {aimd.most:g} processes with its tasks, each with a higher concurrency",
            {"processes": processes, "calls": calls, "limit": aimd.most},
        )


@rule("app")
def more_slots_than_connections(case: Case, app: object) -> RuleAnswers:
    """The fleet runs more messages at once than a database or a service has connections (--connections). So some runs
    wait for a connection, and this wait counts towards their timeouts."""
    most = case.assume.connections
    if most is None:
        return
    by_queue = {name: case.slots(name) for name in sorted(case.app.queue_names)}
    slots = sum(by_queue.values())
    if slots > most:
        yield Hit(
            "warning",
            f"{case.assume.processes} process(es) run {slots} messages at once "
            f"({', '.join(f'{name} {count}' for name, count in by_queue.items())}), and there are {most} connections",
            "lower concurrency= of the queues, or run fewer processes",
            {"slots": slots, "connections": most},
        )


@rule("task")
def rate_below_arrivals(case: Case, task: TaskSpec) -> RuleAnswers:
    """A rate limit lets fewer messages run than arrive, so the backlog grows without end."""
    for control in case.controls_of(task):
        bound = control.rate
        if bound is None:
            continue
        if bound.per is not None or control.per is not None:
            yield Unclear(f"how many messages of each {bound.per or control.per} come")
            continue
        sharing = tuple(
            other for other in case.tasks.values() if any(c.name == control.name for c in case.controls_of(other))
        )
        rate = case.rate_of_all(sharing)
        if rate is None:
            yield Unclear(RATE_NEEDED)
        elif rate > bound.per_s:
            yield Hit(
                "error",
                f"{control.name.replace(':', ' ')} runs {bound.per_s:g} messages/s at most, and {rate:g}/s come: "
                f"{(rate - bound.per_s) * 3600:,.0f} more wait after each hour",
                f"raise the rate above {rate:g}/s, or send fewer",
                {"limit_per_s": bound.per_s, "rate_per_s": rate},
                control.name,
            )


@rule("queue")
def priorities_starve(case: Case, queue: Queue) -> RuleAnswers:
    """Messages of a queue arrive faster than the fleet finishes them. The backlog grows, and the messages of the lowest
    priority never run."""
    tasks = case.on(queue.name)
    loads = [(case.rate_of(task), case.run_s(task)) for task in tasks]
    if not tasks:
        return
    if any(rate is None or run_s is None for rate, run_s in loads):
        yield Unclear(RATE_NEEDED if any(rate is None for rate, _ in loads) else RUN_NEEDED)
        return
    busy, slots = sum((rate or 0.0) * (run_s or 0.0) for rate, run_s in loads), case.slots(queue.name)
    if busy > slots:
        yield Hit(
            "error",
            f"its messages keep {busy:.3g} slots busy, and the fleet has {slots}: the lowest priority never runs",
            f"raise concurrency= to {math.ceil(1.25 * busy / case.assume.processes)}, or run more processes",
            {"busy": round(busy, 3), "slots": slots},
        )


@rule("queue")
def retries_starve(case: Case, queue: Queue) -> RuleAnswers:
    """A queue with retry_share=0 runs retries only when no first attempt waits. During a backlog no retry runs,
    whatever its delay."""
    if queue.retry_share == 0 and any(preview(t.policy.retry).steps for t in case.on(queue.name)):
        yield Hit(
            "warning",
            "with retry_share=0 its retries wait behind the whole backlog, however long that is",
            "remove retry_share=0 (the default is 0.2)",
            {"retry_share": 0},
        )


@rule("queue")
def group_waits_for_head(case: Case, queue: Queue) -> RuleAnswers:
    """In a queue with strict order, a message that keeps failing blocks its group for more than an hour. If the queue
    has an objective, the rule takes the objective in place of the hour. The later messages of the group wait for the
    retries of the failing message."""
    if queue.group_order is not GroupOrder.STRICT:
        return
    bound_s = queue.slo.within_s if queue.slo is not None else case.assume.group_wait_s
    for task in case.on(queue.name):
        shown = preview(task.policy.retry, kind="transient")
        if shown.total_s > bound_s:
            yield Hit(
                "warning",
                f"a failing message of {task.name} holds its group for {show(shown.total_s)} on average, "
                f"{show(shown.horizon_s)} at most; the bound is {show(bound_s)}",
                f"give {task.name} fewer attempts or max_elapsed={show(bound_s)!r}",
                {"mean_s": shown.total_s, "horizon_s": shown.horizon_s, "bound_s": bound_s},
                task.name,
            )
