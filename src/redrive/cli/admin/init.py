"""`redrive init`: write a small app that runs."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import IO, NamedTuple

import click

from ...config import is_shared
from ...files import create
from ...present.commands import program
from ...present.failure import REFUSED, Failure
from ...redact import one_line
from ...stores import engine_of
from ...system import POSIX
from ...urls import shown
from ..terminal.stderr import note

TASKS = '''\
"""Two tasks: one that works, and one that fails on purpose, to see what happens then."""

import random

from redrive import App, Backoff, Reject, Retry

app = App.from_env()  # the store that REDRIVE_URL or redrive.toml names


@app.task(name="greet")
async def greet(name: str) -> None:
    print(f"hello, {name}")


@app.task(name="charge", retry=Retry(max_attempts=4, backoff=Backoff(base="500ms", cap="5s")))
def charge(order: str, *, amount: float) -> None:
    if amount <= 0:
        raise Reject(f"order {order}: an amount of {amount} cannot be charged")  # dead at once: no retry can help
    if random.random() < 0.5:
        raise ConnectionError("the payment service does not answer")  # tried again, later and later
    print(f"order {order}: charged {amount}")
'''
SETTINGS = """\
# What every redrive command below this directory goes by; flags and REDRIVE_… variables win over it.
app = "{app}"
url = {url}
# queues = "default:20"   # what `redrive worker` runs, with how many messages at once
# lease = "30s"           # how long a claim holds unless renewed
# grace = "30s"           # how long a worker lets runs finish when it is told to stop
# processes = 1
# log = "json"            # auto, json, text or off
"""
SETTINGS_FILE = "redrive.toml"
FASTAPI = '''\
"""A web application that enqueues: POST /orders answers at once, and a worker charges."""

from fastapi import FastAPI
from tasks import charge

web = FastAPI()


@web.post("/orders", status_code=202)
async def order(number: str, amount: float) -> dict[str, str]:
    ref = await charge.aenqueue(number, amount=amount)
    return {"job": ref.id}
'''
DJANGO_SETTINGS = '''\
"""Django's settings: the part that matters is TASKS. Put it into your own, with INSTALLED_APPS as they are."""

from redrive.config import settings

SECRET_KEY = "only for a first look"
INSTALLED_APPS = ["shop"]
USE_TZ = True
TASKS = {
    "default": {
        "BACKEND": "redrive.contrib.django.RedriveBackend",
        "OPTIONS": {"url": settings().url, "retry": "standard_api"},  # the store of redrive.toml
    }
}
'''
DJANGO_TASKS = '''\
"""Tasks as Django declares them. In a view: `charge.enqueue("A-1", 12.5)`."""

try:
    from django.tasks import task
except ImportError:  # Django before 6.0
    from django_tasks import task

from redrive import Reject


@task(timeout="30s")
def charge(order: str, amount: float) -> None:
    if amount <= 0:
        raise Reject(f"order {order}: {amount} cannot be charged")  # dead at once: no retry can help
    print(f"order {order}: charged {amount}")
