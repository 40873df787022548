"""Rules about what workers, Lambda and SQS allow."""

from __future__ import annotations

import re

from ..duration import show
from ..errors import ConfigError
from ..registry import Queue
from ..stores.sqs import preflight
from ..task import TaskSpec, task_options
from ..worker.preflight import work_of
from .case import Case
from .finding import SEVERITIES, Hit, Unclear
from .rules import RuleAnswers, rule

_DEFAULT_TIMEOUT_S = task_options().policy.timeout_s


@rule("task")
def poison_never_fires(case: Case, task: TaskSpec) -> RuleAnswers:
    """Poison(within=…) is too short for the number of crashes that the policy asks for, because each crash takes a
    lease (--lease) and a restart. A worker refuses such a task."""
    try:
        task.check_poison(case.assume.lease_s)
    except ConfigError as error:
        text, _, fix = str(error).partition("; expected ")
        yield Hit(
            "error",
            text.partition(": ")[2],
            f"Poison({fix.partition(' or more')[0]}) or more, or a shorter lease",
            {"within_s": task.policy.crashes_within_s or 0, "lease_s": case.assume.lease_s},
        )


@rule("task")
def timeout_beyond_platform(case: Case, task: TaskSpec) -> RuleAnswers:
    """A task may run longer than its platform permits. Either a Lambda function has a shorter timeout (--function). Or
    the store is SQS, and SQS hides a message for at most 12 hours. The platform cuts off such runs, and they count as
    crashes."""
    bounds = {"the function runs": case.assume.function_s}
    if case.engine == "sqs":
        bounds["SQS hides a message"] = preflight.VISIBILITY_MAX_S
    for what, bound_s in bounds.items():
        if bound_s is not None and task.policy.timeout_s >= bound_s:
            yield Hit(
                "error",
                f"its timeout is {show(task.policy.timeout_s)}, and {what} for {show(bound_s)} at most",
                f"lower timeout= below {show(bound_s)}, or raise the function's",
                {"timeout_s": task.policy.timeout_s, "bound_s": bound_s},
                what,
            )


@rule("task")
def timeout_cannot_end_thread(case: Case, task: TaskSpec) -> RuleAnswers:
    """A task has a timeout, but its handler runs in a thread, and no timeout can end a thread. The run continues, and
    occupies its slot, until the handler returns. The rule does not judge handlers with ctx=True, because they can check
    ctx.cancelled. It also does not judge the default timeout."""
    if task.place == "thread" and not task.takes_context and task.policy.timeout_s != _DEFAULT_TIMEOUT_S:
        yield Hit(
            "warning",
            f"its timeout of {show(task.policy.timeout_s)} cannot end its handler, which runs in a thread",
            "isolation='process', an async handler, or ctx=True and a look at ctx.cancelled",
            {"timeout_s": task.policy.timeout_s},
        )


@rule("queue")
def sqs_queue(case: Case, queue: Queue) -> RuleAnswers:
    """The settings of an SQS queue do not suit its tasks. The rule checks the receive count, retention, visibility
    timeout, order (FIFO), dead-letter queue, permitted delays, and messages in flight. A setting that a worker refuses
    is an error. A setting that the doctor reports is a warning. With --outage and --rate, it is an error if more
    retries wait than SQS permits in flight."""
    if case.engine != "sqs":
        return
    facts = case.facts.queues.get(queue.name)
    if facts is None:
        yield Unclear("the attributes of the queue: --url")
        return
    works = [work_of(case.app, task) for task in case.on(queue.name)]
    lines = {"error": preflight.refusals(facts, works), "warning": preflight.warnings(facts, works)}
    for severity in SEVERITIES:
        for line in lines[severity]:
            text, _, fix = line.partition(": ")[2].partition("; ")
            yield Hit(severity, text, fix, {}, re.sub(r"\d+", "N", text.partition(",")[0]))
    rate, outage_s = case.rate_of_all(case.on(queue.name)), case.assume.outage_s
    if rate is None or outage_s is None:
        yield Unclear("how many messages wait in an outage: --outage and --rate")
        return
    most, waiting = 20_000 if facts.fifo else 120_000, facts.in_flight + round(rate * outage_s)
    if facts.mode == "visibility" and waiting > most:
        yield Hit(
            "error",
            f"after an outage of {show(outage_s)} at {rate:g}/s {waiting:,} messages wait in flight for their retries; "
            f"at {most:,} SQS hands out nothing more",
            "set mode=requeue in the URL, or give the tasks a dependency, whose breaker leaves messages unclaimed",
            {"in_flight": waiting, "bound": most},
            "in flight",
        )
