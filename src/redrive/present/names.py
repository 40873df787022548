"""The names that an app declares and its store holds: for completion, near misses, and terms of selectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from ..errors import ConfigError
from ..message import REASONS
from ..registry import Registry
from ..store import Store
from ..triage.select.terms import ARGS, FIELDS, HEADER, exactly

NAMES_MAX = 200  # the most names of each kind
PLANS_MAX = 20  # the most plans, as each takes a read
NamedThing = tuple[str, str]  # a name, and its description
_TIMES = ("failed:<1h", "failed:<6h", "failed:<24h", "failed:>7d")


def queue_names(store: Store, app: Registry | None) -> list[str]:
    """Return the names of queues with messages, and of those that the app declares. Empty if the store cannot list its
    queues, as then no name can be called wrong."""
    try:
        return sorted({*store.queues(), *(() if app is None else app.queue_names)})
    except ConfigError:  # SQS does not allow listing queues
        return []


def declared_names(kind: str, app: Registry) -> Iterator[NamedThing]:
    """Yield the names of a kind that the app declares: queues, tasks, dependencies or schedules; none for others."""
    named: Mapping[str, Iterable[str]] = {
        "queues": sorted(app.queue_names),
        "tasks": sorted(app.tasks),
        "dependencies": sorted(app.dependencies),
        "schedules": sorted(app.schedules),
    }
    return ((name, "") for name in named.get(kind, ()))


def stored_names(kind: str, store: Store) -> Iterator[NamedThing]:
    """Yield the names of a kind that the store has: queues, failures, plans or runs; none of other kinds. Raises
    StoreError."""
    from ..triage.redrive.records import read_plan, recent_plans
    from ..triage.redrive.run import views

    match kind:
        case "queues":
            yield from ((name, "") for name in store.queues())
        case "failures":
            for group in store.failure_groups():
                yield group.fingerprint, f"{group.count:,} of {group.task}: {group.error}"
        case "plans":
            for id in recent_plans(store.cells)[:PLANS_MAX]:
                if (plan := read_plan(store.cells, id)) is not None:
                    yield id, f"{plan.total:,} messages"
        case "runs":
            yield from ((view.id, view.state) for view in views(store, NAMES_MAX))
        case _:
            pass


def selector_terms(queues: Iterable[str], tasks: Iterable[str], errors: Iterable[str]) -> Sequence[str]:
    """Return terms of selectors that match exactly these names, and then the other fields without a value."""
    named = {"queue": queues, "task": tasks, "error": errors, "reason": REASONS, "lane": ("dead", "quarantine", "done")}
    terms = [str(exactly(field, name)) for field, names in named.items() for name in islice(names, NAMES_MAX)]
    fields = [f"{field}:" for field in FIELDS if field not in (*named, "failed", "header", "args")]
    return [*terms, *_TIMES, *fields, HEADER, ARGS]
