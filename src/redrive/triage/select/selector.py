"""A selection: the dead messages that a selector names, as of one moment. Counted, listed and moved they are the same.

What the store's indexes can answer is asked as a `Where`, a lane at a time; the rest is judged page by page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ...blobs import whole_body
from ...duration import Duration
from ...errors import BlobsUnavailable, Unreadable
from ...fault import Fault
from ...message import FailureGroup, Lane, Message, Where
from ...registry import Registry
from ...store import Store
from ...stores.groups import grouped
from ..deaths import died_of_last
from ..pages import pages
from .match import Seen, Unknown, judge, split
from .parser import parse
from .terms import (
    ALL,
    LANES,
    NONE,
    Node,
    Pattern,
    Point,
    Term,
    both,
    of_lane,
    unnamed,
)

if TYPE_CHECKING:
    from ...flow.gates import Gates
    from ..redrive.plan_handle import PlanHandle


class Look(NamedTuple):
    """How a lane is looked through: what is asked of the store, and what is judged of what it finds."""

    lane: Lane
    where: Where
    rest: Node


class Selection:
    """The dead messages that a selector names, among those that were dead at `now_ms`.

    Quarantined ones are in it only where the selector says `lane:quarantine`, and kept done ones only where it says
    `lane:done`. `str` gives the selector.
    """

    def __init__(
        self, store: Store, selector: Node | str = "", now_ms: int | None = None, *, app: Registry | None = None
    ) -> None:
        """Raises SelectorError, which points at the mistake; StoreError for the time, if none is given."""
        self.node = parse(selector) if isinstance(selector, str) else selector
        self.now_ms = store.now_ms() if now_ms is None else now_ms
        self.unread = 0  # in the last look, what was left out as it hangs on a body whose blob could not be read
        self._store, self._app = store, app
        of_lanes = [(lane, of_lane(self.node, lane)) for lane in LANES]
        self._looks = [self._look(lane, node) for lane, node in of_lanes if node != NONE]

    @property
    def where(self) -> Where:
        """What of it the store answers from the dead lane by itself."""
        return next((look.where for look in self._looks if look.lane is Lane.DEAD), Where(ids=()))

    @property
    def exact(self) -> bool:
        """Whether the store answers all of it by itself."""
        return all(look.rest == ALL for look in self._looks)

    def __str__(self) -> str:
        return str(self.node)

    def __repr__(self) -> str:
        return f"Selection({str(self)!r}, now_ms={self.now_ms})"

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def matches(self, message: Message, fault: Fault | Unknown | None = Unknown.FAULT) -> bool:
        """Whether it is in the selection, by what is known of the message itself: it takes the last fault kept for the
        one it died of, unless `fault` says better, and leaves out what hangs on a body that lies in a blob."""
        if message.lane not in LANES or (message.rested_ms or 0) > self.now_ms:
            return False
        if fault is Unknown.FAULT:
            fault = message.faults[-1] if message.faults else None
        return judge(of_lane(self.node, message.lane), Seen(message, self.now_ms, fault)) is True

    def messages(self, limit: int | None = None) -> Iterator[Message]:
        """The longest dead first, then the quarantined ones, then done ones, page by page; at most `limit`."""
        return islice((message for message, _ in self._found()), limit)

    def ids(self, limit: int | None = None) -> Iterator[str]:
        """Their ids, in the same order."""
        return (message.id for message in self.messages(limit))

    def count(self) -> int:
        """How many there are. Where the indexes know it, no message is read."""
        if self._by_index():
            return sum(group.count for look in self._looks for group in self._indexed(look.where))
        return sum(1 for _ in self._found())

    def groups(self, *, trend: bool = False) -> Sequence[FailureGroup]:
        """They by the fingerprint of the fault they died of and by task, the largest group first; with `trend`, how
        many of each died in the last hour and in the one before."""
        if self._by_index():
            return [group for look in self._looks for group in self._indexed(look.where, trend=trend)]
        return grouped(self._found(faults=True), self.now_ms if trend else None)

    def count_unnamed(self, lane: Lane) -> int:
        """How many of that lane would be in it if it named the lane; 0 where it does, or names others."""
        node = unnamed(self.node, lane)
        if node == NONE:
            return 0
        look = self._look(lane, node)
        queue = look.where.queue if isinstance(look.where.queue, str) else None
        if not getattr(self._store.counts(queue), lane.value):
            return 0
        return sum(len(self._chosen(look, page)) for page in pages(self._store, look.lane, look.where))

    def plan(
        self,
        *,
        rate: str | float | None = None,
        canary: int = 0,
        slow_start: bool = False,
        halve_on_failures: bool = False,
        stop_if: str | None = None,
        attempts: int | None = None,
        to_queue: str | None = None,
        delay: Duration = 0,
        spread: Duration = 0,
        keep_deadline: bool = False,
        gates: Gates | None = None,
        note: str = "",
    ) -> PlanHandle:
        """Draw up the plan of a redrive of these: it freezes exactly which, counts them, and moves nothing.

        `rate`, such as "20/s", bounds how many are moved (500 a second unless given). `canary` moves so many first,
        and the others once these have been judged. `slow_start` begins with one a second and goes twice as fast each
        10 s. `halve_on_failures` goes half as fast in each second in which more than a tenth fail. `stop_if` ends the
        run: "failed>20%" of those judged, or "failed>100" (with a canary "failed>20%" unless given; "" never).
        `attempts` bounds the new lives (None: the policy's), `to_queue` sends them to another queue, `delay` and
        `spread` let each come due that much later, `spread` by a draw of its own. `keep_deadline` keeps deadlines.
        `gates` say what must hold while it moves anything: a closed breaker unless given.

        Left out, with the reason in `excluded`, are quarantined messages that are not named, those that a standing
        rule holds, those of tasks that the app does not have, and those whose body cannot be read to tell.
        Raises ConfigError, ValueError or TypeError for what cannot be meant, StoreError.
        """
        from ..redrive.plan_handle import PlanHandle
        from ..redrive.settings import read_settings

        settings = read_settings(
            rate=rate,
            canary=canary,
            slow_start=slow_start,
            halve_on_failures=halve_on_failures,
            stop_if=stop_if,
            attempts=attempts,
            to_queue=to_queue,
            delay=delay,
            spread=spread,
            keep_deadline=keep_deadline,
            gates=gates,
            note=note,
        )
        return PlanHandle.of(self._store, self, settings, self._app)

    # -- looking

    def _look(self, lane: Lane, node: Node) -> Look:
        return Look(lane, *split(node, self.now_ms + 1, self.now_ms))

    def _by_index(self) -> bool:
        return self.exact and all(look.lane is Lane.DEAD for look in self._looks)

    def _indexed(self, where: Where, *, trend: bool = False) -> Sequence[FailureGroup]:
        """Stores group fastest without a bound in time: it is asked for only where somebody has died since."""
        if where.until_ms == self.now_ms + 1:
            found = self._store.failure_groups(where=replace(where, until_ms=None), trend=trend)
            if all(group.last_ms <= self.now_ms for group in found):
                return found
        return self._store.failure_groups(where=where, trend=trend)

    def _found(self, *, faults: bool = False) -> Iterator[tuple[Message, Fault | None]]:
        """Each with the fault it died of, where `faults` asks for it."""
        self.unread = 0
        for look in self._looks:
            for page in pages(self._store, look.lane, look.where):
                chosen = self._chosen(look, page)
                died = died_of_last(self._store, look.lane, chosen) if faults else set()
                yield from ((m, m.faults[-1] if m.id in died else None) for m in chosen)

    def _chosen(self, look: Look, page: list[Message]) -> list[Message]:
        if look.rest == ALL:
            return page
        verdicts = [judge(look.rest, Seen(message, self.now_ms)) for message in page]
        open_ones = [m for m, verdict in zip(page, verdicts, strict=True) if verdict is None]
        died = died_of_last(self._store, look.lane, open_ones) if open_ones else set()
        return [
            message
            for message, verdict in zip(page, verdicts, strict=True)
            if (verdict if verdict is not None else self._closer(look.rest, message, message.id in died))
        ]

    def _closer(self, rest: Node, message: Message, of_last: bool) -> bool:
        """Judge by the fault it died of and, where it still hangs on that, the body in its blob."""
        fault = message.faults[-1] if of_last else None
        verdict = judge(rest, Seen(message, self.now_ms, fault))
        if verdict is not None:
            return verdict
        try:
            return judge(rest, Seen(message, self.now_ms, fault, whole_body(self._store, message))) is True
        except (Unreadable, BlobsUnavailable):
            self.unread += 1
            return False


def as_node(where: Where = Where(), lane: Lane = Lane.DEAD) -> Node:
    """The same filter as a selector says it."""
    fields = {"queue": where.queue, "task": where.task, "reason": where.reason}
    fields |= {"fingerprint": where.fingerprint, "error": where.error}
    terms: list[Node] = [
        Term(field, tuple(Pattern((text,)) for text in ((said,) if isinstance(said, str) else said)))
        for field, said in fields.items()
        if said is not None
    ]
    if where.ids is not None:
        terms.append(Term("id", tuple(Pattern((id,)) for id in where.ids)))
    bounds = ((">=", where.since_ms), ("<", where.until_ms))
    terms += [Term("failed", (Point(op, ms),)) for op, ms in bounds if ms is not None]
    if lane is not Lane.DEAD:
        terms.append(Term("lane", (Pattern((lane.value,)),)))
    return both(terms)
