"""A backend for Django's tasks: `django.tasks` from Django 6.0 on, before that the package `django-tasks`.

    TASKS = {"default": {"BACKEND": "redrive.contrib.django.RedriveBackend",
                         "OPTIONS": {"url": "sqlite:////srv/work.db"}}}

and a worker: `DJANGO_SETTINGS_MODULE=site.settings redrive worker redrive.contrib.django:app`. For an alias other than
`default`, write its name instead of `app`.

Options are defaults for the alias' tasks: `url` (default: as everywhere in redrive), `retry` (a Retry or a preset's
name), `timeout`, and `keep_result`, how long a result can be read once its task is done (default 1 day). A task may set
its own by `@task(retry="webhooks", timeout="30s")`.

Differences from Django's own backends: a task that fails is tried again by its retry policy, and stays READY until it
is done or dead; `task_finished` is sent for success only. Priorities have four levels: above 50, above 0, 0, below 0. A
message names its task but nothing to import: the worker knows only the tasks that the `tasks` modules of INSTALLED_APPS
declare or import. Enqueueing is not part of a database transaction: use `transaction.on_commit`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import django.conf
from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from ..app import App
from ..duration import Duration
from ..errors import ConfigError, Reject
from ..message import Draft
from ..policy import Retry
from ..run_context import Context
from .django_results import (
    BaseTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    headers_of,
    new_result,
    normalize_json,
    result_of,
    running,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)

KEEP_RESULT = "1d"
URGENT_ABOVE = 50  # Django's priorities go from -100 to 100; those above this one get redrive's highest priority
_OPTIONS = frozenset({"url", "retry", "timeout", "keep_result"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveTask(Task):
    """Django's Task with a retry policy and a timeout of its own: `@task(…)` makes it for this backend."""

    retry: Retry | str | None = None
    timeout: Duration | None = None


