"""The audit log under attack, on every store: entries that are changed, removed, moved or written anew are found and
named; many writers at once, newer versions beside this one, and lost cells break nothing."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from redrive import App
from redrive.audit.actor import user
from redrive.audit.log import CHUNK_MAX, HEAD, KEPT_MS, PROBED, Audit
from redrive.errors import ConfigError, Conflict
from redrive.message import Swap, version_of
from redrive.program.main import run
from redrive.store import Store
from redrive.stores import open_store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.testing.sqs import SqsServer
from redrive.triage.pauses import pause

COUNT = 2 * CHUNK_MAX + 20  # two whole cells, and some in the head


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "sqs"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the same store again and again."""
    own, opens = {"postgres": "schema", "redis": "namespace"}.get(request.param), list[Store]()
    url = f"sqlite:///{tmp_path / 'work.db'}"
    if own is not None:
        url = f"{request.getfixturevalue(f'{request.param}_server').url}?{own}=audit_{secrets.token_hex(4)}"
    if request.param == "sqs":
        server = request.getfixturevalue("sqs")
        url = f"sqs://eu-central-1/shop?create=true&endpoint={server.url}&triage=sqlite:///{tmp_path}/dead.db"

    def opened() -> Store:
        if request.param != "memory" or not opens:
            opens.append(MemoryStore() if request.param == "memory" else open_store(url))
        return opens[-1]

    yield opened
    for store in opens:
        store.close()


@pytest.fixture
def sqs() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server


def wrote(store: Store, count: int = COUNT, actor: str = "ann") -> None:
    audit = Audit(store)
    for number in range(count):
        audit.keep(audit.entry("discard", actor, f"because {number}", ids=[f"{number}"]))


def tampered(store: Store, cell: str, change: Callable[[Any], Any]) -> None:
    """Change a cell behind the log's back: by its JSON, None removes it."""
    (found,) = store.cells.read([cell])
    assert found is not None
    after = change(json.loads(found.value))
    value = None if after is None else json.dumps(after, separators=(",", ":"), ensure_ascii=False).encode()
    assert store.cells.swap([Swap(cell, found.version, value)]) == [True]


def problems(store: Store, anchor: str = "") -> tuple[str, ...]:
    return Audit(store).verify(anchor).problems


@pytest.mark.turns(3)
def test_a_log_that_nobody_touched_holds(opened: Callable[[], Store]) -> None:
    store = opened()
    assert Audit(store).verify().head == "0:" and problems(store) == ()
    wrote(store)
    audit = Audit(store)
    amended = audit.entry("discard", "ann", "less", ids=["a", "b"])
    audit.keep(amended)
    audit.amend(amended, ids=["a"])
    found = audit.verify()
    assert (found.problems, found.entries, found.pruned) == ((), COUNT + 2, 0)
    assert audit.verify(found.head).problems == ()
    assert [entry.ids for entry in audit][:2] == [("a",), (f"{COUNT - 1}",)]


def changed(records: list[Any], at: int, rehash: bool = False) -> None:
    entry = {**records[at]["entry"], "reason": "nothing happened"}
    raw = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    records[at] = {"hash": sha256(raw).hexdigest() if rehash else records[at]["hash"], "entry": entry}


def swapped(records: list[Any]) -> None:
    records[7], records[8] = records[8], records[7]


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (lambda r: changed(r, 7), ["entry 8 (discard by {me}) was changed"]),
        (lambda r: changed(r, 7, True), ["entry 8 was replaced: entry 9 (discard by {me}) holds another hash of it"]),
        (lambda r: r.pop(7), ["entry 8 is missing before entry 9 (discard by {me}): removed, or moved"]),
        (lambda r: r.pop(), ["entry 100 is missing before entry 101 (discard by {me}): removed, or moved"]),
        (
            lambda r: r.__delitem__(slice(3, 6)),
            ["entries 4 to 6 are missing before entry 7 (discard by {me}): removed, or moved"],
        ),
        (
            swapped,
            [
                "entry 8 is missing before entry 9 (discard by {me}): removed, or moved",
                "entry 8 (discard by {me}) stands after entry 9: it was moved or repeated",
            ],
        ),
        (lambda r: r.insert(7, r[6]), ["entry 7 (discard by {me}) stands after entry 7: it was moved or repeated"]),
    ],
    ids=["changed", "rehashed", "removed", "last", "several", "moved", "repeated"],
)  # fmt: skip
def test_what_is_done_to_an_entry_is_found_and_named(
    opened: Callable[[], Store], attack: Callable[[list[Any]], Any], named: list[str]
) -> None:
    store = opened()
    wrote(store)

    def act(records: list[Any]) -> list[Any]:
        attack(records)
        return records

    tampered(store, f"{HEAD}/1", act)
    told = [line.format(me=user()) for line in named]
    assert [*problems(store)] == told
    wrote(store, 3)  # who writes goes on, and the trace stays
    assert [*problems(store)] == told


