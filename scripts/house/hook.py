"""Write down which functions of a tree are entered, on every thread, and leave out what belongs to no message.

Where a tree has another name for what is listed here, add that name: earlier and later trees are measured with the same
script. A walk that enters nothing of a line of `APART` or `REDRIVE` is refused, so a new name is noticed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What a store does by the clock.
CLOCKS = (
    "StoreClock._mark_in",
    "StoreClock.look",
    "HeldClock.look",
    "HeldClock.sync",
    "HeldClock._read",
    "ClockMark.is_off",
    "Floors._due",
    "SentLook.send",
    "SentLook.take",
)
# Belongs to no message, with all that it enters: the ends of qualified names, by what they are.
APART = {
    "how a worker waits for messages": ("Store.wait",),
    "how a waiting worker is woken": ("Store.nudge",),
    "periodic services of a worker, and what a store does by the clock: compare an SQLite file's clock with the "
    "machine's, look whether a claim floor of PostgreSQL can rise": (
        "Services.look",
        "Carrying.look",
        *CLOCKS,
    ),
    "renewal of leases, and signs of life": (
        "Leases.beat",
        "LeaseRenewals.beat",
        "Slots.beat",
        "CrashSlots.beat_store",
        "CrashSlots._beat",
        "Worker._beat",
    ),
    "watch over timeouts, a timer of the event loop": ("TaskExecutor.watch",),
    "measure of the event loop's lag": ("LoopLag._probe",),
}
# Belongs to a redrive, with all that it enters: the beginnings of paths in the package, by what they are.
REDRIVE = {
    "plans, runs and their runner": ("triage/",),
    "outcomes of redriven messages": ("worker/redrive_outcome", "worker/first_runs"),
}

# Of `triage/`, but by the clock, with all that they enter: the watch over all deaths, automatic redrives, of which the
# walk has none, what a worker reports, and the end of the thread of runs. A slow machine enters them in each round.
NO_REDRIVE = (
    *CLOCKS,
    "GroupWatch.look",
    "AutoRunner.wanted",
    "AutoRunner.tick",
    "AutoRunner.close",
    "AutoRunner.__bool__",
    "RedriveService.carried",
    "RedriveService._finish",
)


class Hook:
    """The profiler hook for the package under `src`. Set it with `install` before the package is imported: threads that
    run already are not seen."""

    def __init__(self, src: str) -> None:
        self._src = f"{Path(src) / 'redrive'}/"
        self._apart = tuple(end for ends in APART.values() for end in ends)
        self._redrive = tuple(self._src + start for starts in REDRIVE.values() for start in starts)
        self._seen: set[str] = set()  # paths of `REDRIVE` and names of `APART` that were entered
        self._entered: set[tuple[str, str]] = set()
        self._counts = self._counts_redrive = False
        self._here = threading.local()
        self.calls = 0  # that were counted

    def install(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def begin(self, *, redrive: bool = False) -> None:
        """Count from now on: all but what is apart, or with `redrive` what belongs to a redrive."""
        self._entered, self._counts_redrive, self._counts = set(), redrive, True

    def end(self) -> set[tuple[str, str]]:
        """The files, from the package on, and functions that were entered since `begin`."""
        self._counts = False
        return self._entered

    def leave_out_this_thread(self) -> None:
        self._here.left_out = True

    def not_entered(self) -> list[str]:
        """The lines of `APART` and `REDRIVE` of which nothing was entered since the hook was installed."""
        lines: Mapping[str, tuple[str, ...]] = APART | REDRIVE
        return [line for line, names in lines.items() if not any(name in seen for seen in self._seen for name in names)]

    def __call__(self, frame: Any, event: str, arg: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self._src):
            return
        depth = getattr(self._here, "depth", 0)  # of calls that are apart, counted or not: one may run at `begin`
        if is_apart := code.co_qualname.endswith(self._apart):
            self._seen.add(code.co_qualname)
            self._here.depth = depth + (1 if event == "call" else -1)
        if not self._counts or event == "return" or getattr(self._here, "left_out", False):
            return
        belongs = self._is_of_redrive(frame) if self._counts_redrive else not is_apart and depth <= 0
        if belongs:
            self.calls += 1
            self._entered.add((code.co_filename[len(self._src) :], code.co_qualname))

    def _is_of_redrive(self, frame: Any) -> bool:
        """Whether a call within a redrive led here, and no delivery that it committed along with its own write."""
        within = False
        while frame is not None and ".exchange." not in frame.f_code.co_qualname:
            if frame.f_code.co_qualname.endswith(NO_REDRIVE):
                return False
            if frame.f_code.co_filename.startswith(self._redrive):
                self._seen.add(frame.f_code.co_filename)
                within = True
            frame = frame.f_back
        return within
