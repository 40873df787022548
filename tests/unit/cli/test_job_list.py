"""`redrive job list` with a selector: messages in any state, by what each of them shows."""

from __future__ import annotations

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
     (["correlation:order-*", "--task", "b"], [1, 2]), (["correlation:order-7", "--state", "ready"], [1])],
)  # fmt: skip
def test_a_selector_finds_messages_in_any_state(
    ids: list[str], words: list[str], found: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["job", "list", *words, "--url", "sqlite:///work.db", "-o", "ids"]) == 0
    assert set(capsys.readouterr().out.split()) == {ids[at] for at in found}


def test_a_field_of_dead_messages_alone_leads_to_dlq_list(ids: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job", "list", "error:ValueError", "--url", "sqlite:///work.db"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error: job list does not select by error:"
    assert said[2].endswith(" dlq list error:ValueError --url sqlite:///work.db")