@pytest.mark.turns(3)
def test_what_is_done_to_the_newest_entries_is_found(opened: Callable[[], Store]) -> None:
    store = opened()
    wrote(store, 20)
    (kept,) = store.cells.read([HEAD])
    assert kept is not None
    for attack, told in (
        (lambda head: head["records"].pop(), "entry 20 is missing at the end: removed"),
        (lambda head: head["records"].__delitem__(slice(18, 20)), "entries 19 to 20 are missing at the end: removed"),
        (lambda head: changed(head["records"], 19, True), "entry 20, the last one, was replaced"),
        (lambda head: changed(head["records"], 19), f"entry 20 (discard by {user()}) was changed"),
    ):

        def act(head: Any, attack: Callable[[Any], Any] = attack) -> Any:
            attack(head)
            return head

        tampered(store, HEAD, act)
        assert len(problems(store)) == 1 and problems(store)[0].startswith(told)
        (now,) = store.cells.read([HEAD])
        store.cells.swap([Swap(HEAD, version_of(now), kept.value)])
        assert problems(store) == ()


@pytest.mark.turns(3)
def test_cells_that_are_taken_away_are_named_and_stop_nobody(opened: Callable[[], Store]) -> None:
    store = opened()
    wrote(store)
    anchor = Audit(store).verify().head
    tampered(store, f"{HEAD}/1", lambda records: None)
    assert problems(store) == (
        f"cell {HEAD}/1 is missing or cannot be read",
        f"entries 1 to 100 are missing before entry 101 (discard by {user()}): removed, or moved",
    )
    tampered(store, HEAD, lambda head: None)
    assert problems(store)[0] == "the head was lost 1 times: entries after those left then are missing"
    pause(store, "crm", reason="they are down")  # the log is no reason to fail
    assert store.paused() == {"crm"} and next(iter(Audit(store))).action == "pause"
    assert problems(store)[0].startswith("the head was lost") and any("rewritten" in p for p in problems(store, anchor))


def dropped(head: Any, count: int, hash: str, cells: int, **more: Any) -> Any:
    """A head that says that so many entries were dropped for their age."""
    return {**head, "pruned": count, "pruned_hash": hash, "first": cells + 1, **more}


@pytest.mark.turns(3)
@pytest.mark.parametrize("aged", [False, True], ids=["as it is", "with a time that is old enough"])
@pytest.mark.parametrize("whole", [False, True], ids=["its first hundred", "all of it"])
def test_a_log_that_was_emptied_is_found(opened: Callable[[], Store], whole: bool, aged: bool) -> None:
    store = opened()
    anchors = []
    for count in (1, 119, 130):
        wrote(store, count)
        anchors.append(Audit(store).verify().head)
    old: dict[str, Any] = {"pruned_ms": store.now_ms() - KEPT_MS - 1000} if aged else {}
    hundredth = json.loads([*Audit(store).lines()][99])["hash"]
    if whole:
        tampered(store, HEAD, lambda head: dropped(head, head["seq"], head["hash"], 2, records=[], **old))
    else:
        tampered(store, HEAD, lambda head: dropped(head, 100, hundredth, 1, **old))
    without, first = problems(store), problems(store, anchors[0])
    assert without == () if aged and not whole else "they were removed" in without[0]
    assert any(
        f"entry 1, the anchor, is not there, and it was written on {datetime.now(UTC).date()}" in p for p in first
    )
    assert whole is bool(problems(store, anchors[1])[len(without) :])
    assert any("the anchor has no date" in p for p in problems(store, anchors[0].rpartition(":")[0]))


