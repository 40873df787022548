"""`advance` on its own: which callbacks are due, over random histories of members and in the cases that are traps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive.batch.advance import Advance, advance
from redrive.batch.parts import Tolerance
from redrive.batch.state import BatchState
from redrive.batch.stop_if import StopIf
from redrive.errors import ConfigError
from redrive.message import BATCH_HEADER, BATCH_NAME_HEADER, BatchCounts, Draft
from redrive.run_context import EPISODE_HEADER

NOW_MS = 1_000
NEW = BatchState("b", "sync", 0, Draft(task="success"), Draft(task="complete"), Draft(task="death"))
SEALED = replace(NEW, sealed=True)


def own_headers(episode: int) -> dict[str, str]:
    return {BATCH_HEADER: "b", BATCH_NAME_HEADER: "sync", EPISODE_HEADER: str(episode)}


def words(made: Advance) -> list[str]:
    return sorted(draft.task for draft in made.callbacks)


def follow(state: BatchState, *history: BatchCounts) -> tuple[BatchState, list[list[str]]]:
    """Advance by one look at each of these counts; return the last state, and what each look called for."""
    called = []
    for counts in history:
        made = advance(state, counts, NOW_MS)
        state = made.state
        called.append(words(made))
    return state, called


# -- random histories

# What becomes of a member: (the field that it leaves, the field that it joins). "" is outside of the batch.
MOVES = {
    "put": ("", "open"),
    "duplicate": ("", "duplicate"),
    "import": ("", "dead"),
    "ack": ("open", "done"),
    "die": ("open", "dead"),
    "convict": ("open", "quarantine"),
    "cancel": ("open", "cancelled"),
    "redrive": ("dead", "open"),
    "readmit": ("quarantine", "dead"),
    "isolate": ("dead", "quarantine"),
    "discard": ("dead", "discarded"),
    "waive": ("dead", "done"),
    "edit": ("dead", ""),
}
STEPS = (*MOVES, "ack", "ack", "die", "redrive", "seal", "look", "look", "look")


@dataclass
class History:
    """A batch, what becomes of its members, and what the looks at it called for."""

    state: BatchState
    counts: BatchCounts = field(default_factory=BatchCounts)
    log: list[str] = field(default_factory=list)
    complete_at: int | None = None  # `opened` at the last on_complete
    deaths_seen: int = 0
    alarms: int = 0  # since the last on_complete

    def step(self, kind: str) -> None:
        if kind == "seal":
            self.state = replace(self.state, sealed=True)
        elif kind == "look":
            self.look()
        else:
            self.move(*MOVES[kind])

    def move(self, old: str, new: str) -> None:
        if old and not getattr(self.counts, old):
            return
        if (old, new) == ("", "open") and self.state.sealed and not self.counts.open:
            return  # only an open member adds another
        fields = {name: getattr(self.counts, name) + n for name, n in ((old, -1), (new, 1)) if name}
        opened = self.counts.opened + (new == "open")
        died = self.counts.died + (old == "open" and new in ("dead", "quarantine"))
        self.counts = replace(self.counts, **fields, opened=opened, died=died)

    def look(self) -> None:
        before, counts = self.state, self.counts
        made = advance(before, counts, NOW_MS)
        assert advance(made.state, counts, NOW_MS + 1) == Advance(made.state), "a second look calls for something"
        called = words(made)
        headers = own_headers(max(made.state.alarmed, made.state.completions))
        if made.state.completions > before.completions or "death" in called:
            assert all(draft.headers == headers for draft in made.callbacks)
        ended = before.sealed and counts.open == 0
        self.check_death("death" in called)
        self.check_complete("complete" in called, ended)
        self.check_success("success" in called, ended)
        assert len(called) == len({*called})
        if "complete" in called:
            rest = counts.dead + counts.quarantine  # these may be redriven yet
            assert made.state.ended_ms == (None if rest else NOW_MS)
        self.log += called
        self.state = made.state

    def check_death(self, called: bool) -> None:
        """At the first death that was not seen of each episode, and then no more until the next."""
        assert called == (self.counts.died > self.deaths_seen and not self.alarms)
        self.alarms += called

    def check_complete(self, called: bool, ended: bool) -> None:
        """Once at the end of each episode: the first one, and each that a redriven member opened."""
        assert called == (ended and self.complete_at != self.counts.opened)
        if called:
            self.complete_at, self.deaths_seen, self.alarms = self.counts.opened, self.counts.died, 0

    def check_success(self, called: bool, ended: bool) -> None:
        few = self.counts.failed <= self.state.tolerance.count
        assert called == (ended and few and "success" not in self.log)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=40), tolerated=st.sampled_from((0, 0, 1, 2)))
def test_callbacks_are_due_at_the_ends_and_at_the_deaths_of_any_history(steps: list[str], tolerated: int) -> None:
    history = History(replace(NEW, tolerance=Tolerance(tolerated)))
    for kind in ("put", *steps, "look", "seal", "look"):
        history.step(kind)
    assert history.log.count("success") <= 1
    assert history.log.count("complete") == history.state.completions


@settings(max_examples=100, deadline=None)
@given(
    failed=st.integers(0, 12),
    done=st.integers(0, 200),
    tolerance=st.builds(Tolerance, st.integers(0, 12), st.sampled_from((0.0, 5.0, 50.0, 100.0))),
)
def test_it_succeeds_with_as_many_failures_as_are_tolerated(failed: int, done: int, tolerance: Tolerance) -> None:
    counts = BatchCounts(done=done, cancelled=failed, opened=done + failed)
    made = advance(replace(SEALED, tolerance=tolerance), counts, NOW_MS)
    few = failed <= tolerance.count or 100 * failed <= tolerance.percent * (done + failed)
    assert words(made) == (["complete", "success"] if few else ["complete"])


# -- traps


def test_an_unsealed_batch_with_nothing_open_calls_nothing() -> None:
    for counts in (BatchCounts(), BatchCounts(done=3, opened=3), BatchCounts(duplicate=2)):
        assert advance(NEW, counts, NOW_MS) == Advance(NEW)


def test_an_empty_sealed_batch_succeeds() -> None:
    state, called = follow(SEALED, BatchCounts(), BatchCounts())
    assert called == [["complete", "success"], []]
    assert (state.ended_ms, state.completions, state.succeeded) == (NOW_MS, 1, True)


def test_duplicates_alone_succeed() -> None:
    assert follow(SEALED, BatchCounts(duplicate=2))[1] == [["complete", "success"]]


def test_a_death_is_told_before_the_batch_is_sealed_and_not_again_at_its_end() -> None:
    state, called = follow(NEW, BatchCounts(open=1, dead=1, opened=2, died=1))
    assert called == [["death"]] and not state.completions
    state, called = follow(replace(state, sealed=True), BatchCounts(done=1, dead=1, opened=2, died=1))
    assert called == [["complete"]] and state.ended_ms is None


def test_a_second_death_of_an_episode_is_not_told() -> None:
    dead = [BatchCounts(open=3 - n, dead=n, opened=3, died=n) for n in (0, 1, 2, 3)]
    assert follow(SEALED, *dead)[1] == [[], ["death"], [], ["complete"]]


def test_a_discard_completes_success_without_on_complete_again() -> None:
    dead = BatchCounts(done=9, dead=1, quarantine=1, opened=11, died=2)
    waived = replace(dead, done=10, dead=0)
    state, called = follow(
        replace(SEALED, tolerance=Tolerance(1)), dead, waived, replace(waived, done=11, quarantine=0)
    )
    assert called == [["complete", "death"], ["success"], []]
    assert state.completions == 1 and state.ended_ms == NOW_MS


def test_a_discard_that_is_too_much_calls_nothing_but_ends_the_batch() -> None:
    state, called = follow(SEALED, BatchCounts(dead=1, opened=1, died=1), BatchCounts(discarded=1, opened=1, died=1))
    assert called == [["complete", "death"], []]
    assert (state.ended_ms, state.succeeded) == (NOW_MS, False)


def test_a_redriven_member_opens_an_episode_with_an_alarm_and_an_end_of_its_own() -> None:
    dead = BatchCounts(done=1, dead=1, opened=2, died=1)
    running = BatchCounts(open=1, done=1, opened=3, died=1)
    again = BatchCounts(done=1, dead=1, opened=3, died=2)
    once_more = BatchCounts(open=1, done=1, opened=4, died=2)
    done = BatchCounts(done=2, opened=4, died=2)
    state, called = follow(SEALED, dead, running, again, once_more, done)
    assert called == [["complete", "death"], [], ["complete", "death"], [], ["complete", "success"]]
    assert state.episode == 4


def test_a_batch_has_ended_once_nobody_can_be_redriven() -> None:
    for lane in ("dead", "quarantine"):
        rests = BatchCounts(opened=1, died=1)
        state, _ = follow(SEALED, replace(rests, **{lane: 1}))
        assert state.ended_ms is None
        state, _ = follow(state, replace(rests, discarded=1))
        assert state.ended_ms == NOW_MS
        state, _ = follow(state, BatchCounts(discarded=1, opened=2, died=2, **{lane: 1}))  # one that was imported died
        assert state.ended_ms is None


def test_an_episode_that_began_and_ended_between_two_looks_is_told_once() -> None:
    """The counts of both looks differ in `opened` alone: a member died, was redriven, and was discarded."""
    first = BatchCounts(discarded=1, opened=1, died=1)
    assert follow(SEALED, first, replace(first, opened=2))[1] == [["complete", "death"], ["complete"]]


def test_success_is_told_once_though_a_member_fails_later() -> None:
    done, redriven = BatchCounts(done=1, dead=1, opened=2, died=1), BatchCounts(done=2, opened=3, died=1)
    state = replace(SEALED, tolerance=Tolerance(1))
    assert follow(state, done, redriven)[1] == [["complete", "death", "success"], ["complete"]]


def test_a_batch_without_callbacks_goes_on_as_well() -> None:
    bare = BatchState("b", "sync", 0, sealed=True)
    made = advance(bare, BatchCounts(dead=1, opened=1, died=1), NOW_MS)
    assert made.callbacks == () and (made.state.completions, made.state.alarmed) == (1, 1)


def test_callbacks_name_the_episode_that_they_are_about() -> None:
    first = advance(SEALED, BatchCounts(done=9, dead=2, opened=11, died=2), NOW_MS)
    redriven = advance(first.state, BatchCounts(done=9, open=1, dead=1, opened=13, died=3), NOW_MS)
    ended = advance(redriven.state, BatchCounts(done=10, dead=1, opened=13, died=3), NOW_MS)
    tolerant = replace(ended.state, tolerance=Tolerance(1))
    late = advance(tolerant, BatchCounts(done=10, discarded=1, opened=13, died=3), NOW_MS)
    looks = [[(d.task, d.headers[EPISODE_HEADER]) for d in made.callbacks if d.headers] for made in
             (first, redriven, ended, late)]  # fmt: skip
    assert looks == [
        [("death", "1"), ("complete", "1")], [("death", "2")], [("complete", "2")], [("success", "2")],
    ]  # fmt: skip


def test_a_callback_keeps_its_own_headers() -> None:
    state = replace(SEALED, on_success=Draft(task="tell", headers={"tenant": "t"}), on_complete=None)
    (draft,) = advance(state, BatchCounts(), NOW_MS).callbacks
    assert draft.headers == {"tenant": "t", **own_headers(1)} and draft.batch is None


# -- stop_if

TENTH, FIVE = StopIf.parse("dead>10%"), StopIf.parse(" dead > 5 ")


def test_a_share_counts_of_all_members_once_twenty_have_ended() -> None:
    assert not TENTH.is_reached(BatchCounts(open=81, done=8, dead=11))  # nineteen have ended
    assert TENTH.is_reached(BatchCounts(open=80, done=9, dead=11))
    assert TENTH.is_reached(BatchCounts(open=80, done=9, dead=1, quarantine=10))
    assert not TENTH.is_reached(BatchCounts(open=80, done=10, dead=10))  # exactly ten per cent
    assert TENTH.is_reached(BatchCounts(open=80, done=9, dead=11, duplicate=900))
    assert not TENTH.is_reached(BatchCounts(done=89, dead=11))  # nothing is left to cancel
    assert not FIVE.is_reached(BatchCounts(open=1, dead=5)) and FIVE.is_reached(BatchCounts(open=1, dead=6))
    assert (str(TENTH), str(FIVE), str(StopIf.parse("dead>0.5%"))) == ("dead>10%", "dead>5", "dead>0.5%")


@pytest.mark.parametrize("wrong", ["", "dead", "dead>", "dead>100%", "dead>1.5", "failed>5", "dead<5", "dead>-1", 5])
def test_a_rule_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="stop_if="):
        StopIf.parse(wrong)


def test_a_batch_is_stopped_in_its_first_episode_and_once() -> None:
    bad = BatchCounts(open=10, dead=6, opened=16, died=6)
    assert not advance(replace(NEW, stop_if=FIVE), bad, NOW_MS).stop  # it is still filled
    decided = advance(replace(SEALED, stop_if=FIVE), bad, NOW_MS)
    assert decided.stop and decided.state.stopping and words(decided) == ["death"]
    again = advance(decided.state, bad, NOW_MS)
    assert again == Advance(decided.state, stop=True)  # whoever looks goes on, until it is done
    assert advance(decided.state, replace(bad, dead=1, open=15), NOW_MS).stop
    assert not advance(replace(decided.state, stopped=True), bad, NOW_MS).stop
    later = replace(SEALED, stop_if=FIVE, completions=1, opened=16, died=16)
    redriven = advance(later, BatchCounts(open=8, dead=8, opened=24, died=16), NOW_MS)
    assert redriven == Advance(later)  # what a person redrives is not cancelled
