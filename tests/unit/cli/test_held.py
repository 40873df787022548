"""Why messages do not run, as `status`, `queue list`, `job show` and `dlq plan` say it: tests/data/held has the texts.

UPDATE_HELD=1 writes these files again; look at what changed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from redrive import App, Draft
from redrive.cli.terminal.holding import note_left
from redrive.decide import with_fate
from redrive.fault import Kind, classify
from redrive.flow import breaker as breakers
from redrive.flow import dependency as flow
from redrive.flow.dependency import DependencyState
from redrive.flow.limits import CoolDown
from redrive.message import ClaimRequest, DeadLetter, Deferral, GroupOrder, OnDead, RetryAt, Settlement, Swap
from redrive.program.main import run
from redrive.status import Reasons
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock
from redrive.triage import pauses
from redrive.worker.flow.transitions import Transition, note

GOLDEN = Path(__file__).parents[2] / "data" / "held"
MODULE = "held_tasks"
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


class Unroutable(Exception):
    """As the worker's, which is a fault only."""


def app_on(store: Store) -> App:
    app = App(store=store)
    app.dependency("crm.example", rate="1/m")

    @app.task(name="push", queue="crm", dependency="crm.example")
    def push() -> None: ...

    return app


def put(store: Store, task: str = "push", group: str | None = None) -> str:
    return store.put([Draft(task=task, queue="crm", group=group)])[0].id


def claimed(store: Store, decision: RetryAt | DeadLetter, error: Exception, kind: Kind | None = None) -> None:
    """Claim the first due message, and settle it like this."""
    (delivery,) = store.exchange([], [ClaimRequest("crm", 1, 1000, worker="vm/worker-0")]).deliveries
    fault = classify(error, ((type(error), kind),) if kind is not None else ())
    fault = with_fate(fault, delivery.message, decision, store.now_ms(), "vm/worker-0")
    store.exchange([Settlement(delivery.receipt, decision, fault)], [])


def write(store: Store, state: DependencyState) -> None:
    store.cells.swap([Swap(flow.cell_of("crm.example", ""), 0, flow.encode(state))])


def no_worker(store: Store, clock: ManualClock) -> str:
    id = put(store)
    clock.advance(60)
    return id


def pause(store: Store, clock: ManualClock) -> str:
    pauses.pause(store, "crm", actor="ann@ops", reason="until the import is over")
    clock.advance(16 * 60)
    return put(store)


def task_pause(store: Store, clock: ManualClock) -> str:
    app_on(store).pause_task("push", actor="ann@ops", reason="CRM migration")
    clock.advance(16 * 60)
    return put(store)


def task_pause_for_a_time(store: Store, clock: ManualClock) -> str:
    app_on(store).pause_task("pu*", actor="ann@ops", reason="CRM migration", for_="2h")
    return put(store)


def breaker(store: Store, clock: ManualClock) -> str:
    now_ms = store.now_ms()
    write(
        store,
        DependencyState(breaker=breakers.State(status="open", since_ms=now_ms, until_ms=now_ms + 12_000, opened=1)),
    )
    note(store.cells, [("crm.example", Transition(now_ms, "closed", "open", "6 of 6 calls in 10s failed"))])
    return put(store)


def breaker_held_open(store: Store, clock: ManualClock) -> str:
    now_ms = store.now_ms()
    write(store, DependencyState(breaker=breakers.State(status="forced_open", since_ms=now_ms)))
    note(
        store.cells, [("crm.example", Transition(now_ms, "closed", "forced_open", "", "ann@ops", "their status page"))]
    )
    clock.advance(16 * 60)
    return put(store)


def cool_down(store: Store, clock: ManualClock) -> str:
    write(store, DependencyState(cool=CoolDown(until_ms=store.now_ms() + 300_000)))
    return put(store)


def rate(store: Store, clock: ManualClock) -> str:
    write(store, DependencyState(tat_ms=float(store.now_ms() + 47_000)))
    return put(store)


def budget(store: Store, clock: ManualClock) -> str:
    id, at_ms = put(store), store.now_ms() + 20_000
    held = Deferral("budget", "crm.example", (), at_ms)
    (delivery,) = store.exchange([], [ClaimRequest("crm", 1, 1000)]).deliveries
    decision = RetryAt(at_ms, "budget", counts=False, held=True, deferral=held)
    store.exchange([Settlement(delivery.receipt, decision)], [])
    return id


