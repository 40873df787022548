"""Canaries in everything that a store keeps of a message, and in what people wrote beside it: no command that reads
shows one, in no form. A command that is new is called too, unless it is named among those that write."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.support.attack.commands import Said, command

from redrive import App, Draft
from redrive.audit.log import Audit
from redrive.fault import Fault, Kind
from redrive.message import Ack, ClaimRequest, DeadLetter, Deferral, Quarantine, RetryAt, Settlement
from redrive.program.main import cli
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.annotations import Annotations
from redrive.triage.redrive import plan as plans
from redrive.triage.redrive import run as runs
from redrive.triage.redrive.options import read_settings
from redrive.triage.selection import Selection
from redrive.triage.views import save_view

KEYED = "correct-horse-battery"  # a secret by the name beside it alone
TOKEN = "ghp_0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX"  # and by its own form
URL = "postgresql://bob:hunter2-in-a-url@db.example/app"
CANARIES = (KEYED, TOKEN, "hunter2-in-a-url")
SAID = f"password={KEYED} and {TOKEN} at {URL}"
FP, TAG = "a1097e748bbaf6be", f"tenant-{TOKEN}"
APP = f"""
from redrive import App, Breaker
app = App("sqlite:///work.db")
app.dependency("crm", breaker=Breaker())
@app.periodic("0 3 * * *", name="nightly", kwargs={{"password": {KEYED!r}, "note": {TOKEN!r}}})
def nightly(password: str, note: str) -> None: ...
"""
ACTING = frozenset(
    (
        "alerts mute", "alerts unmute", "top", "web",
        "init", "demo", "deliver", "celery", "worker", "scheduler", "enqueue", "batch cancel", "job cancel",
        "job run",
        "queue pause",
        "queue purge", "queue resume", "group resume", "group width", "flow set", "dlq apply", "dlq discard",
        "dlq edit", "dlq import",
        "dlq ingest", "dlq merge", "dlq move", "dlq mute", "dlq note", "dlq own", "dlq quarantine", "dlq readmit",
        "dlq resolve", "dlq retry", "dlq unmerge",
        "run approve", "run cancel", "run pause", "run resume", "run undo", "schedule pause", "schedule resume",
        "schedule run", "task pause", "task resume", "workers drain",
        "metrics serve", "aws package", "aws template", "keys new", "store sweep", "store upgrade",
    )
)  # fmt: skip
NO_STORE = frozenset(("completion", "keys status", "schema export", "schedule next"))  # need something else to read
FORMS = ("", "-v", "-o tsv", "-o json", "-o jsonl")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command of the command line, by the words that call it."""
    waiting: list[tuple[str, click.Command]] = [("", cli)]
    while waiting:
        path, found = waiting.pop()
        if not isinstance(found, click.Group):
            yield path, found
            continue
        context = click.Context(found)
        for name in found.list_commands(context):
            if (each := found.get_command(context, name)) is not None:
                waiting.append((f"{path} {name}".strip(), each))


READING = {path: found for path, found in sorted(commands()) if path not in ACTING}


