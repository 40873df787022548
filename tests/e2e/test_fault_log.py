"""A task that fails, in the application's own log and in Sentry: one record per retry and death, wherever it runs."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import COMMAND
from tests.support.examples import run

from redrive import App

SECRET = "hunter2-of-ann"
TASKS = f"""
import logging
from redrive import App, Backoff, Retry

app = App("sqlite:///work.db")

class Declined(Exception): ...

def ask(password, number):
    raise Declined(f"https://ann:{{password}}@bank.example said no to {{number}}, api_key={SECRET}")

@app.task(name="charge", retry=Retry(max_attempts=2, backoff=Backoff.fixed("10ms")))
def charge(number):
    password = "{SECRET}"
    ask(password, number)
"""
# The transport keeps each event in a file; nothing is sent.
SENTRY = """
import json, sys
import sentry_sdk
from sentry_sdk.transport import Transport

class Kept(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.type == "event":
                with open("sentry.jsonl", "a") as events:
                    events.write(json.dumps(item.payload.json) + "\\n")

# The test of docs/howto/logging.md runs it with all that Sentry turns on by itself, which takes seconds to import.
sentry_sdk.init(dsn="https://key@sentry.example/1", transport=Kept, auto_enabling_integrations=False)
"""
LOG = 'logging.basicConfig(level=logging.WARNING, handlers=[logging.StreamHandler(), logging.FileHandler("app.log")])'
FASTAPI = """
import asyncio
import uvicorn
from fastapi import FastAPI
from redrive.contrib.starlette import lifespan
from tasks import app, charge

async def main():
    server = uvicorn.Server(uvicorn.Config(FastAPI(lifespan=lifespan(app)), port=0))
    serving = asyncio.create_task(server.serve())
    await charge.aenqueue(7)
    while not (await asyncio.to_thread(app.counts)).dead:
        await asyncio.sleep(0.01)
    server.should_exit = True
    await serving

asyncio.run(main())
"""
SETTINGS = """
SECRET_KEY, INSTALLED_APPS, USE_TZ = "s", ["shop"], True
TASKS = {"default": {"BACKEND": "redrive.contrib.django.RedriveBackend", "OPTIONS": {"url": "sqlite:///work.db"}}}
LOGGING = {
    "version": 1,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "app.log"}},
    "root": {"handlers": ["file"]},
}
"""


def texts(text: str) -> tuple[int, int, int]:
    """How many records of retries, of deaths, and tracebacks a log in text form has."""
    return text.count("failed and runs again"), text.count("is dead, "), text.count("Traceback (most recent")


def home_of(folder: Path, **files: str) -> Path:
    for name, source in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
    return folder


SCRIPT = """
import logging, sys
from tasks import app, charge

exec(sys.argv[1])
charge.enqueue(7)
app.run_worker(drain=True)
"""


@pytest.mark.parametrize(
    ("setting_up", "tracebacks"),
    [("", 1), ("logging.getLogger('shop').addHandler(logging.NullHandler())", 1), ("logging.basicConfig()", 2)],
)
def test_a_script_without_logging_prints_one_line_per_retry(tmp_path: Path, setting_up: str, tracebacks: int) -> None:
    done = run(home_of(tmp_path, tasks=TASKS, work=SCRIPT), sys.executable, "work.py", setting_up, path=tmp_path)
    assert texts(done.stderr) == (1, 1, tracebacks) and SECRET not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "failed and runs again" in line]
    assert len(lines) == 1 and "tasks.Declined: https://ann:***@bank.example said no to 7" in lines[0]
    if tracebacks == 1:  # that of the death
        assert done.stderr.splitlines()[0] == lines[0] and "is dead, exhausted" in done.stderr.splitlines()[1]


def test_fastapi_with_its_default_logging_shows_each_retry_and_death_on_stderr(tmp_path: Path) -> None:
    done = run(home_of(tmp_path, tasks=TASKS, web=FASTAPI), sys.executable, "web.py", path=tmp_path)
    assert texts(done.stderr) == (1, 1, 2) and SECRET not in done.stderr


def test_django_logs_them_by_its_logging_setting(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    task = f"""
        try:
            from django.tasks import task
        except ImportError:
            from django_tasks import task

        @task(retry="emails")
        def charge(number):
            raise ValueError("password={SECRET}", number)
    """
    home_of(tmp_path / "shop", tasks=task)
    enqueue = "import django; django.setup(); from shop.tasks import charge; charge.enqueue(7)"
    home_of(tmp_path, settings=SETTINGS, put=enqueue)
    env = {"DJANGO_SETTINGS_MODULE": "settings"}
    run(tmp_path, sys.executable, "put.py", path=tmp_path, **env)
    run(tmp_path, *COMMAND, "worker", "redrive.contrib.django:app", "--burst", path=tmp_path, **env)
    log = (tmp_path / "app.log").read_text()
    assert texts(log) == (1, 0, 1) and SECRET not in log


@pytest.mark.parametrize("isolated", [False, True], ids=["in the worker", "isolated"])
def test_on_the_command_line_a_death_is_once_on_stderr_once_in_the_log_and_once_in_sentry(
    tmp_path: Path, isolated: bool
) -> None:
    tasks = TASKS.replace("@app.task(", '@app.task(isolation="process", ') if isolated else TASKS
    home_of(tmp_path, tasks=SENTRY + tasks + LOG + "\n")
    producer = App(f"sqlite:///{tmp_path}/work.db")
    producer.task(name="charge")(lambda number: None).enqueue(7)
    producer.store.close()
    done = run(tmp_path, *COMMAND, "worker", "tasks:app", "--drain", path=tmp_path)
    lines = [json.loads(line) for line in done.stderr.splitlines()]  # nothing but JSON
    faults = [line for line in lines if "outcome" in line]
    assert [line["outcome"] for line in faults] == ["retry", "dead"]
    assert all("in ask\n" in line["traceback"] for line in faults)
    log, (event,) = (tmp_path / "app.log").read_text(), sent(tmp_path)
    assert texts(log) == (1, 1, 2)
    assert SECRET not in done.stderr + log + json.dumps(event)
    assert_shows_the_death(event)


def sent(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "sentry.jsonl").read_text().splitlines()]


def assert_shows_the_death(event: dict[str, Any]) -> None:
    assert (event["level"], event["logger"], event["extra"]["redrive"]["task"]) == ("error", "redrive", "charge")
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["module"]) == ("Declined", "tasks")
    assert exception["value"] == "https://ann:***@bank.example said no to 7, api_key=***"
    frames = exception["stacktrace"]["frames"]
    assert [(frame["function"], frame["module"], frame["in_app"]) for frame in frames] == [
        ("charge", "tasks", True),
        ("ask", "tasks", True),
    ]
    assert frames[0]["context_line"] == "    ask(password, number)" and "api_key=***" in frames[1]["context_line"]
    assert [crumb["level"] for crumb in event["breadcrumbs"]["values"] if crumb["category"] == "redrive"] == ["warning"]
