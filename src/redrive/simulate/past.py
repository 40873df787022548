"""A scenario from a store's history: load and faults of a past time, minute by minute or hour by hour."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from ..duration import seconds
from ..errors import ConfigError, Unsupported
from ..flow.breaker import Breaker
from ..flow.budget import Budget
from ..flow.dependency import Dependency
from ..flow.limits import Rate, per_s
from ..history import Tally, counts_of
from ..history.names import read_names
from ..history.read import NOT_KEPT
from ..history.tally import tally_of
from ..policy import Backoff, Retry, presets
from ..registry import Registry
from ..store import Store
from ..worker.flow.local_state import controls
from .groups import GroupRule
from .scenario import LoadPhase, Scenario
from .service import ModelService, ServicePhase

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SETTINGS = (
    "breaker=on|off, budget=on|off|RATIO, rate=50/s|off, retry=PRESET, attempts=N, jitter=none|full|…, workers=2x20, "
    "groups=N|off, group_width=N, group_order=turns|strict"
)
_CLOCK = re.compile(r"\s*(?:(yesterday|today|\d{4}-\d\d-\d\d)\s+)?(\d\d):(\d\d)\s*\.\.\s*(\d\d):(\d\d)\s*", re.ASCII)
_AGO = re.compile(r"\s*(\S+)\s*\.\.\s*(\S+)\s*")


class Past(Struct, frozen=True, kw_only=True):
    """What a store's history says of a time: the scenario that plays it again, by slots of `step_s`, and what came:
    `enqueued` messages, `calls` that ended, `failed` ones, and `dead` messages."""

    scenario: Scenario
    step_s: int
    enqueued: int
    calls: int
    failed: int
    dead: int
    task: str


def read_span(text: str, now_ms: int) -> tuple[int, int]:
    """Return the time that a text such as "yesterday 14:00..16:00", "2026-01-31 09:30..10:00" or "3h..1h" (ago) names,
    in ms, in UTC. Raises ConfigError.

    >>> read_span("3h..1h", 10 * HOUR_MS) == (7 * HOUR_MS, 9 * HOUR_MS)
    True
    """
    try:
        if clock := _CLOCK.fullmatch(text):
            now = datetime.fromtimestamp(now_ms / 1000, UTC)
            word, *numbers = clock.groups()
            day = now - timedelta(days=word == "yesterday")
            if word and word[0].isdigit():
                day = datetime.fromisoformat(word)
            start_s = day.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC).timestamp()
            h1, m1, h2, m2 = map(int, numbers)
            since_ms, until_ms = (round(start_s + h * 3600 + m * 60) * 1000 for h, m in ((h1, m1), (h2, m2)))
        elif ago := _AGO.fullmatch(text):
            since_ms, until_ms = (now_ms - round(seconds(each, "time") * 1000) for each in ago.groups())
        else:
            raise ValueError
        if not since_ms < until_ms <= now_ms + MINUTE_MS:
            raise ValueError
    except ValueError:
        expected = "'yesterday 14:00..16:00', '2026-01-31 09:30..10:00' or '3h..1h' (ago), in the past, in UTC"
        raise ConfigError(f"time {text!r} is refused: expected {expected}") from None
    return since_ms, until_ms


def read_past(
    store: Store,
    app: Registry | None,
    since_ms: int,
    until_ms: int,
    *,
    queue: str | None = None,
    task: str | None = None,
) -> Past:
    """Return what happened then, of a queue, a task or all, with the policy and the dependency of the task that was put
    most often. Raises ConfigError if nothing did, StoreError, and Unsupported without a history."""
    if not store.traits.cells:
        raise Unsupported(NOT_KEPT)
    now_ms = store.now_ms()
    step_ms = MINUTE_MS if since_ms >= now_ms - DAY_MS else HOUR_MS
    since_ms -= since_ms % step_ms
    slots: dict[int, dict[str, int]] = {}
    by_task: dict[tuple[str, str], int] = {}
    for name in sorted(read_names(store)):
        if queue in (None, name[0]) and task in (None, name[1]) and all(name):
            for at_ms, key, count in counts_of(store, [name], since_ms, now_ms, step_ms):
                if at_ms < until_ms:
                    of = slots.setdefault(at_ms, {})
                    of[key] = of.get(key, 0) + count
                    by_task[name] = by_task.get(name, 0) + count * (key == "e")
    if not slots:
        raise ConfigError("nothing is kept of that time: minutes are kept for a day, hours for 35 days")
    most = max(by_task, key=lambda name: (by_task[name], name))
    tallies = {at_ms: tally_of(counts) for at_ms, counts in slots.items()}
    known = app is not None and most[1] in app.tasks
    base = Scenario()
    scenario = replace(
        base,
        load=tuple(
            LoadPhase((at - since_ms) / 1000, (at - since_ms + step_ms) / 1000, tallies[at].enqueued * 1000 / step_ms)
            for at in sorted(tallies)
        ),
        policy=app.tasks[most[1]].policy if app is not None and known else base.policy,
        dependency=_dependency(app, most) if known else None,
        service=_service(tallies, since_ms, until_ms, step_ms),
        start_ms=since_ms,
    )
    return Past(
        scenario=scenario,
        step_s=step_ms // 1000,
        enqueued=sum(tally.enqueued for tally in tallies.values()),
        calls=sum(tally.done + tally.failed for tally in tallies.values()),
        failed=sum(tally.failed for tally in tallies.values()),
        dead=sum(sum(tally.dead.values()) for tally in tallies.values()),
        task=most[1],
    )


def _service(tallies: dict[int, Tally], since_ms: int, until_ms: int, step_ms: int) -> ModelService:
    """Return a dependency that fails in each slot as it did then. A slot without calls is like the one before."""
    phases: list[ServicePhase] = []
    faults: dict[str, float] = {}
    count = sum_ms = 0
    for at_ms in range(since_ms, until_ms, step_ms):
        tally = tallies.get(at_ms)
        if tally is not None and (ended := tally.done + tally.failed):
            faults = {kind: number / ended for kind, number in tally.faults.items()}
        if tally is not None:
            count, sum_ms = count + tally.run.count, sum_ms + tally.run.sum_ms
        left, from_s = 1.0, (at_ms - since_ms) / 1000
        for kind, share in faults.items():
            if share > 0 and left > 0:  # the shares of the calls that the kinds before have left
                phases.append(ServicePhase(from_s, from_s + step_ms / 1000, min(1.0, share / left), kind))
                left -= share
    latency_ms = max(1.0, sum_ms / count) if count else 50.0
    return ModelService(latency_ms=latency_ms, refusal_ms=latency_ms, phases=tuple(phases))


def _dependency(app: Registry | None, name: tuple[str, str]) -> Dependency | None:
    own = controls(app, name[1], name[0])
    return replace(own[-1], per=None, parent=None) if own else None


def _groups(rule: GroupRule, name: str, value: str) -> GroupRule | None:
    """Return the groups with a setting. Raises ValueError."""
    if (name, value) == ("groups", "off"):
        return None
    if name == "group_order":
        return rule._replace(strict={"strict": True, "turns": False}[value])
    if (number := int(value)) < 1:
        raise ValueError
    return rule._replace(width=number) if name == "group_width" else rule._replace(groups=number)


def with_setting(scenario: Scenario, text: str) -> Scenario:
    """Return the scenario with settings such as "breaker=on,budget=0.1". Raises ConfigError."""
    for each in text.split(","):
        name, _, value = each.strip().partition("=")
        d = scenario.dependency or Dependency("dependency")
        retry, on = scenario.policy.retry, {"on": True, "off": False}.get(value)
        try:
            match name:
                case "breaker" if on is not None:
                    d = replace(d, breaker=(d.breaker or Breaker()) if on else None)
                case "budget":
                    d = replace(d, budget=Budget() if on else None if on is False else Budget(float(value), floor=1))
                case "rate":
                    d = replace(d, rate=None if on is False else Rate(value))
                case "retry":
                    retry = presets[value]
                case "attempts":
                    retry = Retry(int(value), retry.max_elapsed, retry.backoff)
                case "jitter":
                    b = retry.backoff
                    spread = Backoff(b.base, b.factor, b.cap, value, b.share, step=b.step, fn=b.fn)  # type: ignore[arg-type]
                    retry = Retry(retry.max_attempts, retry.max_elapsed, spread)
                case "redrive" if (run := scenario.redrive) is not None:
                    scenario = replace(
                        scenario, redrive=replace(run, settings=replace(run.settings, rate=per_s(value)))
                    )
                case "workers":
                    processes, _, places = value.partition("x")
                    scenario = replace(scenario, fleet=type(scenario.fleet)(int(processes), int(places)))
                case "groups" | "group_width" | "group_order":
                    scenario = replace(scenario, groups=_groups(scenario.groups or GroupRule(1), name, value))
                case _:
                    raise ValueError
        except (KeyError, ValueError, TypeError):
            raise ConfigError(f"setting {each.strip()!r} is refused: expected {SETTINGS}") from None
        scenario = replace(scenario, dependency=d, policy=replace(scenario.policy, retry=retry))
    return scenario
