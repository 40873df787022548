"""Run the machines that redrive automatically: check gates, find due messages, start a run, wait for its end, repeat.

A machine is a cell (machine.py). Each step is one commit that swaps it: isolating poison, starting a run, counting the
outcomes of a run. After a crash between two steps the next worker reads the cell and continues: a plan that was not
started expires, a run that was started is named in the cell. A machine moves no messages itself: its runs do, and
workers run these as any other.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from ...audit import Audit, Entry
from ...errors import Conflict, StoreError
from ...events import Notify
from ...flow.auto_redrive import AutoRedrive, next_step
from ...flow.gates import Gates
from ...ids import new_id
from ...message import (
    Cell,
    Discard,
    Filter,
    Isolate,
    Message,
    Verdict,
)
from ...registry import Registry
from ..redrive import run as runs
from ..redrive.gates import closed, held_dependency
from ..redrive.plan import draw_up
from ..redrive.records import FINAL, Line, RedriveSettings, RunStatus, state_of
from ..select.terms import as_node
from .machine import (
    FINGERPRINT,
    QUEUE,
    Machine,
    decode,
    state_cell,
    swaps,
)
from .rules import Versioned, families, read_rules
from .scan import LATE_MS, POISON_MAX, Scan, ScanResult

ACTOR = "auto-redrive"
LEASE_MS = 20_000  # lease beyond the next step, in ms: so long a machine rests after its worker was killed
LOOK_MS = 30_000  # longest sleep in ms: messages that die during it may be due, or poison
TROUBLE_MS = 60_000  # pause of a machine after an error, in ms
POLL_MS = 5000  # ms between checks if another worker gave the machine back
ASK_MS = 1000  # ms between checks of a closed gate, or of the run
DISCARD_MAX = 100  # messages discarded in one commit
TICK_S = 0.25  # seconds; a tick starts no further step after this time, and the next tick continues

MachineCount = Literal["isolated", "discarded"]  # the counters of Machine that a verdict changes


class Assignment(NamedTuple):
    """The work of a machine in a scope: redrive by `auto`, or (None) discard. `ruled`: fingerprints with own rules."""

    scope: str
    where: Filter
    auto: AutoRedrive | None
    ruled: frozenset[str] = frozenset()
    by: str = ""
    reason: str = ""


class Memory:
    """The memory of this process about a scope between ticks; if lost, the messages are read again."""

    assignment: Assignment
    scan: Scan
    wake_ms: int

    __slots__ = ("assignment", "held", "release_ms", "scan", "shut_until_ms", "wake_ms")

    def __init__(self, app: Registry, assignment: Assignment) -> None:
        self.assignment, self.scan, self.wake_ms = assignment, Scan(app, assignment.where), 0
        self.held: Sequence[str] = ()  # dependencies that hold every due message
        self.release_ms: int = 0  # when the messages held by dependencies are read again
        self.shut_until_ms: int = 0  # until this time only the gates are checked, and no messages read


class AutoRunner:
    """Runs the machines of an app's queues and of the standing rules in its store. Used by one thread, as `owner`."""

    def __init__(
        self, app: Registry, owner: str = "", notice: Notify = lambda name, text, about="", count=1: None
    ) -> None:
        self._app, self._store, self._notice = app, app.store, notice
        self._owner = owner or new_id(app.store.now_ms())
        self._memories: dict[str, Memory] = {}
        self._ticked_ms = 0
        self._rules: Versioned = (0, {})

    def __bool__(self) -> bool:
        """True if the last tick had a machine to run."""
        return bool(self._memories)

    def wanted(self) -> bool:
        """Return whether there is a machine to run. Raises StoreError."""
        return bool(self._assignments())

    def tick(self) -> None:
        """Do the steps that are due now, or some of them. Call this about once a second. Raises StoreError."""
        assignments, now_ms = self._assignments(), self._store.now_ms()
        set_back, self._ticked_ms = now_ms < self._ticked_ms - LATE_MS, now_ms  # if so, remembered times are too late
        for scope in self._memories.keys() - assignments.keys():
            self._end(self._memories.pop(scope))
        for scope, assignment in assignments.items():
            memory = self._memories.get(scope)
            if memory is None or memory.assignment != assignment or set_back:
                self._memories[scope] = Memory(self._app, assignment)
        end_s = time.monotonic() + TICK_S
        due = [memory for memory in self._memories.values() if memory.wake_ms <= now_ms]
        for memory in sorted(due, key=lambda memory: memory.wake_ms):
            try:
                while memory.wake_ms <= now_ms and time.monotonic() < end_s:
                    memory.wake_ms = self._step(memory)
            except Conflict:  # another process changed the cell: nothing was written, and the next tick reads it
                memory.wake_ms = 0
            except StoreError:
                raise
            except Exception:  # a bug, or a cell altered by hand: the other machines continue
                self._notice("auto_failed", traceback.format_exc(limit=-3), memory.assignment.scope)
                memory.wake_ms = now_ms + TROUBLE_MS

    def close(self) -> None:
        """Release the leases of all machines. Raises StoreError."""
        cells = self._store.cells.read([state_cell(scope) for scope in self._memories]) if self._memories else []
        for memory, cell in zip(self._memories.values(), cells, strict=True):
            machine = decode(cell, memory.assignment.scope)
            if cell is not None and machine.owner == self._owner:
                self._try(cell, replace(machine, owner="", until_ms=0), [])
        self._memories.clear()

    def _assignments(self) -> dict[str, Assignment]:
        self._rules = read_rules(self._store, self._rules)
        rules = self._rules[1]
        under = families(self._store, rules)
        ruled = frozenset(name for names in under.values() for name in names)
        assignments = [
            Assignment(QUEUE + queue.name, Filter(queue=queue.name), queue.auto_redrive, ruled)
            for queue in self._app.queues.values()
            if queue.auto_redrive is not None
        ]
        for fingerprint, names in under.items():
            rule = rules[fingerprint]
            if rule.kind != "hold":
                where = Filter(fingerprint=names if len(names) > 1 else fingerprint)
                auto = None if rule.kind == "discard" else rule.auto or AutoRedrive()
                assignments.append(Assignment(FINGERPRINT + fingerprint, where, auto, by=rule.by, reason=rule.reason))
        return {assignment.scope: assignment for assignment in assignments}

    # -- a step

    def _step(self, memory: Memory) -> int:
        """Do the next step of the machine; return when the one after it is due."""
        assignment, now_ms = memory.assignment, self._store.now_ms()
        (cell,) = self._store.cells.read([state_cell(assignment.scope)])
        before = decode(cell, assignment.scope)
        leased = now_ms < before.until_ms <= now_ms + LOOK_MS + 2 * LEASE_MS  # a longer one predates a clock change
        if leased and before.owner != self._owner:
            return min(before.until_ms, now_ms + POLL_MS)
        machine = replace(before, auto=assignment.auto, owner=self._owner)
        if machine.phase in ("new", "ended"):
            machine = replace(machine, phase="looking", why="", began_ms=machine.began_ms or now_ms)
        if machine.phase == "paused" and not machine.run:
            return now_ms + ASK_MS
        if machine.run:
            return self._await(cell, machine, now_ms)
        if assignment.auto is None:
            return self._discard(memory, cell, machine, now_ms)
        if now_ms < memory.shut_until_ms and (why := self._shut(memory, assignment.auto, now_ms)) is not None:
            return self._wait(cell, machine, why, now_ms)
        if now_ms >= memory.release_ms or memory.shut_until_ms:
            memory.scan.release()
            memory.release_ms = now_ms + LOOK_MS
        scan = memory.scan.find(assignment.auto, assignment.ruled, now_ms)
        if scan.poison:
            return self._isolate(assignment, cell, machine, scan.poison, now_ms)
        if not scan.due and scan.next_ms <= now_ms:  # the lane has more messages to read
            self._keep(cell, machine, now_ms, now_ms + ASK_MS)
            return now_ms + ASK_MS
        if not scan.due and not scan.held:
            return self._rest(cell, machine, scan, now_ms)
        memory.held, memory.shut_until_ms = () if scan.due else sorted(scan.held), now_ms + LOOK_MS
        if not scan.due:  # messages that no dependency holds may become due sooner
            memory.shut_until_ms = int(min(memory.shut_until_ms, max(scan.next_ms, now_ms + ASK_MS)))
        if (why := self._shut(memory, assignment.auto, now_ms)) is not None:
            return self._wait(cell, machine, why, now_ms)
        memory.shut_until_ms = 0
        if not scan.due:
            memory.scan.release()  # let the next scan read the held messages again
            return now_ms + ASK_MS
        if now_ms < machine.slot_ms <= now_ms + 2000 / assignment.auto.rate:  # a later slot predates a clock change
            return self._sleep(cell, machine, now_ms, min(machine.slot_ms, now_ms + LOOK_MS))
        return self._begin(assignment, cell, machine, scan.due, now_ms)

    def _shut(self, memory: Memory, auto: AutoRedrive, now_ms: int) -> str | None:
        """Return why no due message may be moved now, or None. Approval is not checked: each run asks for its own."""
        gates = Gates(False, auto.gates.health, None, auto.gates.window)
        return held_dependency(self._app, memory.held, now_ms) or closed(gates, self._app, (), now_ms)

    def _await(self, cell: Cell | None, machine: Machine, now_ms: int) -> int:
        run = state_of(self._store, machine.run)
        if run is not None and run.status not in FINAL:
            self._keep(cell, machine, now_ms, now_ms + ASK_MS)
            return now_ms + ASK_MS
        if run is None:
            line, after = f"run {machine.run} has expired", replace(machine, run="")
        else:
            counts = run.counts
            line = f"run {machine.run} is {run.status}: {_counts_text(counts)}"
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
            if run is not None and run.status is RunStatus.CANCELLED:  # a person cancelled it: start no other run now
                after = replace(after, phase="paused", why=f"run {machine.run} was cancelled: {run.why}")
                line += "; paused until it is resumed"
        self._commit(cell, after, [line], now_ms)
        return now_ms

    def _wait(self, cell: Cell | None, machine: Machine, why: str, now_ms: int) -> int:
        if (machine.phase, machine.why) == ("waiting", why):
            self._keep(cell, machine, now_ms, now_ms + ASK_MS)
        else:
            self._commit(cell, replace(machine, phase="waiting", why=why), [f"waits: {why}"], now_ms)
        return now_ms + ASK_MS

    def _rest(self, cell: Cell | None, machine: Machine, scan: ScanResult, now_ms: int) -> int:
        """Put the machine to sleep, as no message is due; return when it wakes."""
        assert machine.auto is not None  # messages that die from now on wait for at least the base delay, or 1 s
        soon_ms = min(scan.next_ms, now_ms + LOOK_MS, now_ms + machine.auto.delay_ms(1, 0.0))
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

    # -- actions

    def _isolate(
        self, assignment: Assignment, cell: Cell | None, machine: Machine, poison: Sequence[Message], now_ms: int
    ) -> int:
        """Isolate poison messages with the same number of redrives, in one commit with its audit entry."""
        assert assignment.auto is not None
        verdict = next_step(poison[0], assignment.auto, now_ms)
        assert isinstance(verdict, Isolate)
        some = [m for m in poison if m.redrives == poison[0].redrives][:POISON_MAX]
        line = f"isolated {_messages(len(some))}: {verdict.why}"
        after = replace(machine, phase="looking", why="", isolated=machine.isolated + len(some))
        entry = Audit(self._store).entry("isolate", ACTOR, verdict.why, ids=_ids(some), about=machine.scope)
        moved = self._judge(cell, after, line, some, verdict, entry, "isolated")
        if any(moved):
            self._notice("auto_isolated", line, machine.scope, count=moved.count(True))
        return now_ms

    def _discard(self, memory: Memory, cell: Cell | None, machine: Machine, now_ms: int) -> int:
        assignment, some = memory.assignment, memory.scan.any(DISCARD_MAX)
        if not some:
            return self._sleep(cell, machine, now_ms, now_ms + LOOK_MS)
        line = f"discarded {_messages(len(some))}: {assignment.reason}"
        after = replace(machine, phase="looking", discarded=machine.discarded + len(some))
        entry = Audit(self._store).entry(
            "discard", f"rule by {assignment.by}", assignment.reason, ids=_ids(some), about=machine.scope
        )
        self._judge(cell, after, line, some, Discard(assignment.reason), entry, "discarded")
        return now_ms

    def _judge(
        self,
        cell: Cell | None,
        after: Machine,
        line: str,
        some: Sequence[Message],
        verdict: Verdict,
        entry: Entry,
        count: MachineCount,
    ) -> Sequence[bool]:
        """Apply the verdict to `some` messages, in one commit with the entry and the machine, whose counter includes
        all of them; return for each whether it was moved."""
        audit = Audit(self._store)
        swaps = [*self._swaps(cell, after, [line], entry.at_ms), *audit.swaps(entry)]
        moved = self._store.triage([m.handle for m in some], verdict, swaps=swaps)
        if not all(moved):
            self._correct(audit, entry, some, moved, count)
        return moved

    def _correct(
        self, audit: Audit, entry: Entry, some: Sequence[Message], moved: Sequence[bool], count: MachineCount
    ) -> None:
        """Take the messages that others had moved out of the machine's counter and the audit entry."""
        audit.amend(entry, ids=[m.id for m, done in zip(some, moved, strict=True) if done])
        (cell,) = self._store.cells.read([state_cell(entry.about)])
        machine = decode(cell, entry.about)
        if cell is not None:
            gone = moved.count(False)
            after = replace(machine, **{count: getattr(machine, count) - gone})
            self._try(cell, after, [Line(entry.at_ms, f"{_messages(gone)} of those had moved meanwhile")])

    def _begin(
        self, assignment: Assignment, cell: Cell | None, machine: Machine, due: Sequence[Message], now_ms: int
    ) -> int:
        """Store a plan of these messages and start its run, in one commit with the machine. A crash before the start
        leaves a plan that moves nothing and expires."""
        assert assignment.auto is not None
        settings = RedriveSettings(
            rate=assignment.auto.rate,
            at_once=assignment.auto.at_once,
            attempts=assignment.auto.attempts,
            gates=assignment.auto.gates,
        )
        reason = assignment.reason or f"auto-redrive of {machine.scope}"
        plan = draw_up(self._store, due, str(as_node(assignment.where)), settings, app=self._app)
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

    def _end(self, memory: Memory) -> None:
        """End a machine whose rule was removed. Its open run continues."""
        (cell,) = self._store.cells.read([state_cell(memory.assignment.scope)])
        machine = decode(cell, memory.assignment.scope)
        if cell is not None and machine.owner == self._owner:
            after = replace(machine, phase="ended", why="", run="", owner="", until_ms=0)
            self._try(cell, after, [Line(self._store.now_ms(), "ended: its rule was removed")])

    # -- writing

    def _keep(self, cell: Cell | None, machine: Machine, now_ms: int, wake_ms: int) -> None:
        """Extend the lease beyond the next step, unless it already lasts that long and the settings are stored."""
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
        with suppress(Conflict):  # another process has taken the machine
            self._store.put([], swaps=swaps(self._store, cell, machine, lines))


def _ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _counts_text(counts: Mapping[str, int]) -> str:
    words = [f"{counts['done']:,} done, {counts['failed']:,} failed"]
    words += [f"{counts[what]:,} {what}" for what in ("changed", "skipped", "waiting") if counts[what]]
    return ", ".join(words)
