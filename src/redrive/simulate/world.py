"""A fleet of workers and a queue on a virtual clock. Between events no time passes.

`admit`, `decide`, the controls of `flow` and the counting of evidence are the product's. As in a worker, first attempts
of a calm dependency are not asked about, and what is only counted is written four times a second.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from ..decide import NO_SIGNALS, RUN, Policy, Signals, admit, decide, with_fate
from ..fault import Fault
from ..flow import calls, permits
from ..flow import dependency as flow
from ..flow.dependency import Dependency, DependencyState, PendingEvidence
from ..message import Ack, Decision, Lane, Message, RetryAt
from ..worker.redrive_outcome import DONE, first_outcome
from .groups import GroupRule, Groups
from .service import ServiceModel

FLUSH_MS = 250  # ms for which a worker keeps what it only counts
CLAIM_MS, CLAIM_EACH_MS = 2.0, 0.2  # the duration of a claim, and what each of its messages adds
TASK, QUEUE = "simulated", "simulated"
_PACE = 0.1
_DONE = Ack()


class FleetSize(NamedTuple):
    """So many worker processes, each with so many places."""

    processes: int = 2
    concurrency: int = 20


class VirtualWorker(Struct, eq=False):
    """One worker process: its free places, and its evidence about the dependency."""

    name: str
    places: int
    running: int = 0
    busy_ms: int = 0  # until when it is at the store
    pace_ms: float = 50.0
    dirty: bool = False
    seen: PendingEvidence = field(default_factory=PendingEvidence)


class SecondCounts(Struct):
    """What happened in each second since the start."""

    arrived: list[int] = []
    calls: list[int] = []
    retries: list[int] = []
    done: list[int] = []
    dead: list[int] = []

    def add(self, what: list[int], second: int, count: int = 1) -> None:
        if second >= len(what):
            what.extend([0] * (second + 1 - len(what)))
        what[second] += count


class World:
    """One queue, its workers, and the dependency `d` that they call. `arrivals` are the times of new messages, in
    order; `backlog` are messages that wait at the start. With `groups`, each message belongs to one. `on_first` hears
    if the first counted run of a message of a redrive succeeded."""

    now_ms: int
    state: DependencyState
    last_ms: int
    policy: Policy
    service: ServiceModel
    d: Dependency | None
    start_ms: int
    left: int

    def __init__(
        self,
        policy: Policy,
        service: ServiceModel,
        d: Dependency | None = None,
        *,
        fleet: FleetSize = FleetSize(),  # noqa: B008 - a tuple
        start_ms: int = 0,
        seed: int = 0,
        state: DependencyState | None = None,
        arrivals: Iterable[int] = (),
        backlog: Iterable[Message] = (),
        groups: GroupRule | None = None,
    ) -> None:
        self._groups = None if groups is None else Groups(groups, seed)
        self.policy, self.service, self.d = policy, service, d
        self.now_ms = self.start_ms = start_ms
        self.state = DependencyState() if state is None else state
        self.counts: SecondCounts = SecondCounts()
        self.dead: Counter[str] = Counter()
        self.statuses: list[tuple[int, str]] = []  # each status of the breaker, and since when
        self.took_ms: list[float] = []  # from when a message was put to its success
        self.last_ms = start_ms  # when the last message ended
        self.on_first: Callable[[bool], None] = _ignore
        self.awaits = False  # True while somebody outside will still put messages
        self.left = 0  # messages that have not ended
        self._workers: list[VirtualWorker] = []
        self._places, self._born = fleet.concurrency, 0
        self.resize(fleet.processes)
        self._arrivals: Iterator[int] = iter(arrivals)
        self._next_arrival = next(self._arrivals, None)
        self._fresh: deque[int] = deque()  # when each message that was never claimed was put
        self._due: list[tuple[int, int, Message]] = []
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number, self._seed = 0, seed
        for message in backlog:
            self.put(message)

    def resize(self, processes: int) -> None:
        """From now on, let so many processes take work. One that stops ends what it runs."""
        del self._workers[processes:]
        while len(self._workers) < processes:
            self._workers.append(VirtualWorker(f"w{self._born}", self._places))
            self._born += 1

    # -- the clock

    def at(self, at_ms: int, act: Callable[..., None], *args: Any) -> None:
        """Call `act` at that time."""
        self._number += 1
        heapq.heappush(self._events, (at_ms, self._number, act, args))

    def put(self, message: Message) -> None:
        """Put a message: due at its time, or now."""
        self.left += 1
        self._enter(message if self._groups is None else self._groups.member(message), message.due_ms or self.now_ms)

    def _enter(self, message: Message, due_ms: int) -> None:
        """Let a message wait for a worker from then on, unless its group has no place for it."""
        if self._groups is None or self._groups.enter(message):
            self._wait(message, due_ms)

    def _wait(self, message: Message, due_ms: int) -> None:
        self._number += 1
        heapq.heappush(self._due, (due_ms, self._number, message))

    def _leave(self, message: Message) -> None:
        if self._groups is not None and (next := self._groups.leave(message)) is not None:
            self._wait(next, self.now_ms)

    def run(self, until_ms: int, goes_on: Callable[[float], bool] | None = None) -> bool:
        """Let time pass until then, or until nothing is left to happen. `goes_on` is asked once in each second that
        passes, with the seconds so far; return False if it ended the run."""
        look_ms = self.now_ms
        while True:
            next_ms = min(self._claim_all(), self._events[0][0] if self._events else math.inf)
            if self._next_arrival is not None:
                next_ms = min(next_ms, self._next_arrival)
            if next_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, int(next_ms))
            if goes_on is not None and self.now_ms >= look_ms:
                if not goes_on((self.now_ms - self.start_ms) / 1000):
                    return False
                look_ms = self.now_ms + 1000
            self._arrive()
            while self._events and self._events[0][0] <= self.now_ms:
                _, _, act, args = heapq.heappop(self._events)
                act(*args)
            if not self.left and self._next_arrival is None and not self.awaits:
                break
        return True

    def _arrive(self) -> None:
        count = 0
        while self._next_arrival is not None and self._next_arrival <= self.now_ms:
            if self._groups is None:
                self._fresh.append(self._next_arrival)
            else:  # a member of a group is a message from the start
                self._enter(self._groups.member(self._new(self._next_arrival, Lane.READY, 0)), self.now_ms)
            count += 1
            self._next_arrival = next(self._arrivals, None)
        if count:
            self.left += count
            self.counts.add(self.counts.arrived, self._second(), count)

    def _new(self, put_ms: int, lane: Lane, claims: int) -> Message:
        self._number += 1
        id = f"{self._seed}-{self._number}"
        return Message(id, TASK, QUEUE, b"", id, lane, fence=claims, attempt=claims, enqueued_ms=put_ms, life_ms=put_ms)

    def _second(self) -> int:
        return (self.now_ms - self.start_ms) // 1000

    # -- claims

    def _first_due(self) -> float:
        fresh = self._fresh[0] if self._fresh else math.inf
        return min(fresh, self._due[0][0]) if self._due else fresh

    def _claim_all(self) -> float:
        """Let each worker claim what it has room for; return when the next claim may be possible."""
        for worker in self._workers:
            room = worker.places - worker.running
            if room <= 0 or worker.busy_ms > self.now_ms:
                continue
            if self._first_due() > self.now_ms:
                break
            if self.d is not None:
                found = permits.allowance(self.state, self.d, self.now_ms, self._free(worker))
                if found.count <= 0:
                    if self._free(worker) <= 0:
                        continue  # the end of one of its calls makes room
                    return max(self.now_ms + 1, math.ceil(found.next_ms))
                room = int(min(room, found.count))
            self._claim(worker, room)
        free_ms = [worker.busy_ms for worker in self._workers if worker.running < worker.places]
        due_ms = self._first_due()
        if not free_ms or due_ms == math.inf:
            return math.inf
        return max(self.now_ms + 1, min(free_ms), due_ms)

    def _free(self, worker: VirtualWorker) -> float:
        if self.d is None or self.d.concurrency is None:
            return math.inf
        return flow.share(self.state, self.d, worker.name) - worker.running

    def _claim(self, worker: VirtualWorker, most: int) -> None:
        tokens, now_ms = self._take(worker, most), self.now_ms
        messages: list[Message] = []
        while len(messages) < most:
            if self._fresh and (not self._due or self._fresh[0] <= self._due[0][0]):
                if self._fresh[0] > now_ms:
                    break
                messages.append(self._new(self._fresh.popleft(), Lane.LEASED, 1))
            elif self._due and self._due[0][0] <= now_ms:
                m = heapq.heappop(self._due)[2]
                messages.append(replace(m, lane=Lane.LEASED, fence=m.fence + 1, attempt=m.attempt + 1))
            else:
                break
        worker.busy_ms = now_ms + round(CLAIM_MS + CLAIM_EACH_MS * len(messages))
        asking = [m for m in messages if not self._goes(m)]
        refused: dict[str, Signals] = {}
        probes: frozenset[str] = frozenset()
        if asking and self.d is not None:
            probes = self._ask(worker, asking, tokens, refused)
        for message in messages:
            verdict = admit(message, self.policy, refused.get(message.id, NO_SIGNALS), now_ms)
            if verdict is RUN:
                self._begin(worker, message, bool(probes) and flow.owner_of(message) in probes)
            else:
                self._settle(message, verdict, None, worker)  # type: ignore[arg-type]

    def _goes(self, message: Message) -> bool:
        """True if the message may run without asking: a first attempt of a calm dependency, as workers let it go."""
        d = self.d
        if d is None:
            return True
        if message.attempt > 1 or message.deferral is not None or d.rate is not None or d.concurrency is not None:
            return False
        return permits.calm(self.state, d, self.now_ms)

    def _ask(
        self, worker: VirtualWorker, asking: list[Message], tokens: int, refused: dict[str, Signals]
    ) -> frozenset[str]:
        d = self.d
        assert d is not None
        base = self._with_seen(worker, d)
        state, answers = permits.ask(
            base, d, asking, self.now_ms, free=self._free(worker), pace_ms=worker.pace_ms, tokens=tokens
        )
        if state is not base:
            self._set(state)
            worker.seen = PendingEvidence()
        if tokens:
            worker.seen.unused += tokens - answers.used
            worker.seen.waited |= tokens == answers.used
            self._flush_later(worker)
        for message, refusal in zip(asking, answers.refusals, strict=True):
            if refusal is not None:
                refused[message.id] = Signals(refusal=refusal)
        return answers.probes

    def _take(self, worker: VirtualWorker, most: int) -> int:
        """Return the tokens for so many claims, if the dependency has any to take."""
        if self.d is None or not permits.bounded(self.state, self.d):
            return 0
        state, tokens = permits.take(self._with_seen(worker, self.d), self.d, most, self.now_ms)
        self._set(state)
        worker.seen = PendingEvidence()
        return tokens

    # -- runs

    def _begin(self, worker: VirtualWorker, message: Message, probe: bool) -> None:
        worker.running += 1
        second = self._second()
        self.counts.add(self.counts.calls, second)
        if message.attempt == 1:
            worker.seen.firsts += 1
        else:
            self.counts.add(self.counts.retries, second)
        if not worker.dirty:
            self._flush_later(worker)
        end_ms, fault = self.service.call(message, self.now_ms)
        self.at(end_ms, self._end, worker, message, probe, self.now_ms, fault)

    def _end(self, worker: VirtualWorker, message: Message, probe: bool, began_ms: int, fault: Fault | None) -> None:
        worker.running -= 1
        run_ms = self.now_ms - began_ms
        if self.d is not None:
            self._tell(worker, self.d, message, probe, run_ms, fault)
        if fault is None:
            self._settle(message, _DONE, None, worker)
            return
        fault = replace(fault, ran_ms=run_ms)
        self._settle(message, decide(message, fault, self.policy, self.now_ms), fault, worker)

    def _tell(
        self, worker: VirtualWorker, d: Dependency, message: Message, probe: bool, run_ms: int, fault: Fault | None
    ) -> None:
        worker.pace_ms += _PACE * (run_ms - worker.pace_ms)
        seen = worker.seen
        word, asked_s = calls.seen_of(fault, run_ms / 1000, d)
        if word == "success" and not probe and message.attempt == 1:
            seen.success += 1
            seen.well_ms = self.now_ms
        else:
            seen.asked_s = max(seen.asked_s, asked_s)
            if probe:
                seen.probes = {**seen.probes, flow.owner_of(message): word}
            else:
                calls.note(seen, self.state, d, message, word, self.now_ms)
            seen.overloads += word == "throttled"
            if probe or asked_s or (fault is not None and self._opens(worker, d)):
                self._flush(worker)
        if not worker.dirty:
            self._flush_later(worker)

    def _opens(self, worker: VirtualWorker, d: Dependency) -> bool:
        return d.breaker is not None and self._with_seen(worker, d).breaker.turn != self.state.breaker.turn

    def _with_seen(self, worker: VirtualWorker, d: Dependency) -> DependencyState:
        return calls.apply(self.state, d, worker.seen, self.now_ms, worker.name) if worker.seen else self.state

    def _flush_later(self, worker: VirtualWorker) -> None:
        if not worker.dirty and self.d is not None:
            worker.dirty = True
            self.at(self.now_ms + FLUSH_MS, self._flush_on_time, worker)

    def _flush_on_time(self, worker: VirtualWorker) -> None:
        worker.dirty = False
        self._flush(worker)

    def _flush(self, worker: VirtualWorker) -> None:
        if worker.seen and self.d is not None:
            self._set(self._with_seen(worker, self.d))
            worker.seen = PendingEvidence()

    def _set(self, state: DependencyState) -> None:
        if state.breaker.status != self.state.breaker.status:
            self.statuses.append((self.now_ms, state.breaker.status))
        self.state = state

    def _settle(self, message: Message, decision: Decision, fault: Fault | None, worker: VirtualWorker) -> None:
        now_ms = self.now_ms
        if message.run is not None and (first := first_outcome(message, decision)) is not None:
            self.on_first(first == DONE)
        if isinstance(decision, RetryAt):
            kept = as_kept(message, decision, fault, now_ms, worker.name)
            if self._groups is None or self._groups.strict or decision.at_ms <= now_ms:
                self._wait(kept, decision.at_ms)
            else:
                self._leave(message)
                self.at(decision.at_ms, self._enter, kept, decision.at_ms)
            return
        self._leave(message)
        self.left -= 1
        self.last_ms = now_ms
        if isinstance(decision, Ack):
            self.counts.add(self.counts.done, self._second())
            self.took_ms.append(now_ms - message.life_ms)
        else:
            self.dead[decision.reason] += 1
            self.counts.add(self.counts.dead, self._second())


def _ignore(done: bool) -> None:
    """Do nothing."""


def as_kept(message: Message, decision: RetryAt, fault: Fault | None, now_ms: int, worker: str) -> Message:
    """Return the message as a store keeps it until its retry."""
    faults = message.faults
    if fault is not None:
        faults = (*faults[:1], with_fate(fault, message, decision, now_ms, worker))  # nothing looks between these two
    return replace(
        message,
        lane=Lane.READY,
        due_ms=decision.at_ms,
        attempt=message.attempt - (not decision.counts),
        held_ms=message.held_ms + (max(0, decision.at_ms - now_ms) if decision.held else 0),
        deferral=decision.deferral,
        faults=faults,
    )
