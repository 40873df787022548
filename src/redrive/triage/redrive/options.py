"""The options of a plan, in one table for Python, the command line, the pages and the terminal.

A new option needs a row here, a field of `RedriveSettings`, and the code that applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from ...duration import Duration, milliseconds, show
from ...errors import ConfigError
from ...flow.gates import Gates
from ...flow.limits import per_s
from ...message import PRIORITIES
from ...task import as_text
from .pacing import CANARY, MAX_PER_S, NEVER, SLOW_START, STOP_IF, StopRule
from .records import RedriveSettings

COUNT_MAX = 1_000_000_000


class PlanOptions(TypedDict, total=False):
    """The options of a plan as people write them; documented in `Selection.plan`."""

    rate: str | float | None
    canary: int
    slow_start: bool
    halve_on_failures: bool
    stop_if: str | None
    attempts: int | None
    to_queue: str | None
    delay: Duration
    spread: Duration
    keep_deadline: bool
    priority: int | None
    deadline: Duration | None
    cancel: bool
    gates: Gates | None
    note: str


class OptionKind(Enum):
    """The kind of an option's value. A FLAG is off unless given; a SWITCH is on unless turned off."""

    RATE = "rate"
    COUNT = "count"
    RULE = "rule"
    TEXT = "text"
    DURATION = "duration"
    FLAG = "flag"
    SWITCH = "switch"


class PlanOption(NamedTuple):
    """An option that every surface offers. `help` describes it in a command, `label` on a page, with `hint` in an empty
    field; `group` is its part of the page's form. `words(settings)` returns a phrase for its value."""

    name: str
    kind: OptionKind
    default: Any
    help: str
    label: str
    group: str
    words: Callable[[RedriveSettings], str | None]
    metavar: str | None = None
    hint: str = ""
    least: int = 0
    most: int = COUNT_MAX

    @property
    def field(self) -> str:
        """The field of RedriveSettings that holds the option."""
        return f"{self.name}_ms" if self.kind is OptionKind.DURATION else self.name

    def record(self, settings: RedriveSettings) -> tuple[str, Any]:
        """Return the name of the option in JSON, and its value in these settings."""
        value = getattr(settings, self.field)
        if self.kind is OptionKind.DURATION:
            return f"{self.name}_s", None if value is None else value / 1000
        if self.kind is OptionKind.RATE:
            return f"{self.name}_per_s", value
        return self.name, None if value == "" else value

    def read(self, value: Any) -> Any:
        """Return the field's value for a written value. Raises ConfigError, ValueError or TypeError."""
        match self.kind:
            case OptionKind.RATE:
                return None if value is None else per_s(value)
            case OptionKind.COUNT:
                return _whole(value, self)
            case OptionKind.RULE:
                return _stop(value)
            case OptionKind.TEXT:
                return as_text(value, self.name)
            case OptionKind.DURATION:
                return None if value is None else milliseconds(value, self.name)
            case OptionKind.FLAG | OptionKind.SWITCH:
                return bool(value)


def _delay_words(s: RedriveSettings) -> str | None:
    if not (s.delay_ms or s.spread_ms):
        return None
    spread = f" to {show((s.delay_ms + s.spread_ms) / 1000)}" if s.spread_ms else ""
    return f"after {show(s.delay_ms / 1000)}{spread}"


def _rate_words(s: RedriveSettings) -> str:
    most = s.rate or MAX_PER_S
    return f"{'slow start to ' if s.slow_start and most > 1 else ''}{most:.6g}/s"


def _attempts_words(s: RedriveSettings) -> str:
    if s.attempts is None:
        return "attempts as the policy says"
    return "one attempt each" if s.attempts == 1 else f"{s.attempts} attempts each"


def _deadline_words(s: RedriveSettings) -> str | None:
    if s.deadline_ms is None:
        return None
    return f"deadline in {show(s.deadline_ms / 1000)}" if s.deadline_ms else "no deadline"


def _none(s: RedriveSettings) -> None:
    """Return no words: the words of another option describe this one."""


