"""What is to be done in a scope now: who is due, who is poison, when to look again. Reads only."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ..flow import dependency as flow
from ..flow.dependency import Dependency
from ..message import Isolate, Lane, Message, Redrive, Where
from ..worker.guards import controls
from .auto import AutoRedrive, next_step
from .gates import held

if TYPE_CHECKING:
    from ..app import App

PAGE = 100  # messages that are looked at in one go
LOOKED_MAX = 2000  # of each redrive count, where many are held back; the next look goes on there
SWEEP_EVERY_MS = 600_000
POISON_MAX = 500  # isolated in one go


class Found(NamedTuple):
    """`due` go now, the longest due first; `poison` are given up, `held` says what holds back others that are due, and
    `next_ms` when the next is (infinite: none is dead)."""

    due: list[Message]
    poison: list[Message]
    held: dict[str, str]  # by dependency, NAME or NAME/KEY, why
    next_ms: float


class Look:
    """Looks through the dead messages of one scope, and remembers where it was."""

    def __init__(self, app: App, where: Where) -> None:
        self._app, self._store, self._where = app, app.store, where
        self._cursors: dict[int, str | None] = {}  # by redrives, where the last look stopped short
        self._sweep: str | None = None
        self._sweep_ms = 0  # when the next one begins
        self.whole = True  # whether the last look was at all of it: else the next goes on where it stopped

    def find(self, auto: AutoRedrive, ruled: Collection[str], now_ms: int) -> Found:
        """Those to be moved now, at most what may be under way at once. Those of the fingerprints in `ruled` are left
        alone. Raises StoreError."""
        due: list[tuple[int, Message]] = []
        breakers = Breakers(self._app, now_ms) if auto.gates.breaker else None
        next_ms, self.whole = math.inf, not self._cursors
        for redrives in range(auto.max_redrives):
            wait_ms = auto.delay_ms(redrives + 1)
            some = self._due(redrives, now_ms - wait_ms, auto.at_once, ruled, breakers)
            due += [((m.rested_ms or 0) + wait_ms, m) for m in some]
            next_ms = min(next_ms, self._next_ms(redrives, now_ms - wait_ms) + wait_ms)
        due.sort(key=lambda pair: pair[0])
        chosen = [m for _, m in due if isinstance(next_step(m, auto, now_ms), Redrive)][: auto.at_once]
        poison = self._poison(auto, ruled, now_ms)
        self.whole = self.whole and not self._cursors and self._sweep is None
        return Found(chosen, poison, {} if breakers is None else breakers.held, next_ms)

    def any(self, limit: int) -> Sequence[Message]:
        """The longest dead, whatever their redrives."""
        return self._store.peek(Lane.DEAD, where=self._where, limit=limit).messages

    def _due(
        self, redrives: int, until_ms: int, most: int, ruled: Collection[str], breakers: Breakers | None
    ) -> list[Message]:
        """Those with so many redrives that died up to then, the longest dead first."""
        found: list[Message] = []
        where = replace(self._where, redrives=redrives, until_ms=until_ms + 1)
        cursor, looked = self._cursors.pop(redrives, None), 0
        while len(found) < most:
            page = self._store.peek(Lane.DEAD, where=where, limit=max(most - len(found), PAGE), cursor=cursor)
            looked += len(page.messages)
            free = self._not_ruled(page.messages, ruled)
            found += free if breakers is None else breakers.free(free)
            cursor = page.cursor
            if cursor is None:
                break
            if looked >= LOOKED_MAX:
                self._cursors[redrives] = cursor
                break
        return found[:most]

    def _next_ms(self, redrives: int, since_ms: int) -> float:
        """When the first of those that died later did."""
        where = replace(self._where, redrives=redrives, since_ms=since_ms + 1)
        page = self._store.peek(Lane.DEAD, where=where, limit=1)
        return min((m.rested_ms or 0 for m in page.messages), default=math.inf)

    def _poison(self, auto: AutoRedrive, ruled: Collection[str], now_ms: int) -> list[Message]:
        """Those that were redriven as often as may be; and, a page at each look, those even more often: by hand, or
        before the bound was lowered."""
        where = replace(self._where, redrives=auto.max_redrives)
        exact = self._store.peek(Lane.DEAD, where=where, limit=POISON_MAX).messages
        more = self._swept(now_ms)
        found = {m.id: m for m in [*exact, *more] if isinstance(next_step(m, auto, now_ms), Isolate)}
        return self._not_ruled([*found.values()], ruled)

    def _swept(self, now_ms: int) -> Sequence[Message]:
        if now_ms < self._sweep_ms:
            return ()
        page = self._store.peek(Lane.DEAD, where=self._where, limit=PAGE, cursor=self._sweep)
        self._sweep = page.cursor
        self._sweep_ms = now_ms + SWEEP_EVERY_MS if page.cursor is None else 0
        return page.messages

    def _not_ruled(self, messages: list[Message], ruled: Collection[str]) -> list[Message]:
        """Without those that died of what has a standing rule: that goes first."""
        of_rule: dict[str, list[str]] = {}
        for message in messages:
            if message.faults and message.faults[-1].fingerprint in ruled:
                of_rule.setdefault(message.faults[-1].fingerprint, []).append(message.id)
        gone: set[str] = set()
        for fingerprint, ids in of_rule.items():  # some die of no fault: the last one kept is not what they died of
            where = Where(fingerprint=fingerprint, ids=tuple(ids))
            gone.update(m.id for m in self._store.peek(Lane.DEAD, where=where, limit=len(ids)).messages)
        return [m for m in messages if m.id not in gone] if gone else messages


class Breakers:
    """What the dependencies of messages say, each asked once in a look."""

    def __init__(self, app: App, now_ms: int) -> None:
        self._app, self._now_ms = app, now_ms
        self._said: dict[str, str | None] = {}
        self.held: dict[str, str] = {}

    def free(self, messages: list[Message]) -> list[Message]:
        """Those whose dependencies may be called. Raises StoreError."""
        needs = [[*self._needs(message)] for message in messages]
        new = {about: d for need in needs for about, d in need if about not in self._said}
        cells = self._app.store.cells.read([f"flow/{about}" for about in new]) if new else []
        for (about, d), cell in zip(new.items(), cells, strict=True):
            self._said[about] = held(flow.decode(cell), d, about, self._now_ms)
        return [message for message, need in zip(messages, needs, strict=True) if self._may_go(need)]

    def _needs(self, message: Message) -> Iterator[tuple[str, Dependency]]:
        for d in controls(self._app, message.task, message.queue):
            yield flow.about_of(d.name, flow.key_of(d, message)), d

    def _may_go(self, need: list[tuple[str, Dependency]]) -> bool:
        shut = {about: why for about, _ in need if (why := self._said[about]) is not None}
        self.held |= shut
        return not shut
