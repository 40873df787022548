"""Runs suspects alone: messages whose last run was cut off by the end of its process, so that it may have been them.

Only what dies alone is guilty. A suspect waits until nothing else is under way in this process, while its gates let
nobody in; the store is told (`extend(…, alone=True)`) before it begins; then the others go on. Others are never held up
for longer than that takes within a bound: a suspect whose turn does not come is put off, and after a while of suspects
the others have as long.

Where a child process can be had for it, a suspect runs alone in one, and this is left for those that brought down more
than a child.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from ..message import Hold, Message, RetryAt
from .run import Hall, Run

LOOK_S = 0.02  # how often it is looked whether nothing else is under way any more, or the suspect has ended
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
        self._waiting: deque[Run] = deque()
        self._current: Run | None = None
        self._since_s = 0.0  # when the others began to be held up; 0: they are not
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def holding(self) -> bool:
        """Whether others are held up."""
        return self._since_s > 0

    def add(self, runs: Sequence[Run]) -> None:
        """These run alone, one after another, as soon as they can."""
        self._waiting.extend(runs)
        if self._timer is None and self._current is None:
            self._next()

    def close(self) -> list[Run]:
        """Start none any more; those that never started."""
        self._closed = True
        waiting = [*self._waiting]
        self._waiting.clear()
        return waiting

    def _next(self) -> None:
        """Hold the others up for the next one, or let them go on."""
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
        self._waiting = deque(run for run in self._waiting if run in held)
        if not self._waiting or self._closed:
            self._let_go()
        elif not self._others(held):
            self._current = self._waiting.popleft()
            self._mark(self._current)
        elif time.monotonic() - self._since_s > _patience_s(self._waiting[0].delivery.message):
            self._put_off()
        else:
            self._later(self._look, LOOK_S)

    def _others(self, held: Sequence[Run]) -> bool:
        idle, now = {id(run) for run in (*self._hall.waiting(), *self._waiting)}, time.monotonic()
        begun = (run for run in held if run.task is not None and run.verdict is None and id(run) not in idle)
        return any(not run.finished_s and now < run.until_s for run in begun)

    def go(self, run: Run, word: Hold) -> None:
        """The store knows that it runs alone, or says why it does not."""
        if self._closed or word is not Hold.HELD:
            self._current = None
            if word is not Hold.LOST:
                why = "cancelled" if word is Hold.CANCEL else "interrupted"
                run.verdict = RetryAt(self._now_ms(), why, counts=False)
                self._finish([run])
            self._next()
            return
        run.alone = True
        run.gate.take()
        self._start(run)
        self._later(self._watch, LOOK_S)

    def _watch(self) -> None:
        """Whether it has ended, or its lease has: then a thread may run on, but the message is for whoever claims it
        next, which may be us."""
        self._timer = None
        run, now = self._current, time.monotonic()
        if run is None or run.finished_s or now >= run.until_s or not any(run is other for other in self._runs()):
            self._current = None
            self._next()
        else:
            self._later(self._watch, LOOK_S)

    def _put_off(self) -> None:
        """Others run for so long that their turn does not come: back they go for a while, free of charge."""
        held_s = time.monotonic() - self._since_s
        due_ms = self._now_ms() + int(held_s * PUT_OFF * 1000)
        for run in self._waiting:
            run.verdict = RetryAt(due_ms, "suspect", counts=False, held=True)
        self._finish([*self._waiting])
        self._waiting.clear()
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


def _patience_s(message: Message) -> float:
    """The longer it was put off already, the longer others may be held up for it, by a fifth of the time at most."""
    return min(max(HOLD_S[0], message.held_ms / 1000 / PUT_OFF), HOLD_S[1])
