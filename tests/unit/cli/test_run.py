"""`redrive run …`, by output, errors and exit codes. What a run comes to is written here as a carrier would."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.command_line import on_terminal
from tests.support.commands import Call

from redrive.fault import Fault, Kind
from redrive.flow.gates import Gates
from redrive.message import ClaimRequest, DeadLetter, Draft, Settlement, Swap
from redrive.present.runs import COUNTS
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.redrive import plan as plans
from redrive.triage.redrive import records
from redrive.triage.redrive import run as runs
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.records import (
    Failure,
    Line,
    RunState,
    RunStatus,
    failures_cell,
    state_cell,
    story_cell,
)
from redrive.triage.selection import Selection

PATIENCE_S = 60.0


class Scene:
    """A store with dead messages, and runs of them."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder / "work.db")

    def bury(self, count: int) -> list[str]:
        ids = [put.id for put in self.store.put([Draft(task="t", queue="crm") for _ in range(count)])]
        fault = Fault(Kind.PERMANENT, "ValueError", "no", "f1")
        deliveries = self.store.exchange([], [ClaimRequest("crm", count, 30_000)]).deliveries
        self.store.exchange([Settlement(d.receipt, DeadLetter("permanent"), fault) for d in deliveries], [])
        return ids

    def start(self, selector: str = "queue:crm", gates: Gates | None = None) -> str:
        chosen = Selection(self.store, selector)
        settings = msgspec.structs.replace(read_settings(rate="20/s"), gates=gates)
        plan = plans.draw_up(self.store, chosen, selector, settings)
        runs.begin(self.store, plan, actor="ann@ops", reason="crm is back")
        return plan.id

    def become(self, id: str, *story: str, failures: tuple[Failure, ...] = (), **fields: object) -> None:
        """Write the run as one that has come so far."""
        keys = [state_cell(id), story_cell(id), failures_cell(id)]
        cells = self.store.cells.read(keys)
        state = msgspec.json.decode(cells[0].value, type=RunState)  # type: ignore[union-attr]
        lines = msgspec.json.decode(cells[1].value, type=list[Line])  # type: ignore[union-attr]
        now_ms = self.store.now_ms()
        values = [
            msgspec.structs.replace(state, **fields), [*lines, *(Line(now_ms, text) for text in story)], failures
        ]  # fmt: skip
        versions = [0 if cell is None else cell.version for cell in cells]
        swaps = [Swap(k, v, msgspec.json.encode(x), None) for k, v, x in zip(keys, versions, values, strict=True)]
        assert all(self.store.cells.swap(swaps))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.store.close()


# -- looking


def test_list_shows_runs_newest_first_with_their_counts(scene: Scene, redrive: Call) -> None:
    scene.bury(3)
    first, second = scene.start(), scene.start("task:t")
    scene.become(first, status=RunStatus.STOPPED, why="5 of 5 failed", at=3, known=3, moved=2, failed=1, changed=1)
    code, out, _ = redrive("run", "list", "-o", "json")
    rows = json.loads(out)
    assert code == 0 and [row["id"] for row in rows] == [second, first]
    assert [row["state"] for row in rows] == ["running", "stopped"]
    assert {name: rows[1][name] for name in COUNTS} == {
        "planned": 3, "moved": 2, "done": 0, "failed": 1, "waiting": 1, "changed": 1, "skipped": 0,
    }  # fmt: skip
    assert (rows[1]["selector"], rows[1]["why"]) == ("queue:crm", "5 of 5 failed")
    assert redrive("run", "list", "-o", "ids")[1].split() == [second, first]


def test_without_runs_the_list_says_so(scene: Scene, redrive: Call) -> None:
    scene.bury(1)
    code, out, err = redrive("run", "list", "-o", "ids")
    assert (code, out) == (0, "") and "no run is known" in err


