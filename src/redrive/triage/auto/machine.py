"""The machines that drive dead messages back by themselves: look at the gates, find who is due, decide for each,
begin a run, wait for its end, again.

A machine is a cell (state.py), and each thing it does is one commit that swaps it: isolating poison, beginning a
run, taking up what a run came to. Killed between any two, whoever works it next reads the cell and goes on: what was
planned and not begun expires, what was begun stands in the cell. A machine moves nothing itself: its runs do, and
carriers carry them as they carry everybody's.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from ...audit.log import Audit, Entry
from ...errors import Conflict, StoreError
from ...events import Notify
from ...flow.auto_redrive import AutoRedrive, next_step
from ...flow.gates import Gates
from ...ids import new_id
from ...message import (
    Cell,
    Discard,
    Isolate,
    Message,
    Verdict,
    Where,
)
from ...registry import Registry
from ..annotations import Versioned, read_rules
from ..redrive import runs
from ..redrive.gates import alone, closed
from ..redrive.plan import draw_up
from ..redrive.run_state import FINAL, Line, Status
from ..redrive.settings import Settings
from ..select.selector import as_node
from .look import LATE_MS, POISON_MAX, Found, Look
from .state import (
    FINGERPRINT,
    QUEUE,
    Machine,
    decode,
    state_cell,
    swaps,
)

ACTOR = "auto-redrive"
LEASE_MS = 20_000  # how long nobody works a machine whose worker was killed; more, where it sleeps
LOOK_MS = 30_000  # the longest sleep: what comes to rest meanwhile may be due, or poison
TROUBLE_MS = 60_000  # how long a machine is left alone that could not be worked
HEARD_MS = 5000  # how often it looks whether another that works a machine gave it back
ASK_MS = 1000  # how often it asks for a gate, or for its run
DISCARD_MAX = 100  # in one commit
TICK_S = 0.25  # a tick begins nothing more after that; the next one goes on

Count = Literal["isolated", "discarded"]  # of a machine, by the names of its fields


class Order(NamedTuple):
    """What a scope is to be worked by: an AutoRedrive, or (None) a rule that discards. `ruled` are the fingerprints
    whose messages it leaves alone."""

    scope: str
    where: Where
    auto: AutoRedrive | None
    ruled: frozenset[str] = frozenset()
    by: str = ""
    reason: str = ""


class Seat:
    """What this process remembers of a scope between ticks. Nothing that would be missed."""

    __slots__ = ("held", "look", "order", "release_ms", "shut_until_ms", "wake_ms")

    def __init__(self, app: Registry, order: Order) -> None:
        self.order, self.look, self.wake_ms = order, Look(app, order.where), 0
        self.held: Sequence[str] = ()  # the dependencies that hold back all that is due
        self.release_ms = 0  # when those that a dependency holds back are looked at again, beside others that went
        self.shut_until_ms = 0  # until then it asks the gates alone, and looks at no messages


class Autos:
    """Works the machines of an app: those of its queues, and those of the standing rules in its store. Used by one
    thread, under `owner`'s name."""

    def __init__(
        self, app: Registry, owner: str = "", notice: Notify = lambda name, text, about="", count=1: None
    ) -> None:
        self._app, self._store, self._notice = app, app.store, notice
        self._owner = owner or new_id(app.store.now_ms())
        self._seats: dict[str, Seat] = {}
        self._ticked_ms = 0
        self._rules: Versioned = (0, {})

    def __bool__(self) -> bool:
        """Whether the last tick found something to work."""
        return bool(self._seats)

    def wanted(self) -> bool:
        """Whether there is something to work. Raises StoreError."""
        return bool(self._orders())

    def tick(self) -> None:
        """Do what is to be done now, or some of it; to be called about once a second. Raises StoreError."""
        orders, now_ms = self._orders(), self._store.now_ms()
        set_back, self._ticked_ms = now_ms < self._ticked_ms - LATE_MS, now_ms  # what seats remember is still to come
        for scope in self._seats.keys() - orders.keys():
            self._end(self._seats.pop(scope))
        for scope, order in orders.items():
            seat = self._seats.get(scope)
            if seat is None or seat.order != order or set_back:
                self._seats[scope] = Seat(self._app, order)
        end_s = time.monotonic() + TICK_S
        due = [seat for seat in self._seats.values() if seat.wake_ms <= now_ms]
        for seat in sorted(due, key=lambda seat: seat.wake_ms):
            try:
                while seat.wake_ms <= now_ms and time.monotonic() < end_s:
                    seat.wake_ms = self._step(seat)
            except Conflict:  # somebody changed it; nothing of the step was written, and the next tick reads again
                seat.wake_ms = 0
            except StoreError:
                raise
            except Exception:  # a bug, or a cell that somebody altered: the other machines go on
                self._notice("auto_failed", traceback.format_exc(limit=-3), seat.order.scope)
                seat.wake_ms = now_ms + TROUBLE_MS

    def close(self) -> None:
        """Let others work the machines from now on. Raises StoreError."""
        cells = self._store.cells.read([state_cell(scope) for scope in self._seats]) if self._seats else []
        for seat, cell in zip(self._seats.values(), cells, strict=True):
            machine = decode(cell, seat.order.scope)
            if cell is not None and machine.owner == self._owner:
                self._try(cell, replace(machine, owner="", until_ms=0), [])
        self._seats.clear()

    # -- what there is to work

    def _orders(self) -> dict[str, Order]:
        self._rules = read_rules(self._store, self._rules)
        rules = self._rules[1]
        ruled = frozenset(rules)
        orders = [
            Order(QUEUE + queue.name, Where(queue=queue.name), queue.auto_redrive, ruled)
            for queue in self._app.queues.values()
            if queue.auto_redrive is not None
        ]
        for fingerprint, rule in rules.items():
            if rule.kind != "hold":
                where = Where(fingerprint=fingerprint)
                auto = None if rule.kind == "discard" else rule.auto or AutoRedrive()
                orders.append(Order(FINGERPRINT + fingerprint, where, auto, by=rule.by, reason=rule.reason))
        return {order.scope: order for order in orders}

    # -- a step

    def _step(self, seat: Seat) -> int:
        """Do the next thing; when to come again."""
        order, now_ms = seat.order, self._store.now_ms()
        (cell,) = self._store.cells.read([state_cell(order.scope)])
        before = decode(cell, order.scope)
        leased = now_ms < before.until_ms <= now_ms + LOOK_MS + 2 * LEASE_MS  # longer: before the clock was set back
        if leased and before.owner != self._owner:
            return min(before.until_ms, now_ms + HEARD_MS)
        machine = replace(before, auto=order.auto, owner=self._owner)
        if machine.phase in ("new", "ended"):
            machine = replace(machine, phase="looking", why="", began_ms=machine.began_ms or now_ms)
        if machine.phase == "paused" and not machine.run:
            return now_ms + ASK_MS
        if machine.run:
            return self._await(cell, machine, now_ms)
        if order.auto is None:
            return self._discard(seat, cell, machine, now_ms)
        if now_ms < seat.shut_until_ms and (why := self._shut(seat, order.auto, now_ms)) is not None:
            return self._wait(cell, machine, why, now_ms)
        if now_ms >= seat.release_ms or seat.shut_until_ms:
            seat.look.release()
            seat.release_ms = now_ms + LOOK_MS
        found = seat.look.find(order.auto, order.ruled, now_ms)
        if found.poison:
            return self._isolate(order, cell, machine, found.poison, now_ms)
        if not found.due and found.next_ms <= now_ms:  # there is more to look at
            self._keep(cell, machine, now_ms, now_ms + ASK_MS)
            return now_ms + ASK_MS
        if not found.due and not found.held:
            return self._rest(cell, machine, found, now_ms)
        seat.held, seat.shut_until_ms = () if found.due else sorted(found.held), now_ms + LOOK_MS
        if not found.due:  # others may come due sooner, which nothing holds back
            seat.shut_until_ms = int(min(seat.shut_until_ms, max(found.next_ms, now_ms + ASK_MS)))
        if (why := self._shut(seat, order.auto, now_ms)) is not None:
            return self._wait(cell, machine, why, now_ms)
        seat.shut_until_ms = 0
        if not found.due:
            seat.look.release()  # they may go now
            return now_ms + ASK_MS
        if now_ms < machine.slot_ms <= now_ms + 2000 / order.auto.rate:  # later: before the clock was set back
            return self._sleep(cell, machine, now_ms, min(machine.slot_ms, now_ms + LOOK_MS))
        return self._begin(order, cell, machine, found.due, now_ms)

    def _shut(self, seat: Seat, auto: AutoRedrive, now_ms: int) -> str | None:
        """What holds back all that is due. The approval is asked for by each run."""
        gates = Gates(False, auto.gates.health, None, auto.gates.window)
        return alone(self._app, seat.held, now_ms) or closed(gates, self._app, (), now_ms)

    def _await(self, cell: Cell | None, machine: Machine, now_ms: int) -> int:
        run = runs.state_of(self._store, machine.run)
        if run is not None and run.status not in FINAL:
            self._keep(cell, machine, now_ms, now_ms + ASK_MS)
            return now_ms + ASK_MS
        if run is None:
            line, after = f"run {machine.run} is not there any more", replace(machine, run="")
        else:
            counts = run.counts
            line = f"run {machine.run} is {run.status}: {_told(counts)}"
            after = replace(
                machine,
                run="",
                redriven=machine.redriven + counts["moved"],
                done=machine.done + counts["done"],
                failed=machine.failed + counts["failed"],
                changed=machine.changed + counts["changed"],
                slot_ms=machine.slot_ms if run.speed is None else math.ceil(run.speed.slot_ms),
            )
        if machine.phase != "paused":
            after = replace(after, phase="looking")
            if run is not None and run.status is Status.CANCELLED:  # by a person: not to be begun anew at once
                after = replace(after, phase="paused", why=f"run {machine.run} was cancelled: {run.why}")
                line += "; paused until somebody resumes it"
        self._commit(cell, after, [line], now_ms)
        return now_ms

    def _wait(self, cell: Cell | None, machine: Machine, why: str, now_ms: int) -> int:
        if (machine.phase, machine.why) == ("waiting", why):
            self._keep(cell, machine, now_ms, now_ms + ASK_MS)
        else:
            self._commit(cell, replace(machine, phase="waiting", why=why), [f"waits: {why}"], now_ms)
        return now_ms + ASK_MS

    def _rest(self, cell: Cell | None, machine: Machine, found: Found, now_ms: int) -> int:
        """Nothing is to be done now."""
        # whatever dies from now on waits for the base at least, and for a second to be seen
        assert machine.auto is not None
        soon_ms = min(found.next_ms, now_ms + LOOK_MS, now_ms + machine.auto.delay_ms(1, 0.0))
        wake_ms = max(now_ms + ASK_MS, int(soon_ms))
        return self._sleep(cell, machine, now_ms, wake_ms)

    def _sleep(self, cell: Cell | None, machine: Machine, now_ms: int, wake_ms: int) -> int:
        after = replace(machine, phase="asleep", why="", next_ms=wake_ms)
        if machine.phase == "asleep":
            self._keep(cell, after, now_ms, wake_ms)
        else:
            lines = ["goes on"] if machine.phase == "waiting" else []
            self._commit(cell, after, lines, now_ms, wake_ms)
        return wake_ms

    # -- what it does

    def _isolate(
        self, order: Order, cell: Cell | None, machine: Machine, poison: Sequence[Message], now_ms: int
    ) -> int:
        """Those that were redriven equally often, in one commit with its audit entry."""
        assert order.auto is not None
        verdict = next_step(poison[0], order.auto, now_ms)
        assert isinstance(verdict, Isolate)
        some = [m for m in poison if m.redrives == poison[0].redrives][:POISON_MAX]
        line = f"isolated {_messages(len(some))}: {verdict.why}"
        after = replace(machine, phase="looking", why="", isolated=machine.isolated + len(some))
        entry = Audit(self._store).entry("isolate", ACTOR, verdict.why, ids=_ids(some), about=machine.scope)
        moved = self._judge(cell, after, line, some, verdict, entry, "isolated")
        if any(moved):
            self._notice("auto_isolated", line, machine.scope, count=moved.count(True))
        return now_ms

    def _discard(self, seat: Seat, cell: Cell | None, machine: Machine, now_ms: int) -> int:
        order, some = seat.order, seat.look.any(DISCARD_MAX)
        if not some:
            return self._sleep(cell, machine, now_ms, now_ms + LOOK_MS)
        line = f"discarded {_messages(len(some))}: {order.reason}"
        after = replace(machine, phase="looking", discarded=machine.discarded + len(some))
        entry = Audit(self._store).entry(
            "discard", f"rule by {order.by}", order.reason, ids=_ids(some), about=machine.scope
        )
        self._judge(cell, after, line, some, Discard(order.reason), entry, "discarded")
        return now_ms

    def _judge(
        self,
        cell: Cell | None,
        after: Machine,
        line: str,
        some: Sequence[Message],
        verdict: Verdict,
        entry: Entry,
        count: Count,
    ) -> Sequence[bool]:
        """Which of them the verdict moved, in one commit with the machine, which has counted all, and the entry."""
        audit = Audit(self._store)
        swaps = [*self._swaps(cell, after, [line], entry.at_ms), *audit.swaps(entry)]
        moved = self._store.triage([m.handle for m in some], verdict, swaps=swaps)
        if not all(moved):
            self._less(audit, entry, some, moved, count)
        return moved

    def _less(self, audit: Audit, entry: Entry, some: Sequence[Message], moved: Sequence[bool], count: Count) -> None:
        """Somebody else was faster with some of them."""
        audit.amend(entry, ids=[m.id for m, done in zip(some, moved, strict=True) if done])
        (cell,) = self._store.cells.read([state_cell(entry.about)])
        machine = decode(cell, entry.about)
        if cell is not None:
            gone = moved.count(False)
            after = replace(machine, **{count: getattr(machine, count) - gone})
            self._try(cell, after, [Line(entry.at_ms, f"{_messages(gone)} of those had moved meanwhile")])

    def _begin(self, order: Order, cell: Cell | None, machine: Machine, due: Sequence[Message], now_ms: int) -> int:
        """A plan of them, and its run: the run is written by the commit that says so in the machine. A plan that is
        not begun moves nothing, and expires."""
        assert order.auto is not None
        settings = Settings(rate=order.auto.rate, attempts=order.auto.attempts, gates=order.auto.gates)
        reason = order.reason or f"auto-redrive of {machine.scope}"
        plan = draw_up(self._store, due, str(as_node(order.where)), settings, app=self._app)
        line = f"run {plan.id} begins with {_messages(plan.total)}"
        lines = ["goes on", line] if machine.phase == "waiting" else [line]
        after = replace(machine, phase="redriving", why="", run=plan.id)
        runs.begin(
            self._store,
            plan,
            actor=ACTOR,
            reason=reason,
            cause="auto",
            swaps=self._swaps(cell, after, lines, now_ms),
        )
        return now_ms + ASK_MS

    def _end(self, seat: Seat) -> None:
        """Its rule was taken away. A run that is under way goes on by itself."""
        (cell,) = self._store.cells.read([state_cell(seat.order.scope)])
        machine = decode(cell, seat.order.scope)
        if cell is not None and machine.owner == self._owner:
            after = replace(machine, phase="ended", why="", run="", owner="", until_ms=0)
            self._try(cell, after, [Line(self._store.now_ms(), "ended: its rule was taken away")])

    # -- writing

    def _keep(self, cell: Cell | None, machine: Machine, now_ms: int, wake_ms: int) -> None:
        """Keep the lease past the next step, and write nothing where it lasts for that."""
        if machine.until_ms < wake_ms + LEASE_MS // 2 or decode(cell, machine.scope).auto != machine.auto:
            self._commit(cell, machine, [], now_ms, wake_ms)

    def _commit(self, cell: Cell | None, machine: Machine, lines: Sequence[str], now_ms: int, wake_ms: int = 0) -> None:
        self._store.put([], swaps=self._swaps(cell, machine, lines, now_ms, wake_ms))

    def _swaps(
        self, cell: Cell | None, machine: Machine, lines: Sequence[str], now_ms: int, wake_ms: int = 0
    ) -> list[Any]:
        until_ms = max(now_ms, wake_ms) + LEASE_MS
        return swaps(self._store, cell, replace(machine, until_ms=until_ms), [Line(now_ms, line) for line in lines])

    def _try(self, cell: Cell, machine: Machine, lines: list[Line]) -> None:
        with suppress(Conflict):  # somebody else works it
            self._store.put([], swaps=swaps(self._store, cell, machine, lines))


def _ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _told(counts: Mapping[str, int]) -> str:
    words = [f"{counts['done']:,} done, {counts['failed']:,} failed"]
    words += [f"{counts[what]:,} {what}" for what in ("changed", "skipped", "waiting") if counts[what]]
    return ", ".join(words)
