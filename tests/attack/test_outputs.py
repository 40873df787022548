"""Sixty secrets in fifty-five shapes lie in bodies, headers, results and faults; no output shows a part of one.

Outputs are those of the commands in every form, of errors, logs, alerts, webhooks, metrics and exports, and the names
of files. `--reveal` shows them, and the audit log says who asked for it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.attack.canaries import SHAPES, Canary, canaries
from tests.support.attack.commands import Said, command
from tests.support.endpoint import Answer, Endpoint
from tests.support.webhooks import Hook, hook

from redrive import App, Draft, Reject, Retry
from redrive.audit.log import Audit
from redrive.aws.cloudwatch import Emf
from redrive.events import DeliveryEvent, Notice
from redrive.fault import Fault, Kind
from redrive.message import Ack, ClaimRequest, DeadLetter, Quarantine, Settlement
from redrive.observe.alerts import Alert
from redrive.observe.logs import JsonLog, TextLog
from redrive.observe.webhook import notify
from redrive.stores.clock import wall_ms
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.export import import_lines
from redrive.triage.redrive.runner import Runner
from redrive.worker.redrive_outcome import with_redrive_outcome

__all__ = ["hook"]

FORMS = ("table", "tsv", "json", "jsonl", "ids")


class Watch:
    """Looks for parts of secrets in what was said."""

    def __init__(self, found: list[Canary]) -> None:
        self._parts = [
            (secret, part) for canary in found for secret in written(canary.value) for part in parts_of(secret)
        ]

    def shown(self, text: str) -> list[tuple[str, str]]:
        return [(secret, part) for secret, part in self._parts if part in text]


def written(value: str) -> set[str]:
    """The secret as it is, and as each shape writes it."""
    return {value, *(shape.written(value) for shape in SHAPES)}


def parts_of(secret: str) -> list[str]:
    """Its beginning, its middle and its end, or all of a short one."""
    middle = len(secret) // 2
    return [secret] if len(secret) < 10 else [secret[:10], secret[middle - 5 : middle + 5], secret[-10:]]


class Scene(NamedTuple):
    """A store of dead, quarantined, done and waiting messages full of secrets, and commands on it."""

    folder: Path
    ids: list[str]
    done: str
    watch: Watch
    pieces: list[list[str]]  # by shape, then by secret

    def __call__(self, *words: str, terminal: bool = False) -> Said:
        return command(*words, terminal=terminal)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Scene]:
    """One message for each shape, with all sixty secrets in its body, its headers and its faults."""
    folder, found = tmp_path_factory.mktemp("scene"), canaries(seed)
    pieces = [[shape.text(canary.value) for canary in found] for shape in SHAPES]
    texts = ["\n\n".join(each) for each in pieces]
    store = SqliteStore(folder / "work.db")
    drafts = [_draft(each, found, n) for n, each in enumerate(pieces)]
    ids = [put.id for put in store.put(drafts)]
    taken = store.exchange([], [ClaimRequest("crm", 500, 30_000, worker="w")]).deliveries
    by_id = {each.message.id: each for each in taken}
    settles = [_settlement(by_id[id].receipt, text, n) for n, (id, text) in enumerate(zip(ids, texts, strict=True))]
    store.exchange(settles, [])
    done = store.put([Draft(task="crm.push", queue="later", body=_body(texts[3], found), keep_ms=10**9)])[0].id
    (one,) = store.exchange([], [ClaimRequest("later", 1, 30_000)]).deliveries
    store.exchange([Settlement(one.receipt, Ack(keep_ms=10**9), result=_body(texts[0], found))], [])
    store.put(
        [Draft(task="crm.push", queue="later", delay_ms=10**9, key=pieces[0][0], headers={"Cookie": found[0].value})]
    )
    store.close()
    before, environ = (
        Path.cwd(),
        {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("REDRIVE_")},
    )
    os.chdir(folder)
    os.environ |= {"REDRIVE_URL": "sqlite:///work.db", "COLUMNS": "4000"}
    try:
        yield Scene(folder, ids, done, Watch(found), pieces)
    finally:
        os.chdir(before)
        for name in ("REDRIVE_URL", "COLUMNS"):
            del os.environ[name]
        os.environ |= environ


def _body(text: str, found: list[Canary]) -> bytes:
    args = {"said": text, "password": found[1].value, "env": [{"name": "API_KEY", "value": found[2].value}]}
    return json.dumps({**args, "deep": {"db": {"passwords": [canary.value for canary in found]}}}).encode()


def _draft(pieces: list[str], found: list[Canary], n: int) -> Draft:
    text = "\n\n".join(pieces)
    raw = n % 3 == 0  # a body that is no JSON: it is shown in base64
    return Draft(
        task="crm.push",
        queue="crm",
        body=text.encode() if raw else _body(text, found),
        content="raw" if raw else "json",
        headers={
            "Authorization": f"Bearer {found[n].value}",
            "x-note": pieces[n],
            "X-Api-Key": found[n].value,
        },
        correlation_id=pieces[n] if len(pieces[n].encode()) <= 1024 else None,
    )


def _settlement(receipt: Any, text: str, n: int) -> Settlement:
    trace = f'Traceback (most recent call last):\n  File "app.py", line 1, in f\n    push()\nValueError: {text}'
    fault = Fault(Kind.PERMANENT, "ValueError", text, f"{n:016x}", attempt=1, traceback=trace)
    decision = Quarantine(text, reason="rejected") if n % 5 == 0 else DeadLetter("permanent", text)
    return Settlement(receipt, decision, fault)


# -- commands


@pytest.mark.turns(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "words",
    [
        "dlq list", "dlq list --quarantine", "dlq groups", "dlq audit", "dlq rule", "dlq auto", "job list",
        "queue list", "flow list", "run list", "group list crm", "config show", "store info", "store doctor",
        "store check", "dlq list text:*password*", "dlq plan queue:crm --reason password=hunter2-and-more",
    ],
)  # fmt: skip
def test_no_list_shows_a_secret(scene: Scene, words: str, form: str) -> None:
    said = scene(*words.split(), "-o", form, terminal=form == "table")
    assert said.code in (0, 1, 2) and scene.watch.shown(said.text) == []


@pytest.mark.turns(4)
@pytest.mark.parametrize("form", FORMS[:4])
@pytest.mark.parametrize("n", range(len(SHAPES)), ids=lambda n: SHAPES[n].name)
def test_no_message_that_is_shown_shows_a_secret(scene: Scene, n: int, form: str) -> None:
    for about in ("job", "dlq"):
        said = scene(about, "show", scene.ids[n], "-o", form)
        assert said.code == 0 and scene.watch.shown(said.text) == []
        if form == "json":
            record = json.loads(said.text)
            assert record["id"] == scene.ids[n] and set(record["headers"]) == {"Authorization", "x-note", "X-Api-Key"}


def test_no_result_edit_group_or_note_shows_a_secret(scene: Scene) -> None:
    for words in (
        ["job", "show", scene.done],
        ["dlq", "edit", scene.ids[1], "--set", "n=1", "--header", "X-Api-Key=abcdef", "--unchecked", "--dry-run"],
        ["dlq", "group", "0000000000000007"],
        ["dlq", "note", "0000000000000007", *scene.pieces[0][:20]],
        ["dlq", "group", "0000000000000007"],
        ["dlq", "own", "0000000000000007", scene.pieces[0][7]],
        ["dlq", "audit"],
    ):
        said = scene(*words)
        assert said.code == 0 and scene.watch.shown(said.text) == [], words


def test_no_error_shows_what_was_typed(scene: Scene) -> None:
    commands: list[Callable[[str], list[str]]] = [
        lambda text: ["job", "show", text],
        lambda text: ["dlq", "show", text],
        lambda text: ["dlq", "list", text],
        lambda text: ["run", "show", text],
        lambda text: ["enqueue", "t", text],
        lambda text: ["flow", "show", text],
        lambda text: ["queue", "pause", text, "--output", "nothing"],
        lambda text: ["queue", text],
        lambda text: ["deliver", "nowhere.jsonl", "--to", text],
        lambda text: ["deliver", "nowhere.jsonl", "--to", "http://127.0.0.1:9/", "--header", text],
        lambda text: ["store", "info", "--url", text],
        lambda text: ["store", "info", "--app", text],
        lambda text: ["dlq", "apply", text, "--reason", "x"],
    ]
    for n, pieces in enumerate(scene.pieces):
        for words in commands:
            for text in (pieces[0], pieces[n]):
                said = scene(*words(text))
                assert scene.watch.shown(said.text) == [], (words(text), said.text)


def test_an_export_shows_no_secret_and_is_not_imported_without_them(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    said = scene("dlq", "export", "--all", "-f", str(file))
    assert said.code == 0 and "with secrets hidden" in said.text
    assert scene.watch.shown(file.read_text()) == [] and all(
        json.loads(line)["redacted"] for line in file.read_text().splitlines()
    )
    said = scene("dlq", "import", str(file), "--reason", "to look", "--url", f"sqlite:///{tmp_path}/there.db")
    assert (
        said.code == 4 and "its secrets were hidden by the export" in said.text and "nothing was imported" in said.text
    )
    said = scene("dlq", "export", "--all")
    assert scene.watch.shown(said.text) == []


def test_what_is_revealed_is_whole_and_noted(scene: Scene, tmp_path: Path) -> None:
    file, there = tmp_path / "dead.jsonl", tmp_path / "there.db"
    said = scene("dlq", "export", "--all", "-f", str(file), "--reveal", "--reason", "to find out why", "--actor", "ann")
    assert said.code == 0 and "hidden" not in said.text and scene.watch.shown(file.read_text())
    assert scene("dlq", "import", str(file), "--reason", "to look", "--url", f"sqlite:///{there}").code == 0
    here, copy = SqliteStore(scene.folder / "work.db"), SqliteStore(there)
    for id in scene.ids[1:4]:
        one, other = here.find([id])[0], copy.find([id])[0]
        assert one is not None and other is not None and (one.body, one.headers) == (other.body, other.headers)
    assert scene.watch.shown(scene("dlq", "show", scene.ids[0], "--reveal", "--actor", "ann").text)
    assert scene.watch.shown(scene("job", "show", scene.ids[1], "--reveal", "-o", "json").text)
    assert scene.watch.shown(scene("dlq", "list", "--reveal", "--reason", "look", "-o", "jsonl").text)
    told = [
        (each.action, each.claimed or each.actor, each.reason, each.count, each.ids[:1])
        for each in Audit(here)
        if each.action == "reveal"
    ]
    here.close()
    copy.close()
    assert [each[0] for each in told] == ["reveal"] * 4 and told[0][2] == "look" and told[0][3] == told[3][3] > 30
    assert told[1][4] == (scene.ids[1],) and told[1][2].endswith(" job show --reveal")
    assert told[2][1] == "ann" and told[3][1:3] == ("ann", "to find out why")


# -- what runs


def test_no_log_shows_a_secret(scene: Scene) -> None:
    for make in (JsonLog, TextLog):
        stream = io.StringIO()
        log = make(stream)
        for pieces in scene.pieces:
            for line in pieces:
                fate = DeliveryEvent(
                    outcome="dead", id="i", task=line, queue="q", attempt=1, fault="default", error="E",
                    text=line, reason="permanent", degraded=line, correlation_id=line, by=line, deferral="limit",
                )  # fmt: skip
                log([fate, Notice(name="store_unavailable", text=line, about=line)])
            text = "\n\n".join(pieces)
            log([DeliveryEvent(outcome="retry", id="i", task="t", queue="q", attempt=1, error="E", text=text)])
        assert scene.watch.shown(stream.getvalue()) == []


def test_no_alert_webhook_metric_or_trace_shows_a_secret(
    scene: Scene, hook: Hook, capfd: pytest.CaptureFixture[str]
) -> None:
    app, told, out, err = App("memory://"), list[Alert](), io.StringIO(), io.StringIO()
    texts = [each[n] for n, each in enumerate(scene.pieces)]

    @app.task(name="bad", queue="q", retry=Retry(max_attempts=1))
    def bad(n: int) -> None:
        raise Reject(texts[n])

    def failing(alert: Alert) -> None:
        told.append(alert)
        raise ValueError(alert.text + texts[0])

    app.on("dead_growth", failing, every="1h")
    watching = notify(app, hook.url, 3600)
    app.subscribe(JsonLog(out))
    emf = Emf(app, err, by_task=True, every=None)
    for n in range(len(texts)):
        bad.enqueue(n)
    app.run_worker(burst=True)
    watching.flush(10)
    emf.close()
    app.store.close()
    posted = json.dumps(hook.bodies)
    assert hook.bodies and told and out.getvalue().count('"dead"') >= len(texts)
    printed = capfd.readouterr()
    for said in (posted, repr(told), out.getvalue(), err.getvalue(), printed.out + printed.err):
        assert scene.watch.shown(said) == []


@pytest.mark.parametrize("n", [0, 7, 21, 33])
def test_no_plan_and_no_run_shows_a_secret(scene: Scene, tmp_path: Path, n: int) -> None:
    """Words of people in plans and runs, and what their messages fail of again."""
    url, texts = f"--url=sqlite:///{tmp_path}/runs.db", [each[n] for n, each in enumerate(scene.pieces)]
    told, ahead_ms = list[str](), [0]
    short = next(text for text in (texts[n], *scene.pieces[n]) if len(text) <= 1000)
    store = SqliteStore(tmp_path / "runs.db", clock_ms=lambda: wall_ms() + ahead_ms[0])

    def die() -> None:
        for each in store.exchange([], [ClaimRequest("crm", 500, 30_000)]).deliveries:
            text = texts[int(each.message.body)]
            fault = Fault(Kind.PERMANENT, "ValueError", text, f"{int(each.message.body):016x}", traceback=text)
            settlement = Settlement(each.receipt, DeadLetter("permanent", text), fault)
            store.exchange([with_redrive_outcome(each.message, settlement, store.now_ms())], [])

    store.put([Draft(task="crm.push", queue="crm", body=b"%d" % n) for n in range(len(texts))])
    die()
    file, select = str(tmp_path / "plan.json"), f"text:{json.dumps(texts[n])} or queue:crm"
    said = scene("dlq", "plan", select, "--reason", texts[n], "--out", file, "-o", "json", url)
    assert scene.watch.shown(said.text) == []
    id = scene("dlq", "plan", "queue:crm", "--reason", texts[n], "-o", "ids", url).out.strip()
    said = scene("dlq", "apply", id, "--reason", short, "--actor", "ann", "-o", "json", url)
    assert said.code == 0 and scene.watch.shown(said.text) == []
    carrier = Runner(store, id, "one", lambda name, text, *_: told.append(text), App(store=store))
    for _ in range(30):
        carrier.tick()
        die()
        ahead_ms[0] += 100
    for words in (["list"], ["show", id], ["failures", id], ["watch", id, "--timeout", "1s"]):
        for form in FORMS[:4]:
            said = scene("run", *words, "-o", form, url)
            assert said.text and scene.watch.shown(said.text) == [], said.text
    assert scene.watch.shown(scene("run", "failures", id, "--reveal", url).text)
    stream = io.StringIO()
    JsonLog(stream)([Notice(name="run_stopped", text=text) for text in told])
    assert told and scene.watch.shown(stream.getvalue() + scene("dlq", "audit", "-o", "json", url).text) == []
    store.close()


def test_no_report_of_a_delivery_shows_a_secret(scene: Scene, tmp_path: Path) -> None:
    """Lines full of secrets, to an endpoint that answers with them."""
    texts = [each[n] for n, each in enumerate(scene.pieces)]
    lines = (json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "lines.jsonl").write_text("".join(lines))
    url = f"--url=sqlite:///{tmp_path}/sent.db"
    with Endpoint(lambda request: Answer(422, body=json.loads(request.body)["text"].encode())) as endpoint:
        to = endpoint.url.replace("//", "//ann:hunter2-and-more@") + "?sig=hunter2-and-more"
        for form in FORMS[:4]:
            words = [sys.executable, "-m", "redrive", "deliver", "lines.jsonl", "--to", to, "-o", form, url]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            said = done.stdout + done.stderr
            assert done.returncode == 5 and scene.watch.shown(said) == [] and "hunter2" not in said
    for words in (["dlq", "groups"], ["dlq", "list"], ["job", "list"]):
        text = scene(*words, "-o", "json", url).text
        assert scene.watch.shown(text) == [] and "hunter2" not in text


def test_no_metric_shows_a_secret(scene: Scene) -> None:
    said = scene("metrics", "print")
    assert said.code == 0 and "redrive_queue_messages" in said.text and scene.watch.shown(said.text) == []


def test_an_unexpected_error_shows_no_secret_not_even_its_trace(scene: Scene, tmp_path: Path) -> None:
    lines = [each[n] for n, each in enumerate(scene.pieces)]
    for n, line in enumerate(lines):
        (tmp_path / f"broken_{n}.py").write_text(f"raise RuntimeError({line!r})\n")
        os.environ["REDRIVE_TRACEBACK"] = "1"
        sys.path.insert(0, str(tmp_path))
        try:
            said = scene("worker", f"broken_{n}:app")
        finally:
            sys.path.remove(str(tmp_path))
            del os.environ["REDRIVE_TRACEBACK"]
        assert said.code == 1 and scene.watch.shown(said.text) == [], said.text


def test_no_file_beside_the_store_is_named_by_a_secret(scene: Scene) -> None:
    names = "\n".join(str(path) for path in scene.folder.rglob("*"))
    assert scene.watch.shown(names) == []


def test_lines_without_secrets_are_exported_as_they_are_and_imported(tmp_path: Path) -> None:
    store, other = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "b.db")
    app = App(store=store)
    store.put([Draft(task="push", body=b'{"id": 1.50,  "token_type": "bearer"}')])
    (one,) = store.exchange([], [ClaimRequest("default", 1, 30_000)]).deliveries
    store.exchange([Settlement(one.receipt, DeadLetter("permanent"), Fault(Kind.PERMANENT, "E", "no token left"))], [])
    done = app.dlq.export("task:push", tmp_path / "dead.jsonl")
    assert (done.count, done.hidden) == (1, 0) and "redacted" not in (tmp_path / "dead.jsonl").read_text()
    assert import_lines(other, tmp_path / "dead.jsonl", actor="ann", reason="look").ids == (one.message.id,)
    store.close()
    other.close()
