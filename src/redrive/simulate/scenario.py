"""A scenario: what comes, who works, what is called, by which rules. `simulate` plays it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, pairwise
from statistics import median
from typing import Literal, NamedTuple

from msgspec import Struct

from ..decide import Policy
from ..flow.dependency import Dependency, DependencyState
from ..message import Message
from ..triage.redrive.records import RedriveSettings
from .carrier import Carrier
from .groups import GroupRule
from .service import ModelService, ServiceModel
from .world import FleetSize, World

START_MS = 1_750_000_000_000
SETTLE_S = 4 * 3600.0  # the most seconds after the load that a scenario is watched


class LoadPhase(Struct, frozen=True):
    """New messages: `per_s` a second from `from_s` until `until_s`, evenly or at random times (a Poisson process); with
    `to_per_s`, rising or falling steadily to that."""

    from_s: float
    until_s: float
    per_s: float
    to_per_s: float | None = None


class FleetChange(NamedTuple):
    """From `at_s` on, so many processes take work. Those that stop end what they run."""

    at_s: float
    processes: int


class PlannedRedrive(Struct, frozen=True, kw_only=True):
    """A redrive of `total` dead messages, from `at_s` on."""

    total: int
    at_s: float = 0.0
    settings: RedriveSettings = RedriveSettings()


class Scenario(Struct, frozen=True, kw_only=True):
    """What is simulated. Seconds count from its start. It ends once nothing is left to do, or `settle_s` after the load
    ends. `times` are those of single messages beside the load. With `groups`, each message belongs to one. `state` is
    what the dependency's controls know at the start, and `backlog` what waits then."""

    load: tuple[LoadPhase, ...] = ()
    times: tuple[float, ...] = ()
    arrivals: Literal["even", "random"] = "even"
    policy: Policy = Policy()
    dependency: Dependency | None = None
    service: ModelService = ModelService()
    fleet: FleetSize = FleetSize()
    fleet_changes: tuple[FleetChange, ...] = ()
    groups: GroupRule | None = None
    redrive: PlannedRedrive | None = None
    seed: int = 0
    settle_s: float = SETTLE_S
    start_ms: int = START_MS
    state: DependencyState | None = None
    backlog: tuple[Message, ...] = ()


class Simulated(Struct, frozen=True, kw_only=True):
    """What came of a scenario. The lists have a number for each second since the start: `arrived` messages, `calls` of
    the dependency, of these `retries`, messages that were `done`, and that died (`deaths`).

    `dead` counts by reason, `left` what had not ended. `drained_s` is when the last message ended; None if some are
    left. `breaker` has each status and since when. `moved`, `failed` and `over_s` are those of the redrive; `stopped`
    says why it stopped itself. `p50_s` and `p99_s` are the times from when a message was put to its success. `cut_s`:
    the second in which the caller ended it early, if it did.
    """

    seed: int
    arrived: Sequence[int]
    calls: Sequence[int]
    retries: Sequence[int]
    done: Sequence[int]
    deaths: Sequence[int]
    dead: Mapping[str, int]
    left: int
    drained_s: float | None
    breaker: Sequence[tuple[float, str]]
    p50_s: float | None
    p99_s: float | None
    moved: int = 0
    failed: int = 0
    over_s: float | None = None
    stopped: str = ""
    cut_s: float | None = None

    @property
    def messages(self) -> int:
        """All messages that came, waited at the start, or were redriven."""
        return sum(self.done) + sum(self.dead.values()) + self.left

    @property
    def peak_per_s(self) -> int:
        """The most calls in one second."""
        return max(self.calls, default=0)

    @property
    def normal_per_s(self) -> float:
        """The messages that came in the median second of those in which any came."""
        return median([each for each in self.arrived if each] or [0])

    @property
    def amplification(self) -> float:
        """Calls per message."""
        return sum(self.calls) / max(1, self.messages)


