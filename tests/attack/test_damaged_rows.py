"""A row that cannot be read harms itself only: workers go on, lists go on, and it is kept as it was."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.support.attack.damage import FAULT, claim, everything, host, settle, store  # noqa: F401
from tests.support.attack.hosts import Host, garbage

from redrive import App, Context
from redrive.events import DeliveryEvent, Event
from redrive.message import (
    DAMAGED,
    Ack,
    DeadLetter,
    Discard,
    Draft,
    Isolate,
    Lane,
    Readmit,
    Redrive,
    RetryAt,
    Return,
    Settled,
)
from redrive.program.main import run as redrive
from redrive.store import Store
from redrive.testing import ManualClock

HEADERS = {"tenant": "a"}
# Another word there is another message, and no damage that anybody could see; and of some nothing is left.
ENDS = ("task", "queue", "id", "message gone")


def shows_garbage(text: str) -> bool:
    return "garbage" in text or b"garbage".hex() in text


def put(store: Store, count: int, queue: str = "default") -> list[str]:
    drafts = [Draft(task="work", queue=queue, body=b'{"n":%d}' % n, headers=HEADERS) for n in range(count)]
    return [put.id for put in store.put(drafts)]


def work(host: Host) -> tuple[Counter[str], dict[str, int], list[Event]]:
    """A worker runs until nothing is due: how often each message ran, its attempts and crashes when it did, and what
    was told."""
    runs: Counter[str] = Counter()
    spent: dict[str, int] = {}
    heard: list[Event] = []
    app = App(host.url)

    @app.task(name="work", ctx=True)
    def handler(ctx: Context, n: int) -> None:
        runs[ctx.message_id] += 1
        spent[ctx.message_id] = ctx.attempt

    app.subscribe(heard.extend)
    app.run_worker(burst=True)
    app.store.close()
    return runs, spent, heard


def with_history(store: Store, count: int) -> list[str]:
    """Messages that failed once, and are due again."""
    ids = put(store, count)
    settle(store, claim(store), RetryAt(store.now_ms()))
    return ids


@pytest.mark.turns(3)
@pytest.mark.parametrize("history", [False, True], ids=["fresh", "retried"])
def test_a_worker_does_all_that_stands_beside_damaged_rows(host: Host, store: Store, seed: int, history: bool) -> None:
    for field in host.fields():
        spoilers = garbage(seed, field)
        ids = with_history(store, 2 * len(spoilers)) if history else put(store, 2 * len(spoilers))
        victims = {ids[2 * n]: spoiler for n, spoiler in enumerate(spoilers)}
        bystanders = ids[1::2]
        hit = [id for id, spoiler in victims.items() if host.spoil(id, field, spoiler)]
        runs, spent, heard = work(host)
        about = f"field {field}"
        assert [runs[id] for id in bystanders] == [1] * len(bystanders), about
        assert {spent[id] for id in bystanders} == {1 + history}, about
        assert not [m for m in store.find(bystanders) if m is not None], about
        fates = [event for event in heard if isinstance(event, DeliveryEvent) and event.reason == DAMAGED]
        aside = {m.id: m for m in store.peek(Lane.QUARANTINE, limit=1000).messages}
        assert {fate.id for fate in fates} == aside.keys(), about
        for message in aside.values():
            assert message.reason == DAMAGED and message.damage is not None, about
            assert message.damage.why and message.damage.raw, about
        if field not in ENDS:  # each victim ran, or is still there
            there = {m.id for m in everything(store)}
            assert all(id in there or runs[id] == 1 for id in hit), about
        host.clear()


@pytest.mark.turns(3)
def test_a_list_shows_what_is_damaged_and_goes_on(
    host: Host, store: Store, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for field in host.fields():
        ids = put(store, 30)
        settle(store, claim(store), DeadLetter("exhausted"))
        for id, spoiler in zip(ids[::2], garbage(seed, field), strict=False):
            host.spoil(id, field, spoiler)
        whole = set(ids[1::2])
        assert whole <= {m.id for m in everything(store)}, field
        assert whole <= {m.id for m in store.peek(Lane.DEAD, limit=100).messages}, field
        for words in (
            ["dlq", "list", "-o", "json"],
            ["dlq", "groups", "-o", "json"],
            ["dlq", "plan", "queue:default", "-o", "json"],
            ["dlq", "export", "--all", "-f", str(tmp_path / "out.jsonl")],
            ["job", "list", "-o", "json"],
        ):
            assert redrive([*words, "--url", host.url]) == 0, (field, words, capsys.readouterr())
            told = (tmp_path / "out.jsonl").read_text() if words[1] == "export" else capsys.readouterr().out
            if words[1] in ("list", "export"):
                assert all(id in told for id in whole), (field, words)
        plan = everything(store)
        assert all(m.damage is None for m in plan if m.id in whole), field
        host.clear()


@pytest.mark.turns(3)
def test_what_was_damaged_meanwhile_is_settled_without_harm_to_the_others(host: Host, store: Store, seed: int) -> None:
    clock = ManualClock()
    with closing(host.open(clock)) as own:
        for field in host.fields():
            for decision in (
                Ack(),
                Ack(keep_ms=1000),
                RetryAt(clock()),
                DeadLetter("exhausted"),
                RetryAt(clock(), counts=False),
            ):
                spoilers = garbage(seed, field, 1)
                ids = put(own, 2 * len(spoilers))
                held = {d.message.id: d for d in claim(own)}
                for id, spoiler in zip(ids[::2], spoilers, strict=False):
                    host.spoil(id, field, spoiler)
                bystanders = [held[id] for id in ids[1::2]]
                own.extend([d.receipt for d in held.values()], lease_ms=60_000)
                words = settle(own, [*held.values()], decision, FAULT)
                found = dict(zip(held, words, strict=True))
                assert {found[d.message.id] for d in bystanders} == {Settled.OK}, (field, decision)
                host.clear()


@pytest.mark.turns(3)
def test_what_died_with_a_worker_is_given_back_beside_damaged_rows(host: Host, store: Store, seed: int) -> None:
    for field in host.fields():
        spoilers = garbage(seed, field, 1)
        ids = put(store, 2 * len(spoilers))
        claim(store)
        for id, spoiler in zip(ids[::2], spoilers, strict=False):
            host.spoil(id, field, spoiler)
        store.reclaim("w", [], fault=FAULT)
        bystanders = store.find(ids[1::2])
        assert [m.lane if m else None for m in bystanders] == [Lane.READY] * len(bystanders), field
        assert {m.attempt for m in bystanders if m} == {0}, field
        host.clear()


@pytest.mark.turns(3)
def test_a_verdict_on_many_passes_by_the_damaged_ones(host: Host, store: Store, seed: int) -> None:
    for field in host.fields():
        for verdict in (Redrive(), Redrive(run="r"), Discard("why"), Isolate("why")):
            spoilers = garbage(seed, field, 1)
            ids = put(store, 2 * len(spoilers))
            settle(store, claim(store), DeadLetter("exhausted"))
            handles = [m.handle for m in store.peek(Lane.DEAD, limit=100).messages]
            for id, spoiler in zip(ids[::2], spoilers, strict=False):
                host.spoil(id, field, spoiler)
            moved = dict(zip([handle.id for handle in handles], store.triage(handles, verdict), strict=True))
            assert all(moved[id] for id in ids[1::2]), (field, verdict)
            if isinstance(verdict, Redrive) and verdict.run:
                back = [m.handle for m in everything(store) if m.lane is Lane.READY]
                store.triage(back, Return("r"))
                assert all(m and m.lane is Lane.DEAD for m in store.find(ids[1::2])), field
            host.clear()


def test_what_was_set_aside_is_redriven_by_nobody_and_ended_by_a_discard(host: Host, store: Store) -> None:
    ids = put(store, 3)
    host.spoil(ids[1], host.rare, "garbage")
    assert len(claim(store)) == 2
    (aside,) = store.peek(Lane.QUARANTINE).messages
    for verdict in (Redrive(), Readmit("why"), Isolate("why")):
        assert store.triage([aside.handle], verdict) == [False]
    assert aside.damage is not None and shows_garbage(" ".join(aside.damage.raw.values()))
    assert store.triage([aside.handle], Discard("seen")) == [True]
    assert store.find([ids[1]]) == [None]


@pytest.mark.turns(3)
def test_check_names_what_is_damaged_and_repair_mends_what_it_can(
    host: Host, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert redrive(["store", "check", "--url", host.url]) == 0
    ids = put(store, 6)
    host.spoil(ids[0], host.rare, "garbage")  # set aside by the claim
    claim(store, 2)
    store.reclaim("w", [])
    host.spoil(ids[3], host.rare, "garbage")  # and one that nobody met yet
    host.strand(ids[5])
    capsys.readouterr()
    assert redrive(["store", "check", "--url", host.url]) == 1
    told = capsys.readouterr().out
    assert all(id in told for id in (ids[0], ids[3], ids[5])) and ids[1] not in told
    copy = tmp_path / "copy.jsonl"
    assert redrive(["store", "check", "--repair", "--copy", str(copy), "--url", host.url]) == 0
    assert copy.stat().st_mode & 0o777 == 0o600
    kept = [msgspec.json.decode(line) for line in copy.read_bytes().splitlines()]
    assert {row["id"] for row in kept} == {ids[0], ids[3], ids[5]}
    assert sum(shows_garbage(str(row["row"])) for row in kept) == 2
    assert redrive(["store", "check", "--url", host.url]) == 0
    dead = {m.id: m for m in store.peek(Lane.DEAD).messages}
    assert dead.keys() == {ids[0], ids[3]}
    assert all(store.triage([m.handle for m in dead.values()], Redrive()))
    runs, *_ = work(host)
    assert [runs[id] for id in ids] == [1] * 6


def test_the_row_that_was_damaged_is_shown_as_it_was(
    host: Host, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = put(store, 2)
    host.spoil(ids[0], host.rare, "garbage")
    claim(store)
    assert redrive(["dlq", "show", ids[0], "--url", host.url, "-o", "json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert shown["state"] == DAMAGED and shown["reason"] == DAMAGED and shown["damage"]
    assert shows_garbage(str(shown["row"]))
    assert redrive(["dlq", "show", ids[0], "--url", host.url]) == 0
    assert shows_garbage(capsys.readouterr().out)
    assert redrive(["dlq", "list", "--quarantine", "--url", host.url]) == 0
    assert ids[0] in capsys.readouterr().out


@pytest.mark.parametrize("word", ["kind", "lane", "field"])
def test_words_of_a_newer_version_pass_through_untouched(host: Host, store: Store, word: str) -> None:
    ids = with_history(store, 4)
    host.renew(ids[0], word)
    if word == "lane":
        runs, *_ = work(host)
        assert [runs[id] for id in ids] == [0, 1, 1, 1]
        (left,) = [m for m in store.find(ids) if m is not None]
        assert left.id == ids[0] and left.lane not in [*Lane] and left.damage is None
        return
    held = {d.message.id: d for d in claim(store)}
    assert held.keys() == set(ids)
    if word == "kind":
        assert held[ids[0]].message.faults[0].kind == "cosmic"
    assert set(settle(store, [*held.values()], DeadLetter("exhausted"))) == {Settled.OK}
    assert host.renewed(ids[0], word)
    assert {m.id for m in store.peek(Lane.DEAD).messages} == set(ids)
    assert redrive(["dlq", "list", "--url", host.url]) == 0
