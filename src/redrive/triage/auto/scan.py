"""Scan the dead messages of a scope for due ones and poison, and compute when to scan again. Reads only.

A scan walks the lane in the order of deaths, page by page. It remembers the messages that come due soonest and reads
them again by id at their time; messages that died since the last scan are at the end of the lane. So a million waiting
messages cost one walk, in steps, and another every ten minutes for imported or changed messages.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from msgspec.structs import replace

from ...flow import dependency as flow
from ...flow.auto_redrive import AutoRedrive, Wait, due_ms, next_step
from ...flow.dependency import Dependency
from ...message import (
    HELD,
    Filter,
    Isolate,
    Lane,
    Message,
    Page,
    Redrive,
)
from ...registry import Registry
from ...store import FIRST_PAGE, fitting
from ...worker.flow.local_state import controls
from ..redrive.gates import held
from ..search import died_of

PAGE = 250  # messages in one read
READ_MAX = 2000  # most messages read in one scan; the next scan continues after them
POISON_MAX = 500  # most messages isolated at once
KNOWN_MAX = 10_000  # most waiting messages remembered
WALK_EVERY_MS = 600_000  # least ms from one walk to the next; ten times the walk's duration if that is longer
LATE_MS = 10_000  # ms by which a slow commit may show a death late


class ScanResult(NamedTuple):
    """`due`: messages to redrive now, the longest due first. `poison`: messages to isolate. `held`: by dependency (NAME
    or NAME/KEY), why it holds other due messages. `next_ms`: when the next message is due, infinite if none is known;
    `now_ms` or earlier if there are more to read."""

    due: Sequence[Message]
    poison: Sequence[Message]
    held: dict[str, str]  # by dependency (NAME or NAME/KEY): why it holds messages
    next_ms: float


class Scan:
    """Scans the dead messages of one scope, and remembers its position; a new Scan reads the messages again."""

    def __init__(self, app: Registry, where: Filter) -> None:
        self._app, self._store, self._where = app, app.store, where
        self._known: dict[str, int] = {}  # due time by id, of the waiting messages that are due soonest
        self._lost_ms = math.inf  # due time of the first waiting message that did not fit into `_known`
        self._held: set[str] = set()  # ids of known messages that a dependency holds
        self._why: dict[str, str] = {}  # by dependency: why it holds messages
        self._walk, self._tail = Walk(where, going=True), Walk(where)
        self._walk_from_ms = 0  # when the last walk through the whole lane started
        self._walk_ms = math.inf
        self._seen_ms: int | None = None  # messages that died before this time are known, or the walk finds them

    def find(self, auto: AutoRedrive, ruled: Set[str], now_ms: int) -> ScanResult:
        """Scan for messages to redrive now, at most as many as one run moves. Leaves out messages of the fingerprints
        `ruled`. Raises StoreError."""
        got = _Pass(auto, ruled, now_ms, Breakers(self._app, now_ms) if auto.gates.breaker else None)
        self._begin_walks(now_ms)
        self._read_known(got)
        for walk in (self._tail, self._walk):
            self._go(walk, got)
        if not self._walk.going and self._walk_ms == math.inf:
            self._walk_ms = now_ms + max(WALK_EVERY_MS, 10 * (now_ms - self._walk_from_ms))
        due = [message for _, _, message in sorted((at_ms, id, m) for id, (at_ms, m) in got.due.items())]
        self._why |= {} if got.breakers is None else got.breakers.held
        return ScanResult(due, [*got.poison.values()], self._why if self._held else {}, self._next_ms(now_ms))

    def release(self) -> None:
        """Let the next scan read the messages again that a dependency held."""
        self._held.clear()
        self._why = {}

    def any(self, limit: int) -> Sequence[Message]:
        """Return up to `limit` of the messages that have been dead for longest. Raises StoreError."""
        return self._store.peek(Lane.DEAD, where=self._where, limit=limit).messages

    def _begin_walks(self, now_ms: int) -> None:
        if self._seen_ms is None:
            self._seen_ms = self._walk_from_ms = now_ms
            return
        if not self._tail.going:
            self._tail = Walk(replace(self._where, since_ms=self._seen_ms - LATE_MS), going=True)
            self._seen_ms = now_ms
        if not self._walk.going and now_ms >= min(self._walk_ms, self._lost_ms):
            self._walk, self._walk_from_ms = Walk(self._where, going=True), now_ms
            self._walk_ms = self._lost_ms = math.inf

    def _read_known(self, got: _Pass) -> None:
        """Read the remembered messages whose due time has come, and sort them."""
        ready = heapq.nsmallest(
            got.auto.run_max + POISON_MAX,
            ((due_ms, id) for id, due_ms in self._known.items() if due_ms <= got.now_ms and id not in self._held),
        )
        for at in range(0, len(ready), PAGE):
            ids = [id for _, id in ready[at : at + PAGE]]
            page = self._store.peek(Lane.DEAD, where=replace(self._where, ids=tuple(ids)), limit=len(ids))
            for id in {*ids} - {message.id for message in page.messages}:  # the message was moved meanwhile
                self._known.pop(id, None)
            self._sort(page.messages, got)
            if got.full:
                return

    def _go(self, walk: Walk, got: _Pass) -> None:
        while walk.going and not got.full:
            page = self._store.peek(Lane.DEAD, where=walk.where, limit=walk.limit, cursor=walk.cursor)
            self._sort(page.messages, got)
            walk.saw(page)

    def _sort(self, messages: Sequence[Message], got: _Pass) -> None:
        """Sort these messages by their next step. All stay remembered until they leave the lane: a redrive may fail."""
        got.read += len(messages)
        due: list[Message] = []
        for message in self._not_ruled(messages, got.ruled):
            if message.reason == HELD and self._where.fingerprint is None:  # only a rule of its group moves it
                continue
            match next_step(message, got.auto, got.now_ms):
                case Wait(until_ms):
                    self._remember(message.id, until_ms)
                case Isolate():
                    self._remember(message.id, 0)
                    if len(got.poison) < POISON_MAX:
                        got.poison[message.id] = _slim(message)
                case Redrive():
                    self._remember(message.id, due_ms(message, got.auto))
                    due.append(message)
        free = due if got.breakers is None else got.breakers.free(due)
        self._held |= {message.id for message in due} - {message.id for message in free}
        for message in free:
            if len(got.due) < got.auto.run_max:
                got.due[message.id] = due_ms(message, got.auto), _slim(message)

    def _remember(self, id: str, due_ms: int) -> None:
        self._known[id] = due_ms
        if len(self._known) > 2 * KNOWN_MAX:
            some = heapq.nsmallest(KNOWN_MAX + 1, ((at_ms, id) for id, at_ms in self._known.items()))
            self._lost_ms = min(self._lost_ms, some.pop()[0])
            self._known = {id: at_ms for at_ms, id in some}
            self._held &= self._known.keys()

    def _next_ms(self, now_ms: int) -> float:
        if self._walk.going or self._tail.going:
            return now_ms
        return min([self._lost_ms, *(at_ms for id, at_ms in self._known.items() if id not in self._held)])

    def _not_ruled(self, messages: Sequence[Message], ruled: Set[str]) -> Sequence[Message]:
        """Return the messages without those of the fingerprints `ruled`: their standing rules take precedence."""
        gone = died_of(self._store, messages, ruled)
        return [m for m in messages if m.id not in gone] if gone else messages


class Walk:
    """A walk through dead messages, in the order of their deaths."""

    limit: int
    where: Filter
    going: bool

    def __init__(self, where: Filter, *, going: bool = False) -> None:
        self.where, self.going = where, going
        self.cursor: str | None = None
        self.limit = FIRST_PAGE

    def saw(self, page: Page) -> None:
        """Continue after this page, with a limit by the size of its messages."""
        self.cursor, self.going = page.cursor, page.cursor is not None
        if page.messages:
            self.limit = fitting(page.messages, PAGE)


class _Pass:
    """The state of one scan: its inputs, and the messages found so far."""

    def __init__(self, auto: AutoRedrive, ruled: Set[str], now_ms: int, breakers: Breakers | None) -> None:
        self.auto, self.ruled, self.now_ms, self.breakers = auto, ruled, now_ms, breakers
        self.due: dict[str, tuple[int, Message]] = {}  # due time and message, by id
        self.poison: dict[str, Message] = {}
        self.read = 0

    @property
    def full(self) -> bool:
        """True if the scan has found or read enough."""
        return len(self.due) >= self.auto.run_max or len(self.poison) >= POISON_MAX or self.read >= READ_MAX


class Breakers:
    """Finds out which dependencies hold messages; each is read once per scan."""

    def __init__(self, app: Registry, now_ms: int) -> None:
        self._app, self._now_ms = app, now_ms
        self._reasons: dict[str, str | None] = {}
        self.held: dict[str, str] = {}

    def free(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages whose dependencies may be called now. Raises StoreError."""
        needs = [[*self._needs(message)] for message in messages]
        new = {about: d for need in needs for about, d in need if about not in self._reasons}
        cells = self._app.store.cells.read([f"flow/{about}" for about in new]) if new else []
        for (about, d), cell in zip(new.items(), cells, strict=True):
            self._reasons[about] = held(flow.decode(cell), d, about, self._now_ms)
        return [message for message, need in zip(messages, needs, strict=True) if self._may_go(need)]

    def _needs(self, message: Message) -> Iterator[tuple[str, Dependency]]:
        for d in controls(self._app, message.task, message.queue):
            yield flow.about_of(d.name, flow.key_of(d, message)), d

    def _may_go(self, need: list[tuple[str, Dependency]]) -> bool:
        shut = {about: why for about, _ in need if (why := self._reasons[about]) is not None}
        self.held |= shut
        return not shut


def _slim(message: Message) -> Message:
    """Return the message without its body and faults, which a plan does not need."""
    return replace(message, body=b"", faults=())
