"""A cell that cannot be read, of a run, a pause, a rule or a note, stops nobody, and `store check` names it."""

from __future__ import annotations

import pytest
from tests.support.attack.damage import FAULT, claim, host, settle, store
from tests.support.attack.hosts import Host

from redrive import App
from redrive.message import DeadLetter, Draft, Swap, version_of
from redrive.program.main import run as redrive
from redrive.store import Store
from redrive.triage.pauses import pause

__all__ = ["host", "store"]  # fixtures


@pytest.mark.turns(6)
@pytest.mark.parametrize("value", [b"", b"{", b"\xff\xfe", b"[" * 3000, b'{"note":"\xe6"}', b"7"])
def test_a_cell_that_cannot_be_read_stops_nobody_and_is_named(
    host: Host, store: Store, value: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    store.put([Draft(task="work"), Draft(task="work")])
    settle(store, claim(store), DeadLetter("exhausted"))
    app = App(store=store)
    app.dlq.note(FAULT.fingerprint, "known", reason="for a test")
    pause(store, "elsewhere", reason="for a test")
    run = app.dlq.select("lane:dead").plan().start(reason="for a test")
    run.pause(reason="for a test")
    assert redrive(["store", "check", "--url", host.url]) == 0
    keys = [f"group/{FAULT.fingerprint}", "pause/elsewhere", f"run/{run.id}", f"run/{run.id}/plan", "runs", "rules"]
    for key in keys[:1] if b"note" in value else keys:  # what a record does not know it does not read
        capsys.readouterr()
        (cell,) = store.cells.read([key])
        store.cells.swap([Swap(key, version_of(cell), value)])
        for words in (["status"], ["dlq", "groups"], ["run", "list"], ["queue", "list"], ["dlq", "list"]):
            assert redrive([*words, "--url", host.url]) in (0, 1), words
        assert "unexpected" not in capsys.readouterr().err, key
        assert redrive(["store", "check", "--url", host.url]) == 1
        assert f"cell '{key}' cannot be read" in capsys.readouterr().out
        (now,) = store.cells.read([key])
        store.cells.swap([Swap(key, version_of(now), None if cell is None else cell.value)])
