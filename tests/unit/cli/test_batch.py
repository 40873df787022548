"""`redrive batch`: what it lists, shows and cancels, and what it says of an id that it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from redrive import App, Retry
from redrive.batch import waiting
from redrive.batch.state import cell_of, state_in, swap_of
from redrive.cli import batch
from redrive.message import Swap
from redrive.program.main import run

Call = Callable[..., tuple[int, str, str]]


def opened() -> App:
    app = App("sqlite:///work.db")

    @app.task(name="push", retry=Retry(max_attempts=1))
    def push(n: int) -> None:
        if n == 1:
            raise ValueError("no")

    return app


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command on a store with a partial batch and one that waits; its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    app = opened()
    push = app.tasks["push"]
    app.batch([push.draft(n) for n in range(3)], name="import", key="a").enqueue()
    app.run_worker(drain=True)
    app.batch([push.using(delay="1h").draft(n) for n in range(2)], name="sync", key="b").enqueue()
    app.store.close()
    capsys.readouterr()

    def call(*words: str) -> tuple[int, str, str]:
        code = run([*words, "--url", "sqlite:///work.db"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_it_lists_by_name_and_state(call: Call) -> None:
    rows = [json.loads(line) for line in call("batch", "list", "-o", "jsonl")[1].splitlines()]
    assert {(row["name"], row["state"], row["total"], row["open"], row["dead"]) for row in rows} == {
        ("import", "partial", 3, 0, 1),
        ("sync", "running", 2, 2, 0),
    }
    names = call("batch", "list", "--state", "partial", "-o", "jsonl")[1]
    assert [json.loads(line)["name"] for line in names.splitlines()] == ["import"]
    assert call("batch", "list", "--name", "sync", "-o", "ids")[1].strip() in {row["id"] for row in rows}


def test_it_shows_and_cancels_one(call: Call) -> None:
    (id,) = call("batch", "list", "--name", "sync", "-o", "ids")[1].split()
    shown = json.loads(call("batch", "show", id, "-o", "json")[1])
    assert (shown["state"], shown["open"]) == ("running", 2)
    ended = json.loads(call("batch", "cancel", id, "--reason", "wrong", "-o", "json")[1])
    assert (ended["state"], ended["cancelled"], ended["ended_now"]) == ("cancelled", 2, 2)
    (dead,) = call("batch", "list", "--name", "import", "-o", "ids")[1].split()
    _, out, err = call("batch", "cancel", dead, "-o", "json")
    assert "it is given up, and what is dead stays" in err and json.loads(out)["state"] == "cancelled"
    assert len(call("dlq", "list", f"batch:{dead}", "-o", "ids")[1].split()) == 1


def test_it_lists_the_members_that_are_stored_by_lane(call: Call) -> None:
    (partial,) = call("batch", "list", "--name", "import", "-o", "ids")[1].split()
    (waits,) = call("batch", "list", "--name", "sync", "-o", "ids")[1].split()
    rows = [json.loads(line) for line in call("batch", "members", waits, "-o", "jsonl")[1].splitlines()]
    assert [(row["state"], row["task"]) for row in rows] == [("scheduled", "push")] * 2
    (dead,) = call("batch", "members", partial, "--lane", "dead", "-o", "ids")[1].split()
    assert call("dlq", "list", f"batch:{partial}", "-o", "ids")[1].split() == [dead]
    code, out, err = call("batch", "members", partial, "--lane", "ready", "-o", "ids")
    assert (code, out) == (0, "") and f"no member of batch {partial} is stored in lane ready" in err


@pytest.mark.parametrize("form", ["tsv", "json"])
def test_it_watches_a_batch_that_goes_on_until_it_is_done(
    call: Call, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = call("batch", "list", "--name", "import", "-o", "ids")[1].split()
    code, out, err = call("batch", "watch", id, "-o", form)
    assert code == 5 and f"dlq list batch:{id}" in err  # it is partial
    call("dlq", "retry", f"batch:{id}", "--reason", "mended")
    app = App("sqlite:///work.db")

    @app.task(name="push")
    def push(n: int) -> None: ...

    monkeypatch.setattr(batch, "LINE_S", 0.0)

    def looks(timeout: float | None, what: str) -> Iterator[float]:
        app.run_worker(burst=True)
        yield 0.0

    monkeypatch.setattr(batch, "pauses", looks)
    code, out, err = call("batch", "watch", id, "-o", form)
    app.store.close()
    assert code == 0
    if form == "json":
        states = [json.loads(line) for line in out.splitlines()]
        assert [(each["state"], each["open"], each["done"]) for each in states] == [("running", 1, 2), ("done", 0, 3)]
    else:
        assert "state\tdone" in out.splitlines()
        assert [line for line in err.splitlines() if " of 3 done" in line] == [
            "running: 2 of 3 done, 1 open",
            "done: 3 of 3 done",
        ]


def test_watching_ends_at_a_timeout_and_when_the_batch_is_cancelled(call: Call) -> None:
    (id,) = call("batch", "list", "--name", "sync", "-o", "ids")[1].split()
    code, _, err = call("batch", "watch", id, "--timeout", "1ms")
    assert code == 124 and "the batch goes on" in err
    call("batch", "cancel", id, "--reason", "wrong")
    assert call("batch", "watch", id)[0] == 1
    assert call("batch", "watch", "nonsense")[0] == 4


def test_watching_goes_on_while_a_nested_batch_is_being_filled(call: Call) -> None:
    app = App("sqlite:///work.db")
    ref = app.batch([app.batch([], name="inner")], name="outer").enqueue()
    inner = f"{ref.id}/inner"
    (cell,) = app.store.cells.read([cell_of(inner)])
    state = state_in(app.store, inner, cell)
    assert state is not None
    app.store.cells.swap([swap_of(app.store, replace(state, sealed=False, succeeded=False), cell)])
    (outer,) = app.store.cells.read([cell_of(ref.id)])
    whole = state_in(app.store, ref.id, outer)
    assert whole is not None
    parts = tuple(replace(part, done=False) for part in whole.parts)
    app.store.cells.swap([swap_of(app.store, replace(whole, succeeded=False, parts=parts), outer)])
    app.store.close()
    assert json.loads(call("batch", "show", ref.id, "-o", "json")[1])["state"] == "waiting"
    code, _, err = call("batch", "watch", ref.id, "--timeout", "1ms")
    assert code == 124 and "the batch goes on" in err


def test_a_waived_member_counts_as_done_and_the_audit_log_says_so(call: Call) -> None:
    (id,) = call("batch", "list", "--name", "import", "-o", "ids")[1].split()
    code, _, _ = call("dlq", "discard", f"batch:{id}", "--waive", "--yes", "--reason", "paid by hand")
    assert code == 0
    shown = json.loads(call("batch", "show", id, "-o", "json")[1])
    assert (shown["state"], shown["done"], shown["discarded"]) == ("done", 3, 0)
    (entry,) = [json.loads(line) for line in call("audit", "list", "-o", "jsonl")[1].splitlines()]
    assert (entry["action"], entry["reason"]) == ("discard", "paid by hand") and entry["text"].startswith("waived:")


@pytest.mark.parametrize("value", [None, b"{"])
def test_the_doctor_names_a_batch_whose_state_is_gone_or_unreadable(call: Call, value: bytes | None) -> None:
    (id,) = call("batch", "list", "--name", "import", "-o", "ids")[1].split()
    assert "batch" not in call("doctor", "-o", "json")[1]
    app = App("sqlite:///work.db")
    (cell,) = app.store.cells.read([f"batch/{id}"])
    assert cell is not None
    app.store.cells.swap([Swap(f"batch/{id}", cell.version, value)])
    app.store.close()
    code, out, _ = call("doctor", "-o", "json")
    (line,) = [line for line in json.loads(out)["findings"] if line.startswith("the state of batch")]
    assert code == 1 and f"batch {id} {'is gone' if value is None else 'cannot be read'}" in line
    assert "0 open members run on, 1 failed: redrive or discard" in line and f"dlq list batch:{id}" in line
    call("dlq", "discard", f"batch:{id}", "--yes", "--reason", "done by hand")
    assert "the state of batch" not in call("doctor", "-o", "json")[1]


def test_failure_groups_say_how_many_batches_wait_for_them(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = json.loads(call("dlq", "groups", "-o", "json")[1])
    assert (row["count"], row["batches"], row["batches_at_least"]) == (1, 1, False)
    app = opened()
    push = app.tasks["push"]
    for key in "xyz":
        app.batch([push.draft(1), push.draft(1)], name="import", key=key).enqueue()
    push.enqueue(1)  # a member of none
    app.run_worker(burst=True)
    app.store.close()
    (row,) = json.loads(call("dlq", "groups", "-o", "json")[1])
    assert (row["count"], row["batches"], row["batches_at_least"]) == (8, 4, False)
    table = [line.split() for line in call("dlq", "groups", "-o", "table")[1].splitlines()]
    assert table[0][-1] == "batches" and table[1][-1] == "4"
    shown = json.loads(call("dlq", "group", row["fingerprint"], "-o", "json")[1])
    assert shown["by_task"][0]["batches"] == 4
    monkeypatch.setattr(waiting, "READ_MAX", 3)
    assert call("dlq", "groups", "-o", "table")[1].splitlines()[1].split()[-1] == "2+"
    monkeypatch.setattr(waiting, "LIST_MAX", 0)
    assert "batches" not in json.loads(call("dlq", "groups", "-o", "json")[1])[0]
    call("dlq", "discard", "task:push", "--yes", "--reason", "r")
    app = opened()
    app.tasks["push"].enqueue(1)
    app.run_worker(burst=True)
    app.store.close()
    assert "batches" not in call("dlq", "groups", "-o", "tsv")[1]


def test_an_unknown_id_leads_to_the_list(call: Call) -> None:
    code, _, err = call("batch", "show", "nonsense")
    assert code != 0 and "batch nonsense is unknown" in err and "batch list" in err