class Scene:
    """Messages in every lane, each part of each with a canary, and what people wrote about them."""

    def __init__(self) -> None:
        self.store = SqliteStore("work.db")
        self.dead = self.settled(DeadLetter("permanent", SAID))
        self.poison = self.settled(Quarantine(SAID))
        self.held = self.settled(RetryAt(self.store.now_ms() + 10**8, SAID, deferral=Deferral("breaker", TAG)))
        self.done = self.settled(Ack(keep_ms=10**9))
        self.damaged = self.settled(DeadLetter("permanent", SAID))
        with contextlib.closing(sqlite3.connect("work.db")) as other, other:
            other.execute("update message set crashes = 'x' where id = ?", (self.damaged,))
        self.waiting = self.store.put([self.draft(delay_ms=10**8, key=TAG, group=TAG)])[0].id
        self.store.put([self.draft(group=TAG) for _ in range(2)])
        said = Annotations(self.store)
        said.note(FP, SAID, actor=TAG, reason=SAID)
        said.own(FP, f"team {TOKEN}", actor="ann")
        said.rule(FP, "hold", actor=TAG, reason=SAID)
        save_view(self.store, f"of {TOKEN}"[:80], f"messages?q=password={KEYED}", actor=TAG)
        settings = read_settings(rate="20/s", note=SAID)
        plan = plans.draw_up(self.store, Selection(self.store, "queue:crm"), f"text:{TOKEN}", settings)
        runs.begin(self.store, plan, actor=TAG, reason=SAID)
        self.run = plan.id
        app = App("memory://")  # the batch of another app on the same store
        app._store = self.store
        app.pause_task("crm.push", reason=SAID, actor=TAG)
        self.batch = app.batch([self.draft(delay_ms=10**8)], name=SAID, on_success=self.draft()).enqueue().id
        self.resting = (self.dead, self.poison, self.damaged)
        self.arguments = {
            "job show": [[id] for id in [*self.resting, self.held, self.done, self.waiting]],
            "dlq show": [[id] for id in self.resting],
            "dlq list": [[], ["--quarantine"]],
            "dlq export": [["--all"], [self.damaged]],
            "cost": [["--messages", "1M"]],
            "dlq group": [[FP]],
            "batch show": [[self.batch]],
            "workflow show": [[self.batch]],
            "batch members": [[self.batch]],
            "batch watch": [[self.batch, "--timeout", "1ms"]],
            "group list": [["crm"]],
            "flow show": [["crm"]],
            "queue show": [["crm"]],
            "run show": [[self.run]],
            "run failures": [[self.run]],
            "run watch": [[self.run, "--timeout", "1ms"]],
            "task show": [["crm.push"]],
            "watch": [["--once"]],
        }

    def draft(self, **parts: object) -> Draft:
        body = {"password": KEYED, "note": SAID, "env": [{"name": "API_KEY", "value": KEYED}], "deep": {"url": URL}}
        headers = {"Authorization": f"Bearer {KEYED}", "x-note": SAID, "X-Api-Key": KEYED}
        parts = {"correlation_id": TAG, "producer": TAG, **parts}
        return Draft(task="crm.push", queue="crm", body=json.dumps(body).encode(), headers=headers, **parts)  # type: ignore[arg-type]

    def settled(self, decision: DeadLetter | Quarantine | RetryAt | Ack) -> str:
        (put,) = self.store.put([self.draft(keep_ms=10**9)])
        (taken,) = self.store.exchange([], [ClaimRequest("crm", 1, 30_000)]).deliveries
        secrets = json.dumps({"password": KEYED, "said": SAID}).encode()
        self.store.checkpoint(taken.receipt, secrets)
        code = f'  File "a.py", line 1, in f\n    push("{TOKEN}", "password={KEYED}")\n'
        trace = f"Traceback (most recent call last):\n{code}OSError: {SAID}"
        fault = (
            None if isinstance(decision, Ack) else Fault(Kind.DEFAULT, "OSError", SAID, FP, attempt=1, traceback=trace)
        )
        result = secrets if isinstance(decision, Ack) else None
        self.store.exchange([Settlement(taken.receipt, decision, fault, result=result)], [])
        return put.id


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("reading")
    (folder / "canary16.py").write_text(APP)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("REDRIVE_APP", "canary16:app")
        patch.setenv("COLUMNS", "4000")
        found = Scene()
        yield found
        found.store.close()
        sys.modules.pop("canary16", None)


def called(*words: str, terminal: bool = False) -> Said:
    said = command(*words, terminal=terminal)
    sys.modules.pop("canary16", None)  # the command closed the store of the app that it imported
    return said


@pytest.mark.parametrize("path", READING)
def test_no_reading_command_shows_a_secret(scene: Scene, path: str) -> None:
    takes_form = any(parameter.name == "output" for parameter in READING[path].params)
    for arguments in scene.arguments.get(path, [[]]):
        for form in FORMS if takes_form else ("",):
            said = called(*path.split(), *arguments, *form.split(), terminal=form in ("", "-v"))
            assert said.code in (0, 1, 124) or path in NO_STORE, (path, said)
            assert [canary for canary in CANARIES if canary in said.text] == [], (path, form, said.text)


def test_what_a_canary_is_in_is_shown_without_it(scene: Scene) -> None:
    """So that the test above does not pass because nothing was shown."""
    for id in (scene.dead, scene.poison, scene.held, scene.done):
        shown = json.loads(called("job", "show", id, "-o", "json").out)
        assert shown["body"]["password"] == "***" and shown["headers"]["Authorization"] != "" and "***" in str(shown)
        assert "***" in json.dumps(shown["result"] if id == scene.done else shown["faults"])
        assert "***" in json.dumps(shown["progress"]) or id == scene.done
    assert "***" in called("dlq", "audit").out and "***" in called("run", "show", scene.run).out
    assert "***" in called("dlq", "group", FP).out and "***" in called("group", "list", "crm").out


def test_revealing_shows_them_and_is_audited(scene: Scene) -> None:
    for words in (["job", "show", scene.dead], ["dlq", "show", scene.dead], ["dlq", "export", scene.dead]):
        said = called(*words, "--reveal", "--reason", "to find out why")
        assert all(canary in said.out for canary in CANARIES), words
    told = [entry for entry in Audit(scene.store) if entry.action == "reveal"]
    assert [(entry.reason, entry.ids) for entry in told] == [("to find out why", (scene.dead,))] * 3
