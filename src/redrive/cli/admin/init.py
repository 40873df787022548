"""`redrive init`: write a small app that runs."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import IO

import click

from ...config import is_shared
from ...files import create
from ...present.commands import program
from ...present.failure import REFUSED, Failure
from ...redact import one_line
from ...stores import engine_of
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
app = "tasks:app"
url = {url}
# queues = "default:20"   # what `redrive worker` runs, with how many messages at once
# lease = "30s"           # how long a claim holds unless renewed
# grace = "30s"           # how long a worker lets runs finish when it is told to stop
# processes = 1
# log = "json"            # auto, json, text or off
"""
SETTINGS_FILE = "redrive.toml"
FILES = {"tasks.py": TASKS, SETTINGS_FILE: SETTINGS}
COMMANDS = (
    """enqueue greet '{"name": "Ada"}'""",
    """enqueue charge '{"order": "A-1", "amount": 12.5}'""",
    """enqueue charge '{"order": "A-2", "amount": 0}'""",
    "worker --drain",
    "dlq list",
    "queue list",
)


@click.command()
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path), metavar="[DIR]")
@click.option("--url", metavar="URL", default="sqlite:///redrive.db", help="the store to set [sqlite:///redrive.db]")
def init(directory: Path, url: str) -> None:
    """Write a small app that runs (tasks.py) and its settings (redrive.toml) into DIR. Never overwrites a file."""
    engine_of(url)
    taken = [name for name in FILES if (directory / name).exists()]
    if taken:
        why = (
            f"{' and '.join(taken)} exist{'s' * (len(taken) == 1)} in {directory.absolute()}, and init never overwrites"
        )
        raise Failure("nothing was written", why, f"{program()} init another-directory", REFUSED)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, text in FILES.items():
        with _new(directory / name) as file:
            file.write(text.replace("{url}", json.dumps(url, ensure_ascii=False)) if name == SETTINGS_FILE else text)
        click.echo(one_line(str(directory / name)))
    if shown(url) != url:
        note(f"the password stands in {SETTINGS_FILE} now; REDRIVE_URL keeps it out of files that are shared")
    note("")
    note("Now try:")
    if directory.resolve() != Path.cwd():
        note(f"  cd {shlex.quote(str(directory))}")
    for command in COMMANDS:
        note(f"  {program()} {command}")


def _new(path: Path) -> IO[str]:
    """Create a file that `init` writes, and open it. The settings may contain a password, so only this user may read
    them; the code is executed, so only this user may write it, whatever the umask."""
    if path.name == SETTINGS_FILE:
        return os.fdopen(create(path, shared=is_shared()), "w", encoding="utf-8")
    fd = create(path, public=True)
    os.fchmod(fd, os.fstat(fd).st_mode & 0o755)
    return os.fdopen(fd, "w", encoding="utf-8")
