"""The re-driver: moves what lies in a dead-letter queue back to its queue, or to the poison queue, in batches of ten.

Each batch is sent first and deleted after (see `sending`). What cannot be moved in time, or not yet, goes on through a
message in the work queue: an alarm acts only on its change of state, so whoever it woke sees to it that nothing is left
waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..errors import StoreError
from ..flow import dependency as flow
from .moving import DELAY_MAX_S, Move, Raw, Settings, Step, group_of, next_step
from .sending import BATCH_MAX, Call, Outcome, hide, receive, send

if TYPE_CHECKING:
    from ..store import Cells

HOLD_S = 60  # for how long a received message is this run's
EACH = 100  # dead messages for which one trigger sets one more Lambda to work
AGAIN_S = 15  # how soon the next one looks for what this one had no time for; the queue's counts lag a little
QUIET_S = 300  # after which an alarm has noticed that nothing is dead, so that the next death changes its state
FAN_OUT = 5
TRIES = 3  # of a message to the work queue
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


class Work(Struct, frozen=True):
    """How the re-driver goes on: through the work queue `url`, one trigger in at most `fan_out` Lambdas at once."""

    url: str | None = None
    fan_out: int = FAN_OUT


class Carried(Struct):
    """What one run of the re-driver came to. `again_s`: another one goes on in so many seconds, None where nothing is
    left; `why` says what for."""

    redriven: int = 0
    isolated: int = 0
    failed: int = 0
    again_s: int | None = None
    why: str = ""


class Redriver:
    """One run. `call` makes a call of SQS, `left_s()` says how many seconds it may still take, `now_ms()` what time it
    is."""

    def __init__(
        self,
        call: Call,
        settings: Settings,
        work: Work,
        cells: Cells | None,
        left_s: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._call, self._settings, self._work, self._cells = call, settings, work, cells
        self._left_s, self._now_ms = left_s, now_ms
        self.carried = Carried()

    def run(self, *, trigger: bool) -> Carried:
        """Move until nothing is left or the time is over, and see to it that what is left is gone on with. `trigger`:
        it was not called by the work queue, so it may call more. Raises StoreError, ConfigError."""
        until_ms = self._held_until_ms()
        if until_ms:
            wait_s = -(-(until_ms - self._now_ms()) // 1000)
            self._go_on(min(max(wait_s, 1), DELAY_MAX_S), f"{self._settings.dependency} is not to be called now")
            return self.carried
        if trigger:
            self._fan_out()
        while self._left_s() > 0:
            found = receive(self._call, self._settings.dead, BATCH_MAX, visibility_s=HOLD_S)
            if not found or not self._move(found):
                break
        self._look_back()
        return self.carried

    # -- whether, and by how many

    def _held_until_ms(self) -> int:
        """Until when the dependency is to be left alone; 0 where nothing is known against it."""
        name, cells = self._settings.dependency, self._cells
        if name is None or cells is None:
            return 0
        try:
            state = flow.decode(cells.read([f"flow/{name}"])[0])
        except StoreError as error:  # what is moved waits a minute and then meets the workers' own breakers
            self.carried.why = f"the breaker of {name} could not be read: {error}"
            return 0
        return held_until_ms(state, self._now_ms())

    def _fan_out(self) -> None:
        """Call more Lambdas, one for each hundred dead messages, less those that are under way."""
        if self._work.url is None:
            return
        dead = self._count(self._settings.dead)[0]
        more = min(self._work.fan_out, -(-dead // EACH)) - 1
        for _ in range(more - sum(self._count(self._work.url)) if more > 0 else 0):
            self._call_another(self._work.url, 0, "fan-out")

    def _look_back(self) -> None:
        """What is left: unseen for want of time, held by others (who may have died), not moved by a failure; or what is
        yet to come while the alarm still rings of this, and so is not told."""
        seen, held, delayed = self._count(self._settings.dead)
        if self._left_s() <= 0:
            self._go_on(0 if seen else AGAIN_S, "its time is over")
        elif seen:
            self._go_on(AGAIN_S, f"{seen} are visible still")
        elif held or delayed:
            self._go_on(HOLD_S, f"{held + delayed} are held, or wait")
        elif self.carried.redriven or self.carried.isolated:
            self._go_on(QUIET_S, "nothing is left; what dies before the alarm is quiet again changes no state")

    def _go_on(self, delay_s: int, why: str) -> None:
        self.carried.again_s, self.carried.why = delay_s, why
        if self._work.url is not None:
            self._call_another(self._work.url, delay_s, why)

    def _call_another(self, url: str, delay_s: int, why: str) -> None:
        entry: dict[str, Any] = {"Id": "0", "MessageBody": json.dumps({"redrive": "go on", "why": why})}
        if delay_s:
            entry["DelaySeconds"] = delay_s
        failed: Sequence[Any] = ()
        for _ in range(TRIES):
            failed = self._call("SendMessageBatch", QueueUrl=url, Entries=[entry]).get("Failed") or ()
            if not failed:
                return
        raise StoreError(f"the work queue {url} took no message: {failed[0].get('Code')} {failed[0].get('Message')}")

    def _count(self, url: str) -> tuple[int, int, int]:
        told = self._call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(_COUNTS))["Attributes"]
        seen, held, delayed = (int(told.get(name, 0)) for name in _COUNTS)
        return seen, held, delayed

    # -- one batch

    def _move(self, found: Sequence[Raw]) -> bool:
        """Whether anything moved, or may yet: where all of a batch fails, so will the next one."""
        now_ms, auto = self._now_ms(), self._settings.auto
        steps: list[tuple[Raw, Step]] = [(raw, next_step(raw, now_ms, auto)) for raw in found]
        if self._settings.fifo:
            steps = self._waited(steps, now_ms)
        done = send(self._call, self._settings, steps, now_ms) if steps else Outcome()
        self.carried.redriven += done.redriven
        self.carried.isolated += done.isolated
        self.carried.failed += len(done.failures)
        return len(done.failures) < len(found)

    def _waited(self, steps: Sequence[tuple[Raw, Step]], now_ms: int) -> list[tuple[Raw, Step]]:
        """Those that have waited where they died, as a FIFO queue delays no single message; the others are hidden for
        the rest of it, and hold up their groups, which keeps the order."""
        going: list[tuple[Raw, Step]] = []
        waiting: dict[str, int] = {}
        hidden: list[Raw] = []
        for raw, step in steps:
            if isinstance(step, Move) and group_of(raw) not in waiting:
                left_s = _left_s(raw, step, now_ms)
                if left_s:
                    waiting[group_of(raw)] = left_s
                else:
                    step = Move(0, step.attempt)
            if group_of(raw) in waiting:
                hidden.append(raw)
            else:
                going.append((raw, step))
        hide(self._call, self._settings.dead, hidden, [waiting[group_of(raw)] for raw in hidden])
        return going


def held_until_ms(state: flow.State, now_ms: int) -> int:
    """Until when a dependency is to be left alone, by its breaker or as it asked; 0 where it may be called."""
    breaker = state.breaker
    if breaker.status == "forced_open":
        return now_ms + DELAY_MAX_S * 1000
    open_ms = breaker.until_ms if breaker.status == "open" else 0
    until_ms = max(open_ms, state.cool.until_ms)
    return until_ms if until_ms > now_ms else 0


def _left_s(raw: Raw, step: Move, now_ms: int) -> int:
    """How long it still has to wait; a FIFO dead-letter queue knows when it came there."""
    died_ms = int((raw.get("Attributes") or {}).get("SentTimestamp", now_ms))
    return max(0, -(-(died_ms + step.delay_s * 1000 - now_ms) // 1000))