def test_show_tells_counts_who_why_and_the_story(scene: Scene, redrive: Call) -> None:
    scene.bury(2)
    id = scene.start()
    scene.become(id, "canary: 1 done", at=1, known=1, moved=1, done=1)
    code, out, _ = redrive("run", "show", id, "-o", "json")
    record = json.loads(out)
    assert code == 0 and (record["actor"], record["reason"]) == ("ann@ops", "crm is back")
    assert [line["text"] for line in record["story"]] == ["started by ann@ops: crm is back", "canary: 1 done"]
    _, out, _ = redrive("run", "show", id, "-o", "table")
    assert "2 planned, 1 moved, 1 done" in out and "canary: 1 done" in out


def test_failures_are_listed_with_what_they_failed_of(scene: Scene, redrive: Call) -> None:
    ids = scene.bury(2)
    id = scene.start()
    assert "nothing" in redrive("run", "failures", id)[2]
    failed = Failure(ids[0], "permanent", "ValueError", "no. 4 is bad", "f1", scene.store.now_ms())
    scene.become(id, failures=(failed,), at=2, known=2, moved=2, failed=2)
    code, out, err = redrive("run", "failures", id, "-o", "jsonl")
    row = json.loads(out)
    assert code == 0 and (row["id"], row["error"], row["fingerprint"]) == (ids[0], "ValueError", "f1")
    assert "2 failed in all" in err
    assert redrive("run", "failures", id, "-o", "ids")[1].split() == [ids[0]]


def test_an_unknown_run_is_three_lines_that_lead_to_the_list(scene: Scene, redrive: Call) -> None:
    scene.bury(1)
    for word in ("show", "watch", "failures"):
        code, out, err = redrive("run", word, "0199")
        assert (code, out) == (1, "") and err.splitlines()[-1].endswith(" run list")


# -- steering


def test_pause_resume_and_cancel_need_a_reason_and_are_in_the_story(scene: Scene, redrive: Call) -> None:
    scene.bury(2)
    id = scene.start()
    assert redrive("run", "pause", id)[0] == 2
    assert redrive("run", "pause", id, "--reason", " ")[0] == 2
    for word, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        code, out, _ = redrive("run", word, id, "--reason", "lunch", "--actor", "bob", "-o", "json")
        assert code == 0 and json.loads(out)["state"] == state
    story = json.loads(redrive("run", "show", id, "-o", "json")[1])["story"]
    assert [line["text"] for line in story[1:]] == [f"{w} by bob: lunch" for w in ("paused", "resumed", "cancelled")]
    code, _, err = redrive("run", "pause", id, "--reason", "late")
    assert code == 4
    assert err.splitlines()[-3:-1] == [f"error: run {id} is cancelled", "why: it cannot pause any more"]


def test_approve_is_refused_from_another_than_who_was_named(scene: Scene, redrive: Call) -> None:
    scene.bury(1)
    id = scene.start(gates=Gates(approval="ann"))
    for other in ("bob@ops", "ann@ops"):  # a name that is given counts as it is
        assert redrive("run", "approve", id, "--reason", "ok", "--actor", other)[0] == 4
    code, _, err = redrive("run", "approve", id, "--reason", "ok", "--actor", "ann")
    assert code == 0 and "approved" in err


# -- watching


def watching(redrive: Call, *words: str) -> tuple[threading.Thread, list[tuple[int, str, str]]]:
    ended: list[tuple[int, str, str]] = []
    thread = threading.Thread(target=lambda: ended.append(redrive("run", "watch", *words)))
    thread.start()
    return thread, ended


def test_watch_ends_with_the_run_and_says_what_it_came_to(scene: Scene, redrive: Call) -> None:
    scene.bury(3)
    id = scene.start()
    thread, ended = watching(redrive, id, "-o", "json")
    time.sleep(0.3)
    scene.become(id, "all are moved", at=3, known=3, moved=3, done=2, phase="settling")
    time.sleep(0.3)
    over_ms = scene.store.now_ms()
    scene.become(id, "it is over", at=3, known=3, moved=3, done=3, status=RunStatus.DONE, phase="over", over_ms=over_ms)
    thread.join(PATIENCE_S)
    ((code, out, err),) = ended
    assert code == 0 and json.loads(out)["done"] == 3
    assert "\x1b" not in err
    for text in ("started by ann@ops", "all are moved", "it is over", "done: 3 of 3 moved, 3 done"):
        assert sum(text in line for line in err.splitlines()) == 1, (text, err)


