"""`redrive dlq plan` and `apply`: what people and their scripts are shown, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Call

from redrive import App
from redrive.message import ClaimRequest, DeadLetter, Draft, Quarantine, Settlement, Swap
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.redrive.plan import plan_cell
from redrive.triage.redrive.records import state_cell


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Of two messages dead in `crm`, one in `mail`, and one in quarantine."""
    store = SqliteStore(tmp_path / "work.db")
    store.put([Draft(task="push", queue="crm") for _ in range(3)] + [Draft(task="send", queue="mail")])
    for queue, decision in (("crm", DeadLetter("exhausted")), ("mail", DeadLetter("rejected"))):
        found = store.exchange([], [ClaimRequest(queue, 3, 60_000)]).deliveries
        settled = [Settlement(d.receipt, decision) for d in found]
        if queue == "crm":
            settled[0] = Settlement(found[0].receipt, Quarantine("poison"))
        store.exchange(settled, [])
    yield store
    store.close()


@pytest.fixture
def redrive(store: SqliteStore, redrive: Call) -> Call:
    """Where the store is there already."""
    return redrive


def test_a_plan_is_shown_to_people_with_what_it_leaves_out_and_the_next_command(redrive: Call) -> None:
    said = redrive("dlq", "plan", "--rate", "20/s", "--canary", "1", "--slow-start", "--attempts", "3", "-o", "table")
    rows = dict(line.split("  ", 1) for line in said.out.splitlines())
    shown = {name: text.strip() for name, text in rows.items()}
    assert shown.pop("plan") in said.err
    assert shown.pop("forecast").startswith("at most 2 calls/s more; these tasks made 0/s in the last hour")
    assert shown == {
        "chosen by": "all that is dead",
        "would move": "3 in about 4s",
        "queues": "crm 2, mail 1",
        "tasks": "push 2, send 1",
        "at rest for": "<1h 3",
        "left out": "quarantined 1",
        "how": "canary of 1; slow start to 20/s; stops if failed>20%; 3 attempts each",
    }
    assert said.err.startswith("nothing was moved; next: ")


def test_a_plan_for_programs_says_all_of_it_and_moves_nothing(redrive: Call, store: SqliteStore) -> None:
    found = redrive(
        *(
            "dlq",
            "plan",
            "queue:crm",
            "failed:<6h",
            "--rate",
            "7200/h",
            "--halve-on-failures",
            "--stop-if",
            "failed>100",
        ),
        *(
            "--delay",
            "1m",
            "--spread",
            "30s",
            "--to-queue",
            "bulk",
            "--window",
            "22:00-06:00",
            "--reason",
            "N",
            "-o",
            "json",
        ),
    ).record
    assert found["total"] == 2 and found["by_queue"] == {"crm": 2} and found["excluded"] == {"quarantined": 1}
    assert found["selector"] == "queue:crm failed:<6h" and found["eta_s"] == 91
    assert found["settings"] == {
        "rate_per_s": 2,
        "canary": 0,
        "slow_start": False,
        "halve_on_failures": True,
        "stop_if": "failed>100",
        "attempts": None,
        "to_queue": "bulk",
        "delay_s": 60,
        "spread_s": 30,
        "keep_deadline": False,
        "gates": {"breaker": True, "health": None, "approval": None, "window": "22:00-06:00"},
        "note": "N",
        "hurry": False,
        "edit": False,
        "priority": None,
        "deadline_s": None,
        "cancel": False,
    }
    assert store.counts().dead == 3


def test_filters_choose_too_and_the_id_is_printed_for_scripts(redrive: Call, store: SqliteStore) -> None:
    said = redrive("dlq", "plan", "-q", "mail", "--died-of", "rejected", "-o", "ids")
    (cell,) = store.cells.read([plan_cell(said.out.strip())])
    assert cell is not None and json.loads(cell.value)["total"] == 1


