"""Rules about the retries of one task."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter

from ..decide import decide, with_fate
from ..duration import show
from ..fault import Fault, Kind
from ..flow.breaker import Breaker, CallCounts, State, record_many
from ..flow.window import BUCKETS
from ..message import DeadLetter, Message, RetryAt
from ..policy import YEAR_S, Backoff, Preview, Retry, draw, presets, preview
from ..task import TaskSpec
from ..worker.flow.local_state import is_rate
from ..worker.preflight import previews_of
from .case import RATE_NEEDED, Called, Case
from .finding import Hit, Unclear
from .rules import RuleAnswers, rule

AT_ONCE_MAX = 10  # retries in one second that are no herd
_SAMPLE = 200  # the most messages that are counted; a herd of more is scaled up from as many
_FROM_MS = 1_000_000_000_000  # where played time begins: any time will do, as long as it is the same each time
_ATTEMPTS_MAX = 1_000  # the most attempts that are advised
HOUR_S = 3600.0  # the outage that is played if none is named
_DEFAULTS = Retry()


def _own(retry: Retry) -> dict[str, Preview]:
    """Return the previews of a policy whose figures the app's author chose: none for a preset."""
    return {} if any(retry is one for one in presets.values()) else previews_of(retry)


@rule("task")
def short_horizon(case: Case, task: TaskSpec) -> RuleAnswers:
    """The retries of a task end earlier than an outage of the length --outage. So messages of the task die during such
    an outage. It is an error if no message can survive, and a warning if about half of the messages can. The rule does
    not judge a task without retries. It also does not judge a task whose dependency's breaker opens in time, because an
    open breaker spends no attempts."""
    outage_s, retry = case.assume.outage_s, task.policy.retry
    if outage_s is None:
        yield Unclear("how long an outage lasts: --outage")
        return
    shown = preview(retry, kind="transient")
    if not shown.steps or shown.total_s >= outage_s or shown.ends == "limit":
        return
    called = case.dependencies.get(d.name) if (d := case.dependency_of(task)) is not None else None
    if called is not None and called.declared.breaker is not None:
        opened_s = opens_after_s(case, called, called.declared.breaker)
        if opened_s is None:
            yield Unclear(f"whether the breaker of {called.name} opens in time: {RATE_NEEDED}")
            return
        if opened_s < shown.total_s:
            return
    certain = shown.horizon_s < outage_s
    yield Hit(
        "error" if certain else "warning",
        f"its retries end {show(shown.total_s)} after the first failure on average, {show(shown.horizon_s)} at the "
        f"latest, and the outage lasts {show(outage_s)}: {'every' if certain else 'about every second'} "
        "message that fails when it begins will die",
        _longer(retry, shown, outage_s),
        {"outage_s": outage_s, "mean_s": shown.total_s, "horizon_s": shown.horizon_s, "retries": shown.retries},
    )


def _longer(retry: Retry, shown: Preview, outage_s: float) -> str:
    if shown.ends == "elapsed":
        return f"raise max_elapsed to {show(2 * outage_s)}, or give it a dependency with a breaker"
    longer = preview(Retry(_ATTEMPTS_MAX, None, shown.chosen.backoff)).steps
    last = next((step.n for step in longer if step.at_mean_s >= outage_s), None)
    if last is None:
        return "let the backoff grow, or give the task a dependency with a breaker"
    return f"raise max_attempts to {last + 2}, or give it a dependency with a breaker"


def opens_after_s(case: Case, called: Called, breaker: Breaker) -> float | None:
    """Return after how many seconds of an outage the breaker opens at the rate of its tasks, retries included; infinity
    if it does not; None if a rate is unknown, or that of each key is."""
    if called.declared.per is not None or case.rate_of_all(called.tasks) is None:
        return None
    if called.name not in case.opens_s:
        case.opens_s[called.name] = _played(case, called, breaker)
    return case.opens_s[called.name]


def _played(case: Case, called: Called, breaker: Breaker) -> float:
    """Play the breaker in an outage. Its load only grows, with each retry that comes due, so the first load that opens
    it is found by bisection."""
    shown = [(case.rate_of(task) or 0.0, preview(task.policy.retry, kind="transient")) for task in called.tasks]
    loads = [(rate, [step.at_mean_s for step in one.steps]) for rate, one in shown]
    outage_s, firsts = case.assume.outage_s or HOUR_S, sum(rate for rate, _ in loads)
    starts = sorted({0.0, *(at_s for _, times in loads for at_s in times if at_s < outage_s)})

    def opens_s(start_s: float) -> float:
        return _opens_s(breaker, firsts, sum(rate * bisect_right(times, start_s) for rate, times in loads))

    found = bisect_left(starts, True, key=lambda start_s: opens_s(start_s) < math.inf)
    return math.inf if found == len(starts) else starts[found] + opens_s(starts[found])


