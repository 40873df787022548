"""`redrive dlq note, own, mute, rule, group, audit`: as people type them and as scripts read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Draft
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.program.main import run
from redrive.stores.sqlite.store import SqliteStore

FP, OTHER = "5adb8c5d5d8d7435", "5adbffffffffffff"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("COLUMNS", "160")
    url = f"sqlite:///{tmp_path / 'work.db'}"
    with_faults = [FP, FP, OTHER]
    store = SqliteStore(tmp_path / "work.db")
    store.put([Draft(task="push", queue="crm") for _ in with_faults])
    taken = store.exchange([], [ClaimRequest("crm", 3, 30_000)]).deliveries
    store.exchange(
        [
            Settlement(delivery.receipt, DeadLetter("exhausted"), Fault(Kind.TRANSIENT, "OSError", "down", fingerprint))
            for delivery, fingerprint in zip(taken, with_faults, strict=True)
        ],
        [],
    )
    store.close()

    def call(*words: str) -> tuple[int, str, str]:
        code = run(["dlq", *words, "--url", url])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def record(cli: Cli, *words: str) -> Any:
    code, out, err = cli(*words, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def test_what_is_said_is_listed_with_the_groups(cli: Cli) -> None:
    cli("note", FP, "CRM-77:", "they move", "--actor", "ann")
    cli("own", FP, "crm team")
    cli("mute", FP, "2h", "--reason", "known")
    assert record(cli, "rule", FP, "hold", "--reason", "until Monday")["rule"] == "hold"
    first, second = record(cli, "groups")
    assert (first["note"], first["owner"], first["rule"]) == ("CRM-77: they move", "crm team", "hold")
    assert first["muted_until"] is not None and second["note"] is None
    table = cli("groups", "-o", "table")[1]
    assert "crm team" in table and "hold" in table and "muted until" in table


def test_a_list_of_groups_has_no_columns_for_what_nobody_said(cli: Cli) -> None:
    assert "owner" not in cli("groups", "-o", "table")[1].splitlines()[0]
    assert (
        cli("groups", "-o", "tsv")[1].splitlines()[0].endswith("note\towner\trule\tmuted_until\tor_until\tstate\theld")
    )


def test_the_first_digits_name_a_group_if_no_other_has_them(cli: Cli) -> None:
    assert record(cli, "note", "5adb8", "x")["fingerprint"] == FP
    code, _, err = cli("note", "5adb", "x")
    assert code == 2 and FP in err and OTHER in err
    assert cli("note", "5ad", "x")[0] == 2 and cli("note", "beef", "x")[0] == 2
    assert record(cli, "note", "beefbeefbeefbeef", "of one that is not dead now")["note"]


def test_a_group_tells_what_was_done_to_it(cli: Cli) -> None:
    cli("rule", FP, "auto", "--base", "5m", "--reason", "flaky", "--actor", "ann")
    told = record(cli, "group", FP)
    assert told["dead"] == 2 and told["rule_auto"]["base"] == "5m" and told["by_task"][0]["task"] == "push"
    assert [(e["action"], e["claimed"], e["reason"], e["text"]) for e in told["log"]] == [
        ("rule", "ann", "flaky", "auto")
    ]
    assert "rule 'auto' by ann: flaky" in cli("group", FP, "-o", "table")[1]


def test_a_rule_takes_the_pace_of_what_it_drives_back(cli: Cli) -> None:
    cli("rule", FP, "auto", "--rate", "30/m", "--jitter", "0.5", "--reason", "flaky", "--actor", "ann")
    told = record(cli, "group", FP)["rule_auto"]
    assert (told["rate"], told["jitter"], told["base"]) == ("0.5/s", 0.5, "1m")
    code, _, err = cli("rule", FP, "auto", "--rate", "fast", "--reason", "flaky")
    assert code == 2 and "auto-redrive rate 'fast' is refused" in err


def test_rules_are_listed_and_taken_away(cli: Cli) -> None:
    cli("rule", FP, "hold", "--reason", "a")
    assert [(each["fingerprint"], each["rule"]) for each in record(cli, "rule")] == [(FP, "hold")]
    cli("rule", FP, "none", "--reason", "b")
    assert record(cli, "rule") == []


def test_a_rule_that_discards_must_be_confirmed(cli: Cli) -> None:
    code, _, err = cli("rule", FP, "discard", "--reason", "noise")
    assert code == 4 and "2 dead messages" in err and record(cli, "rule") == []
    assert record(cli, "rule", FP, "discard", "--reason", "noise", "--yes")["rule"] == "discard"


@pytest.mark.parametrize(
    "words",
    [
        ("mute", FP, "2h"),
        ("rule", FP, "hold"),
        ("rule", FP, "hold", "--reason", " "),
        ("rule", FP),
        ("rule", FP, "hold", "--base", "5m", "--reason", "x"),
        ("rule", FP, "hold", "--rate", "5/s", "--reason", "x"),
        ("note", FP),
        ("note", FP, "x", "--clear"),
        ("own", FP),
        ("mute", FP, "--reason", "x"),
        ("mute", FP, "2y", "--reason", "x"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_and_changes_nothing(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli(*words)[0] == 2
    assert record(cli, "audit") == []


def test_the_log_is_listed_the_newest_first_and_filtered(cli: Cli) -> None:
    cli("note", FP, "x", "--actor", "ann")
    cli("own", OTHER, "bob", "--actor", "bob")
    assert [each["action"] for each in record(cli, "audit")] == ["own", "note"]
    assert [each["about"] for each in record(cli, "audit", "--actor", "ann")] == [FP]
    assert [each["claimed"] for each in record(cli, "audit", "--about", OTHER, "--since", "1h")] == ["bob"]


def test_a_group_has_the_trend_that_the_list_has(cli: Cli) -> None:
    (listed,) = [row for row in record(cli, "groups") if row["fingerprint"] == FP]
    (shown,) = record(cli, "group", FP)["by_task"]
    assert (shown["trend"], shown["recent"]) == (listed["trend"], listed["recent"]) == ("rising", 2)


def test_a_silence_that_is_too_long_is_refused_and_its_end_is_in_the_log(cli: Cli) -> None:
    code, _, err = cli("mute", FP, "400d", "--reason", "for ever")
    assert code == 2 and "why: expected a year at most\n" in err and err.rstrip().endswith(" dlq mute --help")
    cli("mute", FP, "4h", "--reason", "known")
    cli("mute", FP, "--off", "--reason", "not known")
    assert record(cli, "audit", "--limit", "1")[0]["text"] == "off"


def test_a_group_is_resolved_in_a_release_and_opened_again(cli: Cli) -> None:
    told = record(cli, "resolve", FP, "--release", "2.4", "--reason", "fixed", "--actor", "ann")
    assert (told["state"], told["resolved_in"], told["resolved_by"]) == ("resolved", "2.4", "ann")
    assert "resolved" in cli("groups", "-o", "table")[1]
    assert record(cli, "resolve", FP, "--off")["state"] is None
    assert cli("resolve", FP)[0] == 2, "it needs a reason"


def test_a_mute_may_end_once_the_group_grows(cli: Cli) -> None:
    told = record(cli, "mute", FP, "--until-rate", "10/m", "--until-total", "500", "--reason", "known")
    assert told["or_until"] == "10/m or 500 dead" and told["muted_until"]
    code, _, err = cli("mute", FP, "--until-rate", "ten", "--reason", "known")
    assert code == 2 and "until_rate 'ten'" in err
    assert cli("mute", FP, "--reason", "known")[0] == 2


def test_groups_are_merged_and_unmerged(cli: Cli) -> None:
    before = record(cli, "groups")
    assert record(cli, "merge", OTHER, FP, "--reason", "the same")["merged_into"] == FP
    assert [(group["fingerprint"], group["count"]) for group in record(cli, "groups")] == [(FP, 3)]
    shown = record(cli, "group", FP)
    assert (shown["dead"], shown["merged"]) == (3, [OTHER])
    assert len(record(cli, "list", f"fingerprint:{FP}")) == 3
    assert cli("note", OTHER, "x")[0] != 0 and cli("merge", FP, OTHER, "--reason", "r")[0] != 0
    record(cli, "unmerge", OTHER)
    assert record(cli, "groups") == before