def test_an_empty_plan_says_so(redrive: Call) -> None:
    said = redrive("dlq", "plan", "queue:crm task:none.such*", "-o", "json")
    assert (said.code, said.out) == (1, "") and "error: nothing was planned: 3 are dead, 0 match\n" in said.err


@pytest.mark.parametrize(
    "words, says",
    [
        (("queue:crm faild:<6h",), "did you mean failed"),
        (("--stop-if", "faild>20%"), "did you mean failed"),
        (("--rate", "fast"), "rate 'fast'"),
        (("--attempts", "0"), "attempts"),
        (("--window", "at night"), "window='at night'"),
    ],
)
def test_what_cannot_be_meant_is_a_mistake_of_usage(redrive: Call, words: tuple[str, ...], says: str) -> None:
    said = redrive("dlq", "plan", *words)
    assert said.code == 2 and says in said.err and said.out == ""


# -- applied


@pytest.mark.parametrize("by", ["id", "file"])
def test_a_plan_is_applied_once_by_its_id_or_its_file(redrive: Call, store: SqliteStore, by: str) -> None:
    id = planned(redrive, "--out", "plan.json")
    named = id if by == "id" else "plan.json"
    found = redrive("dlq", "apply", named, "--reason", "the CRM is up", "--actor", "ann", "-o", "json").record
    assert (found["id"], found["state"], found["planned"], found["moved"]) == (id, "running", 2, 0)
    run = App(store=store).dlq.run(id)
    assert (run.view().actor, run.view().reason, run.state) == ("ann", "the CRM is up", "running")
    assert redrive("dlq", "apply", named, "--reason", "again").refusal[0] == f"plan {id} was applied already"
    assert store.counts().dead == 3


# -- refused


def planned(redrive: Call, *words: str) -> str:
    return redrive("dlq", "plan", "queue:crm", *words, "-o", "ids").out.strip()


def test_no_reason_no_run(redrive: Call) -> None:
    id = planned(redrive)
    what, _, next = redrive("dlq", "apply", id).refusal
    assert what == "no reason is given" and next.endswith(f" dlq apply {id} --reason 'the CRM is up again'")


def test_a_plan_that_is_unknown_or_applied_or_too_old_is_refused(redrive: Call, store: SqliteStore) -> None:
    id = planned(redrive)
    what, why, _ = redrive("dlq", "apply", id, "--reason", "r", "--max-age", "0s").refusal
    assert "was drawn up" in what and why.startswith("at most 0s is allowed")
    store.cells.swap([Swap(state_cell(id), 0, b"{}")])
    what, _, next = redrive("dlq", "apply", id, "--reason", "r").refusal
    assert what == f"plan {id} was applied already" and next.endswith(f" run show {id}")
    unknown = "0199f3a1-0000-7000-8000-000000000001"
    what, _, _ = redrive("dlq", "apply", unknown, "--reason", "r").refusal
    assert what == f"there is no plan '{unknown}' in sqlite:///work.db"


def test_a_plan_that_was_altered_is_refused(redrive: Call, store: SqliteStore) -> None:
    id = planned(redrive, "--rate", "20/s")
    (cell,) = store.cells.read([plan_cell(id)])
    assert cell is not None
    store.cells.swap([Swap(plan_cell(id), cell.version, cell.value.replace(b"20.0", b"99.0"))])
    assert redrive("dlq", "apply", id, "--reason", "r").refusal[0] == f"plan {id} was altered since it was drawn up"


@pytest.mark.parametrize(
    "old, new, says",
    [
        ('"rate_per_s": 20.0', '"rate_per_s": 99.0', "settings is not as"),
        ('"total": 2', '"total": 1', "total is not as"),
        ('"digest": "', '"digest": "0', "digest is not as"),
        ('"digest"', '"digset"', "it is not as"),
        ("{", "", "it is not as"),
    ],
)
def test_a_file_that_was_altered_is_refused(redrive: Call, tmp_path: Path, old: str, new: str, says: str) -> None:
    planned(redrive, "--rate", "20/s", "--out", "plan.json")
    file = tmp_path / "plan.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    what, why, _ = redrive("dlq", "apply", "plan.json", "--reason", "r").refusal
    assert what.startswith("plan.json ") and says in why


