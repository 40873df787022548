"""Scenarios as files, in TOML. Each key has one reader here; a file that names another key is refused."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from ..duration import seconds
from ..errors import ConfigError, near_miss
from ..fault import Kind
from ..flow.limits import per_s
from ..triage.redrive.options import read_settings
from .past import with_setting
from .scenario import FleetChange, LoadPhase, PlannedRedrive, Scenario
from .service import ModelService, ServicePhase, Spread
from .world import FleetSize

FILE_MAX = 64 << 20  # the most bytes of a scenario, or of its times
Reader = Callable[[Any], Any]


def read_scenario(path: Path) -> tuple[Scenario, tuple[int, ...]]:
    """Return the scenario in a file, and its seeds. Raises ConfigError, which says what is wrong, where, and what was
    expected."""
    try:
        document = tomllib.loads(_text(path))
        given = _read(document, "", _TOP)
        return _scenario(given, path.parent), given.get("seeds", (0,))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"scenario {path} cannot be read: {error}; expected a TOML file") from None
    except ConfigError as error:
        raise ConfigError(f"scenario {path}: {error}") from None


def _scenario(given: Mapping[str, Any], folder: Path) -> Scenario:
    loads: list[LoadPhase] = []
    times: list[float] = []
    for load in given.get("load", ()):
        _add_load(load, folder, loads, times)
    if not loads and not times and "redrive" not in given:
        raise ConfigError('nothing comes; expected [[load]], such as rate = "20/s" and for = "5m", or [redrive]')
    fleet = given.get("fleet", {})
    scenario = Scenario(
        load=tuple(loads),
        times=tuple(times),
        arrivals=given.get("arrivals", "random"),
        service=_service(given.get("dependency", {}), given.get("event", ())),
        fleet=FleetSize(fleet.get("processes", 2), fleet.get("concurrency", 20)),
        fleet_changes=tuple(FleetChange(each["at"], each["processes"]) for each in fleet.get("change", ())),
        settle_s=given.get("settle", Scenario().settle_s),
    )
    for name, value in given.get("policy", {}).items():
        scenario = with_setting(scenario, f"{name}={value}")
    if (redrive := given.get("redrive")) is not None:
        options = {name: value for name, value in redrive.items() if name not in ("at", "total")}
        planned = PlannedRedrive(total=redrive["total"], at_s=redrive.get("at", 0.0), settings=read_settings(**options))
        scenario = replace(scenario, redrive=planned)
    return scenario


def _add_load(load: Mapping[str, Any], folder: Path, loads: list[LoadPhase], times: list[float]) -> None:
    from_s = load.get("from", 0.0)
    if "times" in load:
        times += [from_s + each for each in _times(folder / load["times"])]
    elif "burst" in load:
        every_s, until_s = load.get("every", math.inf), from_s + load.get("for", 0.0)
        if every_s <= 0:
            raise ConfigError("load.every is 0; expected a duration such as '1m'")
        at_s = from_s
        while at_s <= until_s:
            times += [at_s] * load["burst"]
            at_s += every_s
    elif "rate" in load and load.get("for"):
        loads.append(LoadPhase(from_s, from_s + load["for"], load["rate"], load.get("to")))
    else:
        raise ConfigError("load says too little; expected rate and for (with to: a ramp), burst, or times")


def _times(path: Path) -> list[float]:
    values: list[float] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            if line.strip():
                values.append(_number(0)(float(line)))
        except (ValueError, ConfigError):
            raise ConfigError(f"line {number} of {path} is {line[:40]!r}; expected seconds since the start") from None
    return values


def _service(given: Mapping[str, Any], events: tuple[Mapping[str, Any], ...]) -> ModelService:
    phases: list[ServicePhase] = []
    left = 1.0
    for error in given.get("error", ()):  # a phase takes its share of the calls that those before it have left
        share = min(1.0, error["share"] / left) if left > 0 else 0.0
        left -= error["share"]
        phases.append(ServicePhase(0, math.inf, share, error.get("kind", "transient"), error.get("retry_after")))
    if left < -1e-9:
        raise ConfigError("the shares of dependency.error are more than 1 together; expected at most 1")
    capacity = given.get("capacity")
    for event in events:
        phases.append(_phase(event, capacity))
    service = ModelService(phases=tuple(phases), capacity=capacity)
    names = {"latency": "latency_ms", "queue": "queue_ms", "timeout": "timeout_ms", "crowding": "crowd_ms"}
    changes = {names[name]: value * 1000 for name, value in given.items() if name in names}
    direct = {"spread": "spread", "poison": "poison", "retry_after": "retry_after_s", "abandons": "abandons"}
    return replace(service, **changes, **{direct[name]: value for name, value in given.items() if name in direct})


def _phase(event: Mapping[str, Any], capacity: float | None) -> ServicePhase:
    from_s, what, kind = event["at"], event["what"], event.get("kind", "transient")
    until_s = from_s + event["for"]
    if what in ("down", "brownout"):
        share = 1.0 if what == "down" else event.get("share", 0.4)
        return ServicePhase(from_s, until_s, share, kind, event.get("retry_after"))
    if what == "slow":
        return ServicePhase(from_s, until_s, latency_ms=event.get("latency", 2.0) * 1000)
    if capacity is None:
        raise ConfigError("event 'capacity' changes none; expected capacity of [dependency], such as 50")
    return ServicePhase(from_s, until_s, capacity=event.get("share", 0.5) * capacity)


# -- reading


class _Located(ConfigError):
    """It says which key of the file is wrong."""


def _read(table: Any, where: str, known: Mapping[str, Reader], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the values of a table. Raises ConfigError."""
    if not isinstance(table, Mapping):
        raise _Located(f"{where} is {table!r}; expected a table, with {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, value in table.items():
        full = f"{where}.{name}" if where else name
        if (reader := known.get(name)) is None:
            near = near_miss(name, known)
            meant = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            raise _Located(f"{full} is no setting of a scenario; {meant}")
        try:
            values[name] = reader(value)
        except _Located:
            raise
        except (ValueError, TypeError) as error:
            joint = "; " if str(error).startswith("did you mean") else ": "
            raise _Located(f"{full} is {value!r}{joint}{error}") from None
    for name in required:
        if name not in values:
            raise _Located(f"{where} has no {name!r}; expected it, with {', '.join(known)}")
    return values


def _table(where: str, known: Mapping[str, Reader], *required: str) -> Reader:
    return lambda value: _read(value, where, known, required)


def _tables(where: str, known: Mapping[str, Reader], *required: str) -> Reader:
    def read(value: Any) -> tuple[dict[str, Any], ...]:
        items = value if isinstance(value, list) else [value]
        return tuple(_read(each, where, known, required) for each in items)

    return read


def _number(least: float = 0.0, most: float = math.inf) -> Reader:
    def read(value: Any) -> float:
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not least <= value <= most
            or value == math.inf
        ):
            raise ValueError(f"expected a number from {least:g}" + (f" to {most:g}" if most < math.inf else ""))
        return value

    return read


