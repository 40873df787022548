"""Check an app of Celery: its retries by the rules for tasks, and what only Celery has by rules of its own.

Nothing of Celery is imported: the app is read as it is. Its tasks become tasks of an app that nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..app import App
from ..duration import show
from ..policy import Backoff, Retry, preview
from .case import Assumptions, Case
from .finding import Hit, Unclear
from .report import TaskTuple
from .rules import RULES, PolicyRule, RuleAnswers, rule

SHARED = ("short-horizon", "no-spread", "rate-below-arrivals", "schedule-faster-than-run", "nothing-declared")
_VISIBILITY_S = {"redis": 3600.0, "rediss": 3600.0, "sentinel": 3600.0, "sqs": 1800.0}  # defaults of kombu
_DELAY_S = 180.0  # default_retry_delay of Celery
_YEAR_S = 365 * 86_400


class CeleryCase(Case):
    """An app of Celery under check."""

    conf: Any
    celery_tasks: dict[str, Any]

    def __init__(self, celery: Any, assume: Assumptions | None = None) -> None:
        self.conf, self.celery_tasks = celery.conf, _tasks(celery)
        super().__init__(_translated(self.celery_tasks, self.conf), assume)
        broker = str(self.conf.broker_url or "amqp://").partition("://")[0]
        options = self.conf.broker_transport_options or {}
        self.broker = broker
        self.visibility_s: float | None = options.get("visibility_timeout", _VISIBILITY_S.get(broker))

    @property
    def rules(self) -> list[PolicyRule]:
        """The rules that apply to an app of Celery."""
        return [one for one in RULES.values() if one.name in SHARED or one.of.startswith("celery")]

    def celery_subjects(self, of: str) -> Iterator[tuple[Any, str, TaskTuple]]:
        if of == "celery app":
            yield self.conf, "app", tuple(self.tasks.values())
            return
        for name, task in self.celery_tasks.items():
            yield task, f"task {name}", (self.tasks[name],)


def _tasks(celery: Any) -> dict[str, Any]:
    return {name: task for name, task in sorted(celery.tasks.items()) if not name.startswith("celery.")}


def _translated(tasks: dict[str, Any], conf: Any) -> App:
    """Return an app with these tasks, their retries, limits and schedules."""
    app = App("memory://")
    for name, task in tasks.items():
        app.task(name=name, retry=retry_of(task), timeout=limit_s(task, conf) or _YEAR_S, rate=_rate(task))(
            _handler(task)
        )
    for name, entry in (conf.beat_schedule or {}).items():
        when, task = entry.get("schedule"), app.tasks.get(entry.get("task", ""))
        if task is None:
            continue
        if hasattr(when, "_orig_minute"):
            fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
            app.periodic(" ".join(str(getattr(when, f"_orig_{field}")) for field in fields), name=name)(task)
        else:
            every = getattr(when, "run_every", when)
            app.periodic(every=every, name=name)(task)
    return app


def _handler(task: Any) -> Any:
    """Return a handler without parameters that stands in the place of the task's own."""

    def handler() -> None: ...

    code = getattr(getattr(task.run, "__wrapped__", task.run), "__code__", None)
    if code is not None:
        handler.__code__ = handler.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    return handler


def retries(task: Any) -> bool:
    """True if a task of Celery is retried: by autoretry_for, or by a call of self.retry in it."""
    code = getattr(getattr(task.run, "__wrapped__", task.run), "__code__", None)
    return bool(getattr(task, "autoretry_for", ())) or (code is not None and "retry" in code.co_names)


def retry_of(task: Any) -> Retry:
    """Return the retries of a task of Celery as a policy: its delay is min(retry_backoff_max, factor·2^n), with full
    jitter unless retry_jitter is off, or without retry_backoff always default_retry_delay."""
    if not retries(task):
        return Retry(1)
    most = task.max_retries if task.max_retries is not None else 10_000
    factor, automatic = getattr(task, "retry_backoff", False), bool(getattr(task, "autoretry_for", ()))
    if not factor or not automatic:
        return Retry(1 + most, None, Backoff.fixed(task.default_retry_delay))
    base = float(max(1, int(factor)))
    cap = max(base, float(getattr(task, "retry_backoff_max", 600)))
    return Retry(1 + most, None, Backoff(base, 2, cap, "full" if getattr(task, "retry_jitter", True) else "none"))


def limit_s(task: Any, conf: Any) -> float | None:
    """Return the hard time limit of a task in seconds; None without one."""
    given = task.time_limit if getattr(task, "time_limit", None) is not None else conf.task_time_limit
    return None if given is None else float(given)


def _rate(task: Any) -> str | None:
    limit = getattr(task, "rate_limit", None)
    return None if not limit else str(limit) if "/" in str(limit) else f"{limit}/s"


def _late(case: CeleryCase, task: Any) -> bool:
    return bool(task.acks_late if getattr(task, "acks_late", None) is not None else case.conf.task_acks_late)


def _rejects(case: CeleryCase, task: Any) -> bool:
    given = getattr(task, "reject_on_worker_lost", None)
    return bool(case.conf.task_reject_on_worker_lost if given is None else given)