def test_a_file_that_is_not_there_is_a_mistake_of_usage(redrive: Call) -> None:
    said = redrive("dlq", "apply", "plam.json", "--reason", "r")
    assert said.code == 2 and "No such file" in said.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--rate", "fast"), "expected a number per unit of time"),
        (("--window", "night"), "expected times of day"),
        (("--to-queue", ""), "expected text that is not empty"),
        (("--health", "ftp://crm"), "expected an http or https URL"),
    ],
)
def test_what_a_plan_is_told_wrongly_is_said_and_leads_to_its_help(
    redrive: Call, words: tuple[str, ...], why: str
) -> None:
    said = redrive("dlq", "plan", *words)
    lines = said.err.splitlines()
    assert said.code == 2 and lines[-2].startswith(f"why: {why}") and lines[-1].endswith(" dlq plan --help")


def test_a_plan_whose_file_cannot_be_written_is_kept(redrive: Call) -> None:
    said = redrive("dlq", "plan", "--out", "nowhere/plan.json")
    what, why, next = said.err.splitlines()
    id = why.rpartition(" ")[2]
    assert said.code == 1 and what == "error: nowhere/plan.json cannot be written: No such file or directory"
    assert f" dlq apply {id} --reason " in next and redrive("dlq", "apply", id, "--reason", "up").code == 0


def test_the_next_command_names_the_same_store_and_quotes_the_file(
    redrive: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDRIVE_URL")
    where = ("--url", "sqlite:///work.db")
    said = redrive("dlq", "plan", "--out", "my plan.json", *where)
    assert said.err.rstrip().endswith(" dlq apply 'my plan.json' --reason '…' --url sqlite:///work.db")
    said = redrive("dlq", "apply", "my plan.json", *where)
    assert said.refusal[2].endswith(" dlq apply 'my plan.json' --url sqlite:///work.db --reason 'the CRM is up again'")


def test_a_plan_of_another_store_is_not_known_and_it_is_said_where(redrive: Call, store: SqliteStore) -> None:
    redrive("dlq", "plan", "--out", "plan.json")
    SqliteStore("other.db").close()
    what, why, _ = redrive("dlq", "apply", "plan.json", "--reason", "up", "--url", "sqlite:///other.db").refusal
    assert what.endswith(" in sqlite:///other.db") and why.startswith("a plan of another store is not known here")


def test_a_health_check_that_the_app_does_not_know_is_pointed_out(redrive: Call, tmp_path: Path) -> None:
    (tmp_path / "healthless.py").write_text("from redrive import App\napp = App('sqlite:///work.db')\n")
    said = redrive("dlq", "plan", "--health", "crm-pu", "--app", "healthless:app")
    assert said.code == 0 and "the app knows no health check 'crm-pu'" in said.err
    assert "health check" not in redrive("dlq", "plan", "--health", "http://localhost/", "--app", "healthless:app").err


def test_what_waits_is_changed_by_a_plan_and_a_cancel_says_what_lasts(redrive: Call, store: SqliteStore) -> None:
    store.put([Draft(task="crm.push", queue="crm"), Draft(task="crm.push", queue="crm", batch="b")])
    text = redrive("dlq", "plan", "lane:ready", "--priority", "0", "--deadline", "2h", "-o", "table").out
    assert "would change  2" in text and "priority 0; deadline in 2h" in text
    text = redrive("dlq", "plan", "lane:ready", "--cancel", "-o", "table").out
    assert "would cancel  2" in text and "not of 1, in groups or batches" in text
    refused = redrive("dlq", "plan", "lane:ready").err
    assert "has nothing to change" in refused and "lane:scheduled alone" in refused
    assert "gets no queue, priority" in redrive("dlq", "plan", "lane:ready", "--cancel", "--priority", "0").err
    assert "changes what waits" in redrive("dlq", "plan", "--cancel").err
    assert store.counts("crm").ready == 2
