"""Choose the messages of a claim that reserves part of its limit for retries (`ClaimRequest.retries`)."""

from __future__ import annotations

from collections.abc import Iterable

from ..message import PRIORITIES, ClaimRequest

QueuePlace = tuple[int, int]


def chosen(retries: Iterable[QueuePlace], backlog: Iterable[QueuePlace], ask: ClaimRequest) -> list[int]:
    """The seqs to claim, in order. Both lists are due messages by priority and due time. `retries`: those that failed
    before, of each priority at least `ask.retries` if there are; `backlog`: what a claim without reservation finds."""
    seqs: dict[int, None] = {}
    first, rest = [[*of] for of in (retries, backlog)]
    retries_left = ask.retries
    for priority in PRIORITIES:
        going = [seq for at, seq in first if at == priority][: min(retries_left, ask.limit - len(seqs))]
        retries_left -= len(going)
        seqs |= dict.fromkeys(going)
        seqs |= dict.fromkeys(seq for at, seq in rest if at == priority)
        if len(seqs) >= ask.limit:
            break
    return [*seqs][: ask.limit]
