"""Failure groups that are resolved, regress, are muted until they grow, and are merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.workers import Heard

from redrive import App, Retry
from redrive.audit import Audit, Entry
from redrive.errors import ConfigError
from redrive.message import FailureGroup
from redrive.observe.alert import Alert
from redrive.observe.alerts import Watch
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage import group_states
from redrive.triage.annotations import Annotation, read_annotations
from redrive.triage.auto.runner import AutoRunner
from redrive.triage.group_states import NO_STATE, GroupState, begin_release, combined, family, rate_of, root


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


def shop(store: MemoryStore, release: str = "") -> App:
    app = App(store=store, release=release)

    @app.task(name="charge", retry=Retry(max_attempts=1))
    def charge(error: str) -> None:
        if error:
            raise {"a": ValueError, "b": KeyError, "c": OSError}[error[0]](error[0])

    return app


def die(app: App, *errors: str) -> None:
    for error in errors:
        app.tasks["charge"].enqueue(error)
    app.run_worker(drain=True)


def names(app: App) -> dict[str, str]:
    """Return the fingerprints of the groups by the class of their error."""
    return {group.error: group.fingerprint for group in app.store.failure_groups()}


def about(app: App, fingerprint: str) -> Annotation:
    return read_annotations(app.store, [fingerprint])[fingerprint]


def needs(app: App) -> list[str]:
    return [need.text for need in app.status().needs if need.area == "failures"]


def test_a_resolved_group_regresses_when_it_dies_again(store: MemoryStore, clock: ManualClock) -> None:
    app = shop(store)
    heard = Heard(app)
    die(app, "a", "a", "b")
    fp = names(app)["ValueError"]
    assert app.dlq.resolve(fp, actor="ann", reason="fixed").state.word == "resolved"
    clock.advance("1s")
    die(app, "b")
    assert about(app, fp).state.word == "resolved" and not any("died again" in text for text in needs(app))
    clock.advance("1s")
    died_ms = store.now_ms()
    die(app, "a")
    state = about(app, fp).state
    assert (state.word, state.regressed_ms >= died_ms) == ("regressed", True)
    assert f"failure group {fp} died again after it was resolved by ann" in needs(app)
    assert heard.notices.count("regressed") == 1
    die(app, "a", "a")
    assert heard.notices.count("regressed") == 1, "it is told once"
    clock.advance("1s")
    assert app.dlq.resolve(fp, reason="now really").state.word == "resolved"
    die(app, "c")
    assert about(app, fp).state.word == "resolved"
    assert app.dlq.reopen(fp).state == NO_STATE
    assert store.cells.read([group_states.CELL]) == [None]


def test_a_regression_is_written_down_and_stays_when_its_messages_are_gone(
    store: MemoryStore, clock: ManualClock
) -> None:
    app = shop(store)
    die(app, "a")
    fp = names(app)["ValueError"]
    app.dlq.resolve(fp, reason="fixed")
    clock.advance("1s")
    die(app, "a")
    app.dlq.discard(select="", reason="gone")
    assert not store.failure_groups()
    assert about(app, fp).state.word == "regressed" and any("died again" in text for text in needs(app))


def test_it_shows_before_any_worker_has_written_it(store: MemoryStore, clock: ManualClock) -> None:
    app = shop(store)
    die(app, "a")
    fp = names(app)["ValueError"]
    app.dlq.resolve(fp, reason="fixed")
    clock.advance("1s")
    written = store.cells.read([group_states.CELL])[0]
    die(app, "a")
    (after,) = store.cells.read([group_states.CELL])
    assert written is not None and after is not None
    store.cells.swap([group_states.Swap(group_states.CELL, after.version, written.value)])  # as if it was killed first
    assert about(app, fp).state.word == "regressed" and any("died again" in text for text in needs(app))
    heard = Heard(shop_again := shop(store))
    shop_again.run_worker(drain=True)
    assert "regressed" in heard.notices, "the next worker that starts tells it"


def test_in_a_release_only_deaths_of_it_and_of_later_ones_count(store: MemoryStore, clock: ManualClock) -> None:
    old, new, newer = (shop(store, release) for release in ("2.3", "2.4", "2.5"))
    die(old, "a")
    fp = names(old)["ValueError"]
    assert store.failure_groups() and store.find([store.failure_groups()[0].sample_id])[0].faults[-1].release == "2.3"
    clock.advance("1s")
    state = old.dlq.resolve(fp, release="2.4", actor="ann", reason="fixed").state
    assert (state.release, state.story) == ("2.4", "was resolved in release 2.4 by ann")
    clock.advance("1s")
    die(old, "a")
    die(shop(store), "a")  # a worker without a release
    assert about(old, fp).state.word == "resolved"
    clock.advance("1s")
    die(new, "b")  # the first worker of 2.4 starts
    clock.advance("1s")
    die(old, "a")  # started again, but its release is older
    assert about(old, fp).state.word == "resolved"
    die(newer, "a")
    assert about(old, fp).state.word == "regressed"


def test_a_death_in_the_release_itself_counts(store: MemoryStore, clock: ManualClock) -> None:
    app = shop(store, "2.4")
    die(app, "a")
    fp = names(app)["ValueError"]
    app.dlq.resolve(fp, release="2.4", reason="fixed")
    clock.advance("1s")
    die(app, "a")
    assert about(app, fp).state.word == "regressed"


def test_the_first_start_of_a_release_is_remembered(store: MemoryStore, clock: ManualClock) -> None:
    begin_release(store, "1")
    first = group_states.read_releases(store)
    clock.advance("1h")
    begin_release(store, "1")
    assert group_states.read_releases(store) == first
    for n in range(group_states.RELEASES_MAX + 5):
        clock.advance("1s")
        begin_release(store, f"r{n}")
    assert len(kept := group_states.read_releases(store)) == group_states.RELEASES_MAX and "1" not in kept


def test_a_mute_ends_at_a_total(store: MemoryStore) -> None:
    app = shop(store)
    die(app, "a", "a")
    fp = names(app)["ValueError"]
    assert app.dlq.mute(fp, until_total=4, reason="known").muted(store.now_ms())
    assert needs(app) == []
    die(app, "a")
    assert about(app, fp).muted(store.now_ms())
    die(app, "a")
    assert not about(app, fp).muted(store.now_ms()) and needs(app)
    app.dlq.discard(select="", reason="gone")
    assert not about(app, fp).muted(store.now_ms()), "it is over, though fewer are dead now"
    assert app.dlq.mute(fp, "1h", reason="again").muted(store.now_ms())


def test_a_mute_ends_at_a_rate(store: MemoryStore, clock: ManualClock) -> None:
    app = shop(store)
    die(app, "a")
    fp = names(app)["ValueError"]
    app.dlq.mute(fp, "4h", until_rate="3/m", reason="known")
    for _ in range(6):
        clock.advance("31s")
        die(app, "a")
        assert about(app, fp).muted(store.now_ms())
    die(app, "a")
    assert not about(app, fp).muted(store.now_ms())
    clock.advance("2h")
    assert not about(app, fp).muted(store.now_ms())
    app.dlq.mute(fp, 0)
    assert store.cells.read([group_states.CELL]) == [None]


def test_a_mute_with_a_bound_still_ends_by_time(store: MemoryStore, clock: ManualClock) -> None:
    app = shop(store)
    app.dlq.mute("a" * 16, "1h", until_total=5, reason="known")
    clock.advance("1h")
    assert not about(app, "a" * 16).muted(store.now_ms())


@pytest.mark.parametrize("rate", ["10", "0/m", "10/w", "1001/s", "99999/m", "m/10", "10 /m"])
def test_a_rate_that_is_none_is_refused(store: MemoryStore, rate: str) -> None:
    with pytest.raises(ConfigError, match="until_rate"):
        shop(store).dlq.mute("a" * 16, until_rate=rate, reason="r")
    assert rate_of("10/m") == (10, 60_000)


def test_alerts_of_a_muted_group_come_once_it_has_grown(store: MemoryStore) -> None:
    app = shop(store)
    told: list[Alert] = []
    watch = Watch(app, ["dead_growth", "regressed"], told.append, channel="c", every_ms=0, gather_s=0)
    app.subscribe(watch)
    die(app, "b")
    fp = names(app)["KeyError"]
    watch.flush(10)
    told.clear()
    app.dlq.mute(fp, until_total=3, reason="known")
    die(app, "b")
    watch.flush(10)
    assert told == []
    die(app, "b")
    watch.flush(10)
    assert [alert.about for alert in told] == [fp]


def test_a_regressed_group_is_an_alert(store: MemoryStore, clock: ManualClock) -> None:
    app = shop(store)
    told: list[Alert] = []
    watch = Watch(app, ["regressed"], told.append, channel="c", every_ms=0, gather_s=0)
    app.subscribe(watch)
    die(app, "a")
    fp = names(app)["ValueError"]
    app.dlq.resolve(fp, actor="ann", reason="fixed")
    clock.advance("1s")
    die(app, "a")
    watch.flush(10)
    assert [(a.name, a.about, a.text) for a in told] == [
        ("regressed", fp, f"regressed: failure group {fp} died again after it was resolved by ann")
    ]
    assert told[0].command.startswith(f"redrive dlq group {fp}")


# -- merged


def test_merged_groups_are_one_everywhere_and_unmerging_is_exact(store: MemoryStore) -> None:
    app = shop(store)
    die(app, "a", "a", "a", "b", "b", "c")
    a, b, c = (names(app)[error] for error in ("ValueError", "KeyError", "OSError"))
    before = (app.dlq.groups(trend=True), app.dlq.select().groups(trend=True))
    app.dlq.own(b, "bob")
    app.dlq.merge(b, a, reason="the same")
    assert [(g.fingerprint, g.count, g.recent) for g in app.dlq.groups(trend=True)] == [(a, 5, 5), (c, 1, 1)]
    assert app.dlq.groups(trend=True) == app.dlq.select().groups(trend=True) == [*app.status().failures]
    assert app.dlq.select(f"fingerprint:{a}").count() == 5 and app.dlq.select(f"fingerprint:{b}").count() == 2
    assert len([*app.dlq.select(f"-fingerprint:{a}")]) == 1
    assert len([*app.dlq.select(f"fingerprint:{a[:6]}* or error:OSError")]) == 6
    assert str(app.dlq.select(f"fingerprint:{a}")) == f"fingerprint:{a}"
    assert all(app.dlq.select(f"fingerprint:{a}").matches(m) for m in app.dlq.select("error:KeyError"))
    assert about(app, b).into == a and about(app, b).owner == ""
    app.dlq.unmerge(b)
    assert (app.dlq.groups(trend=True), app.dlq.select().groups(trend=True)) == before
    assert about(app, b).owner == "bob" and store.cells.read([group_states.CELL]) == [None]


def test_a_merged_group_brings_those_merged_into_it_and_takes_them_along(store: MemoryStore) -> None:
    app = shop(store)
    die(app, "a", "b", "c")
    a, b, c = (names(app)[error] for error in ("ValueError", "KeyError", "OSError"))
    app.dlq.merge(a, b, reason="r")
    app.dlq.merge(b, c, reason="r")
    assert [(g.fingerprint, g.count) for g in app.dlq.groups()] == [(c, 3)]
    assert app.dlq.family(c) == (c, b, a) and about(app, a).into == c
    app.dlq.unmerge(b)
    assert sorted((g.fingerprint, g.count) for g in app.dlq.groups()) == sorted([(b, 2), (c, 1)])
    for target in (b, a):
        with pytest.raises(ConfigError, match="already part of"):
            app.dlq.merge(b, target, reason="r")
    with pytest.raises(ConfigError, match="not merged"):
        app.dlq.unmerge(c)


def test_rule_mute_and_state_of_the_target_hold_for_all_and_their_own_ones_wait(
    store: MemoryStore, clock: ManualClock
) -> None:
    app = shop(store)
    die(app, "a", "b")
    a, b = names(app)["ValueError"], names(app)["KeyError"]
    app.dlq.rule(b, "hold", reason="mine")
    app.dlq.merge(b, a, reason="the same")
    assert app.dlq.select().plan().total == 2, "the rule of a merged group waits"
    app.dlq.rule(a, "hold", reason="ours")
    assert app.dlq.retry(all=True).held == 2
    app.dlq.rule(a, None, reason="over")
    assert app.dlq.mute(a, "1h", reason="known").muted(store.now_ms()) and about(app, b).muted(store.now_ms())
    app.dlq.mute(a, 0)
    app.dlq.resolve(a, reason="fixed")
    clock.advance("1s")
    die(app, "b")
    assert about(app, a).state.word == about(app, b).state.word == "regressed"
    for change in (lambda: app.dlq.note(b, "x"), lambda: app.dlq.resolve(b, reason="r"), lambda: app.dlq.own(b, "x")):
        with pytest.raises(ConfigError, match=f"merged into {a}"):
            change()
    app.dlq.unmerge(b)
    assert about(app, b).rule is not None and about(app, b).state == NO_STATE
    assert app.dlq.retry(all=True).held == 2


def test_a_rule_discards_what_is_merged(store: MemoryStore) -> None:
    app = shop(store)
    die(app, "a", "b", "c")
    a, b = names(app)["ValueError"], names(app)["KeyError"]
    app.dlq.merge(b, a, reason="the same")
    app.dlq.rule(a, "discard", reason="noise")
    runner = AutoRunner(app)
    for _ in range(3):
        runner.tick()
    assert [group.error for group in store.failure_groups()] == ["OSError"]


def test_merged_groups_share_their_alerts(store: MemoryStore) -> None:
    app = shop(store)
    told: list[Alert] = []
    die(app, "a", "b")
    a, b = names(app)["ValueError"], names(app)["KeyError"]
    app.dlq.merge(b, a, reason="the same")
    watch = Watch(app, ["dead_growth"], told.append, channel="c", every_ms=0, gather_s=0)
    app.subscribe(watch)
    die(app, "b")
    watch.flush(10)
    assert [alert.about for alert in told] == [a]


def test_states_are_bounded(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(group_states, "STATES_MAX", 3)
    app = shop(store)
    for n in range(4):
        app.dlq.resolve(f"{n:016x}", reason="fixed")
        clock.advance("1s")
    assert [*group_states.read_states(store)] == [f"{n:016x}" for n in (1, 2, 3)]
    for n in range(1, 4):
        app.dlq.merge(f"{n:016x}", "f" * 16, reason="r")
    with pytest.raises(ConfigError, match="the most"):
        app.dlq.mute("e" * 16, until_total=1, reason="r")


def test_two_merges_at_once_make_no_circle(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    app = shop(store)
    die(app, "a", "b")
    a, b = names(app)["ValueError"], names(app)["KeyError"]
    real, others = Audit.entry, [lambda: app.dlq.merge(b, a, reason="the other person")]

    def after_the_check(self: Audit, *args: Any, **parts: Any) -> Entry:
        if others:
            others.pop()()
        return real(self, *args, **parts)

    monkeypatch.setattr(Audit, "entry", after_the_check)
    with pytest.raises(ConfigError, match="already part of"):
        app.dlq.merge(a, b, reason="one person")
    assert about(app, b).into == a
    assert len([entry for entry in app.audit if entry.action == "merge"]) == 1


def test_a_circle_in_an_altered_cell_ends() -> None:
    states = {"a": GroupState(into="b"), "b": GroupState(into="a")}
    assert root(states, "a") in "ab" and {*family(states, "a")} == {"a", "b"}


def test_what_a_program_of_before_writes_keeps_the_states(store: MemoryStore) -> None:
    app = shop(store)
    app.dlq.resolve("a" * 16, reason="fixed")
    (before,) = store.cells.read([group_states.CELL])
    app.dlq.note("a" * 16, "a note, as an older program writes it")
    assert store.cells.read([group_states.CELL]) == [before]


def test_combining_nothing_costs_nothing() -> None:
    groups: Sequence[FailureGroup] = [FailureGroup("a", "t", "", "", 1, 0, 0, "x")]
    assert combined({}, groups) is groups and combined({"a": GroupState(resolved_ms=1)}, groups) is groups
