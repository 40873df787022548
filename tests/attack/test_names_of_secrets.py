"""Names of tasks, queues, dependencies, groups, schedules and workers that look like those of secrets are shown
everywhere; what looks like a secret in their place in a payload is hidden as ever."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.attack.commands import Said, command
from tests.support.sites import FP, JSON, Browser, address
from tests.support.top import Watched, watch

from redrive import App
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Draft, Settlement
from redrive.presence import HeldMessage, QueueWork, WorkerInfo
from redrive.presence.directory import ProcessCell
from redrive.redact import HIDDEN
from redrive.top import Model
from redrive.triage.pauses import pause
from redrive.web.table import PAGES

TASKS = """
from redrive import App, Breaker

app = App("sqlite:///work.db")
app.dependency("vault.api_key", breaker=Breaker())
app.dependency("password", breaker=Breaker())


@app.periodic("@hourly")
@app.task(name="auth.refresh_token", queue="secrets", dependency="vault.api_key")
def refresh(record: int = 1, token: str = "") -> None: ...


@app.task(name="users.password", queue="access_token", dependency="password")
def reset(record: int = 1) -> None: ...


@app.task(name="jwt", queue="authorization")
def sign(record: int = 1) -> None: ...
"""
NAMED = {"auth.refresh_token": "secrets", "users.password": "access_token", "jwt": "authorization"}
TEXT = "no such account among 17"
COMMANDS = (
    ("status",),
    ("workers",),
    ("doctor",),
    ("history",),
    ("upcoming",),
    ("slo",),
    ("views",),
    ("audit", "list"),
    ("queue", "list"),
    ("flow", "list"),
    ("flow", "show", "vault.api_key"),
    ("flow", "show", "password"),
    ("group", "list", "secrets"),
    ("schedule", "list"),
    ("policy", "list"),
    ("policy", "check"),
    ("job", "list"),
    ("dlq", "list"),
    ("dlq", "groups"),
    ("dlq", "group", FP),
    ("dlq", "audit"),
    ("dlq", "auto"),
    ("dlq", "plan", "lane:dead"),
    ("run", "list"),
)


class Scene:
    """A store with messages of tasks of such names, and the ids that pages are asked for."""

    def __init__(self, folder: Path) -> None:
        names: dict[str, App] = {}
        exec(TASKS, names)
        self.app, store = names["app"], names["app"].store
        self.dead = [self._died(task, queue, n) for n, (task, queue) in enumerate(NAMED.items()) for _ in range(3)]
        drafts = [
            Draft(task=task, queue=queue, group="tenant.password", body=b'{"record":1}')
            for task, queue in NAMED.items()
        ]
        self.waiting = [put.id for put in store.put([*drafts, *drafts])]
        pause(store, "access_token", reason="maintenance")
        self.app.flow.open("vault.api_key", reason="they mend it")
        self.plan = self.app.dlq.select("task:users.password").plan().id
        run = self.app.dlq.select("task:jwt").plan()
        run.start(reason="mended")
        held = HeldMessage(id=self.waiting[0], task="auth.refresh_token", since_ms=store.now_ms())
        queues = tuple(QueueWork(name=queue, concurrency=2, held=1) for queue in NAMED.values())
        at = store.now_ms()
        ProcessCell(store).write(
            WorkerInfo(
                name="vm/password", host="vm", pid=7, version="9.9", started_ms=at, seen_ms=at, held=1, running=1,
                queues=queues, messages=(held,),
            )
        )  # fmt: skip
        self.run = run.id
        self.batch = self.app.batch([Draft(task="jwt", queue="secrets")], name="reset.password").enqueue().id
        self.parts = {
            "queue": {"queue": "secrets"}, "group": {"fingerprint": FP}, "edit": {"id": self.dead[0]},
            "message": {"id": self.waiting[0]}, "plan": {"id": self.plan}, "run": {"id": self.run},
            "dependency": {"dependency": "vault.api_key"}, "batch": {"id": self.batch},
            "task": {"task": "users.password"}, "worker": {"worker": "vm/password"},
        }  # fmt: skip

    def _died(self, task: str, queue: str, n: int) -> str:
        (put,) = self.app.store.put([Draft(task=task, queue=queue, body=b'{"record":1}')])
        (taken,) = self.app.store.exchange([], [ClaimRequest(queue, 1, 30_000)]).deliveries
        fault = Fault(Kind.PERMANENT, "ValueError", TEXT, FP if n == 0 else f"{n}a" * 8, attempt=1)
        self.app.store.exchange([Settlement(taken.receipt, DeadLetter("permanent"), fault)], [])
        return put.id


def call(*words: str) -> Said:
    """What a command says, with the app imported once more: the last one closed its store."""
    sys.modules.pop("named_tasks", None)
    return command(*words)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "named_tasks.py").write_text(TASKS)
    monkeypatch.setenv("REDRIVE_APP", "named_tasks:app")
    found = Scene(tmp_path)
    yield found
    found.app.store.close()


def test_every_page_and_its_json_shows_names_that_look_like_those_of_secrets(scene: Scene) -> None:
    browser = Browser(scene.app.dashboard())
    shown = ""
    extra = ["/plans?q=lane:dead", "/messages?q=task:users.password", "/messages?lane=ready", "/queues/access_token"]
    for path in [*(address(page, scene.parts) for page in PAGES), *extra, f"/messages/{scene.dead[4]}"]:
        html, json = browser.get(path), browser.get(path, headers=JSON)
        assert (html.status_code, json.status_code) == (200, 200), (path, html.text[-2000:])
        told = (html.text + json.text).replace("shown as ***", "")
        assert HIDDEN not in told, (path, [line for line in told.splitlines() if HIDDEN in line])
        shown += html.text
    assert all(name in shown for name in (*NAMED, *NAMED.values(), "vault.api_key", "vm/password"))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_shows_names_that_look_like_those_of_secrets(scene: Scene, words: tuple[str, ...]) -> None:
    for form in ("table", "tsv", "json"):
        told = call(*words, "-o", form)
        assert told.code in (0, 1), told.text
        assert HIDDEN not in told.text, [line for line in told.text.splitlines() if HIDDEN in line]


def test_commands_about_one_message_show_names_that_look_like_those_of_secrets(scene: Scene) -> None:
    calls = [("job", "show", id) for id in scene.waiting]
    calls += [("dlq", "show", id) for id in scene.dead]
    calls += [("run", "show", scene.run)]
    calls += [("dlq", "retry", scene.dead[0]), ("job", "cancel", scene.waiting[0])]
    for words in calls:
        told = call(*words)
        assert told.code in (0, 1) and HIDDEN not in told.text, told.text


def test_every_screen_of_top_shows_names_that_look_like_those_of_secrets(scene: Scene) -> None:
    model = Model(scene.app.store, scene.app, "sqlite:///work.db", actor="ann@ops")

    async def test(w: Watched) -> None:
        await w.sees("thing")
        for key in "123456789":
            await w.press(key)
            await w.pilot.pause(0.3)
            assert HIDDEN not in w.text, w.text
            await w.press("enter")
            await w.pilot.pause(0.3)
            assert HIDDEN not in w.text, w.text

    watch(model, test, (160, 60))


def test_a_field_of_a_payload_is_hidden_though_a_queue_has_its_name(scene: Scene) -> None:
    body = b'{"secrets":"hunter2","access_token":"hunter2","record":1}'
    (put,) = scene.app.store.put([Draft(task="jwt", queue="jobs", body=body, headers={"authorization": "hunter2"})])
    browser = Browser(scene.app.dashboard())
    path = f"/messages/{put.id}"
    told = browser.get(path).text + browser.get(path, headers=JSON).text + call("job", "show", put.id, "--body").text
    assert "hunter2" not in told and HIDDEN in told