def simulate(scenario: Scenario, goes_on: Callable[[float, float], bool] | None = None) -> Simulated:
    """Play a scenario. The same scenario has the same outcome. `goes_on` hears once in each simulated second how many
    have passed, and when the load ends; once it returns False, the outcome is what is known by then."""
    start_ms = scenario.start_ms
    world = World(
        scenario.policy,
        ServiceModel(scenario.service, start_ms, scenario.seed),
        scenario.dependency,
        fleet=scenario.fleet,
        start_ms=start_ms,
        seed=scenario.seed,
        state=scenario.state,
        arrivals=_times(scenario),
        backlog=scenario.backlog,
        groups=scenario.groups,
    )
    carrier = None
    for change in scenario.fleet_changes:
        world.at(start_ms + round(change.at_s * 1000), world.resize, change.processes)
    ends_s = max((*(load.until_s for load in scenario.load), *scenario.times), default=0.0)
    if (redrive := scenario.redrive) is not None:
        at_ms = start_ms + round(redrive.at_s * 1000)
        carrier = Carrier(world, redrive.total, redrive.settings, at_ms, scenario.seed)
        ends_s = max(ends_s, redrive.at_s)
    watch = None if goes_on is None else lambda passed_s: goes_on(passed_s, ends_s)
    whole = world.run(start_ms + math.ceil((ends_s + scenario.settle_s) * 1000), watch)
    took_ms, counts = sorted(world.took_ms), world.counts
    over_ms = None if carrier is None else carrier.over_ms
    return Simulated(
        seed=scenario.seed,
        arrived=counts.arrived,
        calls=counts.calls,
        retries=counts.retries,
        done=counts.done,
        deaths=counts.dead,
        dead=dict(sorted(world.dead.items())),
        left=world.left,
        drained_s=None if world.left or not whole else (world.last_ms - start_ms) / 1000,
        breaker=[((at_ms - start_ms) / 1000, status) for at_ms, status in world.statuses],
        p50_s=_share(took_ms, 0.5),
        p99_s=_share(took_ms, 0.99),
        moved=0 if carrier is None else carrier.moved,
        failed=0 if carrier is None else carrier.failed,
        over_s=None if over_ms is None else (over_ms - start_ms) / 1000,
        stopped="" if carrier is None else carrier.why,
        cut_s=None if whole else (world.now_ms - start_ms) / 1000,
    )


def _times(scenario: Scenario) -> Iterator[int]:
    """Return when each new message comes, in ms, in order."""
    loads, seed = sorted(scenario.load, key=lambda load: load.from_s), f"arrivals {scenario.seed}"
    if all(one.until_s <= next.from_s for one, next in pairwise(loads)):
        chance = random.Random(seed)
        parts: list[Iterator[int]] = [chain.from_iterable(_of_load(load, scenario, chance) for load in loads)]
    else:
        parts = [_of_load(load, scenario, random.Random(f"{seed} {n}")) for n, load in enumerate(loads)]
    return merge(*parts, (scenario.start_ms + int(at_s * 1000) for at_s in sorted(scenario.times)))


def _of_load(load: LoadPhase, scenario: Scenario, chance: random.Random) -> Iterator[int]:
    at_s, count, passed = load.from_s, 0, 0.0
    while load.per_s > 0 or load.to_per_s:
        if load.to_per_s is not None:
            passed, count = passed + (chance.expovariate(1) if scenario.arrivals == "random" else count > 0), count + 1
            at_s = load.from_s + _ramped_s(load.per_s, load.to_per_s, load.until_s - load.from_s, passed)
        elif scenario.arrivals == "random":
            at_s += chance.expovariate(load.per_s)
        else:
            at_s, count = load.from_s + count / load.per_s, count + 1
        if at_s >= load.until_s:
            break
        yield scenario.start_ms + int(at_s * 1000)


def _ramped_s(from_per_s: float, to_per_s: float, over_s: float, count: float) -> float:
    """Return the seconds after which a rate that goes steadily from one to the other has brought `count` messages."""
    slope = (to_per_s - from_per_s) / over_s
    inside = from_per_s * from_per_s + 2 * slope * count
    if not count:
        return 0.0
    return 2 * count / (from_per_s + math.sqrt(inside)) if inside >= 0 else math.inf


def _share(values_ms: Sequence[float], share: float) -> float | None:
    return values_ms[min(len(values_ms) - 1, int(share * len(values_ms)))] / 1000 if values_ms else None
