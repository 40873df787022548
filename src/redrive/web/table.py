"""Every page and every action, with the permission that it needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from .access import Permission
from .ask import Done, Download, PageRequest, Record, Told
from .requests import BODY_MAX, FORM_MAX

P = Permission


class Page(NamedTuple):
    """A page: its address, what its menu calls it, and where it is read: `read/MODULE.py`, function `FUNCTION`. The
    template has the page's name. One with `form` also takes POST, and still changes nothing."""

    name: str
    path: str
    title: str
    where: str
    permission: Permission = P.VIEW
    key: str = ""  # pressed after `g`; a page with one is in the menu
    form: bool = False
    most: int = FORM_MAX  # bytes of its form

    @property
    def needs_store(self) -> bool:
        """Whether it shows what the store holds, and not only what the app declares."""
        return self.name not in ("keys", "policies")

    @property
    def read(self) -> Callable[[PageRequest], Record]:
        return _found("read", self.where)


class Action(NamedTuple):
    """An action: `POST /do/NAME`, the permission, and where it is done: `actions/MODULE.py`, function `FUNCTION`."""

    name: str
    permission: Permission
    where: str
    most: int = FORM_MAX  # bytes of its form

    @property
    def act(self) -> Callable[[PageRequest], Done | Download | Told]:
        return _found("actions", self.where)


def _found(folder: str, where: str) -> Callable[[PageRequest], Any]:
    module, _, function = where.partition(":")
    found: Callable[[PageRequest], Any] = getattr(import_module(f"{__package__}.{folder}.{module}"), function)
    return found


PAGES = (
    Page("overview", "/", "Overview", "overview:overview", key="o"),
    Page("queues", "/queues", "Queues", "queues:queues", key="q"),
    Page("queue", "/queues/{queue:path}", "Queue", "queues:queue"),
    Page("groups", "/groups", "Failure groups", "groups:groups", key="f"),
    Page("group", "/groups/{fingerprint}", "Failure group", "group:group"),
    Page("messages", "/messages", "Messages", "messages:messages", key="m"),
    Page("edit", "/messages/{id}/edit", "Edit a message", "edit:edit", P.EDIT, form=True, most=BODY_MAX),
    Page("message", "/messages/{id}", "Message", "message:message"),
    Page("planning", "/plans", "Plan a redrive", "plans:planning", key="p"),
    Page("plan", "/plans/{id}", "Plan", "plans:plan"),
    Page("runs", "/runs", "Redrive runs", "runs:runs", key="r"),
    Page("run", "/runs/{id}", "Redrive run", "runs:run"),
    Page("flow", "/flow", "Flow control", "flow:flow", key="l"),
    Page("dependency", "/flow/{dependency:path}", "Dependency", "flow:dependency"),
    Page("schedules", "/schedules", "Schedules", "schedules:schedules", key="s"),
    Page("workers", "/workers", "Workers", "workers:workers", key="w"),
    Page("policies", "/policies", "Policies", "policies:policies", key="y"),
    Page("audit", "/audit", "Audit log", "audit:audit", key="a"),
    Page("system", "/system", "System", "system:system", key="x"),
    Page("keys", "/keys", "Keys and help", "help:keys"),
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
    Action("rule-group", P.ADMIN, "groups:rule"),
    Action("export", P.VIEW_BODIES, "export:export"),
    Action("plan-picked", P.REDRIVE, "messages:plan_picked"),
    Action("retry", P.RETRY, "messages:retry"),
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
    Action("open-breaker", P.FLOW, "flow:open_breaker"),
    Action("close-breaker", P.FLOW, "flow:close_breaker"),
    Action("auto-breaker", P.FLOW, "flow:auto_breaker"),
    Action("end-cooldown", P.FLOW, "flow:end_cooldown"),
    Action("reset-budget", P.FLOW, "flow:reset_budget"),
    Action("end-ramp", P.FLOW, "flow:end_ramp"),
    Action("run-schedule", P.RETRY, "schedules:run_now"),
    Action("pause-schedule", P.PAUSE, "schedules:pause"),
    Action("resume-schedule", P.PAUSE, "schedules:resume"),
    Action("drain-worker", P.ADMIN, "workers:drain"),
    Action("export-audit", P.ADMIN, "audit:export"),
)

MENU = tuple(page for page in PAGES if page.key)
