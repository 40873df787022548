"""Describe a task: its handler, name, policy and codec, and the checks of its options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, get_args

from msgspec import Struct

from .codec import Codec, Upcast
from .codec.items import item_handler
from .config.values import some_size
from .decide import Policy
from .duration import Duration, milliseconds, seconds, show
from .errors import ConfigError, near_miss
from .fault import Rule, check_rules
from .habits import TASK, with_hints
from .policy.poison import Poison
from .policy.preset_policies import PresetName, presets
from .policy.retry import Retry
from .policy.slo import SLO

if TYPE_CHECKING:  # not imported at run time, to start faster
    from .events import Events
    from .flow.idempotency import Idempotency
    from .flow.limits import Rate, Rates
    from .store import Store

RESTART_S = 5.0  # the longest pause in seconds before a supervisor restarts a worker process that keeps dying
Isolation = Literal["process"]
ExecutorName = Literal["loop", "thread", "process"]
GATHER_MAX = 1000
LINGER_MAX_S = 60.0  # what lingers is held under leases, so that no other worker can run it
_POISON = Poison()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The pattern excludes ids of zeros and the version ff, which are invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class TaskRegistry(Protocol):
    """The registry of a task, as far as code below the registry uses it."""

    events: Events
    producer: str
    release: str

    @property
    def store(self) -> Store: ...

    @property
    def tasks(self) -> Mapping[str, TaskSpec]: ...


class TaskKeywords(TypedDict, total=False):
    """The keywords of `@app.task(…)`, all but `ctx`."""

    name: str | None
    queue: str
    timeout: Duration
    retry: Retry | PresetName | None
    rules: Sequence[Any]
    version: int
    keep_result: Duration | None
    on_dead: TaskSpec | str | None
    poison: Poison
    dependency: str | None
    rate: Rates | None
    idempotency: Idempotency | None
    isolation: Isolation | None
    memory: str | int | None
    slo: SLO | None
    linger: Duration | None
    accepts: Mapping[str, str] | None


class AlertKeywords(TypedDict, total=False):
    """The keywords of `app.on(…)`."""

    every: Duration
    above: float | str
    for_: Duration
    queue: str
    task: str


class TaskOptions(Struct, frozen=True, kw_only=True):
    """The checked options of `@app.task(…)`."""

    policy: Policy
    queue: str = "default"
    rules: Sequence[Any] = ()
    takes_context: bool = False
    on_dead: TaskSpec | str | None = None
    version: int = 1
    keep_ms: int = 0
    dependency: str | None = None
    rate: Rate | None = None
    idempotency: Idempotency | None = None
    isolation: Isolation | None = None
    memory_bytes: int | None = None
    slo: SLO | None = None
    gather: int | None = None
    linger_s: float = 0.0
    accepts: Mapping[str, str] = {}


@with_hints("@app.task(…)", TASK)
def task_options(
    *,
    ctx: bool = False,
    queue: str = "default",
    timeout: Duration = "5m",
    retry: Retry | PresetName | None = None,
    rules: Sequence[Any] = (),
    version: int = 1,
    keep_result: Duration | None = None,
    on_dead: TaskSpec | str | None = None,
    poison: Poison = _POISON,
    dependency: str | None = None,
    rate: Rates | None = None,
    idempotency: Idempotency | None = None,
    isolation: Literal["process"] | None = None,
    memory: str | int | None = None,
    slo: SLO | None = None,
    gather: int | None = None,
    linger: Duration | None = None,
    accepts: Mapping[str, str] | None = None,
) -> TaskOptions:
    """Return the options of a task, checked. Raises ConfigError for invalid values."""
    as_text(queue or "", "task queue")
    keep_ms = 0 if keep_result is None else milliseconds(keep_result, "keep_result")
    rule: object = poison
    if not isinstance(rule, Poison):
        raise ConfigError(f"poison={poison!r}: expected a Poison, such as Poison(crashes=3, within='1h')")
    policy = Policy(
        retry=_retry(retry),
        timeout_s=seconds(timeout, "timeout"),
        crashes_alone_max=poison.crashes,
        crashes_within_s=poison.within,
    )
    if policy.timeout_s <= 0:
        raise ConfigError(f"timeout={timeout!r}: expected more than 0, as it bounds each run")
    memory_bytes = _memory_bytes(isolation, memory)
    if not isinstance(on_dead, TaskSpec | str | None):
        raise ConfigError(f"on_dead={on_dead!r}: expected a task of this app, or its name")
    if idempotency is not None:
        _check_idempotency(idempotency)
    return TaskOptions(
        policy=policy,
        queue=queue,
        rules=rules,
        takes_context=ctx,
        on_dead=on_dead,
        version=version,
        keep_ms=keep_ms,
        dependency=as_text(dependency, "dependency"),
        rate=as_rate(rate),
        idempotency=idempotency,
        isolation=isolation,
        memory_bytes=memory_bytes,
        slo=as_slo(slo),
        gather=gather,
        linger_s=_linger_s(gather, linger, isolation),
        accepts=_reasons({} if accepts is None else accepts),
    )


class TaskSpec:
    """A handler with a stable name, a queue and a policy. `redrive.enqueue.Task` is the public class."""

    rules: tuple[Rule, ...]
    app: TaskRegistry
    name: str
    queue: str
    policy: Policy
    gather: int | None
    linger_s: float
    version: int
    keep_ms: int
    dependency: str | None
    rate: Rate | None
    idempotency: Idempotency | None
    memory_bytes: int | None
    slo: SLO | None
    accepts: Mapping[str, str]

    def __init__(self, home: TaskRegistry, handler: Callable[..., Any], name: str | None, options: TaskOptions) -> None:
        o, name = options, as_text(name, "task name") or _name(handler)
        self.app, self.name, self.queue = home, name, o.queue
        self.handler: Callable[..., Any] = handler
        self.called: Callable[..., Any] = handler  # what a direct call calls: the handler, with a list if it gathers
        self.entry: Callable[..., Any] = handler  # what workers call: the handler inside the app's wraps
        self.policy, self.rules = o.policy, tuple(check_rules(o.rules, f"rules of task {name!r}"))
        self.takes_context: bool = o.takes_context
        self.on_dead: str | None = o.on_dead.name if isinstance(o.on_dead, TaskSpec) else o.on_dead
        self.gather, self.linger_s = o.gather, o.linger_s
        described = handler if o.gather is None else item_handler(handler, name, skip_first=o.takes_context)
        self.codec: Codec = Codec(described, name, skip_first=o.takes_context, version=o.version)
        self.version, self.keep_ms = o.version, o.keep_ms
        self.dependency = o.dependency  # the dependency that it calls; None: one with the task's name, if declared
        self.rate, self.idempotency = o.rate, o.idempotency
        self.isolation, self.memory_bytes = o.isolation, o.memory_bytes
        self.slo, self.accepts = o.slo, o.accepts
        self.is_async: bool = _is_any(inspect.iscoroutinefunction, handler)
        #: Where a worker runs it: on the event loop, in a thread, or in a child process.
        self.place: ExecutorName = "process" if o.isolation is not None else "loop" if self.is_async else "thread"
        if _is_any(inspect.isgeneratorfunction, handler) or _is_any(inspect.isasyncgenfunction, handler):
            raise ConfigError(f"task {name!r}: a generator would be made and never run; use a handler without yield")
        if isinstance(o.on_dead, TaskSpec):
            if o.on_dead.app is not home:
                raise ConfigError(f"task {name!r}: on_dead={o.on_dead.name!r} belongs to another app")
            self.check_takes_over(o.on_dead)

    def __repr__(self) -> str:
        return f"<redrive task {self.name!r} on queue {self.queue!r}>"

    @property
    def upcasts(self) -> Mapping[int, Upcast]:
        """The functions registered with `upcast`, by the version that each converts from."""
        return self.codec.upcasts

    def check_on_dead(self) -> None:
        """Raise ConfigError if the task named by `on_dead=` cannot take the dead messages of this one."""
        seen: list[str] = [self.name]
        task: TaskSpec = self
        while task.on_dead is not None:
            other = self.app.tasks.get(task.on_dead)
            if other is None:
                near = near_miss(task.on_dead, self.app.tasks)
                meant = f"; did you mean {near!r}?" if near else f"; known: {', '.join(sorted(self.app.tasks))}"
                raise ConfigError(f"task {task.name!r}: no task {task.on_dead!r} is registered for on_dead={meant}")
            task.check_takes_over(other)
            if other.name in seen:
                raise ConfigError(f"on_dead goes in a circle, and a death would never end: {' -> '.join(seen)} -> …")
            seen.append(other.name)
            task = other

    def check_poison(self, lease_s: float) -> None:
        """Raise ConfigError if the crashes of `poison=` cannot all happen within its window: when a host dies, the next
        run waits until the lease has expired."""
        within_s, gaps = self.policy.crashes_within_s, self.policy.crashes_alone_max - 1
        least_s = gaps * (lease_s + RESTART_S)
        if within_s is not None and within_s < least_s:
            raise ConfigError(
                f"task {self.name!r}: poison= asks for {gaps + 1} crashes within {show(within_s)}, and they could take "
                f"{show(least_s)}: each time until a lease of {show(lease_s)} has run out and a worker is started "
                f"again (up to {show(RESTART_S)}); expected within='{show(least_s)}' or more, or a shorter lease"
            )

    def check_takes_over(self, other: TaskSpec) -> None:
        """Raise ConfigError if `other` does not take the arguments of this task's dead messages."""
        mine, others = self.codec.signature, other.codec.signature
        if mine.parameters.keys() != others.parameters.keys():
            raise ConfigError(
                f"on_dead of {self.name}{mine} is {other.name}{others}: it gets the dead message's body, so its "
                "parameters must have the same names"
            )
        if self.version != other.version:
            raise ConfigError(
                f"on_dead of {self.name!r} with version={self.version} is {other.name!r} with version={other.version}: "
                "it gets the dead message's body, so both must have the same version"
            )


