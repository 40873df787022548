"""Every command and every call that changes something has exactly one entry in the audit log, on every store.

The commands are walked through: a new one must be named here, as one that changes, or as one that does not.
"""

from __future__ import annotations

import itertools
import re
import secrets
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from redrive import App, Breaker, Draft, Gates
from redrive.audit.actor import user
from redrive.audit.log import CHUNK_MAX, Audit
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, GroupOrder, OnDead, Settlement
from redrive.presence import ProcessCell, WorkerInfo
from redrive.program.main import cli, run
from redrive.testing.sqs import SqsServer
from redrive.triage.auto import machine
from redrive.triage.auto.machine import Machine
from redrive.triage.pauses import pause, resume, resume_group, set_width
from redrive.triage.purge import purge

ROOT = Path(__file__).parents[2]
FP = "ab" * 8
FP_OTHER, FP_MERGED = "cd" * 8, "ef" * 8
TASKS = """
from redrive import App, Breaker

app = App({url!r}, blobs={blobs!r})
app.dependency("shop", breaker=Breaker())

@app.periodic("@hourly")
@app.task(name="push", dependency="shop")
def push(record_id: int = 1) -> None: ...
"""
# What only looks; what works, or puts as programs do; what makes files, or speaks to AWS; a schema; and what acts by
# keys, whose entries tests/unit/top holds.
CHANGES_NOTHING = {
    "alerts list", "audit export", "audit list", "audit verify", "aws package", "aws template", "batch list",
    "batch members", "batch show", "batch watch", "celery", "completion", "config show", "cost",
    "deliver", "demo", "dlq audit", "dlq group", "dlq groups", "dlq list", "dlq plan", "dlq show", "enqueue",
    "flow list", "flow show", "group list", "init", "job list", "job show", "keys new", "keys status",
    "metrics grafana", "metrics print", "metrics rules", "metrics serve",
    "policy check", "policy list", "policy preview", "queue list", "queue show", "forecast score", "simulate",
    "run failures", "run list", "run show", "run watch", "schedule list",
    "schedule next", "scheduler", "schema export", "status", "store check", "store doctor", "store info", "store sql",
    "store upgrade", "top", "version", "worker", "workers list", "doctor", "history", "slo", "upcoming", "watch",
    "task list", "task show", "workflow show",
    "views", "web",
}  # fmt: skip
IN_SQS = {"dlq ingest", "dlq move"}  # tests/aws/test_sqs_triage.py holds these
# What changes: words with {names} of what `prepared` made, the action, and what the entry is about. Those without a
# store that lists what waits, or has groups, are not of SQS.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "alerts mute": ("alerts mute --queue crm --for 2h --reason r", "mute", "queue/crm"),
    "alerts unmute": ("alerts unmute --dependency shop --reason r", "mute", "flow/shop"),
    "batch cancel": ("batch cancel {batch} --reason r", "cancel", "batch/{batch}"),
    "dlq apply": ("dlq apply {plan} --reason r", "redrive", "{plan}"),
    "dlq auto": ("dlq auto crm --pause --reason r", "auto-pause", "queue/crm"),
    "dlq discard": ("dlq discard {dead} --yes --reason r", "discard", ""),
    "dlq edit": ("dlq edit {dead} --set record_id=7 --yes --reason r", "edit", ""),
    "dlq export": ("dlq export {dead} -f {file}.out --reason r", "export", "id:{dead} or id:{dead} lane:quarantine"),
    "dlq import": ("dlq import {file} --reason r", "import", "{file}"),
    "dlq mute": (f"dlq mute {FP} 1h --reason r", "mute", FP),
    "dlq merge": (f"dlq merge {FP} {FP_OTHER} --reason r", "merge", FP),
    "dlq resolve": (f"dlq resolve {FP} --release 2 --reason r", "resolve", FP),
    "dlq unmerge": (f"dlq unmerge {FP_MERGED} --reason r", "merge", FP_MERGED),
    "dlq note": (f"dlq note {FP} words --reason r", "note", FP),
    "dlq own": (f"dlq own {FP} ann --reason r", "own", FP),
    "dlq quarantine": ("dlq quarantine {dead} --reason r", "quarantine", ""),
    "dlq readmit": ("dlq readmit {isolated} --reason r", "readmit", ""),
    "dlq retry": ("dlq retry {dead} --reason r", "retry", ""),
    "dlq rule": (f"dlq rule {FP} hold --reason r", "rule", FP),
    "flow set": ("flow set shop --breaker open --reason r", "flow", "flow/shop"),
    "flow set --cooldown": ("flow set shop --cooldown off --reason r", "flow", "flow/shop"),
    "flow set --budget": ("flow set shop --budget reset --reason r", "flow", "flow/shop"),
    "flow set --ramp": ("flow set shop --ramp off --reason r", "flow", "flow/shop"),
    "group resume": ("group resume line g --reason r", "resume", "queue/line/group/g"),
    "group width": ("group width crm 3 --reason r", "width", "queue/crm"),
    "job cancel": ("job cancel {waits} --reason r", "cancel", ""),
    "job run": ("job run {later} --reason r", "run-now", ""),
    "queue pause": ("queue pause crm --reason r", "pause", "queue/crm"),
    "queue purge": ("queue purge default --yes --reason r", "purge", "queue/default"),
    "queue resume": ("queue resume dying --reason r", "resume", "queue/dying"),
    "run approve": ("run approve {approving} --reason r", "run approve", "{approving}"),
    "run cancel": ("run cancel {run} --reason r", "run cancel", "{run}"),
    "run pause": ("run pause {run} --reason r", "run pause", "{run}"),
    "run resume": ("run resume {paused} --reason r", "run resume", "{paused}"),
    "run undo": ("run undo {run} --reason r", "run undo", "{run}"),
    "schedule pause": ("schedule pause push --reason r", "pause", "schedule/push"),
    "schedule resume": ("schedule resume push --reason r", "resume", "schedule/push"),
    "schedule run": ("schedule run push --reason r", "run", "schedule/push"),
    "store sweep": ("store sweep", "sweep", "blobs"),
    "task pause": ("task pause pu* --for 1h --reason r", "task-pause", "task/pu*"),
    "task resume": ("task resume held --reason r", "task-resume", "task/held"),
    "workers drain": ("workers drain vm/a --reason r", "drain", "worker/vm/a"),
}
NOT_ON_SQS = {
    "batch cancel",
    "group resume",
    "group width",
    "job cancel",
    "job run",
    "queue purge",
    "store sweep",
    "task pause",
    "task resume",
}
_modules = itertools.count()


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def test_every_command_is_known_to_change_something_or_not() -> None:
    changing = {name.partition(" --")[0] for name in COMMANDS} | IN_SQS
    assert changing & CHANGES_NOTHING == set()
    assert sorted(leaves(cli)) == sorted(changing | CHANGES_NOTHING)


