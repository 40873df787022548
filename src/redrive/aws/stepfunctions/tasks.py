"""The tasks of the state machine: check the breaker, fetch a page of dead messages, move or isolate a batch.

Each task takes a `MachineState` and returns the next one. A message is hidden in the dead-letter queue for the time the
machine may need until it is sent, and checked just before that: one that is gone, or was received by another, is not
sent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...message import Swap, version_of
from ...store import Cells
from ..cloudwatch import redriver_line
from ..redriver import (
    BATCH_MAX,
    Gate,
    MoveOutcome,
    MoveStep,
    Raw,
    RedriverSettings,
    RedriveStep,
    SqsCall,
    count,
    group_of,
    hide,
    hold,
    log_action,
    log_moves,
    next_step,
    receive,
    send,
)
from .machine import RETRIES, TASK_S, batches_max
from .pages import PageChunk, Pages, Unit, chunks, ends_s, gap_s, spaced
from .state import BatchResult, MachineState, PageBatch, state_of

PAGE_MAX = 500  # most messages of one page
PAGE_BYTES = 8 * 1024 * 1024
POLL_S = 1  # seconds of a poll; a long poll asks all of SQS's servers
MARGIN_S = (RETRIES + 1) * TASK_S + 240  # seconds for the task of a batch with all retries and pauses
HIDE_MAX_S = 43_200 - 2 * TASK_S  # longest time, from the receive on, for which SQS hides a message
WAIT_MAX_S = HIDE_MAX_S // 2  # longest wait inside an execution; a longer one is spent in the dead-letter queue
LOOK_S = 900  # seconds between checks while all remaining messages wait in the dead-letter queue
BREAKER_MIN_S, BREAKER_MAX_S = 5, 300  # bounds in seconds of the wait for a breaker
IDLE_MAX = 8  # most checks, 1 to 15 minutes apart, of a queue whose messages are all held, perhaps by another consumer


class Tasks:
    """The tasks of one state machine. `approval_s`: the seconds that a person has to answer, if one is asked."""

    def __init__(
        self, call: SqsCall, cells: Cells, settings: RedriverSettings, now_ms: Callable[[], int], approval_s: int = 0
    ) -> None:
        self._call, self._cells, self._settings, self._now_ms = call, cells, settings, now_ms
        self._approval_s = approval_s
        self._pages = Pages(cells)
        self._gate = Gate(settings, cells, now_ms)

    def check_breaker(self, event: Mapping[str, Any]) -> MachineState:
        """Begin a turn: add the results of the last one, and decide if this one may move messages."""
        known = state_of(event)
        state = replace(
            known,
            chain=known.chain or str(event.get("execution", "")),
            turns=known.turns + 1,
            redriven=known.redriven + sum(result.redriven for result in known.results),
            isolated=known.isolated + sum(result.isolated for result in known.results),
            failed=known.failed + sum(result.failed for result in known.results),
            takeover=False,
            open=False,
            why="",
            wait_s=0,
            count=0,
            batches=[],
            results=[],
        )
        asks = bool(self._approval_s) and not state.approved
        if not self._hold_lock(state.chain, (self._approval_s if asks else 0) + MARGIN_S, force=known.takeover):
            return replace(state, busy=True)
        shut = self._gate.shut()
        if shut is not None:
            wait_s = min(max(shut.wait_s, BREAKER_MIN_S), BREAKER_MAX_S)
            self._hold_lock(state.chain, wait_s + MARGIN_S)
            return replace(state, open=True, why=shut.why, wait_s=wait_s, checks=state.checks + 1)
        return replace(state, checks=0, dead=self._count()[0] if asks else 0)

    def fetch(self, event: Mapping[str, Any]) -> MachineState:
        """Receive a page, decide the step of each message, and store batches with one wait each."""
        state = state_of(event)
        raws = self._receive()
        now_ms = self._now_ms()
        units, held_ms = self._units(raws, now_ms)
        batches, lasts_s = self._lay(units, now_ms)
        known_ms = [ms for ms in (state.held_until_ms, held_ms) if ms > now_ms]
        state = replace(state, batches=batches, count=len(batches), held_until_ms=min(known_ms, default=0), wait_s=0)
        if batches:
            self._hold_lock(state.chain, lasts_s + MARGIN_S)
            return replace(state, idle=0)
        return self._wait(state, now_ms, received=bool(raws))

    def redrive(self, batch: Mapping[str, Any]) -> BatchResult:
        """Send a batch back to its queue after its wait; leave it if the breaker or health URL now forbids it."""
        return self._carry(batch, gated=True)

    def isolate(self, batch: Mapping[str, Any]) -> BatchResult:
        """Send a batch to the poison queue."""
        return self._carry(batch, gated=False)

    # -- a turn

    def _hold_lock(self, chain: str, seconds: int, *, force: bool = False) -> bool:
        """Take or extend the lock for a chain of executions; return False if another chain holds the lock. The lock of
        a stopped chain expires."""
        for _ in range(3):
            cell = self._cells.read([self._lock])[0]
            if cell is not None and cell.value != chain.encode() and not force:
                return False
            swap = Swap(self._lock, version_of(cell), chain.encode(), seconds * 1000)
            if self._cells.swap([swap], durable=False)[0]:
                return True
        return False

    def _unlock(self, chain: str) -> None:
        cell = self._cells.read([self._lock])[0]
        if cell is not None and cell.value == chain.encode():
            self._cells.swap([Swap(self._lock, cell.version, None)], durable=False)

    @property
    def _lock(self) -> str:
        return f"redriver/lock/{self._settings.dead.rpartition('/')[2]}"

    def _count(self) -> tuple[int, int, int]:
        return count(self._call, self._settings.dead)

    def _wait(self, state: MachineState, now_ms: int, *, received: bool) -> MachineState:
        """Return the state with the wait until the next check, as nothing can be moved now; 0 if all is done."""
        if state.held_until_ms or received:
            wait_s = min(max(-(-(state.held_until_ms - now_ms) // 1000), 1), LOOK_S)
        elif state.idle < IDLE_MAX and any(self._count()[:2]):
            wait_s = min(60 * 2**state.idle, LOOK_S)
            state = replace(state, idle=state.idle + 1)
        else:
            self._unlock(state.chain)
            return state
        self._hold_lock(state.chain, wait_s + MARGIN_S)
        return replace(state, wait_s=wait_s)

    # -- a page

    def _receive(self) -> list[Raw]:
        most = min(self._settings.auto.at_once, PAGE_MAX)
        raws: dict[str, Raw] = {}  # SQS may return a message twice; the last receipt is valid
        while len(raws) < most and sum(len(raw["Body"]) for raw in raws.values()) < PAGE_BYTES:
            limit = min(BATCH_MAX, most - len(raws))
            more = receive(self._call, self._settings.dead, limit, visibility_s=MARGIN_S, wait_s=POLL_S)
            if not more:
                break
            raws |= {raw["MessageId"]: raw for raw in more}
        return list(raws.values())

    def _units(self, raws: Sequence[Raw], now_ms: int) -> tuple[list[Unit], int]:
        """Return the units to move now, soonest first, and the time when the next hidden message is due (0: none)."""
        steps = self._long_waits([(raw, next_step(raw, now_ms, self._settings.auto)) for raw in raws], now_ms)
        groups: dict[str, list[tuple[Raw, RedriveStep]]] = {}
        for raw, step in steps:
            groups.setdefault(group_of(raw) if self._settings.fifo else raw["ReceiptHandle"], []).append((raw, step))
        units = [Unit(max(_wait_s(step) for _, step in group), group) for group in groups.values()]
        far = [unit for unit in units if unit.wait_s > WAIT_MAX_S]
        self._hide([(raw, min(unit.wait_s, HIDE_MAX_S)) for unit in far for raw, _ in unit.steps])
        held_ms = min((now_ms + 1000 * min(unit.wait_s, HIDE_MAX_S) for unit in far), default=0)
        return sorted((u for u in units if u.wait_s <= WAIT_MAX_S), key=lambda u: (u.wait_s, u.word)), held_ms

    def _long_waits(self, steps: list[tuple[Raw, RedriveStep]], now_ms: int) -> list[tuple[Raw, RedriveStep]]:
        """Count a wait that may be too long for one receipt from the time at which the message was first seen, which a
        cell stores. A wait is cut so that it ends before SQS deletes the message."""
        auto = self._settings.auto
        if auto.delay_s(auto.max_redrives) <= WAIT_MAX_S or not steps:
            return steps
        known = self._call(
            "GetQueueAttributes", QueueUrl=self._settings.dead, AttributeNames=["MessageRetentionPeriod"]
        )
        kept_s = int(known["Attributes"]["MessageRetentionPeriod"])
        names = [f"redriver/due/{raw['MessageId']}" for raw, _ in steps]
        result, swaps = [], []
        for (raw, step), name, cell in zip(steps, names, self._cells.read(names), strict=True):
            if isinstance(step, MoveStep):
                sent_ms = int((raw.get("Attributes") or {}).get("SentTimestamp", now_ms))
                last_ms = sent_ms + 1000 * max(0, kept_s - HIDE_MAX_S)
                due_ms = int(cell.value) if cell else min(now_ms + 1000 * step.delay_s, max(last_ms, now_ms))
                if cell is None:
                    swaps.append(Swap(name, 0, str(due_ms).encode(), 1000 * kept_s))
                step = replace(step, delay_s=max(0, -(-(due_ms - now_ms) // 1000)))
            result.append((raw, step))
        if swaps:
            self._cells.swap(swaps)
        return result

    def _lay(self, units: Sequence[Unit], now_ms: int) -> tuple[list[PageBatch], int]:
        """Store the units in batches, each with one wait. Return the batches in the order in which the machine's Map
        runs them, and the seconds until the last wait ends. Messages whose wait would end too late become visible."""
        auto, cell = self._settings.auto, self._cells.read([self._gap])[0]
        parts = spaced(chunks(units, auto.batch), auto, int(cell.value) if cell else 0)
        ends = ends_s([chunk.wait_s for chunk in parts], auto.concurrency)
        hidden, batches, laid = [], list[PageBatch](), list[PageChunk]()
        for n, (chunk, end_s) in enumerate(zip(parts, ends, strict=True)):
            raws = chunk.raws
            fits = n < batches_max(auto) and end_s + 2 * MARGIN_S <= HIDE_MAX_S
            hidden += [(raw, end_s + MARGIN_S if fits else 0) for raw in raws]
            if fits:
                key = self._pages.write(raws, now_ms, 1000 * (end_s + MARGIN_S))
                batches.append(PageBatch(key=key, step=chunk.word, wait_s=chunk.wait_s, count=len(raws)))
                laid.append(chunk)
        self._hide(hidden)
        lasts_s = max(ends[: len(batches)], default=0)
        self._keep_gap(laid, lasts_s, version_of(cell))
        return batches, lasts_s

    def _keep_gap(self, laid: Sequence[PageChunk], lasts_s: int, version: int) -> None:
        """Store how long the next page must wait after the last batch of this one, to keep the rate."""
        gap = math.ceil(gap_s(laid[-1], self._settings.auto)) if laid else 0
        if gap:
            self._cells.swap([Swap(self._gap, version, str(gap).encode(), 1000 * (lasts_s + gap))], durable=False)

    @property
    def _gap(self) -> str:
        return f"redriver/gap/{self._settings.dead.rpartition('/')[2]}"

    def _hide(self, raws: Sequence[tuple[Raw, int]]) -> None:
        hide(self._call, self._settings.dead, [raw for raw, _ in raws], [seconds for _, seconds in raws])

    # -- a batch

    def _carry(self, event: Mapping[str, Any], *, gated: bool) -> BatchResult:
        batch = msgspec.convert(event, PageBatch)
        raws = self._pages.read(batch.key)
        result = BatchResult(key=batch.key)
        if raws and gated and self._gate.shut() is not None:
            self._hide([(raw, 0) for raw in raws])
            result = replace(result, put_back=len(raws))
            log_action("put_back", self._now_ms(), ids=[raw["MessageId"] for raw in raws])
        elif raws:
            # A retry after the function died learns here which messages were already sent and deleted.
            ours = hold(self._call, self._settings.dead, raws, MARGIN_S)
            result = self._result(batch.key, self._send(ours))
        self._pages.remove(batch.key)
        return result

    def _send(self, raws: Sequence[Raw]) -> MoveOutcome:
        now_ms, auto = self._now_ms(), self._settings.auto
        steps = [(raw, next_step(raw, now_ms, auto)) for raw in raws]
        waited = [(raw, replace(step, delay_s=0) if isinstance(step, MoveStep) else step) for raw, step in steps]
        done = send(self._call, self._settings, waited, now_ms)
        log_moves(done, now_ms)
        return done

    def _result(self, key: str, done: MoveOutcome) -> BatchResult:
        result = BatchResult(key=key, redriven=done.redriven, isolated=done.isolated, failed=len(done.failures))
        whys = sorted({failure.why for failure in done.failures})[:5]
        line = redriver_line(
            self._settings.queue,
            result.redriven,
            result.isolated,
            result.failed,
            namespace=self._settings.namespace,
            at_ms=self._now_ms(),
            **({"failures": whys} if whys else {}),
        )
        sys.stdout.write(line.decode())
        sys.stdout.flush()
        return result


def _wait_s(step: RedriveStep) -> int:
    return step.delay_s if isinstance(step, MoveStep) else 0
