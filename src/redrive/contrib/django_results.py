"""Turn a message into Django's TaskResult. Imports Django's names from Django or from the package django-tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import django.conf
import msgspec
from django.utils import timezone

from ..app import App
from ..errors import Unreadable
from ..message import Lane, Message

if django.VERSION >= (6, 0):
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    if find_spec("django_tasks") is None:
        raise ModuleNotFoundError("Django before 6.0 has no tasks of its own: pip install django-tasks")
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

PRIORITY, RUN_AFTER = ("django-priority", "django-run-after")  # headers with Django's exact values
_STATUS = {
    Lane.READY: TaskResultStatus.READY,
    Lane.LEASED: TaskResultStatus.RUNNING,
    Lane.DEAD: TaskResultStatus.FAILED,
    Lane.QUARANTINE: TaskResultStatus.FAILED,
    Lane.DONE: TaskResultStatus.SUCCESSFUL,
}


class _TaskBody(msgspec.Struct):
    args: list[Any]
    kwargs: dict[str, Any]


def headers_of(task: Any) -> dict[str, str]:
    """Return headers for those options of a task that the fields of a message do not represent exactly."""
    headers = {PRIORITY: str(task.priority)} if task.priority else {}
    return headers if task.run_after is None else {**headers, RUN_AFTER: task.run_after.isoformat()}


def new_result(task: Any, id: str, alias: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return Django's result of a task that was just enqueued under this id."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def running(message: Message, task: Any, alias: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Return Django's result of a task that a worker is about to run."""
    now = timezone.now()
    return _result(message, task, alias, args, kwargs, TaskResultStatus.RUNNING, started_at=now, attempted_at=now)


def result_of(app: App, message: Message, task: Any, alias: str) -> Any:
    """Return Django's result of a task from its stored message; without arguments if these cannot be read.

    The start of a run is not stored: `started_at` is None, and `last_attempted_at` is the end of the last failure.
    Raises BlobsUnavailable.
    """
    cancelled = message.lane is Lane.DONE and message.reason == "cancelled"
    status = TaskResultStatus.FAILED if cancelled else _STATUS[message.lane]
    try:
        body = msgspec.json.decode(app.body(message), type=_TaskBody)
    except (Unreadable, msgspec.DecodeError):  # such as that of a message that waits on SQS, which is empty
        body = _TaskBody([], {})
    failed_at = _time(message.faults[-1].at_ms) if message.faults else None
    result = _result(message, task, alias, body.args, body.kwargs, status, started_at=None, attempted_at=failed_at)
    if status is TaskResultStatus.SUCCESSFUL and message.result is not None:
        object.__setattr__(result, "_return_value", msgspec.json.decode(message.result))
    return result


def _result(
    message: Message,
    task: Any,
    alias: str,
    args: list[Any],
    kwargs: dict[str, Any],
    status: Any,
    *,
    started_at: datetime | None,
    attempted_at: datetime | None,
) -> Any:
    return TaskResult(
        task=_as_enqueued(task, message),
        id=message.id,
        status=status,
        enqueued_at=_time(message.enqueued_ms),
        started_at=started_at,
        finished_at=_time(message.rested_ms),
        last_attempted_at=attempted_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[
            TaskError(exception_class_path=_path(f.error), traceback=f.traceback or f.text) for f in message.faults
        ],
        worker_ids=_workers(message),
    )


def _as_enqueued(task: Any, message: Message) -> Any:
    """Return the declared task with the options of this message, except a queue that Django would refuse, to which a
    redrive may have moved the message."""
    after, queues = message.headers.get(RUN_AFTER), task.get_backend().queues
    return task.using(
        priority=int(message.headers.get(PRIORITY, "0")),
        queue_name=message.queue if not queues or message.queue in queues else None,
        run_after=None if after is None else datetime.fromisoformat(after),
    )


def _workers(message: Message) -> list[str]:
    """Return the name of the worker of each attempt, as Django lists them; empty where the fault history was cut."""
    names = [""] * message.attempt
    for fault in message.faults:
        if 0 < fault.attempt <= len(names):
            names[fault.attempt - 1] = fault.worker
    if names and message.worker is not None:
        names[-1] = names[-1] or message.worker
    return names


def _path(error: str) -> str:
    """Return the class of a fault as Django writes it: with `builtins`, which faults leave out.

    >>> _path("ValueError"), _path("httpx.ReadTimeout"), _path("")
    ('builtins.ValueError', 'httpx.ReadTimeout', 'builtins.Exception')
    """
    return error if "." in error else f"builtins.{error or 'Exception'}"


def _time(at_ms: int | None) -> datetime | None:
    if at_ms is None:
        return None
    time = datetime.fromtimestamp(at_ms / 1000, UTC)
    return time if django.conf.settings.USE_TZ else timezone.make_naive(time)


__all__ = [
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "headers_of",
    "new_result",
    "normalize_json",
    "result_of",
    "running",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