def unknown_task(store: Store, clock: ManualClock) -> str:
    put(store, task="gone")
    claimed(store, DeadLetter("unroutable"), Unroutable("no task 'gone' is registered here"), Kind.UNROUTABLE)
    id = put(store, task="gone")
    decision = RetryAt(store.now_ms() + 10_000, "parked", counts=False, held=True)
    claimed(store, decision, Unroutable("no task 'gone' is registered here"), Kind.UNROUTABLE)
    return id


def group(store: Store, clock: ManualClock) -> str:
    put(store, group="acme")
    id = put(store, group="acme")
    store.exchange([], [ClaimRequest("crm", 1, 30_000, worker="vm/worker-0")])
    return id


def group_behind_a_dead_one(store: Store, clock: ManualClock) -> str:
    store.configure("crm", group_order=GroupOrder.STRICT, on_dead=OnDead.BLOCK)
    put(store, group="acme")
    id = put(store, group="acme")
    claimed(store, DeadLetter("exhausted"), ConnectionError("crm is down"))
    return id


CASES: dict[str, Callable[[Store, ManualClock], str]] = {
    found.__name__: found
    for found in (
        no_worker, pause, task_pause, task_pause_for_a_time, breaker, breaker_held_open, cool_down, rate, budget,
        unknown_task, group,
        group_behind_a_dead_one,
    )
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_command_names_what_holds_a_message_and_what_to_do(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["redrive"])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # that of `python -m pytest`
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback: os.terminal_size((80, 24)))

    def opened() -> Store:
        return SqliteStore(tmp_path / "work.db", clock_ms=clock)

    def printed(*words: str) -> str:
        module = ModuleType(MODULE)
        module.app = app_on(opened())  # type: ignore[attr-defined]  # each command closes its store
        monkeypatch.setitem(sys.modules, MODULE, module)
        code = run([*words, "--app", f"{MODULE}:app", "-o", "table"])
        told = capsys.readouterr()
        return f"$ redrive {' '.join(words)}\n{told.out}{told.err}exit {code}\n"

    store = opened()
    put(store)
    claimed(store, DeadLetter("exhausted"), ConnectionError("crm is down"))
    id = CASES[case](store, clock)
    (message,) = store.find([id])
    assert message is not None
    assert [hold.kind.replace("_", "-") for hold in Reasons(store, app_on(store)).of(message)]
    store.close()

    shown = printed("status"), printed("queue", "list"), printed("job", "show", id), printed("dlq", "plan")
    kept = [
        shown[0],
        shown[1],
        _only(shown[2], "ready", "scheduled", "parked", "next:"),
        _only(shown[3], "would move", "left out", "held by"),
    ]
    text = _ID.sub("ID", "\n".join(kept))
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("UPDATE_HELD"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def _only(text: str, *starts: str) -> str:
    """The command, and the lines that begin like this."""
    first, *lines = text.splitlines(keepends=True)
    return first + "".join(line for line in lines if line.startswith(starts))


def test_a_burst_that_leaves_work_says_what_holds_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, store = ModuleType(MODULE), MemoryStore()
    module.app = app_on(store)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setattr(sys, "argv", ["redrive"])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # that of `python -m pytest`
    put(store)
    store.configure("crm", paused=True)
    assert run(["worker", f"{MODULE}:app", "--burst", "--log", "off"]) == 0
    told = capsys.readouterr().err
    assert told == "1 left in queue 'crm': queue crm is paused\nnext: redrive queue resume crm --app held_tasks:app\n"


def test_a_burst_that_leaves_a_redrive_run_waiting_says_for_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = SqliteStore(tmp_path / "work.db")
    app = app_on(store)
    put(store)
    claimed(store, DeadLetter("exhausted"), ConnectionError("crm is down"))
    app.flow.open("crm.example", reason="r")
    run_id = app.dlq.select("").plan().start(reason="r").id
    note_left(store, app, ["crm"])
    assert capsys.readouterr().err == ""  # no worker has looked at its gates yet
    app.run_worker(burst=True)
    note_left(store, app, ["crm"])
    waits, leads_on = capsys.readouterr().err.splitlines()
    assert waits == f"redrive run {run_id} waits: the breaker of crm.example is held open"
    assert leads_on.endswith(f"run show {run_id}")
    store.close()