def _opens_s(breaker: Breaker, firsts: float, retries: float) -> float:
    """Return after how many seconds a breaker opens if so many calls a second come and all fail; infinity if never."""
    state, step_s, asked, again = State(), breaker.window / BUCKETS, 0.0, 0.0
    for n in range(1, 2 * BUCKETS + 1):
        asked, again = asked % 1 + step_s * firsts, again % 1 + step_s * retries
        calls = CallCounts(failure=int(asked), retry_failure=int(again))
        state = record_many(state, breaker, calls, _FROM_MS + round(n * step_s * 1000))
        if state.status == "open":
            return n * step_s
    return math.inf


@rule("task")
def attempts_never_happen(case: Case, task: TaskSpec) -> RuleAnswers:
    """A task declares attempts that never happen: its max_elapsed, or the deadline of --deadline, ends the retries
    first. Presets are not judged. A max_attempts left at its default is not judged either."""
    deadline_s = case.assume.deadline_s
    for key, shown in _own(task.policy.retry).items():
        declared = shown.chosen.max_attempts
        if declared == _DEFAULTS.max_attempts or not shown.steps:
            continue
        bounds = {"max_elapsed": shown.chosen.max_elapsed_s, "the deadline": deadline_s}
        name, bound_s = min(((n, s) for n, s in bounds.items() if s is not None), key=lambda b: b[1], default=("", 0.0))
        happen = 1 + sum(step.at_mean_s <= bound_s for step in shown.steps)
        if not name or happen >= declared:
            continue
        yield Hit(
            "warning",
            f"{_of(key)}{declared} attempts are declared, and {name} of {show(bound_s)} leaves time for about {happen}",
            f"lower max_attempts to {happen}, or raise {name}",
            {"declared": declared, "happen": happen, "bound_s": bound_s},
            key,
        )


@rule("task")
def cap_never_reached(case: Case, task: TaskSpec) -> RuleAnswers:
    """The delay of a backoff never grows to the backoff's cap, because the retries end first. The cap looks important
    and has no effect. Presets are not judged. A cap left at its default is not judged either."""
    for key, shown in _own(task.policy.retry).items():
        backoff = shown.chosen.backoff
        if not shown.steps or backoff.cap in (Backoff().cap, YEAR_S) or backoff.fn is not None:
            continue
        longest_s = backoff.range(shown.steps[-1].n)[1]
        if longest_s < backoff.range(10**6)[1]:
            yield Hit(
                "warning",
                f"{_of(key)}the cap of {show(backoff.cap)} is never reached: the delay grows to {show(longest_s)} in "
                f"{len(shown.steps)} retries",
                f"lower the cap to {show(longest_s)}, or allow more attempts",
                {"cap_s": backoff.cap, "longest_s": longest_s, "retries": len(shown.steps)},
                key,
            )


@rule("task")
def no_spread(case: Case, task: TaskSpec) -> RuleAnswers:
    """The delays have no jitter, and more than 10 messages fail in one second, so they come back together. A task with
    a rate limit is not judged, because the limit spaces its runs."""
    shown = preview(task.policy.retry, kind="transient")
    if not shown.steps or any(step.high_s - step.low_s >= 1 for step in shown.steps):
        return
    if any(is_rate(d.name) or d.rate is not None for d in case.controls_of(task)):
        return
    rate = case.rate_of(task)
    if rate is None:
        yield Unclear(RATE_NEEDED)
        return
    herd = _at_once(shown.chosen.backoff, rate)
    if herd > AT_ONCE_MAX:
        yield Hit(
            "warning",
            f"its delays have no jitter: of the messages that fail in one second at {rate:g}/s, {herd} come back in "
            "one second",
            "give its backoff a jitter: Backoff(…, jitter='full'), or jitter='equal' to keep half of each delay",
            {"rate_per_s": rate, "at_once": herd},
        )


def _at_once(backoff: Backoff, rate: float) -> int:
    """Return how many of the messages that fail within one second have their first retry in the same second."""
    count = max(1, min(_SAMPLE, math.ceil(rate)))
    due = Counter(math.floor(n / count + backoff.seconds(0, draw(f"m{n}", 0, 1))) for n in range(count))
    return round(max(due.values()) * math.ceil(rate) / count)