def test_the_first_entry_that_is_left_is_not_older_than_what_was_dropped_for_its_age() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    wrote(store, 30)
    clock.advance(KEPT_MS / 1000 + 7200)
    wrote(store, 5)
    twentieth = json.loads([*Audit(store).lines()][19])["hash"]

    def change(head: Any) -> Any:
        return dropped(head, 20, twentieth, 0, records=head["records"][20:], pruned_ms=store.now_ms() - KEPT_MS)

    tampered(store, HEAD, change)
    assert [p for p in problems(store) if "others were removed" in p]


def test_an_anchor_may_be_gone_once_its_age_explains_it() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    wrote(store, 150)
    anchor = Audit(store).verify().head
    wrote(store, 60)
    clock.advance(KEPT_MS / 1000 + 2 * 86_400)
    wrote(store, 3)
    assert Audit(store).verify(anchor).pruned == 200 and problems(store, anchor) == ()


def test_only_who_made_an_entry_may_correct_it_and_not_much_later() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    audit = Audit(store)
    theirs, mine = audit.entry("discard", "ann", ids=["a"]), audit.entry("discard", "mallory", ids=["b"])
    audit.keep(theirs)
    audit.keep(mine)
    less = audit.entry("amended", "mallory")
    audit.keep(replace(less, amends=theirs.id))
    assert [entry.claimed for entry in audit] == ["mallory", "ann"]
    clock.advance(7200)
    audit.amend(mine)
    assert [entry.claimed for entry in audit] == ["mallory", "ann"]


def test_a_head_that_names_any_number_of_cells_keeps_nobody_reading() -> None:
    store = MemoryStore()
    wrote(store, 5)
    tampered(store, HEAD, lambda head: {**head, "first": 1, "last": 10**9})
    store.cells.swap([Swap("audit", 0, b"1000000000")])
    assert "were not read" in problems(store)[PROBED]
    assert len(list(Audit(store))) == 5 and len(list(Audit(store).lines())) == 5


@pytest.mark.turns(3)
def test_a_damaged_head_stops_nobody_and_is_named(opened: Callable[[], Store]) -> None:
    store = opened()
    wrote(store, 5)
    (cell,) = store.cells.read([HEAD])
    store.cells.swap([Swap(HEAD, version_of(cell), b'{"seq":')])
    assert list(Audit(store)) == []
    pause(store, "crm")
    assert [entry.action for entry in Audit(store)] == ["pause"]
    assert problems(store) == ("the head was lost 1 times: entries after those left then are missing",)


@pytest.mark.turns(3)
def test_a_log_that_was_rewritten_as_a_whole_is_found_by_an_anchor(opened: Callable[[], Store]) -> None:
    store = opened()
    wrote(store, 12)
    anchor = Audit(store).verify().head
    tampered(store, HEAD, lambda head: None)
    wrote(store, 12, actor="mallory")
    assert problems(store) == () and len(problems(store, anchor)) == 1
    assert "entry 12 (discard by" in problems(store, anchor)[0] and "rewritten" in problems(store, anchor)[0]
    tampered(store, HEAD, lambda head: None)
    wrote(store, 3)
    assert problems(store, anchor) == ("the log ends with entry 3, and entry 12 was written: it was rewritten",)
    for wrong in ("x", "12", "12:ab", "0:" + "a" * 64):
        with pytest.raises(ConfigError, match="SEQ:HASH"):
            Audit(store).verify(wrong)


