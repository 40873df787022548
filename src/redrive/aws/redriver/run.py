"""The re-driver: moves dead-lettered messages back to their queue, or to the poison queue, in batches of ten.

Each batch is sent first and deleted after (`transfer.py`), for the seconds that `pace.py` gives. For messages that
cannot be moved in time, or not yet, a message in the work queue calls the next re-driver: an alarm acts only when its
state changes, so its re-driver must make sure that no message is left waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from ...errors import StoreError
from ...store import Cells
from .action_log import log_moves
from .gate import Gate, Shut
from .pace import ROOM_S, Known, Pace, Shared
from .settings import RedriverSettings
from .steps import MoveStep, Raw, RedriveStep, group_of, next_step
from .transfer import BATCH_MAX, MoveOutcome, SqsCall, hide, receive, send
from .work_queue import GO_ON, LOOK, LOOKS, NOTHING, Chain, Said, count

HOLD_S = 60  # seconds for which received messages are hidden
EACH = 100  # a trigger starts one more Lambda for each this many dead messages
AGAIN_S = 15  # seconds until the next run, for messages that this one had no time for; SQS's counts lag a little
AFTER_S = 30  # seconds after the end of the re-driver at work until the check of its messages
QUIET_S = 300  # seconds after which an alarm is in the state OK again, so that the next death changes its state
GATE_MS = 10_000  # ms between checks of the gates while messages are moved
FAN_OUT = 5
_OTHERS = "another re-driver is at work, or comes"


class Continuation(Struct, frozen=True):
    """The work queue `url` through which the re-driver continues, with at most `fan_out` Lambdas per trigger."""

    url: str | None = None
    fan_out: int = FAN_OUT


class RedriverReport(Struct):
    """The report of a run of the re-driver. `again_s`: seconds until the next run, None if none; `why`: its reason."""

    redriven: int = 0
    isolated: int = 0
    failed: int = 0
    again_s: int | None = None
    why: str = ""


class Redriver:
    """One run of the re-driver. `call` calls SQS, `left_s()` returns the seconds left, `now_ms()` the time. The
    assigned seconds of the rate are in `cells`; without cells in `known`, and in `said`, which the calling work-queue
    message passed on."""

    def __init__(
        self,
        call: SqsCall,
        settings: RedriverSettings,
        work: Continuation,
        cells: Cells | None,
        left_s: Callable[[], float],
        now_ms: Callable[[], int],
        *,
        known: Known | None = None,
        said: Said = NOTHING,
    ) -> None:
        self._call, self._settings, self._work, self._said = call, settings, work, said
        self._left_s, self._now_ms = left_s, now_ms
        known = known or Known()
        self._known = known if cells is None else None  # None: `cells` hold the slots
        self._pace = Pace(settings.auto, known if cells is None else Shared(cells, settings.dead))
        self._chain = Chain(call, work.url, now_ms, self._known)
        self._gate, self._asked_ms = Gate(settings, cells, now_ms), 0
        self._later: Shut | None = None  # why this run may move no more messages
        self.carried: RedriverReport = RedriverReport()

    def run(self, *, trigger: bool) -> RedriverReport:
        """Move messages until none is left or the time is over; if any are left, schedule the next run. `trigger`: the
        run was not called by the work queue, so it may call others. Raises StoreError, ConfigError."""
        if self._known is not None:
            self._known.learn(self._said.slots)
            if self._left_to_others(trigger):
                return self.carried
        self._later = self._shut()
        if self._later is None:
            if trigger and self._known is None:
                self._fan_out()
            if not self._drain(first=trigger):
                return self.carried
        elif trigger and not self._any_dead():
            return self.carried
        if self._later is None or self._known is not None or not self._left_to_others(trigger):
            self._look_back()
        return self.carried

    def _shut(self) -> Shut | None:
        self._asked_ms = self._now_ms()
        try:
            return self._gate.shut()
        except StoreError as error:
            return Shut(ROOM_S, f"whether its breaker is open is not known: {error}")

    def _any_dead(self) -> bool:
        """True if the dead-letter queue has messages: visible to a poll that asks all of SQS's servers, or held."""
        dead = self._settings.dead
        return bool(receive(self._call, dead, 1, visibility_s=0)) or any(count(self._call, dead))

    def _left_to_others(self, trigger: bool) -> bool:
        """Return whether other runs in the work queue do the work, so that this one may end; if so, schedule a check
        that they did. Another run must be at work, and this one must not have been called to continue."""
        others = self._chain.others(0 if trigger else 1) if trigger or self._said.look else None
        if others is None:
            return False
        self.carried.why = _OTHERS
        looks = self._said.looks + others.come
        if looks < LOOKS:
            self._go_on(self._chain.some_s(AGAIN_S), _OTHERS, LOOK, looks)
        return True

    def _alone(self) -> bool:
        """Send this run's own check to the work queue; return True if no other run has a message there."""
        after_s = math.ceil(max(0, self._left_s())) + AFTER_S
        self._go_on(after_s, "it looks after the one at work", LOOK)
        if not self._chain.others(1):
            return True
        self.carried.why = _OTHERS
        return False

    def _fan_out(self) -> None:
        """Call more Lambdas, one for each EACH dead messages, minus those that are already called."""
        if self._work.url is None:
            return
        dead = count(self._call, self._settings.dead)[0]
        more = min(self._work.fan_out, -(-dead // EACH)) - 1
        for _ in range(more - sum(count(self._call, self._work.url)) if more > 0 else 0):
            self._chain.call_another(0, "fan-out")

    def _look_back(self) -> None:
        """Schedule the next run if messages are left: put off by gate or rate, not received for lack of time, held by
        other consumers, which may have died, or failed; or if messages are due while the alarm is still on, which then
        calls nothing."""
        if self._later is not None:
            self._go_on(self._later.wait_s, self._later.why)
            return
        seen, held, delayed = count(self._call, self._settings.dead)
        if self._left_s() <= 0:
            self._go_on(0 if seen else AGAIN_S, "its time is over")
        elif seen:
            self._go_on(AGAIN_S, f"{seen} are visible still")
        elif held or delayed:
            self._go_on(HOLD_S, f"{held + delayed} are held, or wait")
        elif self.carried.redriven or self.carried.isolated:
            self._go_on(QUIET_S, "nothing is left; what dies before the alarm is quiet again changes no state")
        elif self._known is not None and (left_s := self._known.lasts_s(self._now_ms() // 1000)):
            self._go_on(min(left_s, QUIET_S), "nothing is left; what it sent comes until then")

    def _go_on(self, delay_s: int, why: str, word: str = GO_ON, looks: int = 0) -> None:
        self.carried.again_s, self.carried.why = delay_s, why
        self._chain.call_another(delay_s, why, word, looks)

    # -- batches

    def _drain(self, *, first: bool) -> bool:
        """Move batch after batch. Returns False if the rest is left to other runs."""
        while self._left_s() > 0:
            if self._now_ms() - self._asked_ms >= GATE_MS and (shut := self._shut()):
                self._later = shut
                break
            messages = receive(self._call, self._settings.dead, BATCH_MAX, visibility_s=HOLD_S)
            if not messages:
                break
            if first and self._known is not None and self._work.url is not None and not self._alone():
                return False
            first = False
            if not self._move(messages):
                break
        return True

    def _move(self, messages: Sequence[Raw]) -> bool:
        """Move a batch. Returns False if further batches would fail too: the whole batch failed, or the cells did."""
        now_ms, auto = self._now_ms(), self._settings.auto
        steps: list[tuple[Raw, RedriveStep]] = [(raw, next_step(raw, now_ms, auto)) for raw in messages]
        try:
            steps = self._waited(steps, now_ms) if self._settings.fifo else self._placed(steps, now_ms)
        except StoreError as error:  # the cells failed
            self._later = Shut(ROOM_S, f"how much room its rate has is not known: {error}")
            return False
        done = send(self._call, self._settings, steps, now_ms) if steps else MoveOutcome()
        log_moves(done, now_ms)
        self.carried.redriven += done.redriven
        self.carried.isolated += done.isolated
        self.carried.failed += len(done.failures)
        return len(done.failures) < len(messages) and self._later is None

    def _placed(self, steps: Sequence[tuple[Raw, RedriveStep]], now_ms: int) -> list[tuple[Raw, RedriveStep]]:
        """Return the steps that the rate has room for. Other messages become visible again after HOLD_S."""
        placed = self._pace.placed(steps, now_ms)
        if any(step is None for _, step in placed):
            self._later = Shut(self._pace.room_s, self._pace.full)
        return [(raw, step) for raw, step in placed if step is not None]

    def _waited(self, steps: Sequence[tuple[Raw, RedriveStep]], now_ms: int) -> list[tuple[Raw, RedriveStep]]:
        """Return the steps of messages that have waited long enough in the dead-letter queue, since a FIFO queue cannot
        delay single messages, and for which the rate has room now. The others are hidden for the rest of their wait and
        block their groups, which keeps the order."""
        going: list[tuple[Raw, RedriveStep]] = []
        waiting: dict[str, int] = {}
        hidden: list[Raw] = []
        for raw, step in steps:
            if isinstance(step, MoveStep) and group_of(raw) not in waiting:
                left_s = _left_s(raw, self._pace.wait_s(raw, step), now_ms)
                if left_s:
                    waiting[group_of(raw)] = left_s
                else:
                    step = MoveStep(0, step.attempt)
            if group_of(raw) in waiting:
                hidden.append(raw)
            else:
                going.append((raw, step))
        going, late = self._with_room(going, now_ms)
        waits_s = [waiting[group_of(raw)] for raw in hidden] + [self._pace.next_s] * len(late)
        hide(self._call, self._settings.dead, hidden + late, waits_s)
        return going

    def _with_room(
        self, going: Sequence[tuple[Raw, RedriveStep]], now_ms: int
    ) -> tuple[list[tuple[Raw, RedriveStep]], list[Raw]]:
        """Split the steps: those with room in the rate, and messages without room, with later ones of their groups."""
        free = self._pace.go_now(sum(isinstance(step, MoveStep) for _, step in going), now_ms)
        stuck: set[str] = set()
        gone: list[tuple[Raw, RedriveStep]] = []
        late: list[Raw] = []
        for raw, step in going:
            if isinstance(step, MoveStep) and group_of(raw) not in stuck:
                if free:
                    free -= 1
                else:
                    stuck.add(group_of(raw))
            if group_of(raw) in stuck:
                late.append(raw)
            else:
                gone.append((raw, step))
        if late:
            self._later = Shut(self._pace.next_s, self._pace.full)
        return gone, late


def _left_s(raw: Raw, wait_s: int, now_ms: int) -> int:
    """Return the rest, in seconds, of a wait that began when the message arrived in its FIFO dead-letter queue."""
    died_ms = int((raw.get("Attributes") or {}).get("SentTimestamp", now_ms))
    return max(0, -(-(died_ms + wait_s * 1000 - now_ms) // 1000))