@rule("task")
def retry_amplification(case: Case, task: TaskSpec) -> RuleAnswers:
    """One message that keeps failing makes more than 200 calls in all. The rule adds up the attempts of the message,
    the attempts of each automatic redrive, and the attempts of the tasks that its deaths enqueue (on_dead)."""
    calls, parts, seen, one, times = 0, [], set[str](), task, 1
    while one.name not in seen:
        seen.add(one.name)
        auto = case.queue(one.queue).auto_redrive
        first = 1 + preview(one.policy.retry, kind="transient").retries
        again = 0 if auto is None else auto.max_redrives * (auto.attempts or first)
        calls += times * (first + again)
        parts.append(f"{one.name} {times * (first + again):,}")
        times *= 1 + (0 if auto is None else auto.max_redrives)
        if (other := case.tasks.get(one.on_dead or "")) is None:
            break
        one = other
    if calls > case.assume.calls_max:
        yield Hit(
            "warning",
            f"a message that keeps failing makes {calls:,} calls ({', '.join(parts)}); the bound is "
            f"{case.assume.calls_max}",
            "lower max_attempts or AutoRedrive(max_redrives=…), or give redrives fewer: AutoRedrive(attempts=3)",
            {"calls": calls, "bound": case.assume.calls_max},
        )


@rule("task")
def retry_after_beyond_horizon(case: Case, task: TaskSpec) -> RuleAnswers:
    """A dependency asks for a longer wait (Retry-After) than the retries of the task last. The length of this wait
    comes from --retry-after or --url. A message that waits that long dies, though nothing is wrong with the message."""
    asked_s = case.retry_after_s(task)
    if asked_s is None:
        if case.dependency_of(task) is not None:
            yield Unclear("how long the dependency asks to wait: --retry-after, or --url with messages that were asked")
        return
    chosen = task.policy.retry.choose(_asking(asked_s))
    if not chosen.retryable or chosen.max_elapsed_s is None or not _dies_of_waiting(task, asked_s):
        return
    yield Hit(
        "error",
        f"the dependency asks for {show(asked_s)}, and the retries end after {show(chosen.max_elapsed_s)}: a message "
        "that waits as asked dies",
        f"raise max_elapsed for throttled faults above {show(2 * asked_s)}: "
        f"on={{'throttled': Retry(max_elapsed={show(2 * asked_s)!r})}}",
        {"retry_after_s": asked_s, "max_elapsed_s": chosen.max_elapsed_s},
    )


@rule("task")
def retry_after_cut(case: Case, task: TaskSpec) -> RuleAnswers:
    """A dependency asks for a wait (Retry-After) that is longer than the policy's max_retry_after. So messages are
    retried too early, and the dependency refuses them again."""
    asked_s, most_s = case.retry_after_s(task), task.policy.retry.max_retry_after_s
    if asked_s is not None and asked_s > most_s:
        yield Hit(
            "warning",
            f"the dependency asks for {show(asked_s)}, and max_retry_after cuts that to {show(most_s)}",
            f"raise max_retry_after to {show(asked_s)}",
            {"retry_after_s": asked_s, "max_retry_after_s": most_s},
        )


def _asking(asked_s: float) -> Fault:
    return Fault(Kind.THROTTLED, retry_after_s=asked_s)


def _dies_of_waiting(task: TaskSpec, asked_s: float) -> bool:
    """True if a message dies as `elapsed` that waits as asked after its first two failures."""
    message, now_ms = Message("m", task.name, task.queue, b"", "m", attempt=1, life_ms=_FROM_MS), _FROM_MS
    for attempt in (1, 2):
        fault = _asking(asked_s)
        decision = decide(message, fault, task.policy, now_ms)
        if isinstance(decision, DeadLetter):
            return decision.reason == "elapsed"
        if not isinstance(decision, RetryAt):
            return False
        kept = with_fate(fault, message, decision, now_ms, "")
        message = Message(
            "m", task.name, task.queue, b"", "m", attempt=attempt + 1, life_ms=_FROM_MS, faults=(*message.faults, kept)
        )
        now_ms = max(decision.at_ms, now_ms + math.ceil(asked_s * 1000))
    return False


@rule("task")
def unused_entry(case: Case, task: TaskSpec) -> RuleAnswers:
    """An entry of on= never applies, because never= or only= excludes its fault."""
    for key, shown in _own(task.policy.retry).items():
        if key != "default" and not shown.chosen.retryable:
            yield Hit(
                "warning",
                f"on={{{key!r}: …}} never applies: the policy {shown.chosen.why}",
                f"remove the entry, or take {key} out of never= (or into only=)",
                {},
                key,
            )


def _of(key: str) -> str:
    return "" if key == "default" else f"for {key} faults "
