"""Check before a worker starts that the store supports the app's tasks on these queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING

from ..decide import ASKED_SPREAD
from ..duration import Duration, seconds
from ..errors import ConfigError, Refused, near_miss
from ..policy import KINDS, Preview, Retry, preview
from ..registry import Registry
from ..store import Store, Work
from .flow.local_state import controls, is_rate

if TYPE_CHECKING:
    from ..task import TaskSpec

_LIKENESS = 0.75  # the least likeness at which an undeclared name may be meant for a declared one


def preflight(app: Registry, store: Store, queues: Iterable[str]) -> None:
    """Raise Refused, with the fix, if the store does not support the tasks of `app` on these queues."""
    if store.traits.read_only:
        raise Refused(f"a worker cannot work here: {store.traits.read_only}; run it as a user who may write")
    refused = store.preflight(works(app, queues))
    if refused:
        more = f" (and {len(refused) - 1} more: redrive doctor)" if len(refused) > 1 else ""
        raise Refused(refused[0] + more)


def check_sizes(concurrency: int | None, prefetch: int | None, suspect_processes: int | None) -> None:
    """Raise ConfigError for invalid sizes of a worker."""
    if (concurrency is not None and concurrency < 1) or (prefetch is not None and prefetch < 0):
        raise ConfigError(f"{concurrency=}, {prefetch=}: expected concurrency from 1 up and prefetch from 0 up")
    if suspect_processes is not None and suspect_processes < 1:
        raise ConfigError(f"{suspect_processes=}: expected 1 or more")


def lease_seconds(lease: Duration) -> float:
    """Return the lease in seconds. Raises ConfigError unless the lease is positive."""
    if (lease_s := seconds(lease, "lease")) <= 0:
        raise ConfigError(f"lease={lease!r}: expected more than 0")
    return lease_s


def advice(app: Registry, store: Store) -> list[str]:
    """Return the store's objections to the tasks of `app` on their queues, and doubtful settings of the app."""
    named = {task.queue for task in app.tasks.values()} | set(app.queues)
    return [*store.preflight(works(app, sorted(named)), advise=True), *doubts(app)]


def doubts(app: Registry) -> list[str]:
    """Return texts about settings of an app that are allowed, but probably mistakes."""
    gap = None if app.tracing is None else app.tracing.gap()
    return [*unmatched(app), *([gap] if gap else ())]


def unmatched(app: Registry, of: str | None = None) -> list[str]:
    """Return texts about declared dependencies that no task names, and about undeclared ones that tasks name and that
    resemble a declared one; with `of`, for that task only."""
    named = {task.dependency or task.name for task in app.tasks.values()}
    unused = [name for name in app.dependencies if name not in named]
    lines, meant = [], set[str]()
    for task in app.tasks.values():
        given = task.dependency
        if given is None or given in app.dependencies or given in app.tasks or of not in (None, task.name):
            continue
        near = near_miss(given, unused) or near_miss(given, app.dependencies, _LIKENESS)
        if near is not None:
            meant.add(near)
            text = f"task {task.name} names dependency '{given}', which is not declared; did you mean '{near}'?"
            lines.append(f"{text} (if not, declare it: app.dependency({given!r}))")
    for name in unused if of is None else ():
        fix = "" if name in meant else f"; name it with @app.task(dependency={name!r}), or remove it"
        lines.append(f"dependency '{name}' is declared, and no task names it: its limits hold nothing back{fix}")
    return lines


def works(app: Registry, queues: Iterable[str]) -> Iterator[Work]:
    """Yield a Work for each task of the app on these queues; for a queue without tasks, a Work without a task."""
    for queue in queues:
        mine = [work_of(app, task) for task in app.tasks.values() if task.queue == queue]
        yield from mine or [Work(queue=queue)]


def work_of(app: Registry, task: TaskSpec) -> Work:
    """Return a task as a Work, with the longest wait of its retries and the longest time until its last one."""
    retry = task.policy.retry
    shown = list(previews_of(retry).values())
    return Work(
        queue=task.queue,
        task=task.name,
        attempts=max(one.chosen.max_attempts for one in shown),
        crash_cap=task.policy.crashes_alone_max,
        longest_s=max(_longest_s(one, retry) for one in shown),
        horizon_s=max(one.horizon_s for one in shown),
        timeout_s=task.policy.timeout_s,
        needs=tuple(_needs(app, task)),
    )


def previews_of(retry: Retry) -> dict[str, Preview]:
    """Return the previews of a policy: for faults without an entry of their own ("default"), and for each entry."""
    shown = {key: preview(retry, kind=key) if key in KINDS else preview(retry, error=key) for key in retry.on}
    return {"default": preview(retry), **shown}


def _longest_s(shown: Preview, retry: Retry) -> float:
    """Return the longest backoff of the preview or requested wait in seconds; max_elapsed bounds both."""
    if not shown.steps:
        return 0.0
    bound_s = inf if shown.chosen.max_elapsed_s is None else shown.chosen.max_elapsed_s
    asked_s = retry.max_retry_after_s * (1 + ASKED_SPREAD)
    return min(bound_s, max(asked_s, *(step.high_s for step in shown.steps)))


def _needs(app: Registry, task: TaskSpec) -> Iterator[str]:
    if task.idempotency is not None:
        yield "idempotency"
    for d in controls(app, task.name, task.queue):
        yield "a rate" if is_rate(d.name) else f"dependency {d.name!r} (its budget, breaker and limits)"
