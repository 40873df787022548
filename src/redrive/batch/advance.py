"""Decide which callbacks of a batch are due, from its state and its counts. Pure.

The state is one cell, and the commit that puts the callbacks swaps it. So each callback is put once: of two workers
that see the same end, one finds the cell changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..message import BATCH_HEADER, BATCH_NAME_HEADER, BatchCounts, Draft
from ..run_context import EPISODE_HEADER
from .parts import NOTHING, Seen, begin, summed
from .state import BatchState


class Advance(Struct, frozen=True):
    """The state to write, unchanged if there is nothing to do, and what to put in the same commit: callbacks, and the
    messages of steps that begin. `stop`: cancel the members that wait after it (`stop.stop`)."""

    state: BatchState
    callbacks: tuple[Draft, ...] = ()
    steps: tuple[Draft, ...] = ()
    stop: bool = False


def advance(
    state: BatchState, own: BatchCounts, now_ms: int, parts: Mapping[str, Seen] = NOTHING, *, more: bool = False
) -> Advance:
    """Decide what a batch in this state calls for, given the counts of its own members, and its parts as read.

    A step begins once the steps before it are done. on_death is due at the first death of an episode. Once the batch is
    sealed and nothing is open, the episode ends: on_complete is due. on_success is due once ever, at an end of an
    episode, or when a discard leaves no more failed members than are tolerated; each part must be done. A redriven
    member opens the next episode, which does not end while there is `more` of a redrive to come. `stop_if` holds in the
    first episode, as the members of a later one were redriven by a person.
    """
    due: list[tuple[Draft | None, int]] = []  # each with its episode
    steps: list[Draft] = []
    counts = summed(own, parts)
    if state.parts:
        made, steps = begin(state.id, state.parts, parts, steps=state.sealed and not state.cancelled)
        state = state if made == state.parts else replace(state, parts=made)
    if counts.died > state.died and state.alarmed < state.episode:
        state = replace(state, alarmed=state.episode)
        due.append((state.on_death, state.episode))
    if state.sealed and state.completions == 0 and state.stop_if is not None and state.stop_if.is_reached(counts):
        state = replace(state, stopping=True)
    is_over = not steps and not more and not state.is_open(own, parts)
    if state.sealed and is_over:
        if state.completions == 0 or counts.opened > state.opened:
            state = replace(
                state, completions=state.completions + 1, opened=counts.opened, died=counts.died, ended_ms=None
            )
            due.append((state.on_complete, state.completions))
        if not state.succeeded and state.is_done(own):
            state = replace(state, succeeded=True)
            due.append((state.on_success, state.completions))
    if is_over and (state.sealed or state.cancelled) and counts.dead + counts.quarantine == 0:
        state = replace(state, ended_ms=now_ms if state.ended_ms is None else state.ended_ms)
    callbacks = tuple(_callback(draft, state, n) for draft, n in due if draft is not None)
    return Advance(state, callbacks, tuple(steps), state.stopping and not state.stopped)


def _callback(draft: Draft, state: BatchState, episode: int) -> Draft:
    own = {BATCH_HEADER: state.id, BATCH_NAME_HEADER: state.name, EPISODE_HEADER: str(episode)}
    return replace(draft, headers={**(draft.headers or {}), **own})
