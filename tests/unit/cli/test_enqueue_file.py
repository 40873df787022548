"""`redrive enqueue FILE`: every line is enqueued once, or the command says which one cannot be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive import App
from redrive.deliver.backfill import Backfill, Drafts
from redrive.deliver.ingest import FileRecord
from redrive.deliver.lines import LINE_MAX, check
from redrive.errors import StoreUnavailable
from redrive.ids import new_id
from redrive.message import Draft, PutResult
from redrive.program.main import run
from redrive.store import Store
from redrive.store.wrapper import StoreWrapper
from redrive.stores.sqlite.store import SqliteStore

URL = "sqlite:///work.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(folder / "work.db")
    yield store
    store.close()


Enqueue = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def enqueue(store: SqliteStore, capsys: pytest.CaptureFixture[str]) -> Enqueue:
    def call(*words: str) -> tuple[int, dict[str, Any], str]:
        code, told = run(["enqueue", *words, "--url", URL, "-o", "json"]), capsys.readouterr()
        return code, json.loads(told.out or "{}"), told.err

    return call


def write(lines: Sequence[Any], name: str = "lines.jsonl") -> None:
    Path(name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def bodies(store: Store) -> Counter[bytes]:
    messages = store.peek("ready", limit=10_000).messages
    return Counter(message.body for message in messages)


def test_each_line_is_a_message_with_its_own_options(store: SqliteStore, enqueue: Enqueue) -> None:
    write([{"task": "a", "args": {"n": 1}, "queue": "q", "priority": 0, "group": "g", "headers": {"h": "1"},
            "labels": {"customer": "7"}},
           {"task": "b", "correlation_id": "c-1", "delay": "1h", "deadline": "2099-01-01T00:00:00Z"}])  # fmt: skip
    code, told, _ = enqueue("lines.jsonl")
    assert (code, told) == (0, {"file": "lines.jsonl", "lines": 2, "before": 0, "enqueued": 2, "known": 0})
    found = {message.task: message for message in store.peek("ready").messages}
    a, b = found["a"], found["b"]
    labelled = {"h": "1", "redrive-label-customer": "7"}
    assert (a.queue, a.priority, a.group, dict(a.headers or {}), a.body) == ("q", 0, "g", labelled, b'{"n":1}')
    assert (b.queue, b.correlation_id) == ("default", "c-1")
    assert b.due_ms is not None
    assert b.due_ms - b.enqueued_ms >= 3_600_000


def test_a_message_is_labelled_by_the_command(store: SqliteStore, enqueue: Enqueue) -> None:
    words = ("a", "--label", "customer=7", "--label", "region=eu=1", "--header", "h=1")
    code, told, _ = enqueue(*words)
    [message] = store.find([told["id"]])
    assert code == 0 and message is not None and message.labels == {"customer": "7", "region": "eu=1"}
    assert message.headers["h"] == "1"
    code, _, said = enqueue("a", "--label", "cust omer=7")
    assert code == 2 and "expected a name of at most 63 letters" in said
    code, _, said = enqueue("a", "--label", "customer")
    assert (code, said.splitlines()[0]) == (2, "error: --label 'customer' has no value")


def test_lines_of_one_task_hold_its_arguments_alone(store: SqliteStore, enqueue: Enqueue) -> None:
    write([{"n": n} for n in range(3)])
    assert enqueue("lines.jsonl", "--task", "a", "-q", "q")[1]["enqueued"] == 3
    assert bodies(store) == Counter(b'{"n":%d}' % n for n in range(3))


def test_a_bad_line_is_named_with_what_was_expected_and_nothing_is_enqueued(
    store: SqliteStore, enqueue: Enqueue
) -> None:
    write([{"task": "a"}, {"args": {}}, {"task": "a", "arg": 1}, {"task": "a", "delay": "5"}, {"task": "a", "id": "7"}])
    code, _, said = enqueue("lines.jsonl")
    lines = said.splitlines()
    assert code == 1
    assert lines[0] == "lines.jsonl:2: Object missing required field `task`"
    assert lines[1].startswith("lines.jsonl:3: Object contains unknown field `arg`; known: task, args, id, ")
    assert lines[2].startswith("lines.jsonl:4: delay '5' is refused: text needs a unit")
    assert lines[3].startswith("lines.jsonl:5: id '7' is not a UUIDv7")
    assert lines[4] == "error: 4 of 5 lines cannot be enqueued"
    assert bodies(store) == Counter()


def test_the_same_file_is_enqueued_once_unless_it_is_said_to_be_enqueued_again(
    store: SqliteStore, enqueue: Enqueue
) -> None:
    id = new_id(store.now_ms())
    write(
        [{"task": "a", "args": {"n": 1}}, {"task": "a", "args": {"n": 2}, "key": "two"}] + 2 * [{"task": "a", "id": id}]
    )
    assert enqueue("lines.jsonl")[1] == {"file": "lines.jsonl", "lines": 4, "before": 0, "enqueued": 3, "known": 1}
    code, told, said = enqueue("lines.jsonl")
    assert (code, told["before"], told["enqueued"]) == (0, 4, 0)
    assert "all 4 lines were enqueued before" in said
    assert enqueue("lines.jsonl", "--again")[1]["known"] == 3  # the id and the key are stored still
    assert bodies(store)[b'{"n":1}'] == 2


def test_an_option_of_one_message_is_refused_for_a_file(enqueue: Enqueue) -> None:
    write([{"task": "a"}])
    code, _, said = enqueue("lines.jsonl", "--label", "a=b")
    assert (code, said.splitlines()[0]) == (2, "error: --label is for one message, not for a file")
    code, _, said = enqueue("lines.jsonl", "--header", "a=b")
    assert (code, said.splitlines()[0]) == (2, "error: --header is for one message, not for a file")


class CutOff(StoreWrapper):
    """A store whose put fails now and then, before it is committed or after."""

    calls = 0

    def put(self, drafts: Sequence[Draft], **words: Any) -> list[PutResult]:
        self.calls += 1
        if self.calls % 3 == 1:
            raise StoreUnavailable("before the commit")
        puts = super().put(drafts, **words)
        if self.calls % 3 == 2:
            raise StoreUnavailable("after the commit")
        return puts


def test_cut_off_before_or_after_a_commit_every_line_is_enqueued_exactly_once(store: SqliteStore) -> None:
    write([{"n": n} for n in range(2300)])
    path = Path("lines.jsonl")
    with path.open("rb") as file:
        checked = check(file)
    cut = CutOff(store)
    drafts = Drafts(cut, lambda task, args, options: Draft(task=task, body=json.dumps(args).encode()), task="a")
    starts = 0
    while True:
        ledger = drafts.ledger(cut, checked.digest)
        if ledger.record is None:
            ledger.write(FileRecord("lines.jsonl", "", "", checked.good, 0, 0))
        starts += 1
        try:
            Backfill(drafts, App(store=cut), ledger, path, checked.stamp, LINE_MAX).run()
            break
        except StoreUnavailable:
            continue
    assert starts > 3
    assert bodies(store) == Counter(json.dumps({"n": n}).encode() for n in range(2300))


@pytest.mark.parametrize("error", [StoreUnavailable("it is out"), KeyboardInterrupt()])
def test_a_command_that_ends_early_says_how_to_go_on(
    enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write([{"task": "a"}] * 1200)
    put, calls = SqliteStore.put, 0

    def once(self: SqliteStore, drafts: Sequence[Draft], **words: Any) -> list[PutResult]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return put(self, drafts, **words)

    monkeypatch.setattr(SqliteStore, "put", once)
    code, _, said = enqueue("lines.jsonl")
    assert code != 0 and "500 of 1,200 lines are enqueued; the same command goes on after these" in said
    assert enqueue("lines.jsonl")[1]["before"] == 500


def test_a_repetition_that_ends_early_goes_on_where_it_stood(
    store: SqliteStore, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    write([{"task": "a"}] * 1200)
    assert enqueue("lines.jsonl")[1]["enqueued"] == 1200
    put, calls = SqliteStore.put, 0

    def once(self: SqliteStore, drafts: Sequence[Draft], **words: Any) -> list[PutResult]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("it is out")
        return put(self, drafts, **words)

    monkeypatch.setattr(SqliteStore, "put", once)
    assert enqueue("lines.jsonl", "--again")[0] != 0
    assert enqueue("lines.jsonl", "--again")[1]["before"] == 500
    assert bodies(store).total() == 2400