def test_watching_a_run_that_stopped_itself_exits_1_and_leads_on(scene: Scene, redrive: Call) -> None:
    scene.bury(3)
    id = scene.start()
    why = "3 of 3 failed in the canary"
    scene.become(id, f"stopped: {why}", at=1, known=1, moved=1, failed=1, status=RunStatus.STOPPED, why=why, over_ms=1)
    code, out, err = redrive("run", "watch", id, "-o", "json")
    assert code == 1 and json.loads(out)["failed"] == 1
    assert err.splitlines()[-3:-1] == [f"error: run {id} stopped itself", f"why: {why}"]
    assert err.splitlines()[-1].endswith(f" run failures {id}")


@pytest.mark.linux
def test_on_a_terminal_a_bar_stands_below_the_story(scene: Scene, redrive: Call, tmp_path: Path) -> None:
    scene.bury(2)
    id = scene.start()
    now_ms = scene.store.now_ms()
    scene.become(id, "2 done", at=2, known=2, moved=2, done=2, status=RunStatus.DONE, phase="over", over_ms=now_ms)
    text = on_terminal(["run", "watch", id, "--url", "sqlite:///work.db"], tmp_path, columns=100)
    told, bar, record = (text.index(words) for words in ("2 done\n", "2 of 2 moved, 2 done", "messages    2 planned"))
    assert told < bar < record and "━" in text


def test_watch_gives_up_after_its_timeout_and_the_run_goes_on(scene: Scene, redrive: Call) -> None:
    scene.bury(1)
    id = scene.start()
    code, out, err = redrive("run", "watch", id, "--timeout", "300ms")
    assert code == 124 and out == ""
    assert "the run goes on" in err and err.splitlines()[-1].endswith(f" run watch {id}")
    assert records.state_of(scene.store, id).status is RunStatus.RUNNING  # type: ignore[union-attr]


def test_apply_can_watch_and_ends_as_the_run_does(scene: Scene, redrive: Call) -> None:
    scene.bury(2)
    id = redrive("dlq", "plan", "queue:crm", "-o", "ids")[1].strip()
    ended: list[tuple[int, str, str]] = []
    words = ("dlq", "apply", id, "--reason", "it is up", "--watch", "-o", "json")
    thread = threading.Thread(target=lambda: ended.append(redrive(*words)))
    thread.start()
    end_s = time.monotonic() + PATIENCE_S
    while records.state_of(scene.store, id) is None and time.monotonic() < end_s:
        time.sleep(0.02)
    scene.become(id, status=RunStatus.CANCELLED, why="cancelled by bob", over_ms=1)
    thread.join(PATIENCE_S)
    ((code, out, err),) = ended
    assert code == 1 and json.loads(out)["state"] == "cancelled" and "cancelled by bob" in err


def test_the_commands_that_lead_on_can_be_pasted(scene: Scene, redrive: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the same store, and are given the reason that they need."""
    scene.bury(1)
    id = scene.start()
    monkeypatch.delenv("REDRIVE_URL")
    where = ("--url", "sqlite:///work.db")
    for word, next in (("pause", "resume"), ("resume", "watch"), ("cancel", "undo")):
        code, _, err = redrive("run", word, id, "--reason", "x", *where)
        words = shlex.split(err.splitlines()[-1].rpartition(" run ")[2])
        assert code == 0 and words[:2] == [next, id] and words[-2:] == list(where)
        assert ("--reason" in words) == (next != "watch")
    code, _, err = redrive("run", "show", "nope", *where)
    assert code == 1 and err.rstrip().endswith(" run list --url sqlite:///work.db")


def test_who_approves_what_needs_no_approval_is_told_so(scene: Scene, redrive: Call) -> None:
    scene.bury(1)
    code, _, err = redrive("run", "approve", scene.start(), "--reason", "x")
    assert code == 4 and "requires no approval\nwhy: it starts without one\n" in err
