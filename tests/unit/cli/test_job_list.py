"""`redrive job list` with a selector: messages in any state, by what each of them shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redrive.message import Ack, ClaimRequest, Draft, Settlement
from redrive.program.main import run
from redrive.stores.sqlite.store import SqliteStore

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of four messages: the first is done, the others wait; the first two are of one order, the third of a trace."""
    monkeypatch.chdir(tmp_path)
    store = SqliteStore(tmp_path / "work.db")
    drafts = [
        Draft(task="a", correlation_id="order-7"),
        Draft(task="b", correlation_id="order-7", group="g"),
        Draft(task="b", correlation_id="order-8", traceparent=f"00-{TRACE}-00f067aa0ba902b7-01"),
        Draft(task="b"),
    ]
    ids = [put.id for put in store.put(drafts)]
    receipt = store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries[0].receipt
    store.exchange([Settlement(receipt, Ack(keep_ms=10**9))], [])
    store.close()
    return ids


@pytest.mark.parametrize(
    "words, found",
    [(["correlation:order-7"], [0, 1]), ([f"trace:{TRACE}"], [2]), (["correlation:order-7 -group:g"], [0]),
     (["correlation:order-*", "--task", "b"], [1, 2]), (["correlation:order-7", "--state", "ready"], [1]),
     (["lane:(ready,done)"], [0, 1, 2, 3]), (["lane:done"], [0]), (["--state", "done"], [0]), (["ORDER-7"], [0, 1]),
     (["lane:ready -group:*"], [2, 3])],
)  # fmt: skip
def test_a_selector_finds_messages_in_any_state(
    ids: list[str], words: list[str], found: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["job", "list", *words, "--url", "sqlite:///work.db", "-o", "ids"]) == 0
    assert set(capsys.readouterr().out.split()) == {ids[at] for at in found}


def test_a_word_like_the_name_of_a_field_is_hinted_at(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job", "list", "tsk", "--url", "sqlite:///work.db", "-o", "ids"]) == 0
    assert "'tsk' was searched as a word; did you mean task:… ?" in capsys.readouterr().err


def test_a_look_that_ends_early_says_so_and_gives_no_count(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["job", "list", "nothing", "--url", "sqlite:///work.db", "--look", "2"]
    assert run([*words, "--count", "-o", "json"]) == 5
    said = json.loads(capsys.readouterr().out)
    assert said == {"count": None, "looked": 3, "of": 4, "text": "looked at the first 3 of 4; no count"}
    assert run(["job", "list", "nothing", "--url", "sqlite:///work.db", "--count", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 0
    assert run(["job", "list", "lane:ready", "--url", "sqlite:///work.db", "--count"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["count", "3"]
    assert run(words) == 0
    assert "looked at the first 3 only" in capsys.readouterr().err