class RedriveBackend(BaseTaskBackend):
    """Enqueues Django's tasks as messages of redrive, and returns their results."""

    task_class = RedriveTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.home: _Home = _home(alias, self.options, self.queues)

    def validate_task(self, task: Any) -> None:
        """Check and register a task. Django calls this when a task is declared."""
        super().validate_task(task)
        self.home.declare(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put the task on its queue; durable when it returns. Raises TypeError for arguments that do not fit."""
        self.validate_task(task)
        ref = self.home.app.enqueue_many([self.home.draft(task, args, kwargs)])[0]
        result = new_result(task, ref.id, self.alias, args, kwargs)
        task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put the task on its queue as `enqueue` does, from asyncio code; concurrent calls share a commit."""
        self.validate_task(task)
        ref = (await self.home.app.aenqueue_many([self.home.draft(task, args, kwargs)]))[0]
        result = new_result(task, ref.id, self.alias, args, kwargs)
        await task_enqueued.asend(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of the task with this id.

        Its arguments are empty if they cannot be read, as while it waits on SQS. Raises TaskResultDoesNotExist once the
        task is done and `keep_result` is over, and BlobsUnavailable.
        """
        message = self.home.app.job(result_id)
        task = None if message is None else self.home.task(message.task)
        if message is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(self.home.app, message, task, self.alias)


class _Home:
    """The app and the tasks of one alias. Its backend objects share them, as Django makes one per thread."""

    alias: str

    def __init__(self, alias: str, options: Mapping[str, Any], queues: set[str]) -> None:
        if unknown := sorted(options.keys() - _OPTIONS):
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: unknown options {unknown}; known: {sorted(_OPTIONS)}")
        self.alias, self._options = alias, options
        self.app: App = App(options.get("url"))
        for queue in queues:
            self.app.queue(queue)
        self._tasks: dict[str, Any] = {}
        self._lock = threading.Lock()

    def declare(self, task: Any) -> None:
        path = task.module_path
        with self._lock:
            known = self._tasks.get(path)
            if known is not None and known.func is task.func:
                return
            self.app.tasks.pop(path, None)  # registered before, by a module that was reloaded
            register = self.app.task(
                name=path,
                queue=task.queue_name,
                ctx=True,
                retry=_first(getattr(task, "retry", None), self._options.get("retry")),
                timeout=_first(getattr(task, "timeout", None), self._options.get("timeout"), "5m"),
                keep_result=self._options.get("keep_result", KEEP_RESULT),
            )
            register(_handler(self, task))
            self._tasks[path] = task

    def task(self, path: str) -> Any | None:
        """Return the task with that path; if it is not declared yet, after importing the `tasks` modules. None if it is
        unknown."""
        if path not in self._tasks:
            autodiscover_modules("tasks")
        return self._tasks.get(path)

    def draft(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draft:
        context = (None,) if task.takes_context else ()
        try:
            inspect.signature(task.func).bind(*context, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {task.module_path!r}: {error}") from None
        bound = self.app.tasks[task.module_path].using(
            at=_aware(task.run_after),
            queue=task.queue_name,
            priority=_priority(task.priority),
            headers=headers_of(task),
        )
        return bound.draft(normalize_json(list(args)), normalize_json(dict(kwargs)))


_homes: dict[str, _Home] = {}
_making = threading.Lock()


def _home(alias: str, options: Mapping[str, Any], queues: set[str]) -> _Home:
    with _making:
        if alias not in _homes:
            _homes[alias] = _Home(alias, options, queues)
        return _homes[alias]


def _forget(*, setting: str, **_: object) -> None:
    """Discard the apps when a test changes the setting TASKS, as Django does with its backends."""
    if setting == "TASKS":
        _homes.clear()


setting_changed.connect(_forget)


def _handler(home: _Home, task: Any) -> Callable[..., Any]:
    """Return the handler of a task: its function, with Django's signals and checks of the database connections around
    it."""

    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = running(ctx.message, task, home.alias, args, kwargs)
        with _fresh_connections():
            task_started.send_robust(RedriveBackend, task_result=result)
            value = _json(task, task.func(*_leading(task, result), *args, **kwargs))
            task_finished.send_robust(RedriveBackend, task_result=_finish(result, value))
            return value

    async def arun(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = running(ctx.message, task, home.alias, args, kwargs)
        await task_started.asend_robust(RedriveBackend, task_result=result)
        try:
            value = _json(task, await task.func(*_leading(task, result), *args, **kwargs))
            await task_finished.asend_robust(RedriveBackend, task_result=_finish(result, value))
            return value
        finally:  # in the thread of sync_to_async, which has the connections of the ORM's async methods
            await sync_to_async(close_old_connections)()

    return arun if inspect.iscoroutinefunction(task.func) else run


@contextlib.contextmanager
def _fresh_connections() -> Iterator[None]:
    """Close old and broken database connections before and after a block, as Django does around a request."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def _leading(task: Any, result: Any) -> tuple[Any, ...]:
    return (TaskContext(task_result=result),) if task.takes_context else ()


def _json(task: Any, value: Any) -> Any:
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:  # the handler has had its effect, which a retry would repeat
        raise Reject(f"{task.module_path} returned what JSON cannot hold: {error}") from error


def _finish(result: Any, value: Any) -> Any:
    for name, new in (
        ("status", TaskResultStatus.SUCCESSFUL),
        ("finished_at", timezone.now()),
        ("_return_value", value),
    ):
        object.__setattr__(result, name, new)  # the class is frozen; Django's own backends change it in the same way
    return result


def __getattr__(name: str) -> App:
    """Return `app`, or the app of an alias of TASKS by its name, for `redrive worker`."""
    named = django.conf.settings.configured or django.conf.ENVIRONMENT_VARIABLE in os.environ
    if name.startswith("_") or (name != "app" and not named):
        raise AttributeError(name)  # Django is not set up when the module's names are only listed
    if not named:
        module = "settings" if Path("settings.py").exists() else "mysite.settings"
        raise ConfigError(f"Django's settings are not named; set {django.conf.ENVIRONMENT_VARIABLE}={module}")
    try:
        if not apps.ready:
            django.setup()
        aliases = [alias for alias in task_backends if isinstance(task_backends[alias], RedriveBackend)]
    except ImproperlyConfigured as error:
        raise ConfigError(f"Django's settings cannot be used: {error}") from error
    alias = name if name != "app" else "default" if "default" in aliases else next(iter(aliases), None)
    if alias not in aliases:
        raise AttributeError(f"TASKS has no alias {alias!r} on redrive; aliases on redrive: {aliases}")
    autodiscover_modules("tasks")
    app: App = task_backends[alias].home.app
    return app


def _priority(priority: int) -> int:
    """Translate Django's priorities, -100 to 100 (first), to redrive's, 0 (first) to 3. The default, 0, becomes 2.

    >>> [_priority(p) for p in (100, 51, 50, 1, 0, -1)]
    [0, 0, 1, 1, 2, 3]
    """
    if priority > 0:
        return 0 if priority > URGENT_ABOVE else 1
    return 3 if priority < 0 else 2


def _aware(when: datetime | None) -> datetime | None:
    return timezone.make_aware(when) if when is not None and timezone.is_naive(when) else when


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


__all__ = ["RedriveBackend", "RedriveTask", "TaskResult"]
