"""`job show` and `dlq show` as a person reads them: the error first, then why, and commands that work as they are."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.attack.commands import Said, command

from redrive import Draft
from redrive.fault import Crash, Fault, Kind, crash_fault
from redrive.message import Ack, ClaimRequest, DeadLetter, Decision, Deferral, Quarantine, RetryAt, Settlement
from redrive.stores.sqlite.store import SqliteStore

TRACE = "Traceback (most recent call last):\n" + "".join(f'  File "crm.py", line {n}, in f\n' for n in range(20))
TRACE += "crm.Down: no answer"
DOWN = Fault(Kind.DEFAULT, "crm.Down", "no answer", "a1097e748bbaf6be", attempt=1, traceback=TRACE)
LATER = 60_000
BODY = b'{"n":1,"password":"hunter2"}'
APP = """
import time
from redrive import App
from redrive.stores.sqlite.store import SqliteStore
app = App(store=SqliteStore("work.db", clock_ms=lambda: time.time_ns() // 1_000_000))
app.dependency("crm")
"""


class Scene:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_750_000_000_000
        patch.setattr(time, "time_ns", lambda: self.now_ms * 1_000_000)
        self.store = SqliteStore("work.db", clock_ms=lambda: self.now_ms)

    def put(self, **parts: object) -> str:
        return self.store.put([Draft(task="crm.push", queue="crm", body=BODY, **parts)])[0].id  # type: ignore[arg-type]

    def settled(self, decision: Decision | None, *faults: Fault, **parts: object) -> str:
        """A message that ran, with this end; None: it runs."""
        id = self.put(**parts)
        (taken,) = self.store.exchange([], [ClaimRequest("crm", 1, 30_000, worker="web-1/worker-0")]).deliveries
        if decision is not None:
            now = [replace(fault, at_ms=self.now_ms) for fault in faults]
            self.store.exchange([Settlement(taken.receipt, decision, *now)], [])
        return id

    def shown(self, id: str, *words: str) -> list[str]:
        said = called("job", "show", id, *words, terminal=True)
        assert said.code == 0, said.err
        return said.out.splitlines()


def called(*words: str, terminal: bool = False) -> Said:
    said = command(*words, terminal=terminal)
    sys.modules.pop("clocked16", None)  # the command closed the store of the app that it imported
    return said


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clocked16.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("REDRIVE_APP", "clocked16:app")
    monkeypatch.setenv("NO_COLOR", "1")
    found = Scene(monkeypatch)
    yield found
    found.store.close()


def test_error_comes_first_then_why_body_life_traceback_and_next_commands(scene: Scene) -> None:
    id = scene.settled(DeadLetter("exhausted"), DOWN)
    lines = scene.shown(id)
    assert lines[:5] == [
        "error    crm.Down: no answer",
        "dead     now, exhausted: its attempts are used up, after 1 attempt",
        "task     crm.push in queue crm",
        f"id       {id}",
        "failure  a1097e748bbaf6be (unclassified)",
    ]
    heads = [line for line in lines[5:] if line and not line.startswith((" ", "next:"))]
    assert heads == ["body", "life", "traceback"]
    text = "\n".join(lines)
    assert (
        '"password": "***"' in text
        and "unclassified, the same error" in text
        and "… 12 more lines; -v shows all" in text
    )
    assert "fence" not in text and text.count("crm.Down") == 2


def test_verbose_adds_every_fault_and_the_bookkeeping(scene: Scene) -> None:
    text = "\n".join(scene.shown(scene.settled(DeadLetter("exhausted"), DOWN), "-v"))
    assert "line 0, in f" in text and "fault of attempt 1 at " in text and "  fence  " in text
    assert "unclassified (a1097e748bbaf6be)" in text and "2025-06-15T15:06:40.000Z" in text


def test_a_member_names_its_batch_and_the_command_that_shows_it(scene: Scene) -> None:
    lines = scene.shown(scene.settled(DeadLetter("exhausted"), DOWN, batch="b-1"))
    assert "batch    b-1" in lines
    assert any(line.startswith("next:") and " batch show b-1" in line for line in lines)
    assert not any("batch" in line for line in scene.shown(scene.settled(DeadLetter("exhausted"), DOWN)))


def test_stored_word_of_an_unclassified_fault_is_the_same(scene: Scene) -> None:
    said = called("job", "show", scene.settled(DeadLetter("exhausted"), DOWN), "-o", "json")
    assert '"kind": "default"' in said.out and "unclassified" not in said.out


def test_waiting_message_says_for_what_it_waits(scene: Scene) -> None:
    retry, held = RetryAt(scene.now_ms + LATER), Deferral("breaker", "crm")
    told = {
        scene.settled(None): "running it runs, attempt 1; its worker is web-1/worker-0; the lease ends in 30s",
        scene.settled(retry, DOWN): "scheduled attempt 1 failed with crm.Down; next attempt in 1m",
        scene.settled(replace(retry, deferral=held), DOWN): "scheduled the breaker of crm was open; next probe in 1m",
        scene.put(delay_ms=2 * 3_600_000): "scheduled enqueued for later; ends in 2h",
        scene.put(group="a"): "ready it is due; 1 of queue crm are running and 1 are due",
        scene.put(group="a"): "parked group a of queue crm has 1 of 1 places taken",
    }
    for id, line in told.items():
        assert line in [" ".join(each.split()) for each in scene.shown(id)]


@pytest.mark.parametrize("state", ["dead", "quarantine", "scheduled", "ready", "leased", "done", "cancelled"])
def test_next_commands_work_as_they_are(scene: Scene, state: str) -> None:
    match state:
        case "dead":
            id = scene.settled(DeadLetter("exhausted"), DOWN)
        case "quarantine":
            id = scene.settled(Quarantine("it kills"), DOWN)
        case "scheduled":
            id = scene.settled(RetryAt(scene.now_ms + LATER, deferral=Deferral("breaker", "crm")), DOWN)
        case "leased":
            id = scene.settled(None)
        case "done":
            id = scene.settled(Ack(keep_ms=LATER), keep_ms=LATER)
        case _:
            id = scene.put(keep_ms=LATER)
            if state == "cancelled":
                scene.store.cancel([id])
    lines = scene.shown(id)
    nexts = [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]
    assert len(nexts) >= 2 and lines[-len(nexts) :] == [f"next: {each}" for each in nexts]
    for each in reversed(nexts):  # the first one changes something
        words = shlex.split(each)
        said = called(*words[next(n for n, word in enumerate(words) if word in ("dlq", "job", "flow", "queue")) :])
        assert said.code == 0, (each, said)


def test_long_body_is_cut_and_says_so(scene: Scene) -> None:
    id = scene.store.put([Draft(task="t", queue="q", body=b"[" + b",".join([b"1"] * 100) + b"]")])[0].id
    assert "  … 62 more lines; -v shows all" in scene.shown(id)
    assert sum(line == "    1," for line in scene.shown(id, "-v")) == 99


OTHERS = tuple(f"01a20b69-0000-7000-8000-{n:012x}" for n in range(3))
CRASHED = crash_fault(Crash(cause="signal", signal="SIGSEGV", started=OTHERS, started_count=3, worker="web-1/worker-0"))


def test_a_bystander_of_a_crash_is_not_headed_by_the_death_of_its_process(scene: Scene) -> None:
    id = scene.settled(RetryAt(scene.now_ms + LATER, "crashed", crashed=True), CRASHED)
    lines = scene.shown(id)
    assert lines[0] == (
        "crash      its process died (killed by SIGSEGV), with 2 others that had been started in it: which one is at "
        "fault is not known; -v lists them"
    )
    assert not any(other in line for other in OTHERS for line in lines)
    assert not any(line.startswith("error") for line in lines)
    assert all(any(other in line for line in scene.shown(id, "-v")) for other in OTHERS)


def test_a_poison_message_is_headed_by_its_crash_and_its_life_names_no_ids_of_others(scene: Scene) -> None:
    id = scene.settled(Quarantine("poison", crashed=True), CRASHED)
    lines = scene.shown(id)
    assert lines[0].startswith("error       ProcessDied: killed by SIGSEGV; 3 messages had been started in its process")
    assert not any(other in line for other in OTHERS for line in lines)
    assert all(any(other in line for line in scene.shown(id, "-v")) for other in OTHERS)