@rule("celery task")
def celery_visibility_timeout(case: CeleryCase, task: Any) -> RuleAnswers:
    """The broker delivers a message again while the message runs or waits for its retry. The cause is the broker's
    visibility timeout (by default an hour on Redis, half an hour on SQS). It is shorter than the longest run with
    acks_late, or than the longest countdown of a retry."""
    if case.visibility_s is None:
        return
    waits = [step.high_s for step in preview(retry_of(task), limit=100).steps]
    if waits and max(waits) >= case.visibility_s:
        yield Hit(
            "error",
            f"a retry waits up to {show(max(waits))}, and the visibility timeout is {show(case.visibility_s)}: the "
            "message is delivered again meanwhile, and runs twice",
            f"broker_transport_options={{'visibility_timeout': {round(2 * max(waits))}}}, or a lower retry_backoff_max",
            {"wait_s": max(waits), "visibility_s": case.visibility_s},
            "wait",
        )
    if not _late(case, task):
        return
    longest_s, ahead = limit_s(task, case.conf) or case.assume.run_s, max(1, int(case.conf.worker_prefetch_multiplier))
    if longest_s is None:
        yield Unclear("how long a run takes: time_limit, or --run")
    elif longest_s * ahead >= case.visibility_s:
        yield Hit(
            "error",
            f"with acks_late, a run of up to {show(longest_s)} behind {ahead - 1} prefetched ones exceeds the "
            f"visibility timeout of {show(case.visibility_s)}: the message is delivered again, and runs twice at once",
            f"broker_transport_options={{'visibility_timeout': {round(2 * ahead * longest_s)}}}, or a lower time_limit",
            {"run_s": longest_s, "prefetch": ahead, "visibility_s": case.visibility_s},
            "run",
        )


@rule("celery task")
def celery_no_jitter(case: CeleryCase, task: Any) -> RuleAnswers:
    """Messages that failed together are retried together. The task is retried after a fixed delay (no retry_backoff),
    or without retry_jitter."""
    shown = preview(retry_of(task), limit=2)
    if shown.steps and shown.steps[0].high_s == shown.steps[0].low_s:
        yield Hit(
            "warning",
            f"each retry comes {show(shown.steps[0].low_s)} after its failure, without jitter: what failed together "
            "comes back together",
            "retry_backoff=True with autoretry_for; its jitter is on unless retry_jitter=False",
            {"delay_s": shown.steps[0].low_s},
        )


@rule("celery task")
def celery_acks_early(case: CeleryCase, task: Any) -> RuleAnswers:
    """A message is acked before it runs (task_acks_late is off). So if a worker is killed, or a host dies, the message
    is lost, even if the task retries after exceptions."""
    if retries(task) and not _late(case, task):
        yield Hit(
            "warning",
            "it is retried after exceptions, and acked before it runs: a killed worker loses it",
            "acks_late=True and reject_on_worker_lost=True, if it may run twice",
        )


@rule("celery task")
def celery_lost_on_crash(case: CeleryCase, task: Any) -> RuleAnswers:
    """The task has acks_late without reject_on_worker_lost. If a message's child process is killed (out of memory, a
    segmentation fault), Celery acks the message as failed, and the message is lost. Celery delivers such a message
    again only with reject_on_worker_lost."""
    if _late(case, task) and not _rejects(case, task):
        yield Hit(
            "warning",
            "it has acks_late without reject_on_worker_lost: a message that is out of memory is acked, and lost",
            "reject_on_worker_lost=True (and a bound on redeliveries: Celery has none)",
        )


@rule("celery task")
def celery_poison_loops(case: CeleryCase, task: Any) -> RuleAnswers:
    """With acks_late and reject_on_worker_lost, Celery delivers a message that kills its worker again and again,
    because Celery does not count deliveries."""
    if _late(case, task) and _rejects(case, task) and not str(case.broker).startswith("sqs"):
        yield Hit(
            "warning",
            "a message that kills its worker is delivered again and again, without a bound",
            "a quorum queue with x-delivery-limit on RabbitMQ; or a queue that quarantines, as redrive's do",
        )


@rule("celery task")
def celery_retries_forever(case: CeleryCase, task: Any) -> RuleAnswers:
    """A task is retried without end (max_retries=None). Celery never gives up a message that cannot succeed, so no
    person learns of the failure."""
    if retries(task) and task.max_retries is None:
        yield Hit("warning", "it is retried without end: max_retries=None", "max_retries=25, and a place for the dead")


@rule("celery app")
def celery_prefetch(case: CeleryCase, conf: Any) -> RuleAnswers:
    """A worker reserves more messages than it runs (worker_prefetch_multiplier, 4 by default), and its tasks are acked
    late or run long. So short messages wait behind a long one although other workers are idle."""
    long_s = max([limit_s(task, conf) or 0.0 for task in case.celery_tasks.values()], default=0.0)
    late = [name for name, task in case.celery_tasks.items() if _late(case, task)]
    if conf.worker_prefetch_multiplier != 1 and (late or long_s >= 60):
        yield Hit(
            "warning",
            f"each process reserves {conf.worker_prefetch_multiplier or 'all'} messages, and "
            + (f"{len(late)} task(s) are acked late" if late else f"a run may take {show(long_s)}")
            + ": messages wait behind long runs while other workers are idle",
            "worker_prefetch_multiplier=1",
            {"prefetch": conf.worker_prefetch_multiplier, "longest_s": long_s},
        )
