"""Notes, owners, silence and standing rules of failure groups: signed, audited, kept when the messages are gone."""

from __future__ import annotations

import pytest

from redrive import AutoRedrive, Gates
from redrive.audit.actor import user
from redrive.audit.log import Audit
from redrive.errors import ConfigError
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage.annotations import (
    NOTHING,
    RULES_MAX,
    Annotation,
    Annotations,
    Rule,
    read_annotations,
    rules,
)

FP = "a1097e748bbaf6be"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


def test_what_is_said_joins_what_was_said_before(store: MemoryStore) -> None:
    say = Annotations(store)
    say.note(FP, "CRM-1234: their cluster is being moved", actor="ann")
    say.own(FP, "crm team", actor="bob")
    say.rule(FP, "hold", actor="cas", reason="until Monday")
    about = say.mute(FP, "2h", actor="dee", reason="known")
    assert about == read_annotations(store, [FP, "b" * 16])[FP]
    assert about.rule is not None and (about.rule.kind, about.rule.by, about.rule.reason) == (
        "hold",
        "cas",
        "until Monday",
    )
    assert (about.note, about.owner) == ("CRM-1234: their cluster is being moved", "crm team")
    assert (about.by, about.at_ms, about.reason) == ("dee", store.now_ms(), "known")
    assert [(e.action, e.claimed, e.about) for e in Audit(store)] == [
        ("mute", "dee", FP), ("rule", "cas", FP), ("own", "bob", FP), ("note", "ann", FP),
    ]  # fmt: skip


def test_silence_ends_by_itself(store: MemoryStore, clock: ManualClock) -> None:
    about = Annotations(store).mute(FP, "2h", reason="known")
    assert about.muted(store.now_ms())
    clock.advance("2h")
    assert not about.muted(store.now_ms())


def test_what_is_taken_away_leaves_nothing(store: MemoryStore) -> None:
    say = Annotations(store)
    say.note(FP, "x")
    say.own(FP, "ann")
    say.mute(FP, "1h", reason="known")
    say.rule(FP, "discard", reason="noise")
    say.note(FP, "")
    say.own(FP, "")
    say.mute(FP, 0)
    assert say.rule(FP, None, reason="it matters after all") == NOTHING
    assert read_annotations(store, [FP]) == {} and rules(store) == {}
    assert store.cells.read([f"group/{FP}", "rules"]) == [None, None]
    assert say.note(FP, "") == NOTHING and say.rule(FP, None, reason="again") == NOTHING


def test_the_rules_of_all_groups_are_one_read(store: MemoryStore) -> None:
    say = Annotations(store)
    say.rule(FP, "hold", reason="a")
    say.rule("b" * 16, "auto", reason="b", auto=AutoRedrive(base="5m", gates=Gates(health="http://crm/up")))
    say.rule(FP, "discard", reason="c")
    assert say.rule("c" * 16, "auto", reason="d").rule == Rule("auto", user(), store.now_ms(), "d", AutoRedrive())
    assert {fp: (rule.kind, rule.auto) for fp, rule in rules(store).items()} == {
        FP: ("discard", None),
        "c" * 16: ("auto", AutoRedrive()),
        "b" * 16: ("auto", AutoRedrive(base="5m", gates=Gates(health="http://crm/up"))),
    }


def test_there_are_a_thousand_rules_at_most(store: MemoryStore) -> None:
    say = Annotations(store)
    for number in range(RULES_MAX):
        say.rule(f"{number:016x}", "hold", reason="x")
    with pytest.raises(ConfigError, match="1,000 standing rules"):
        say.rule(FP, "hold", reason="x")
    assert FP not in rules(store) and len(list(Audit(store))) == RULES_MAX
    say.rule(f"{7:016x}", None, reason="x")
    assert say.rule(FP, "hold", reason="x") != NOTHING


def test_what_cannot_be_meant_is_refused(store: MemoryStore) -> None:
    say = Annotations(store)
    with pytest.raises(ConfigError, match="did you mean 'discard'"):
        say.rule(FP, "discrad", reason="x")
    with pytest.raises(ConfigError, match="no reason"):
        say.rule(FP, "hold")
    with pytest.raises(ConfigError, match="no reason"):
        say.mute(FP, "1h")
    with pytest.raises(ConfigError, match="only the rule 'auto'"):
        say.rule(FP, "hold", reason="x", auto=AutoRedrive())
    with pytest.raises(ConfigError, match="a year"):
        say.mute(FP, "400d", reason="x")
    with pytest.raises(ConfigError, match="fingerprint"):
        say.note("not one/at all", "x")
    with pytest.raises(ConfigError, match="at most 2,000"):
        say.note(FP, "x" * 2001)
    for total, error in ((-1, ConfigError), (10**30, ConfigError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(error, match="until_total"):
            say.mute(FP, until_total=total, reason="x")  # type: ignore[arg-type]
    assert list(Audit(store)) == [] and read_annotations(store, [FP]) == {} and Annotation() == NOTHING
