"""Every page and every action, with the permission that it needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from ..present.permissions import Permission
from .ask import Done, Download, PageAnswer, PageRequest, Record
from .requests import BODY_MAX, FORM_MAX

P = Permission


class SitePage(NamedTuple):
    """A page: its name, address and menu title, and its function as `MODULE.FUNCTION` below `read/`. The template has
    the page's name. A page with `form` also accepts POST, which changes nothing."""

    name: str
    path: str
    title: str
    where: str
    permission: Permission = P.VIEW
    key: str = ""  # the key that opens the page after `g`
    part: str = ""  # the part of the menu that lists the page; pages with a key have one
    form: bool = False
    most: int = FORM_MAX  # the most bytes of a form posted to the page

    @property
    def needs_store(self) -> bool:
        """True if the page shows data of the store, not only declarations of the app."""
        return self.name not in ("keys", "policies")

    @property
    def read(self) -> Callable[[PageRequest], Record]:
        return _found("read", self.where)


class Action(NamedTuple):
    """An action: `POST /do/NAME`, its permission, and its function as `MODULE.FUNCTION` below `actions/`."""

    name: str
    permission: Permission
    where: str
    most: int = FORM_MAX  # the most bytes of a form posted to the action

    @property
    def act(self) -> Callable[[PageRequest], Done | Download | PageAnswer]:
        return _found("actions", self.where)


def _found(folder: str, where: str) -> Callable[[PageRequest], Any]:
    module, _, function = where.partition(":")
    target: Callable[[PageRequest], Any] = getattr(import_module(f"{__package__}.{folder}.{module}"), function)
    return target


PAGES = (
    SitePage("overview", "/", "Overview", "overview:overview", key="o", part="Watch"),
    SitePage("tasks", "/tasks", "Tasks", "tasks:tasks", key="t", part="Watch"),
    SitePage("task", "/tasks/{task:path}", "Task", "tasks:task"),
    SitePage("queues", "/queues", "Queues", "queues:queues", key="q", part="Watch"),
    SitePage("queue", "/queues/{queue:path}", "Queue", "queues:queue"),
    SitePage("groups", "/groups", "Failure groups", "groups:groups", key="f", part="Repair"),
    SitePage("group", "/groups/{fingerprint}", "Failure group", "groups:group"),
    SitePage("messages", "/messages", "Messages", "messages:messages", key="m", part="Repair"),
    SitePage("edit", "/messages/{id}/edit", "Edit a message", "edit:edit", P.EDIT, form=True, most=BODY_MAX),
    SitePage("message", "/messages/{id}", "Message", "message:message"),
    SitePage("planning", "/plans", "Plan a redrive", "plans:planning", key="p", part="Repair"),
    SitePage("plan", "/plans/{id}", "Plan", "plans:plan"),
    SitePage("runs", "/runs", "Redrive runs", "runs:runs", key="r", part="Repair"),
    SitePage("run", "/runs/{id}", "Redrive run", "runs:run"),
    SitePage("forecasts", "/forecasts", "Forecasts", "forecasts:forecasts"),
    SitePage("batches", "/batches", "Batches", "batches:batches", key="b", part="Watch"),
    SitePage("batch", "/batches/{id:path}", "Batch", "batches:batch"),
    SitePage("flow", "/flow", "Flow control", "flow:flow", key="l", part="Control"),
    SitePage("dependency", "/flow/{dependency:path}", "Dependency", "flow:dependency"),
    SitePage("schedules", "/schedules", "Schedules", "schedules:schedules", key="s", part="Watch"),
    SitePage("workers", "/workers", "Workers", "workers:workers", key="w", part="Watch"),
    SitePage("worker", "/workers/{worker:path}", "Worker", "workers:worker"),
    SitePage("policies", "/policies", "Policies", "policies:policies", key="y", part="Control"),
    SitePage("audit", "/audit", "Audit log", "audit:audit", key="a", part="Record"),
    SitePage("system", "/system", "System", "system:system", key="x", part="Record"),
    SitePage("views", "/views", "Saved views", "views:views"),
    SitePage("keys", "/keys", "Keys and help", "help:keys"),
)

ACTIONS = (
    Action("pause-queue", P.PAUSE, "queues:pause"),
    Action("resume-queue", P.PAUSE, "queues:resume"),
    Action("purge-queue", P.DISCARD, "queues:purge"),
    Action("set-width", P.PAUSE, "queues:set_width"),
    Action("resume-group", P.PAUSE, "queues:resume_group"),
    Action("note-group", P.RETRY, "groups:note"),
    Action("own-group", P.RETRY, "groups:own"),
    Action("mute-group", P.RETRY, "groups:mute"),
    Action("resolve-group", P.RETRY, "groups:resolve"),
    Action("merge-group", P.RETRY, "groups:merge"),
    Action("rule-group", P.ADMIN, "groups:rule"),
    Action("export", P.VIEW_BODIES, "export:export"),
    Action("plan-picked", P.REDRIVE, "messages:plan_picked"),
    Action("retry", P.RETRY, "messages:retry"),
    Action("run-now", P.RETRY, "messages:run_now"),
    Action("cancel", P.DISCARD, "messages:cancel"),
    Action("discard", P.DISCARD, "messages:discard"),
    Action("quarantine", P.DISCARD, "messages:quarantine"),
    Action("readmit", P.RETRY, "messages:readmit"),
    Action("edit", P.EDIT, "edit:commit", BODY_MAX),
    Action("plan", P.REDRIVE, "plans:freeze"),
    Action("apply", P.REDRIVE, "plans:apply"),
    Action("pause-run", P.REDRIVE, "runs:pause"),
    Action("resume-run", P.REDRIVE, "runs:resume"),
    Action("cancel-run", P.REDRIVE, "runs:cancel"),
    Action("undo-run", P.REDRIVE, "runs:undo"),
    Action("approve-run", P.APPROVE, "runs:approve"),
    Action("cancel-batch", P.DISCARD, "batches:cancel"),
    Action("open-breaker", P.FLOW, "flow:open_breaker"),
    Action("close-breaker", P.FLOW, "flow:close_breaker"),
    Action("auto-breaker", P.FLOW, "flow:auto_breaker"),
    Action("end-cooldown", P.FLOW, "flow:end_cooldown"),
    Action("reset-budget", P.FLOW, "flow:reset_budget"),
    Action("end-ramp", P.FLOW, "flow:end_ramp"),
    Action("run-schedule", P.RETRY, "schedules:run_now"),
    Action("pause-schedule", P.PAUSE, "schedules:pause"),
    Action("resume-schedule", P.PAUSE, "schedules:resume"),
    Action("pause-task", P.PAUSE, "tasks:pause"),
    Action("resume-task", P.PAUSE, "tasks:resume"),
    Action("enqueue", P.EDIT, "tasks:enqueue", BODY_MAX),
    Action("drain-worker", P.ADMIN, "workers:drain"),
    Action("save-view", P.RETRY, "views:save"),
    Action("remove-view", P.RETRY, "views:remove"),
    Action("export-audit", P.ADMIN, "audit:export"),
)

MENU = tuple(page for page in PAGES if page.key)
PARTS = ("Watch", "Repair", "Control", "Record")  # of the menu
