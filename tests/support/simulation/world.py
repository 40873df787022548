"""A fleet of workers, a store and an endpoint on a virtual clock.

What decides is the real thing: `admit`, `decide` and the transitions of `redrive.flow`. What is modelled is what they
decide about: a queue in due order, a group with a width, workers with places, and how long calls take. Between events
no time passes.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from redrive.decide import RUN, Policy, Signals, admit, decide, with_fate
from redrive.fault import Fault
from redrive.flow import calls, permits
from redrive.flow import dependency as flow
from redrive.flow.dependency import Dependency, DependencyState, PendingEvidence
from redrive.message import DeadLetter, Decision, Lane, Message, Quarantine, RetryAt

START_MS = 1_750_000_000_000
FLUSH_MS = 250  # how long a worker keeps what it only counts
CLAIM_MS, CLAIM_EACH_MS = 2, 0.2  # what an exchange takes, and what each message of it


class Endpoint(Protocol):
    """What the messages call."""

    def call(self, now_ms: int, first: bool) -> tuple[int, Fault | None]:
        """A call begins: when it ends, and how."""
        ...


@dataclass(slots=True)
class Worker:
    name: str
    concurrency: int
    running: int = 0
    busy_ms: int = 0  # until when it is at the store
    seen: PendingEvidence = field(default_factory=PendingEvidence)
    flushing: bool = False
    pace_ms: float = 50.0


@dataclass(slots=True)
class Story:
    """What became of one message."""

    put_ms: int
    done_ms: int | None = None
    dead: str | None = None
    runs: int = 0
    claims: int = 0
    denied: Counter[str] = field(default_factory=Counter)  # since it last ran
    denied_most: Counter[str] = field(default_factory=Counter)


class World:
    """`width`: of the one group that all messages then belong to; None: no group."""

    def __init__(
        self,
        endpoint: Endpoint,
        policy: Policy,
        dependency: Dependency | None = None,
        *,
        workers: int = 4,
        concurrency: int = 20,
        width: int | None = None,
    ) -> None:
        self.endpoint, self.policy, self.d = endpoint, policy, dependency
        self.workers = [Worker(f"w{i}", concurrency) for i in range(workers)]
        self.width = math.inf if width is None else width
        self.now_ms = START_MS
        self.state = DependencyState()
        self.stories: list[Story] = []
        self.statuses: list[tuple[int, str]] = []  # of the breaker, with times
        self._messages: dict[int, Message] = {}
        self._due: list[tuple[int, int]] = []  # those with a place, by due time
        self._waiting: list[tuple[int, int]] = []  # those without, by due time
        self._line: deque[int] = deque()
        self._taken = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    # -- what a test does

    def at(self, at_ms: int, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_ms, self._number, act))

    def put(self, n: int = 1, *, attempt: int = 0) -> None:
        """New messages, due now; with `attempt`, such as have failed so often."""
        for _ in range(n):
            seq = len(self.stories)
            name = f"m{seq}"
            self._messages[seq] = Message(
                name, "t", "q", b"{}", name, attempt=attempt, enqueued_ms=self.now_ms, life_ms=self.now_ms
            )
            self.stories.append(Story(self.now_ms))
            self._line.append(seq)

    def put_steadily(self, per_s: float, from_ms: int, until_ms: int) -> None:
        for i in range(int((until_ms - from_ms) / 1000 * per_s)):
            self.at(from_ms + round(i * 1000 / per_s), self.put)

    def run(self, until_ms: int) -> None:
        """Let time pass, at most until then, or until nothing is left to happen."""
        while True:
            self._admit()
            held_ms = self._claim_all()
            next_ms = self._next_ms(held_ms)
            if next_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, int(next_ms))
            while self._events and self._events[0][0] <= self.now_ms:
                heapq.heappop(self._events)[2]()
        self.now_ms = max(self.now_ms, until_ms if self.left else self.now_ms)

    @property
    def left(self) -> int:
        return len(self._messages)

    @property
    def dead(self) -> Counter[str]:
        return Counter(story.dead for story in self.stories if story.dead is not None)

    # -- the store

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.now_ms:
            self._line.append(heapq.heappop(self._waiting)[1])
        while self._line and self._taken < self.width:
            self._taken += 1
            heapq.heappush(self._due, (self.now_ms, self._line.popleft()))

    def _next_ms(self, held_ms: int) -> float:
        times = [self._events[0][0]] if self._events else []
        if self._waiting:
            times.append(self._waiting[0][0])
        if self._due:
            free_ms = [worker.busy_ms for worker in self.workers if worker.running < worker.concurrency]
            if free_ms:
                times.append(max(self.now_ms + 1, held_ms, min(free_ms), self._due[0][0]))
        return min(times, default=math.inf)

    def _claim_all(self) -> int:
        """Every worker claims what it has room for. Until when claims hold back, or 0."""
        for worker in self.workers:
            if worker.running >= worker.concurrency or worker.busy_ms > self.now_ms:
                continue
            if not self._due or self._due[0][0] > self.now_ms:
                return 0
            if self.d is None or self.d.per is not None:  # whose key a message has is not known before it is claimed
                self._claim(worker, worker.concurrency - worker.running)
                continue
            found = permits.allowance(self.state, self.d, self.now_ms, self._free(worker))
            if found.count > 0:
                self._claim(worker, int(min(found.count, worker.concurrency - worker.running)))
            elif self._free(worker) > 0:
                return math.ceil(found.next_ms)
        return 0

    # -- a worker

    def _free(self, worker: Worker) -> float:
        if self.d is None or self.d.concurrency is None:
            return math.inf
        return flow.share(self.state, self.d, worker.name) - worker.running

    def _claim(self, worker: Worker, most: int) -> None:
        tokens = self._take(worker, most)
        seqs: list[int] = []
        while self._due and self._due[0][0] <= self.now_ms and len(seqs) < most:
            seqs.append(heapq.heappop(self._due)[1])
        worker.busy_ms = self.now_ms + round(CLAIM_MS + CLAIM_EACH_MS * len(seqs))
        messages = []
        for seq in seqs:
            message = self._messages[seq]
            messages.append(replace(message, lane=Lane.LEASED, fence=message.fence + 1, attempt=message.attempt + 1))
            self.stories[seq].claims += 1
        answers = permits.Answers([None] * len(messages))
        if self.d is not None:
            state, answers = permits.ask(
                self.state,
                self.d,
                messages,
                self.now_ms,
                free=self._free(worker),
                pace_ms=worker.pace_ms,
                tokens=tokens,
            )
            self._set(state)
            worker.seen.unused += tokens - answers.used
            worker.seen.waited |= 0 < tokens == answers.used
            self._flush_later(worker)
        for seq, message, refusal in zip(seqs, messages, answers.refusals, strict=True):
            verdict = admit(message, self.policy, Signals(refusal=refusal), self.now_ms)
            if verdict is RUN:
                self._begin(worker, seq, message, flow.owner_of(message) in answers.probes)
            else:
                self._settle(seq, message, verdict, None, worker)

    def _take(self, worker: Worker, most: int) -> int:
        """The tokens for so many claims, where there are any to take."""
        self._flush(worker)
        if self.d is None or self.d.per is not None or not permits.bounded(self.state, self.d):
            return 0
        state, tokens = permits.take(self.state, self.d, most, self.now_ms)
        self._set(state)
        return tokens

    def _begin(self, worker: Worker, seq: int, message: Message, probe: bool) -> None:
        worker.running += 1
        story, began_ms = self.stories[seq], self.now_ms
        story.runs += 1
        story.denied.clear()
        if message.attempt == 1:
            worker.seen.firsts += 1
            self._flush_later(worker)
        end_ms, fault = self.endpoint.call(began_ms, message.attempt == 1)
        self.at(end_ms, lambda: self._end(worker, seq, message, probe, began_ms, fault))

    def _end(self, worker: Worker, seq: int, message: Message, probe: bool, began_ms: int, fault: Fault | None) -> None:
        worker.running -= 1
        if self.d is not None:
            self._tell(worker, self.d, message, probe, self.now_ms - began_ms, fault)
        if fault is None:
            self._settle(seq, message, None, None, worker)
        else:
            self._settle(seq, message, decide(message, fault, self.policy, self.now_ms), fault, worker)

    def _tell(
        self, worker: Worker, d: Dependency, message: Message, probe: bool, run_ms: int, fault: Fault | None
    ) -> None:
        worker.pace_ms += 0.1 * (run_ms - worker.pace_ms)
        word, asked_s = calls.seen_of(fault, run_ms / 1000, d)
        seen = worker.seen
        seen.asked_s = max(seen.asked_s, asked_s)
        if probe:
            seen.probes = {**seen.probes, flow.owner_of(message): word}
        else:
            calls.note(seen, self.state, d, message, word, self.now_ms)
        seen.overloads += word == "throttled"
        if probe or asked_s or (fault is not None and self._opens(worker, d)):
            self._flush(worker)
        self._flush_later(worker)

    def _opens(self, worker: Worker, d: Dependency) -> bool:
        after = calls.apply(self.state, d, worker.seen, self.now_ms, worker.name)
        return after.breaker.turn != self.state.breaker.turn

    def _flush_later(self, worker: Worker) -> None:
        if not worker.flushing and self.d is not None:
            worker.flushing = True
            self.at(self.now_ms + FLUSH_MS, lambda: self._flush(worker, on_time=True))

    def _flush(self, worker: Worker, *, on_time: bool = False) -> None:
        if on_time:
            worker.flushing = False
        if worker.seen and self.d is not None:
            self._set(calls.apply(self.state, self.d, worker.seen, self.now_ms, worker.name))
            worker.seen = PendingEvidence()

    def _set(self, state: DependencyState) -> None:
        if state.breaker.status != self.state.breaker.status:
            self.statuses.append((self.now_ms, state.breaker.status))
        self.state = state

    def _settle(
        self, seq: int, message: Message, decision: Decision | None, fault: Fault | None, worker: Worker
    ) -> None:
        story = self.stories[seq]
        if isinstance(decision, RetryAt) and decision.at_ms <= self.now_ms:
            self._messages[seq] = _waiting(message, decision, fault, self.now_ms, worker)
            heapq.heappush(self._due, (self.now_ms, seq))
            return
        self._taken -= 1
        match decision:
            case RetryAt(at_ms, deferral=deferral):
                if deferral is not None:
                    story.denied[deferral.why] += 1
                    story.denied_most |= story.denied
                self._messages[seq] = _waiting(message, decision, fault, self.now_ms, worker)
                heapq.heappush(self._waiting, (at_ms, seq))
            case DeadLetter(reason) | Quarantine(reason=reason):
                story.dead = reason
                del self._messages[seq]
            case _:
                story.done_ms = self.now_ms
                del self._messages[seq]


def _waiting(message: Message, decision: RetryAt, fault: Fault | None, now_ms: int, worker: Worker) -> Message:
    """The message as the store keeps it."""
    faults = message.faults
    if fault is not None:
        faults = (*faults[:1], with_fate(fault, message, decision, now_ms, worker.name))  # nothing here looks between
    return replace(
        message,
        lane=Lane.READY,
        due_ms=decision.at_ms,
        attempt=message.attempt - (not decision.counts),
        held_ms=message.held_ms + (max(0, decision.at_ms - now_ms) if decision.held else 0),
        deferral=decision.deferral,
        faults=faults,
    )