def _whole(least: int = 0, most: int = 10_000_000) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"expected a whole number from {least} to {most:,}")
        return value

    return read


def _one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if value not in words:
            near = near_miss(str(value), words)
            raise ValueError(f"did you mean {near!r}?" if near else f"expected one of {', '.join(words)}")
        return str(value)

    return read


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value


def _setting(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _rate(value: Any) -> float:
    return float(_number()(value)) if isinstance(value, int | float) else per_s(value)


def _seeds(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("expected a list of whole numbers, such as [0, 1, 2]")
    return tuple(map(_whole(), value))


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(FILE_MAX + 1)
    if len(content) > FILE_MAX:
        raise ConfigError(f"{path} is larger than {FILE_MAX >> 20} MiB; expected less")
    return content.decode()


_SHARE, _DURATION = _number(0, 1), seconds
_KIND = _one_of(*(kind.value for kind in Kind))
_LOAD: Mapping[str, Reader] = {
    "rate": _rate, "to": _rate, "from": _DURATION, "for": _DURATION, "burst": _whole(1), "every": _DURATION,
    "times": _word,
}  # fmt: skip
_POLICY = dict.fromkeys(
    ("retry", "attempts", "jitter", "breaker", "budget", "rate", "groups", "group_width", "group_order"), _setting
)
_CHANGE: Mapping[str, Reader] = {"at": _DURATION, "processes": _whole(0, 1000)}
_FLEET: Mapping[str, Reader] = {
    "processes": _whole(1, 1000), "concurrency": _whole(1, 10_000),
    "change": _tables("fleet.change", _CHANGE, *_CHANGE),
}  # fmt: skip
_ERROR: Mapping[str, Reader] = {"share": _SHARE, "kind": _KIND, "retry_after": _DURATION}
_DEPENDENCY: Mapping[str, Reader] = {
    "latency": _DURATION, "spread": _one_of(*get_args(Spread)), "crowding": _DURATION, "capacity": _number(0.001),
    "queue": _DURATION, "timeout": _DURATION, "abandons": _flag, "retry_after": _DURATION, "poison": _SHARE,
    "error": _tables("dependency.error", _ERROR, "share"),
}  # fmt: skip
_EVENT: Mapping[str, Reader] = {
    "what": _one_of("down", "brownout", "slow", "capacity"), "at": _DURATION, "for": _DURATION, "share": _SHARE,
    "latency": _DURATION, "kind": _KIND, "retry_after": _DURATION,
}  # fmt: skip
_REDRIVE: Mapping[str, Reader] = {
    "total": _whole(1), "at": _DURATION, "rate": lambda value: value, "canary": _whole(), "slow_start": _flag,
    "halve_on_failures": _flag, "stop_if": _word, "attempts": _whole(1), "delay": _DURATION,
}  # fmt: skip
_TOP: Mapping[str, Reader] = {
    "seeds": _seeds, "arrivals": _one_of("even", "random"), "settle": _DURATION,
    "load": _tables("load", _LOAD), "policy": _table("policy", _POLICY), "fleet": _table("fleet", _FLEET),
    "dependency": _table("dependency", _DEPENDENCY), "event": _tables("event", _EVENT, "what", "at", "for"),
    "redrive": _table("redrive", _REDRIVE, "total"),
}  # fmt: skip