def test_the_guide_names_every_command_that_has_an_entry() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|.*\|$", (ROOT / "docs" / "howto" / "audit.md").read_text(), re.M)
    named = set[str]()
    for words in (re.findall(r"`([^`]+)`", row) for row in rows):
        group = ""
        for word in words:  # "`dlq discard`, `quarantine`": the second is of the same group
            group, space, rest = word.partition(" ") if " " in word else (group, " ", word)
            named.add(f"{group}{space}{rest.partition(' --')[0]}")
    assert {name.partition(" --")[0] for name in COMMANDS} | IN_SQS <= named


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> str:
    own = {"postgres": "schema", "redis": "namespace"}.get(engine)
    if own is not None:
        return f"{request.getfixturevalue(f'{engine}_server').url}?{own}=audit_{secrets.token_hex(4)}"
    if engine == "sqs":
        server = request.getfixturevalue("sqs")
        return f"sqs://eu-central-1/shop?create=true&endpoint={server.url}&triage=sqlite:///{tmp_path}/dead.db"
    return "memory://" if engine == "memory" else f"sqlite:///{tmp_path / 'work.db'}"


@pytest.fixture
def sqs() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server


@pytest.fixture
def app(url: str, tmp_path: Path) -> Iterator[App]:
    app = App(url)
    app.dependency("shop", breaker=Breaker())

    @app.periodic("@hourly")
    @app.task(name="push", dependency="shop")
    def push(record_id: int = 1) -> None: ...

    yield app
    app.store.close()


@pytest.fixture
def names(app: App, tmp_path: Path) -> dict[str, str]:
    return prepared(app, tmp_path)


def prepared(app: App, folder: Path) -> dict[str, str]:
    """Something of everything that can be changed, and what it is called."""
    store, sqs = app.store, not app.store.traits.finds
    waits, later = store.put([Draft(task="push"), Draft(task="push", queue="calm", delay_ms=600_000)])
    names = {"waits": waits.id, "later": later.id, "file": str(folder / "dead.jsonl")}
    app.alerts.mute(dependency="shop", for_="1h", reason="r")
    app.dlq.merge(FP_MERGED, FP_OTHER, reason="r")
    names |= dict(zip(("dead", "isolated", "gone"), dead(app, 3), strict=True))
    app.dlq.quarantine([names["isolated"]], reason="r")
    app.dlq.export(f"id:{names['gone']}", names["file"])
    app.dlq.discard([names["gone"]], reason="r")
    if store.traits.cells:
        ProcessCell(store).write(WorkerInfo(name="vm/a", started_ms=store.now_ms(), seen_ms=store.now_ms()))
    for name in ("plan", "run", "paused", "approving"):
        gates = Gates(approval="anyone") if name == "approving" else None
        plan = app.dlq.select(f"id:{names['dead']}").plan(gates=gates)
        names[name] = plan.id
        if name != "plan":
            plan.start(reason="r")
    app.dlq.run(names["paused"]).pause()
    store.put([], swaps=machine.swaps(store, None, Machine(scope="queue/crm"), []))
    if not sqs:
        app.pause_task("held", reason="r")
        names["batch"] = app.batch([Draft(task="push", queue="later", delay_ms=10**8)], name="sync").enqueue().id
        store.configure("line", group_order=GroupOrder.STRICT, on_dead=OnDead.BLOCK)
        dead(app, 1, queue="line", group="g")
    return names