def as_text(value: Any, what: str) -> str | None:
    """Return the value of the setting `what`. Raises ConfigError unless it is None or text that is not empty."""
    if value is None or (isinstance(value, str) and value):
        return value
    raise ConfigError(f"{what}={value!r}: expected text that is not empty")


def are_texts(headers: Any) -> bool:
    """Return True if `headers` is a mapping of text to text."""
    return isinstance(headers, Mapping) and all(isinstance(text, str) for item in headers.items() for text in item)


def as_ms(when: datetime | None, what: str) -> int | None:
    """Return a time as milliseconds since the epoch, rounded up so that nothing is early; None for None. Raises
    ConfigError if it has no time zone."""
    if when is None:
        return None
    if not isinstance(when, datetime):
        raise ConfigError(f"{what}={when!r}: expected a datetime with a time zone, such as datetime.now(UTC) + …")
    if when.tzinfo is None:
        raise ConfigError(f"{what}={when!r} has no time zone; give datetime.now(UTC) + … or another aware datetime")
    return -((_EPOCH - when) // timedelta(milliseconds=1))


def as_traceparent(given: object) -> str | None:
    """Return a W3C traceparent, or None for None. Raises ConfigError if it is invalid."""
    if given is None or (isinstance(given, str) and _TRACEPARENT.fullmatch(given)):
        return given
    raise ConfigError(
        f"traceparent={given!r}: expected version, trace, parent and flags as hex digits in lower case, such as "
        "'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', and no id of zeros"
    )


def as_rate(rate: Rates | None) -> Rate | None:
    """Return a Rate as it is, or parsed from text such as "100/s"; None for None. Of several, the first without a cost
    or `per` if there is one, with the others in its `others`. Raises ConfigError."""
    if rate is None:
        return None
    from .flow.limits import Rate, together

    if isinstance(rate, tuple | list):
        if not rate or not all(isinstance(each, Rate | str) for each in rate):
            raise ConfigError(f"rate={rate!r}: expected rates in it, such as ('500/1m', Rate('100k/1m', cost=…))")
        return together([Rate(each) if isinstance(each, str) else each for each in rate])
    if not isinstance(rate, Rate | str):
        raise ConfigError(f"rate={rate!r}: expected text such as '100/s', a Rate, or several of them")
    return Rate(rate) if isinstance(rate, str) else rate


def as_slo(slo: object) -> SLO | None:
    """Return the objective. Raises ConfigError unless it is an SLO or None."""
    if slo is None or isinstance(slo, SLO):
        return slo
    raise ConfigError(f"slo={slo!r}: expected an SLO, such as SLO('99.9% within 30s')")


def as_size(value: object, what: str) -> int:
    """Return a number of bytes, also from text such as "512MiB". Raises ConfigError, which names the setting `what`."""
    try:
        return some_size(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{what}={value!r}: {error}; expected bytes, or a size such as '512MiB'") from None


def _retry(retry: Retry | PresetName | None) -> Retry:
    if retry is None:
        return Retry()
    if isinstance(retry, str):
        preset = presets.get(retry)
        if preset is None:
            raise ConfigError(f"retry={retry!r}: no such preset; known: {', '.join(presets)}")
        return preset
    if not isinstance(retry, Retry):
        raise ConfigError(f"retry={retry!r}: expected a Retry, such as Retry(max_attempts=8), or a preset's name")
    return retry


def _check_idempotency(given: object) -> None:
    from .flow.idempotency import Idempotency

    if not isinstance(given, Idempotency):
        raise ConfigError(
            f"idempotency={given!r}: expected an Idempotency, such as Idempotency(key=lambda order_id: order_id)"
        )


def _linger_s(gather: object, linger: Duration | None, isolation: object) -> float:
    """Return the seconds for which a message may wait for others of its call. Raises ConfigError."""
    if gather is None:
        if linger is not None:
            raise ConfigError(f"linger={linger!r} says how long a message waits for others of its call; give gather=")
        return 0.0
    if type(gather) is not int or not 2 <= gather <= GATHER_MAX:
        raise ConfigError(f"gather={gather!r}: expected the most messages of one call, from 2 to {GATHER_MAX}")
    if isolation is not None:
        raise ConfigError(
            f"gather={gather!r} and isolation={isolation!r}: a child process runs one message at a time, so that a "
            "kill ends no other; leave one of them out"
        )
    linger_s = 0.0 if linger is None else seconds(linger, "linger")
    if linger_s > LINGER_MAX_S:
        raise ConfigError(
            f"linger={linger!r}: expected at most {show(LINGER_MAX_S)}, as what waits is leased meanwhile"
        )
    return linger_s


def _reasons(accepts: object) -> Mapping[str, str]:
    """Return the findings that a task accepts, by rule, each with its reason. Raises ConfigError."""
    if isinstance(accepts, Mapping) and all(isinstance(w, str) and w.strip() for item in accepts.items() for w in item):
        return dict(accepts)
    raise ConfigError(
        f"accepts={accepts!r}: expected rules of `redrive policy check`, each with the reason why its finding is "
        "accepted, such as {'no-spread': 'a nightly job: ten messages'}"
    )


def _memory_bytes(isolation: object, memory: object) -> int | None:
    """Return the most bytes that a child process of the task may use; None without a limit. Raises ConfigError."""
    if isolation is not None and isolation not in get_args(Isolation):
        raise ConfigError(f"isolation={isolation!r}: expected 'process', or None for the worker's own process")
    if memory is None:
        return None
    if isolation is None:
        raise ConfigError(f"memory={memory!r} bounds a child process; give isolation='process' too")
    return as_size(memory, "memory")


def _name(handler: Callable[..., Any]) -> str:
    module, name = getattr(handler, "__module__", ""), getattr(handler, "__qualname__", type(handler).__qualname__)
    return name if module in ("__main__", "__mp_main__", "", None) else f"{module}.{name}"


def _is_any(kind: Callable[[Any], bool], handler: Callable[..., Any]) -> bool:
    """Return True if `kind` returns True for the handler or for the `__call__` of its class."""
    return kind(handler) or kind(type(handler).__call__)
