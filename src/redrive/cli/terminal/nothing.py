"""Explain why a command matched no messages: a misspelled name, with the nearest one, or what the lane has instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ...errors import Unsupported, near_miss
from ...message import REASONS, RESTING, Filter, Lane
from ...present.commands import command, corrected, onward
from ...present.failure import FAILED, USAGE, Failure
from ...present.names import queue_names
from ...triage.select.terms import And, Node, Or, Pattern, Term, as_node, hint
from ...triage.selection import Selection
from .stderr import note

if TYPE_CHECKING:
    from ...app import App
    from ...store import Store

SHOWN = 8  # the most names in one line
SHOWN_MAX = 300  # the most characters of a name
_WORDS = {Lane.DEAD: "dead", Lane.QUARANTINE: "in quarantine"}
_DIVIDES = ("queue", "task", "reason", "error", "fingerprint")  # fields by whose values dead messages are counted
_KINDS = {"reason": "reason of death", "fingerprint": "failure group"}


class Here:
    """The names that the app and the store know, and the failures of commands that matched no message."""

    store: Store
    app: App | None
    url: str

    def __init__(self, store: Store, app: App | None, url: str) -> None:
        self.store, self.app, self.url = store, app, url

    def preflight(self, node: Node, *, acts: bool = False) -> None:
        """Raise Failure (exit code 2) if a term names a queue, a task or a reason of death unknown to app and store.
        Call it after nothing matched. `acts`: suggest a command that only reads, not one with the nearest name."""
        if meant := hint(node):
            note(meant)
        for field, value in named(node):
            known = self._known.get(field)
            if known is None or value in (names := known(self)) or self._has(field, value):
                continue
            if not names:  # without an app and messages, no name can be called wrong
                continue
            more = "" if self.app or field == "reason" else "; --app names more, which hold nothing now"
            raise unknown(field, value, names, self.url, more=more, look="dlq groups" if acts else "", guess=not acts)

    def there(self, node: Node, lane: Lane = Lane.DEAD) -> tuple[int, str]:
        """Return the number of messages in the lane, and a text with their counts by the fields that the selector's
        terms name."""
        counts = self.store.counts()
        total = counts.dead if lane is Lane.DEAD else counts.quarantine
        parts, nearest = [], []
        asked = {field: value for field, value in named(node) if field in _DIVIDES} or {"task": ""}
        for field in [field for field in _DIVIDES if field in asked]:
            some = self._counted(field, lane)
            parts.append(f"{_of(field)} " + (_listed([f"{name} {count:,}" for name, count in some.items()]) or "none"))
            near = near_miss(asked[field], some) if asked[field] not in some else None
            nearest += [f"{_of(field)} {near}"] if near else []
        text = "; ".join(parts) + (f"; nearest: {', '.join(nearest)}" if nearest else "")
        return total, text

    def matched(self, matching: Selection, did: str, lane: Lane = Lane.DEAD) -> Failure:
        """Return the failure of a command that `did` nothing as its selection is empty. Raises Failure as `preflight`
        does."""
        self.preflight(matching.node, acts=True)
        total, text = self.there(matching.node, lane)
        if not total:
            why = "there is nothing to act on" if lane is Lane.DEAD else f"{_dead(self.store.counts().dead)} dead"
            return Failure(f"nothing was {did}: nothing is {_WORDS[lane]} in {self.url}", why, onward("queue list"))
        next = onward("dlq groups" if lane is Lane.DEAD else "dlq list --quarantine")
        if lane is Lane.DEAD and (apart := matching.count_unnamed(Lane.QUARANTINE)):
            text, next = (
                f"{apart:,} that match are in quarantine: name them by lane:quarantine; {text}",
                onward("dlq list --quarantine"),
            )
        return Failure(f"nothing was {did}: {_dead(total)} {_WORDS[lane]}, 0 match", text, next, FAILED)

    def noted(self, matching: Selection, lane: Lane = Lane.DEAD) -> str:
        """Return the note for a list whose selection is empty. Raises Failure as `preflight` does."""
        self.preflight(matching.node)
        total, text = self.there(matching.node, lane)
        return (
            f"{_dead(total)} {_WORDS[lane]}, 0 match: {text}" if total else f"nothing is {_WORDS[lane]} in {self.url}"
        )

    def queues(self) -> list[str]:
        """Return the names of queues with messages, and of those that the app declares."""
        return queue_names(self.store, self.app)

    def _tasks(self) -> list[str]:
        resting = {group.task for group in self.store.failure_groups()}
        return sorted(resting if self.app is None else resting | set(self.app.tasks))

    _known: Mapping[str, Callable[[Here], Sequence[str]]] = {
        "queue": queues, "task": _tasks, "reason": lambda self: REASONS,
    }  # fmt: skip

    def _has(self, field: str, value: str) -> bool:
        """Return True if the store has a message whose `field` has this value, or if it cannot search for one."""
        where = msgspec.structs.replace(Filter(), **{field: value})
        try:
            return any(self.store.peek(lane, where=where, limit=1).messages for lane in (None, *RESTING))
        except Unsupported:
            return self.app is None or any(self.store.peek(lane, where=where, limit=1).messages for lane in RESTING)

    def _counted(self, field: str, lane: Lane) -> dict[str, int]:
        """Return how many messages of a lane have each value of a field, the largest count first."""
        counted: Counter[str] = Counter()
        if field == "queue":
            for name, counts in self.store.counts_by_queue().items():
                counted[name] = counts.dead if lane is Lane.DEAD else counts.quarantine
        elif field == "reason":
            for reason in REASONS:
                counted[reason] = Selection(self.store, as_node(Filter(reason=reason), lane)).count()
        else:
            for group in Selection(self.store, as_node(lane=lane)).groups():
                counted[str(getattr(group, field))] += group.count
        return {name: count for name, count in counted.most_common() if count and name}


def unknown(
    field: str, value: str, known: Sequence[str], where: str, *, more: str = "", look: str = "", guess: bool = True
) -> Failure:
    """Return the failure that reports an unknown name, with the nearest and other known names. Its next command has the
    nearest name instead if `guess`; otherwise it is `look`."""
    near = near_miss(value, known)
    why = (f"did you mean '{near}'? " if near else "") + f"known: {_listed(known) or 'none'}{more}"
    next = corrected(value, near, field) if near and guess else onward(look) if look else f"{command()} --help"
    return Failure(f"there is no {_of(field)} '{_short(value)}' in {where}", why, next, USAGE)


def named(node: Node) -> Iterator[tuple[str, str]]:
    """Yield (field, value) of each term that a message must or may match, if the value contains no wildcard."""
    match node:
        case Term(field, values):
            yield from (
                (field, value.parts[0]) for value in values if isinstance(value, Pattern) and len(value.parts) == 1
            )
        case And(nodes) | Or(nodes):
            for each in nodes:
                yield from named(each)
        case _:  # the value of a negated term need not exist
            pass


def _of(field: str) -> str:
    return _KINDS.get(field, field)


def _dead(count: int) -> str:
    return f"{count:,} {'is' if count == 1 else 'are'}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(_short(name) for name in names[:SHOWN]) + more


def _short(name: str) -> str:
    return name if len(name) <= SHOWN_MAX else name[: SHOWN_MAX - 1] + "…"