@pytest.mark.turns(3)
def test_the_chain_holds_under_writers_at_once(opened: Callable[[], Store]) -> None:
    names, failed = ["ann", "bob", "cas", "dee"], list[BaseException]()
    stores = [opened() for _ in names]

    def write(store: Store, name: str) -> None:
        try:
            wrote(store, 40, name)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=pair) for pair in zip(stores, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Audit(stores[0]).verify()
    assert not failed and (found.problems, found.entries) == ((), 160)
    assert sorted(entry.claimed for entry in Audit(stores[0])) == sorted(names * 40)


def test_what_is_pruned_leaves_a_chain_that_holds() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    wrote(store)
    clock.advance(KEPT_MS / 1000 + 1)
    assert list(Audit(store)) == []
    wrote(store, CHUNK_MAX)
    found = Audit(store).verify()
    assert (found.problems, found.pruned, found.entries) == ((), 2 * CHUNK_MAX, 20 + CHUNK_MAX)
    assert store.cells.read([f"{HEAD}/1", f"{HEAD}/2"]) == [None, None]
    tampered(store, f"{HEAD}/3", lambda records: records[1:])  # the first that is kept
    assert problems(store)[0].startswith("entry 201 is missing")


# -- other versions


@pytest.mark.turns(3)
def test_what_a_newer_version_writes_into_an_entry_is_kept_byte_by_byte(opened: Callable[[], Store]) -> None:
    store = opened()
    wrote(store, 2)

    def newer(head: Any) -> Any:
        entry = {
            "at_ms": store.now_ms(),
            "action": "rekey",
            "actor": "new",
            "key": "k2",
            "seq": 3,
            "prev": head["hash"],
        }
        raw = json.dumps(entry, separators=(",", ":")).encode()
        head |= {"seq": 3, "hash": sha256(raw).hexdigest()}
        head["records"].append({"hash": head["hash"], "entry": entry})
        return head

    tampered(store, HEAD, newer)
    wrote(store, CHUNK_MAX)
    assert problems(store) == ()
    (cell,) = store.cells.read([f"{HEAD}/1"])
    assert cell is not None and json.loads(cell.value)[2]["entry"]["key"] == "k2"


# -- who, and why


def test_no_environment_variable_and_no_flag_says_who_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, url = user(), f"sqlite:///{tmp_path / 'work.db'}"
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME", "SUDO_USER", "REDRIVE_ACTOR"):
        monkeypatch.setenv(name, "mallory")
    app = App(url)
    app.store.put([], swaps=[Swap("x", 0, b"1")])
    assert user() == real
    assert run(["queue", "pause", "crm", "--actor", "boss", "--reason", "why", "--url", url]) == 0
    assert run(["queue", "resume", "crm", "--url", url]) == 0
    assert [(entry.actor, entry.claimed) for entry in Audit(app.store)] == [(real, "mallory"), (real, "boss")]
    capsys.readouterr()
    assert run(["audit", "list", "--actor", "boss", "-o", "json", "--url", url]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["actor"], row["claimed"]) == (real, "boss")
    app.store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_became_another_user_acts_as_that_one() -> None:
    code = "import os; from redrive.audit.actor import user; import pwd; os.setuid(65534); print(user())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip().rpartition("/")[2] == f"nobody@{os.uname().nodename}"


@pytest.mark.parametrize(
    "words", [["queue", "pause", "crm"], ["queue", "purge", "crm", "--yes"], ["dlq", "export", "x"]]
)
@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_a_blank_reason_is_refused(words: list[str], blank: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    store = open_store(url)
    assert run([*words, "--reason", blank, "--url", url]) == 2
    if blank:
        with pytest.raises(ConfigError, match="reason"):
            pause(store, "crm", reason=blank)
    assert list(Audit(store)) == [] and store.paused() == frozenset()
    store.close()


# -- by the command line


def test_the_commands_verify_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    store = open_store(url)
    wrote(store, CHUNK_MAX + 2)
    assert run(["audit", "verify", "-o", "json", "--url", url]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["entries"] == CHUNK_MAX + 2
    assert run(["audit", "verify", "--anchor", found["head"], "--url", url]) == 0
    assert run(["audit", "verify", "--anchor", "x", "--url", url]) == 2

    file = tmp_path / "audit.jsonl"
    assert run(["audit", "export", "-f", str(file), "--url", url]) == 0
    lines, prev = file.read_bytes().splitlines(), ""
    assert len(lines) == CHUNK_MAX + 2
    for line in lines:
        record = json.loads(line)
        entry = line.split(b'"entry":', 1)[1][:-1]
        assert record["entry"].get("prev", "") == prev and sha256(entry).hexdigest() == record["hash"]
        prev = record["hash"]

    tampered(store, HEAD, lambda head: {**head, "records": head["records"][1:]})
    capsys.readouterr()
    assert run(["audit", "verify", "--url", url]) == 1
    told = capsys.readouterr()
    assert f"entry 101 is missing before entry 102 (discard by {user()})" in told.out
    assert "does not hold what was written" in told.err
    store.close()


@pytest.mark.turns(3)
def test_a_commit_that_fails_writes_no_entry(opened: Callable[[], Store]) -> None:
    store, audit = opened(), Audit(opened())
    with pytest.raises(Conflict):
        store.put([], swaps=[*audit.swaps(audit.entry("x", "ann")), Swap("run/elsewhere", 7, b"")])
    assert list(audit) == [] and problems(store) == ()
