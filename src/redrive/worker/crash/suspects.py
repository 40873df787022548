"""Runs suspects together with no more than each of them may run with, and nothing else: messages that have gone down
with their process more than once, so that it may have been them.

A group waits until nothing else is under way in this process, while its gates are shut; then the others go on.
What is in the group is known by the slots: should the process die, the next one goes on with a part of it
(company.py). Only what dies alone is guilty: of one that goes alone the store is told (`extend(…, alone=True)`) before
it begins. Others are never held up for longer than a group takes within a bound: suspects whose turn does not come are
put off, and after a while of suspects the others have as long.

Where a child process can be had for it, a suspect runs in one, beside everything else, and this is left for those that
brought down more than a child.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from ...message import Hold, Message, RetryAt
from ..execution import Hall, Run

LOOK_S = 0.02  # how often it is looked whether nothing else is under way any more, or the group has ended
HOLD_S = (5.0, 300.0)  # how long others may be held up for a suspect's turn: at first, and at most
PUT_OFF = 4  # times as long as others were held up for it, it then waits


class Suspects:
    """Lives on the event loop's thread; `close` may be called from another.

    `runs` gives every run the worker holds. `mark` has the store told that a run goes on alone, and calls `go`. `start`
    and `finish` are those of the executors; `resume` is called when the others may go on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hall: Hall,
        runs: Callable[[], Iterable[Run]],
        mark: Callable[[Run], None],
        start: Callable[[Run], None],
        finish: Callable[[Sequence[Run]], None],
        resume: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._loop, self._hall, self._runs, self._mark = loop, hall, runs, mark
        self._start, self._finish, self._resume, self._now_ms = start, finish, resume, now_ms
        self._waiting: list[Run] = []
        self._group: list[Run] = []  # under way, or about to be
        self._since_s = 0.0  # when the others began to be held up; 0: they are not
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._lock = threading.Lock()  # none is both given back by `close` and begun

    @property
    def holding(self) -> bool:
        """Whether others are held up."""
        return self._since_s > 0

    def add(self, runs: Sequence[Run]) -> None:
        """These run in groups, one after another, as soon as they can."""
        self._waiting.extend(runs)
        if self._timer is None and not self._group:
            self._next()

    def close(self) -> list[Run]:
        """Start none any more; those that never started."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            return waiting

    def _next(self) -> None:
        """Hold the others up for the next group, or let them go on."""
        self._timer = None
        now = time.monotonic()
        if not self._waiting or self._closed:
            self._let_go()
        elif self._since_s and (held_s := now - self._since_s) > HOLD_S[0]:
            self._let_go()
            self._later(self._next, min(held_s, HOLD_S[1]))
        else:
            self._since_s = self._since_s or now
            self._hall.shut()
            self._look()

    def _look(self) -> None:
        """Whether nothing else is under way; what is nobody's any more, a thread that outlived its lease, is not
        waited for."""
        self._timer = None
        held = [*self._runs()]
        self._waiting = _still(self._waiting, held)
        if not self._waiting or self._closed:
            self._let_go()
        elif not self._others(held):
            self._begin()
        elif time.monotonic() - self._since_s > patience_s(self._waiting[0].delivery.message):
            self._put_off()
        else:
            self._later(self._look, LOOK_S)

    def _others(self, held: Sequence[Run]) -> bool:
        idle, now = {id(run) for run in (*self._hall.waiting(), *self._waiting)}, time.monotonic()
        begun = (run for run in held if run.task is not None and run.verdict is None and id(run) not in idle)
        return any(not run.finished_s and now < run.until_s for run in begun)

    def _begin(self) -> None:
        with self._lock:
            group = self._group = [] if self._closed else self._chosen()
            chosen = {id(run) for run in group}
            self._waiting = [run for run in self._waiting if id(run) not in chosen]
        if not group:
            self._let_go()
        elif len(group) == 1:
            self._mark(group[0])
        else:
            for run in group:
                self._start(run)
            self._later(self._watch, LOOK_S)

    def _chosen(self) -> list[Run]:
        """Who goes next, with their places: first those that may run with most others, as they are the likelier to be
        innocent."""
        first, *others = sorted(self._waiting, key=lambda run: -run.company)
        first.gate.take(whatever=True)
        group = [first]
        for run in others:
            if len(group) >= run.company:
                break
            if run.gate.take():
                group.append(run)
        return group

    def go(self, run: Run, word: Hold) -> None:
        """The store knows that it runs alone, or says why it does not."""
        if not self._closed and word is Hold.HELD:
            run.alone = True
            self._start(run)
            self._later(self._watch, LOOK_S)
            return
        self._group = []
        run.gate.leave()  # no other run takes the place: the hall is shut
        if word is not Hold.LOST:
            why = "cancelled" if word is Hold.CANCEL else "interrupted"
            run.verdict = RetryAt(self._now_ms(), why, counts=False)
            self._finish([run])
        self._next()

    def _watch(self) -> None:
        """Whether all have ended, or their leases have: then a thread may run on, but its message belongs to the next
        worker that claims it, which may be this one."""
        self._timer = None
        now = time.monotonic()
        self._group = [run for run in _still(self._group, self._runs()) if not run.finished_s and now < run.until_s]
        if self._group:
            self._later(self._watch, LOOK_S)
        else:
            self._next()

    def _put_off(self) -> None:
        """Others run for so long that their turn does not come: back they go for a while, free of charge."""
        verdict = put_off(self._now_ms(), time.monotonic() - self._since_s)
        for run in self._waiting:
            run.verdict = verdict
        self._finish(self._waiting)
        self._waiting = []
        self._let_go()

    def _let_go(self) -> None:
        if not self._since_s:
            return
        self._since_s = 0.0
        for run in self._hall.open():
            self._start(run)
        self._resume()

    def _later(self, call: Callable[[], None], delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, call)


def _still(runs: Sequence[Run], held: Iterable[Run]) -> list[Run]:
    """Those of them that the worker holds."""
    ids = {id(run) for run in held}
    return [run for run in runs if id(run) in ids]


def patience_s(message: Message) -> float:
    """How long a suspect may hold others up: the longer it was put off already, the longer, by a fifth of the time at
    most."""
    return min(max(HOLD_S[0], message.held_ms / 1000 / PUT_OFF), HOLD_S[1])


def put_off(now_ms: int, held_s: float) -> RetryAt:
    """Back for a while, after it has held others up for so long; free of charge."""
    return RetryAt(now_ms + int(held_s * PUT_OFF * 1000), "suspect", counts=False, held=True)