def dead(app: App, count: int, **of: Any) -> list[str]:
    queue = of.get("queue", "dying")
    drafts = [Draft(task="push", body=b'{"record_id":1}', **{"queue": queue, **of}) for _ in range(count)]
    ids = [put.id for put in app.store.put(drafts)]
    fault, left = Fault(Kind.PERMANENT, "ValueError", "no", FP, attempt=1), count
    while left:
        taken = app.store.exchange([], [ClaimRequest(queue, left, 30_000)]).deliveries
        app.store.exchange([Settlement(each.receipt, DeadLetter("permanent"), fault) for each in taken], [])
        left -= len(taken)
    return ids


def on(engines: list[str], names: dict[str, Any], not_on_sqs: set[str]) -> list[tuple[str, str]]:
    return [(engine, name) for engine in engines for name in names if engine != "sqs" or name not in not_on_sqs]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("engine", "name"), on(["sqlite", "postgres", "redis", "sqs"], COMMANDS, NOT_ON_SQS))
def test_a_command_that_changes_something_has_one_entry(
    name: str, url: str, app: App, names: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sum(1 for _ in Audit(app.store))
    words, action, about = (text.format(**names) for text in COMMANDS[name])
    module = f"audited_{next(_modules)}"
    blobs = f"file://{tmp_path}/blobs" if name == "store sweep" else None
    (tmp_path / f"{module}.py").write_text(TASKS.format(url=url, blobs=blobs))
    monkeypatch.chdir(tmp_path)
    assert run([*shlex.split(words), "--app", f"{module}:app"]) == 0
    entries = [*Audit(app.store)]
    assert len(entries) == before + 1
    assert (entries[0].action, entries[0].about, entries[0].actor) == (action, about, user())
    assert entries[0].reason == ("r" if name != "store sweep" else "")
    assert Audit(app.store).verify().problems == ()


# What changes something in Python, and its action.
CALLS: dict[str, tuple[Callable[[App, dict[str, str]], object], str]] = {
    "app.cancel": (lambda app, of: app.cancel(of["waits"], reason="r"), "cancel"),
    "app.run_now": (lambda app, of: app.run_now(of["later"], reason="r"), "run-now"),
    "dlq.discard": (lambda app, of: app.dlq.discard([of["dead"]], reason="r"), "discard"),
    "dlq.quarantine": (lambda app, of: app.dlq.quarantine([of["dead"]], reason="r"), "quarantine"),
    "dlq.readmit": (lambda app, of: app.dlq.readmit([of["isolated"]], reason="r"), "readmit"),
    "dlq.edit": (lambda app, of: app.dlq.edit(of["dead"], args={"record_id": 7}, reason="r"), "edit"),
    "dlq.retry": (lambda app, of: app.dlq.retry([of["dead"]], reason="r"), "retry"),
    "dlq.export": (lambda app, of: app.dlq.export(f"id:{of['dead']}", of["file"] + "2", reason="r"), "export"),
    "dlq.import_": (lambda app, of: app.dlq.import_(of["file"], reason="r"), "import"),
    "dlq.note": (lambda app, of: app.dlq.note(FP, "words", reason="r"), "note"),
    "dlq.own": (lambda app, of: app.dlq.own(FP, "ann", reason="r"), "own"),
    "dlq.mute": (lambda app, of: app.dlq.mute(FP, "1h", reason="r"), "mute"),
    "dlq.resolve": (lambda app, of: app.dlq.resolve(FP, release="2", reason="r"), "resolve"),
    "dlq.reopen": (lambda app, of: app.dlq.reopen(FP, reason="r"), "resolve"),
    "dlq.merge": (lambda app, of: app.dlq.merge(FP, FP_OTHER, reason="r"), "merge"),
    "dlq.unmerge": (lambda app, of: app.dlq.unmerge(FP_MERGED, reason="r"), "merge"),
    "dlq.rule": (lambda app, of: app.dlq.rule(FP, "hold", reason="r"), "rule"),
    "dlq.pause_auto": (lambda app, of: app.dlq.pause_auto("crm", reason="r"), "auto-pause"),
    "plan.start": (lambda app, of: app.dlq.plan(of["plan"]).start(reason="r"), "redrive"),
    "run.pause": (lambda app, of: app.dlq.run(of["run"]).pause(reason="r"), "run pause"),
    "run.resume": (lambda app, of: app.dlq.run(of["paused"]).resume(reason="r"), "run resume"),
    "run.cancel": (lambda app, of: app.dlq.run(of["run"]).cancel(reason="r"), "run cancel"),
    "run.approve": (lambda app, of: app.dlq.run(of["approving"]).approve(reason="r"), "run approve"),
    "run.undo": (lambda app, of: app.dlq.run(of["run"]).undo(reason="r"), "run undo"),
    "flow.open": (lambda app, of: app.flow.open("shop", reason="r"), "flow"),
    "flow.close": (lambda app, of: app.flow.close("shop", reason="r"), "flow"),
    "flow.auto": (lambda app, of: app.flow.auto("shop", reason="r"), "flow"),
    "flow.end_cooldown": (lambda app, of: app.flow.end_cooldown("shop", reason="r"), "flow"),
    "flow.reset_budget": (lambda app, of: app.flow.reset_budget("shop", reason="r"), "flow"),
    "flow.end_ramp": (lambda app, of: app.flow.end_ramp("shop", reason="r"), "flow"),
    "schedule.pause": (lambda app, of: app.schedules["push"].pause(reason="r"), "pause"),
    "schedule.resume": (lambda app, of: app.schedules["push"].resume(reason="r"), "resume"),
    "schedule.run": (lambda app, of: app.schedules["push"].run(reason="r"), "run"),
    "pause": (lambda app, of: pause(app.store, "crm", reason="r"), "pause"),
    "resume": (lambda app, of: resume(app.store, "crm", reason="r"), "resume"),
    "set_width": (lambda app, of: set_width(app.store, "crm", None, 3, reason="r"), "width"),
    "resume_group": (lambda app, of: resume_group(app.store, "line", "g", reason="r"), "resume"),
    "drain_worker": (lambda app, of: app.drain_worker("vm/a", reason="r"), "drain"),
    "app.pause_task": (lambda app, of: app.pause_task("push", reason="r"), "task-pause"),
    "app.resume_task": (lambda app, of: app.resume_task("held", reason="r"), "task-resume"),
    "purge": (lambda app, of: purge(app.store, "default", actor=user(), reason="r"), "purge"),
}
NO_CALLS_ON_SQS = {
    "app.cancel", "app.pause_task", "app.resume_task", "app.run_now", "purge", "resume_group", "set_width",
}  # fmt: skip
ENGINES = ["memory", "sqlite", "postgres", "redis", "sqs"]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("engine", "name"), on(ENGINES, CALLS, NO_CALLS_ON_SQS))
def test_a_call_that_changes_something_has_one_entry(name: str, app: App, names: dict[str, str]) -> None:
    act, action = CALLS[name]
    before = sum(1 for _ in Audit(app.store))
    act(app, names)
    entries = [*Audit(app.store)]
    assert len(entries) == before + 1
    assert (entries[0].action, entries[0].actor, entries[0].reason) == (action, user(), "r")
    assert Audit(app.store).verify().problems == ()


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgres", "redis"])
def test_what_came_to_nothing_is_not_listed(app: App, names: dict[str, str]) -> None:
    before = [*Audit(app.store)]
    assert app.cancel(names["dead"]) == "too_late" and app.cancel("0199f3a1-0000-7000-8000-000000000000") == "unknown"
    assert [*Audit(app.store)] == before
    assert Audit(app.store).verify().entries == len(before) + 4, "but it stays in the chain"
    assert [answer.result for answer in app.run_now(names["dead"], names["waits"])] == ["too_late", "due"]
    assert [*Audit(app.store)] == before


@pytest.mark.parametrize(
    "where", ["cells=sqlite:///{0}/c.db", "cells=sqlite:///{0}/c.db&triage=sqlite:///{0}/t.db", ""]
)
def test_on_sqs_the_log_lies_where_there_are_cells_and_without_any_there_is_none(
    sqs: SqsServer, where: str, tmp_path: Path
) -> None:
    kept = f"&{where.format(tmp_path)}&track=true" if where else ""
    app = App(f"sqs://eu-central-1/shop?create=true&endpoint={sqs.url}{kept}")
    push = app.periodic("@hourly")(app.task(name="push")(lambda: None))
    app.schedules["push"].run(reason="r")
    if where:
        assert app.cancel(push.enqueue().id) == "requested"
        for _ in range(CHUNK_MAX):
            pause(app.store, "default")
    assert len([*app.audit]) == (CHUNK_MAX + 2 if where else 0)
    assert app.audit.verify().problems == ()
    app.store.close()