OPTIONS: Final = (
    PlanOption(
        "canary", OptionKind.COUNT, CANARY, "move this many first, and wait for their outcomes",
        "Canary: so many first", "pace", lambda s: f"canary of {s.canary:,}" if s.canary else None, "N",
    ),
    PlanOption(
        "rate", OptionKind.RATE, None, f"the highest rate: 20/s, 5000/h (default: {MAX_PER_S:.0f}/s)",
        "Rate at most", "pace", _rate_words, "RATE", f"{MAX_PER_S:.0f}/s",
    ),
    PlanOption(
        "slow_start", OptionKind.SWITCH, SLOW_START, "begin with 1/s and double every 10 s, or not",
        "Slow start: 1/s, doubled each 10 s", "pace", _none,
    ),
    PlanOption(
        "halve_on_failures", OptionKind.FLAG, False,
        "halve the speed after a second in which more than a tenth failed",
        "Half as fast when more than a tenth fails", "pace",
        lambda s: "half as fast on failures" if s.halve_on_failures else None,
    ),
    PlanOption(
        "stop_if", OptionKind.RULE, STOP_IF,
        f"such as '{STOP_IF}' or 'failed>100'; '{NEVER}': it does not stop by itself",
        "Stop if", "pace", lambda s: f"stops if {s.stop_if}" if s.stop_if else None, "RULE",
    ),
    PlanOption(
        "attempts", OptionKind.COUNT, None, "how many attempts the new lives have (default: the policy's)",
        "Attempts", "life", _attempts_words, None, "as the policy says", 1,
    ),
    PlanOption(
        "to_queue", OptionKind.TEXT, None, "run them from this queue, not from their own",
        "To another queue", "life", lambda s: f"to queue {s.to_queue}" if s.to_queue else None, "QUEUE", "their own",
    ),
    PlanOption(
        "delay", OptionKind.DURATION, 0, "run no earlier than this after the move",
        "Run after", "life", _delay_words, None, "0s",
    ),
    PlanOption(
        "spread", OptionKind.DURATION, 0, "add a random time up to this to the delay of each message",
        "Spread over", "life", _none, None, "0s",
    ),
    PlanOption(
        "keep_deadline", OptionKind.FLAG, False, "keep the deadlines of messages",
        "Keep deadlines", "life", lambda s: "deadlines kept" if s.keep_deadline else None,
    ),
    PlanOption(
        "priority", OptionKind.COUNT, None, "change waiting messages: another priority, 0 is served first",
        "Priority, of what waits", "edit", lambda s: None if s.priority is None else f"priority {s.priority}",
        None, "their own", PRIORITIES[0], PRIORITIES[-1],
    ),
    PlanOption(
        "deadline", OptionKind.DURATION, None, "change waiting messages: they die after this time; 0s: never",
        "Deadline, of what waits", "edit", _deadline_words, None, "their own",
    ),
    PlanOption(
        "cancel", OptionKind.FLAG, False, "change waiting messages: cancel them",
        "Cancel what waits", "edit", lambda s: "cancelled" if s.cancel else None,
    ),
)  # fmt: skip


LIFE: Final = ("attempts", "to_queue", "keep_deadline")  # options for the new life that only a redrive gives
EDITS: Final = ("priority", "deadline", "cancel")  # options that only an edit of what waits has
NEVER_EDITED: Final = ("attempts", "keep_deadline")  # options of a redrive that an edit has not
_UNFIT: Final = {
    True: "; only a plan over lane:ready, lane:scheduled or lane:parked changes what waits",
    False: ", and its deadline unless deadline= says another",
}


def read_settings(*, hurry: bool = False, edit: bool = False, **options: Unpack[PlanOptions]) -> RedriveSettings:
    """Return the settings for these options; `hurry`: of a plan that makes waiting messages due; `edit`: of one that
    changes them. Raises ConfigError, ValueError or TypeError for an invalid one."""
    given: Mapping[str, Any] = options
    if unknown := given.keys() - PlanOptions.__annotations__.keys():
        raise TypeError(f"a plan has no option {sorted(unknown)[0]!r}; it has {', '.join(PlanOptions.__annotations__)}")
    gates = given.get("gates")
    if not isinstance(gates, Gates | None):
        raise TypeError(f"gates {gates!r} is refused: expected Gates, such as Gates(window='22:00-06:00')")
    fields = {option.field: option.read(given.get(option.name, option.default)) for option in OPTIONS}
    settings = RedriveSettings(gates=gates, note=given.get("note", ""), hurry=hurry, edit=edit, **fields)
    at_rest = not (hurry or edit)
    for name in EDITS if at_rest else NEVER_EDITED:
        if (value := given.get(name)) is not None and value is not False:
            why = "what is dead or done gets a new life" if at_rest else "a waiting message keeps its attempts"
            raise ConfigError(f"{name}={value!r}; {why}{_UNFIT[at_rest]}")
    beside = settings.to_queue, settings.priority, settings.deadline_ms, settings.moves_due or None
    if settings.cancel and beside != (None,) * 4:
        raise ConfigError("cancel=True; what is cancelled gets no queue, priority, deadline or delay beside")
    return settings


def settings_words(settings: RedriveSettings) -> Iterator[str]:
    """Yield a phrase for each option of a plan that is in effect."""
    unsaid = LIFE if settings.hurry else NEVER_EDITED if settings.edit else ()
    options = (option for option in OPTIONS if option.name not in unsaid)
    yield from (words for option in options if (words := option.words(settings)))
    gates = settings.gates
    if gates is None:
        return
    if not gates.breaker:
        yield "whatever breakers say"
    if gates.health:
        yield f"while {gates.health} is well"
    if gates.approval:
        yield f"once approved by {gates.approval}"
    if gates.window:
        yield f"at {gates.window}"


def _stop(rule: str | None) -> str:
    """Return the stop rule as it is stored: empty for never, the default for None."""
    word = STOP_IF if rule is None else rule.strip()
    return "" if word in ("", NEVER) else str(StopRule.parse(word))


def _whole(value: int | None, option: PlanOption) -> int | None:
    if value is None and option.default is None:
        return None
    if type(value) is not int or not option.least <= value <= option.most:
        bound = "up" if option.most == COUNT_MAX else f"to {option.most}"
        raise ConfigError(f"{option.name}={value!r}; expected a whole number from {option.least} {bound}")
    return value
