"""Rules about what is kept, for how long, and what is declared and never used."""

from __future__ import annotations

from math import inf

from ..duration import show
from ..flow.auto_redrive import AutoRedrive
from ..registry import Queue, Registry
from ..schedule import Schedule
from ..stores.sqs.track import KEY_TTL_MS
from ..task import TaskSpec
from ..worker.preflight import unmatched, work_of
from .case import RATE_NEEDED, Case
from .finding import Hit, Unclear
from .rules import RuleAnswers, rule

_TASK_KINDS = ("permanent", "unreadable")


def life_s(case: Case, task: TaskSpec) -> float:
    """Return how long a message may be retried in all, its automatic redrives included, in seconds."""
    auto, once_s = case.queue(task.queue).auto_redrive, work_of(case.app, task).horizon_s + task.policy.timeout_s
    return once_s if auto is None else once_s * (1 + auto.max_redrives) + _waits_s(auto)


def _waits_s(auto: AutoRedrive) -> float:
    return sum(auto.delay_s(n, 1.0) for n in range(1, auto.max_redrives + 1))


@rule("task")
def idempotency_too_short(case: Case, task: TaskSpec) -> RuleAnswers:
    """redrive forgets the idempotency key of a finished message while a duplicate of the message may still be retried
    or redriven. So the duplicate runs again."""
    if task.idempotency is None:
        return
    keep_s, longest_s = task.idempotency.keep_ms / 1000, life_s(case, task)
    dead_ms = case.queue(task.queue).retention.dead.age_ms
    longest_s = max(longest_s, 0 if dead_ms is None else dead_ms / 1000)
    if keep_s < longest_s:
        yield Hit(
            "error",
            f"keys are remembered for {show(keep_s)}; a duplicate may live for {show(longest_s)}, redrives included",
            f"Idempotency(…, keep={show(longest_s)!r}) or more",
            {"keep_s": keep_s, "life_s": longest_s},
        )


@rule("schedule")
def key_too_short(case: Case, schedule: Schedule) -> RuleAnswers:
    """On SQS, a cell holds a unique key. This cell expires while the message with the key may still be retried, so
    redrive accepts a second message with the key. Other stores hold a key until its message is done."""
    if case.engine != "sqs" or schedule.options.get("key") is None:
        return
    held_s, longest_s = KEY_TTL_MS / 1000, life_s(case, schedule.task)
    if held_s < longest_s:
        yield Hit(
            "error",
            f"SQS remembers its key for {show(held_s)}, and its message may be retried for {show(longest_s)}",
            f"lower max_elapsed of {schedule.task.name} below {show(held_s)}",
            {"held_s": held_s, "life_s": longest_s},
        )


@rule("queue")
def retention_too_short(case: Case, queue: Queue) -> RuleAnswers:
    """Dead messages are removed before they are redriven. Either keep_dead_for is shorter than the time until the last
    automatic redrive, or than the outage of --outage. Or keep_dead is smaller than the number of messages that die in
    the outage."""
    dead, auto, outage_s = queue.retention.dead, queue.auto_redrive, case.assume.outage_s
    age_s = inf if dead.age_ms is None else dead.age_ms / 1000
    if auto is not None and (last_s := auto.delay_s(auto.max_redrives, 1.0)) > age_s:
        yield Hit(
            "error",
            f"dead messages are kept for {show(age_s)}, and the last automatic redrive comes after {show(last_s)}",
            f"Retention(keep_dead_for={show(2 * last_s)!r})",
            {"keep_s": age_s, "redrive_s": last_s},
            "auto_redrive",
        )
    if outage_s is not None and age_s < outage_s:
        yield Hit(
            "error",
            f"dead messages are kept for {show(age_s)}, and the outage lasts {show(outage_s)}: the first ones are gone "
            "when what they call is back",
            f"Retention(keep_dead_for={show(2 * outage_s)!r}) or more",
            {"keep_s": age_s, "outage_s": outage_s},
            "outage",
        )
    if dead.count is None:
        return
    rate = case.rate_of_all(case.on(queue.name))
    if outage_s is None or rate is None:
        yield Unclear(f"how many die in an outage: --outage, and {RATE_NEEDED}")
    elif rate * outage_s > dead.count:
        yield Hit(
            "warning",
            f"{dead.count:,} dead messages are kept, and {rate * outage_s:,.0f} may die in an outage of "
            f"{show(outage_s)} at {rate:g}/s: the older ones are lost",
            f"Retention(keep_dead={round(2 * rate * outage_s)}), or keep_dead_for= instead",
            {"keep": dead.count, "deaths": round(rate * outage_s)},
            "count",
        )