'''
DJANGO_ENQUEUE = '''\
"""Enqueue two orders, as a view would: one is charged, one is dead."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from shop.tasks import charge  # noqa: E402  # after the setup

charge.enqueue("A-1", 12.5)
charge.enqueue("A-2", 0)
'''
CELERY = '''\
"""Tasks that Celery's producers go on to enqueue, run by redrive: `redrive celery` moves what arrives in the queues of
Celery's broker, and `redrive worker` runs it. A task needs Celery's name and its arguments. docs: migrate/celery."""

import os

from redrive import App, Backoff, Reject, Retry
from redrive.contrib.celery import CeleryBridge

app = App.from_env()  # the store that REDRIVE_URL or redrive.toml names
bridge = CeleryBridge(app, os.environ.get("BROKER_URL", "redis://localhost:6379/0"), queues=["celery"])


@app.task(name="shop.charge", retry=Retry(max_attempts=4, backoff=Backoff(base="500ms", cap="5s")))
def charge(order: str, amount: float) -> None:
    if amount <= 0:
        raise Reject(f"order {order}: {amount} cannot be charged")  # dead at once: no retry can help
    print(f"order {order}: charged {amount}")
'''


class Start(NamedTuple):
    """What `init` writes: the files by name, the app of redrive.toml, and what to type next."""

    files: dict[str, str]
    next: tuple[str, ...]
    app: str = "tasks:app"


PLAIN = Start(
    {"tasks.py": TASKS},
    (
        """{redrive} enqueue greet '{"name": "Ada"}'""",
        """{redrive} enqueue charge '{"order": "A-1", "amount": 12.5}'""",
        """{redrive} enqueue charge '{"order": "A-2", "amount": 0}'""",
        "{redrive} worker --drain",
        "{redrive} dlq list",
        "{redrive} queue list",
    ),
)
STARTS = {
    "plain": PLAIN,
    "fastapi": Start(
        {"tasks.py": TASKS, "web.py": FASTAPI},
        (
            "pip install fastapi uvicorn",
            "uvicorn web:web &",
            "curl -X POST 'http://127.0.0.1:8000/orders?number=A-1&amount=12.5'",
            "curl -X POST 'http://127.0.0.1:8000/orders?number=A-2&amount=0'",
            "{redrive} worker --drain",
            "{redrive} dlq list",
        ),
    ),
    "django": Start(
        {
            "settings.py": DJANGO_SETTINGS,
            "shop/__init__.py": "",
            "shop/tasks.py": DJANGO_TASKS,
            "orders.py": DJANGO_ENQUEUE,
        },
        (
            "pip install django   # before Django 6.0: django-tasks, too",
            "python orders.py",
            "DJANGO_SETTINGS_MODULE=settings {redrive} worker --drain",
            "DJANGO_SETTINGS_MODULE=settings {redrive} dlq list",
        ),
        "redrive.contrib.django:app",
    ),
    "celery": Start(
        {"tasks.py": CELERY},
        (
            "pip install celery redis",
            "{redrive} policy check --celery shop:celery_app   # what your Celery app's policies will do",
            "export BROKER_URL=redis://localhost:6379/0",
            "{redrive} celery &   # moves what Celery's producers enqueue",
            "{redrive} worker",
            "{redrive} dlq list",
        ),
    ),
}  # fmt: skip


@click.command()
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path), metavar="[DIR]")
@click.option("--url", metavar="URL", default="sqlite:///redrive.db", help="the store to set [sqlite:///redrive.db]")
@click.option("--fastapi", "kind", flag_value="fastapi", help="with a FastAPI application that enqueues")
@click.option("--django", "kind", flag_value="django", help="as a Django project that uses redrive for its tasks")
@click.option("--celery", "kind", flag_value="celery", help="with a bridge that runs what Celery's producers enqueue")
def init(directory: Path, url: str, kind: str | None) -> None:
    """Write a small app that runs (tasks.py) and its settings (redrive.toml) into DIR. Never overwrites a file."""
    engine_of(url)
    start = STARTS[kind or "plain"]
    files = {**start.files, SETTINGS_FILE: SETTINGS}
    taken = [name for name in files if (directory / name).exists()]
    if taken:
        why = (
            f"{' and '.join(taken)} exist{'s' * (len(taken) == 1)} in {directory.absolute()}, and init never overwrites"
        )
        raise Failure("nothing was written", why, f"{program()} init another-directory", REFUSED)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).parent.mkdir(mode=0o755, exist_ok=True)
        with _new(directory / name) as file:
            if name == SETTINGS_FILE:
                text = text.replace("{url}", json.dumps(url, ensure_ascii=False)).replace("{app}", start.app)
            file.write(text)
        click.echo(one_line(str(directory / name)))
    if shown(url) != url:
        note(f"the password stands in {SETTINGS_FILE} now; REDRIVE_URL keeps it out of files that are shared")
    note("")
    note("Now try:")
    if directory.resolve() != Path.cwd():
        note(f"  cd {shlex.quote(str(directory))}")
    for command in start.next:
        note(f"  {command.replace('{redrive}', program())}")


def _new(path: Path) -> IO[str]:
    """Create a file that `init` writes, and open it. The settings may contain a password, so only this user may read
    them; the code is executed, so only this user may write it, whatever the umask."""
    if path.name == SETTINGS_FILE:
        return os.fdopen(create(path, shared=is_shared()), "w", encoding="utf-8")
    fd = create(path, public=True)
    if POSIX:
        os.fchmod(fd, os.fstat(fd).st_mode & 0o755)
    return os.fdopen(fd, "w", encoding="utf-8")