@rule("queue")
def auto_redrive_loops(case: Case, queue: Queue) -> RuleAnswers:
    """Automatic redrives repeat messages that cannot succeed. The tasks of a queue declare some faults permanent
    (never=, or rules=). A message with such a fault is redriven max_redrives times before it is quarantined."""
    auto = queue.auto_redrive
    for task in case.on(queue.name) if auto is not None else ():
        named = sorted(task.policy.retry.never) + [r for r in _TASK_KINDS if any(r == rule[-1] for rule in task.rules)]
        if named and auto is not None:
            yield Hit(
                "warning",
                f"{task.name} calls {', '.join(named)} permanent, and a message that dies of it is redriven "
                f"{auto.max_redrives} times, over {show(_waits_s(auto))}",
                "quarantine such messages at once (raise Quarantine(…)), or hold their group: redrive dlq rule … hold",
                {"redrives": auto.max_redrives},
                task.name,
            )


@rule("app")
def blobs_too_short(case: Case, app: Registry) -> RuleAnswers:
    """The storage of large bodies deletes a body while its message may still be retried, because of a lifecycle rule
    (--blobs-expire). Such a message dies without its body."""
    bound_s = case.assume.blobs_s
    if not app.blobs:
        return
    if bound_s is None:
        if app.blobs.startswith("s3:"):
            yield Unclear("when the bucket expires its objects: --blobs-expire")
        return
    lives = {task.name: life_s(case, task) for task in case.tasks.values()}
    dead_ms = [case.queue(name).retention.dead.age_ms for name in case.app.queue_names]
    longest_s = max([*lives.values(), *(ms / 1000 for ms in dead_ms if ms is not None)], default=0.0)
    if longest_s > bound_s:
        yield Hit(
            "error",
            f"bodies expire after {show(bound_s)}, and a message may live for {show(longest_s)}, redrives included",
            f"let the bucket keep objects for more than {show(longest_s)}",
            {"expire_s": bound_s, "life_s": longest_s},
        )


@rule("app")
def unused_setting(case: Case, app: Registry) -> RuleAnswers:
    """A dependency or a queue is declared, but no task or schedule uses it, so its limits have no effect. Or a task
    uses a name that is not declared, and a similar name is declared."""
    for line in unmatched(app):
        text, _, fix = line.replace("; did you mean", ": did you mean").partition(": ")
        yield Hit("warning", text, fix, {}, text)
    named = {t.queue for t in case.tasks.values()} | {s.queue for s in case.schedules.values()}
    for queue in app.queues.values():
        if queue.name not in named and queue.foreign is None:
            text = f"queue '{queue.name}' is declared, and no task or schedule is on it"
            yield Hit("warning", text, f"name it with @app.task(queue={queue.name!r}), or remove it", {}, text)


@rule("app")
def nothing_declared(case: Case, app: Registry) -> RuleAnswers:
    """The imported module declares no task. Perhaps it does not import the modules that declare the tasks. Without this
    finding, a check of an empty app would pass."""
    if not case.tasks:
        yield Hit("error", "no task is declared, so nothing was checked", "import the modules that declare tasks in it")
