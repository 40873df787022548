"""The Redis store: messages in hashes and sorted sets of one namespace, changed by Lua scripts alone.

Every key begins with `{namespace}:`, so that each script touches one slot. Each call is one script and so one commit;
the scripts are in redis_scripts, named as the methods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...errors import Conflict, EnqueueError, Unsupported
from ...fault import Fault
from ...ids import is_id, new_id
from ...message import (
    Ask,
    Cancel,
    Cell,
    Counts,
    Damage,
    Discard,
    Draft,
    Exchange,
    FailureGroup,
    Group,
    GroupOrder,
    Handle,
    Hold,
    Isolate,
    Keep,
    Lane,
    Message,
    OnDead,
    Page,
    Put,
    Readmit,
    Receipt,
    Redrive,
    Replace,
    Return,
    Settlement,
    Started,
    Swap,
    Verdict,
    Where,
)
from ...store import Cells, Traits
from .. import validation
from ..failpoints import no_seam
from ..memory.groups import refuse
from ..meta import encode
from ..state_dir import state_dir
from .exchange import Held, Settling, skip_row, swap_rows
from .preflight import about, findings, preflight
from .rows import (
    LETTERS,
    NO_NAME,
    Arguments,
    claimed_of,
    draft_rows,
    id_bytes,
    id_text,
    packed_ids,
    restored_rows,
)
from .search import QUEUES_AT_ONCE, Looks, found_of
from .session import Link
from .url import RedisUrl
from .wake import Wake

SWEEP_EVERY_MS, SWEEP_MAX = 60_000, 1000
SET_ASIDE_TOLD = TOLD_MOST = 100
GROUPS_AT_ONCE = 500
LOOK_EVERY_S = 0.01  # how often a waiter looks at a clock that the server does not know


class RedisStore:
    """A store in one namespace of a Redis server (or Valkey, or a Cluster).

    `clock_ms` replaces the server's clock in tests. Raises ConfigError for a URL that cannot be and for a server that
    may lose messages, StoreUnavailable for one that cannot be reached.
    """

    traits = Traits(name="redis")

    def __init__(self, url: str, *, clock_ms: Callable[[], int] | None = None) -> None:
        self.seam: Callable[[str], None] = no_seam  # tests put a function here that kills or fails at a named point
        self._clock_ms = clock_ms
        at = RedisUrl.parse(url)
        self._link = Link(at, seam=lambda point: self.seam(point))
        self._wake = Wake(self._link, look_every_s=math.inf if clock_ms is None else LOOK_EVERY_S)
        self.state_dir: Path | None = state_dir(f"{at.shown.partition('@')[2] or at.shown}/{at.namespace}")
        self._looks = Looks(self._call, self._queues)
        try:
            preflight(self._link)
        except BaseException:
            self.close()
            raise
        self.traits = replace(type(self).traits, read_only=self._link.read_only)
        self._swept_ms = self.now_ms()
        self.cells: Cells = RedisCells(self)

    def now_ms(self) -> int:
        return self._link.now_ms() if self._clock_ms is None else self._clock_ms()

    def _saw_clock(self, now: int, sent_s: float) -> None:
        if self._clock_ms is None:
            self._link.saw_clock(now, sent_s)

    def _now(self) -> bytes:
        """The time for a script; empty where the server shall take its own."""
        return b"" if self._clock_ms is None else b"%d" % self._clock_ms()

    def _call(self, script: str, asked: Any, *blobs: bytes) -> Any:
        arguments = Arguments()
        for blob in blobs:
            arguments.blob(blob)
        return self._link.call(script, arguments.listed(self._now(), asked))

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[Put]:
        if tx is not None:
            raise Unsupported("Redis has no transactions of the caller's to write in; enqueue without tx=")
        validation.admit(drafts, self.traits)
        made_ms = self.now_ms()
        ids = [draft.id or new_id(made_ms) for draft in drafts]

        def asked(again: bool = False) -> list[bytes]:
            arguments, zones = Arguments(), dict[tuple[int, str], int]()
            arguments.blob(packed_ids(ids))
            rows = draft_rows(drafts, ids, zones, arguments)
            # Once it was sent, what is stored under these ids may be this very put: then its answer was lost.
            return arguments.listed(self._now(), (rows, [*zones], swap_rows(swaps, arguments), again))

        self.seam("put")
        sent_s = time.monotonic()
        reply = self._told(self._link.call("put", asked(), repeated=lambda: asked(True)), swaps)
        self.seam("acknowledge")
        now, duplicates = reply
        self._saw_clock(now, sent_s)
        puts = [Put(id, False, _state(draft, now)) for draft, id in zip(drafts, ids, strict=True)]
        for n in range(0, len(duplicates), 3):
            at, held, word = duplicates[n : n + 3]
            puts[at - 1] = Put(id_text(held.hex()), True, word.decode())
        return puts

    def _told(self, reply: Any, swaps: Sequence[Swap]) -> Any:
        """The reply, unless it says why nothing was written."""
        if reply[0] == b"stored":
            raise EnqueueError(f"a message with id {id_text(reply[1].hex())} is already stored; nothing was written")
        if reply[0] == b"conflict":
            swap = swaps[reply[1] - 1]
            raise Conflict(f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again")
        return reply

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        settling = Settling(settlements, self.traits, self.now_ms)
        asked = settling.asked(swaps, asks)
        self.seam("settled")
        self.seam("claim")
        sent_s = time.monotonic()
        reply = self._told(self._link.call("exchange", settling.arguments.listed(self._now(), asked)), swaps)
        now, stale, other, words, parts, clogged, aside = reply
        self._saw_clock(now, sent_s)
        if parts:
            self._wake.busy()
        deliveries = []
        for part in parts:
            ask = asks[part[0]]
            found, bad = claimed_of(part, ask.queue, ask.worker, now + ask.lease_ms)
            deliveries += found
            if bad:
                asked = (ask.queue, part[1], [why for _, why in bad])
                self._call("set_aside", asked, b"".join(member for member, _ in bad))
                aside = [*aside, *(member[6:] for member, _ in bad)]
        self._sweep(now)
        clogged_queues = frozenset(asks[at].queue for at in clogged)
        return Exchange(settling.words(stale, other, words), deliveries, clogged_queues, self._damaged(aside))

    def _damaged(self, aside: Sequence[bytes]) -> tuple[Message, ...]:
        if not aside:
            return ()
        return tuple(found[0] for found in found_of(self._call, aside[:SET_ASIDE_TOLD]) if found is not None)

    def _sweep(self, now: int) -> None:
        if now - self._swept_ms >= SWEEP_EVERY_MS:
            self._swept_ms = now
            if self._call("sweep", None) == SWEEP_MAX:
                self._swept_ms = now - SWEEP_EVERY_MS  # there is more: go on with the next exchange

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[Hold]:
        held = Held(receipts)
        self.seam("extend")
        words = self._call("extend", (lease_ms, alone, held.zones, held.zone_of), held.members, held.fences)
        holds = [Hold.LOST] * len(receipts)
        for at, word in zip(held.at, words, strict=True):
            holds[at] = _HOLDS[word]
        return holds

    def release(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        packed = b"".join(
            id_bytes(id) + fence.to_bytes(4, "big") for id, fence in started or () if is_id(id) and not fence >> 32
        )
        died = [] if fault is None else [encode(fault)]
        self.seam("release")
        released = lapsed = 0
        for priority, queue in self._leased():
            cursor = "0"
            while True:  # a page of the leases at a time
                asked = (worker or NO_NAME, priority, queue, cursor, started is not None, None if fault is None else 4)
                found, given_back, run_out = self._call("release", asked, packed, *died)
                released, lapsed, cursor = released + given_back, lapsed + run_out, found.decode()
                if cursor == "0":
                    break
        return released, lapsed

    def _leased(self) -> Iterator[tuple[int, str]]:
        """Priority and queue of what may be leased."""
        queues = self._queues()
        for first in range(0, len(queues), QUEUES_AT_ONCE):
            some = queues[first : first + QUEUES_AT_ONCE]
            found = self._call("leased", (some,))
            yield from ((found[n + 1], some[found[n]]) for n in range(0, len(found), 2))

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        held = Held([receipt])
        return bool(held.at) and self._call("checkpoint", None, held.members, held.fences, state) == 1

    # -- waiting

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
        wanted = [(ask.queue, skip_row(ask)) for ask in asks if ask.limit > 0]

        def look() -> float | None:
            due_ms = self._call("look", (wanted,))
            return None if due_ms is None else due_ms / 1000

        self._wake.wait([ask.queue for ask in asks if ask.limit > 0], look, timeout_ms)

    def nudge(self) -> None:
        self._wake.nudge()

    # -- looking

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        known = [id for id in dict.fromkeys(ids) if is_id(id)]
        raw = [id_bytes(id) for id in known]
        parts = zip(known, found_of(self._call, raw), strict=True)
        found = {id: one[0] for id, one in parts if one is not None}
        return [found.get(id) for id in ids]

    def counts(self, queue: str | None = None) -> Counts:
        every = self._counts(self._queues() if queue is None else [queue])
        oldest_ms = max((row[6] for row in every), default=0)
        return _counted([sum(row[n] for row in every) for n in range(6)], oldest_ms)

    def counts_by_queue(self) -> dict[str, Counts]:
        held, said = self._named()
        queues = sorted(held | said)
        return {
            queue: _counted(row[:6], row[6])
            for queue, row in zip(queues, self._counts(queues), strict=True)
            if queue in said or any(row[:6])
        }

    def queues(self) -> list[str]:
        return list(self.counts_by_queue())

    def _queues(self) -> list[str]:
        held, said = self._named()
        return sorted(held | said)

    def _named(self) -> tuple[set[str], set[str]]:
        """The queues that ever held messages, and those that were told anything."""
        held, said = self._call("queues", None)
        return {name.decode() for name in held}, {name.decode() for name in said}

    def _counts(self, queues: Sequence[str]) -> list[list[int]]:
        rows: list[list[int]] = []
        for first in range(0, len(queues), QUEUES_AT_ONCE):
            rows += self._call("counts", (queues[first : first + QUEUES_AT_ONCE],))
        return rows

    def peek(
        self, lane: Lane | str | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        return self._looks.peek(lane, where, limit, cursor)

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        return self._looks.failure_groups(where, self.now_ms() if trend else None)

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)
        arguments, ours = Arguments(), [at for at, handle in enumerate(handles) if is_id(handle.id)]
        arguments.blob(packed_ids([handles[at].id for at in ours]))
        delays_ms = [verdict.delay_of(at) if isinstance(verdict, Redrive) else 0 for at in ours]
        seen = [(handles[at].redrives, LETTERS[handles[at].lane], ms) for at, ms in zip(ours, delays_ms, strict=True)]
        made = [draft.id or new_id(self.now_ms()) for draft in _drafts(verdict)]
        asked = (seen, _said(verdict, made, arguments), swap_rows(swaps, arguments))
        # Whether it took place cannot be told by a second try where its swaps, or what it put, are in the way.
        once = bool(swaps) or isinstance(verdict, Replace)
        reply = self._link.call("triage", arguments.listed(self._now(), asked), again=not once)
        if reply[0] == b"held":
            raise validation.key_is_held(handles[0].id, _drafts(verdict)[0], id_text(reply[1].hex()))
        moved = [False] * len(handles)
        for at, word in zip(ours, self._told(reply, swaps)[0], strict=True):
            moved[at] = word == 1
        return moved

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        messages = validation.admit_restored(messages, self.traits)
        arguments = Arguments()
        arguments.blob(packed_ids([message.id for message in messages]))
        asked = restored_rows(messages, arguments), swap_rows(swaps, arguments)
        reply = self._link.call("restore", arguments.listed(self._now(), asked), again=not swaps)
        return [word == 1 for word in self._told(reply, swaps)[0]]

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        known = [id for id in dict.fromkeys(ids) if is_id(id)]
        arguments = Arguments()
        arguments.blob(packed_ids(known))
        reply = self._link.call("cancel", arguments.listed(self._now(), swap_rows(swaps, arguments)), again=not swaps)
        words = dict(zip(known, self._told(reply, swaps) if reply else reply, strict=True))
        return [_CANCELS[words.get(id, 0)] for id in ids]

    def configure(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        group_width: int | None = None,
        group_order: GroupOrder | str | None = None,
        on_dead: OnDead | str | None = None,
        swaps: Sequence[Swap] = (),
    ) -> None:
        validation.admit_width(group_width, 1)
        order = validation.word(GroupOrder, group_order, "group_order")
        dead = validation.word(OnDead, on_dead, "on_dead")
        said = {"paused": paused, "width": group_width, "order": order, "on_dead": dead}
        changes = {name: value for name, value in said.items() if value is not None}
        arguments = Arguments()
        asked = queue, changes, swap_rows(swaps, arguments)
        reply = self._link.call("configure", arguments.listed(self._now(), asked), again=not swaps)
        self._refuse(queue, reply if reply == 1 else self._told(reply, swaps))

    def configure_group(
        self,
        queue: str,
        group: str | None,
        *,
        width: int | None = None,
        resume: bool = False,
        swaps: Sequence[Swap] = (),
    ) -> None:
        validation.admit_width(width, 0)
        validation.admit_group(group)
        arguments = Arguments()
        asked = queue, group or "", width, resume, swap_rows(swaps, arguments)
        reply = self._link.call("configure_group", arguments.listed(self._now(), asked), again=not swaps)
        self._refuse(queue, reply if reply == 1 else self._told(reply, swaps))

    def _refuse(self, queue: str, reply: Any) -> None:
        if reply != 1:
            _, width, own, order, on_dead = reply
            refuse(queue, width, own == 1, GroupOrder(order.decode()), OnDead(on_dead.decode()))

    def groups(self, queue: str) -> list[Group]:
        standing, own = self._call("group_names", (queue,))
        names = sorted({*standing, *own} - {b""})
        found: list[Group] = []
        for first in range(0, len(names), GROUPS_AT_ONCE):
            some = [name.decode() for name in names[first : first + GROUPS_AT_ONCE]]
            for name, (width, taken, parked, blocked) in zip(some, self._call("groups", (queue, some)), strict=True):
                found.append(Group(queue, name, width, taken, parked, id_text(blocked.hex()) if blocked else None))
        return found

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        now = self.now_ms()
        bounds = [
            (LETTERS[lane], keep.count, None if keep.age_ms is None else now - keep.age_ms)
            for lane, keep in ((Lane.DONE, done), (Lane.DEAD, dead))
        ]
        removed = self._call("retain", (queue, *bounds))
        return removed[0], removed[1]

    def paused(self) -> frozenset[str]:
        return frozenset(name.decode() for name in self._call("paused", None))

    # -- keeping

    def check(self) -> list[str]:
        stored, stand, stuck = self._call("check", (self._queues(),))
        found = [] if stored == stand else [f"{stored} messages are stored, but {stand} stand in a lane"]
        for n in range(0, len(stuck), 2):
            queue, group = stuck[n].decode(), stuck[n + 1].decode()
            found.append(f"queue {queue!r}, group {group!r}: a message is parked though a place is free")
        bad = self._bad()
        found += [f"message {id_text(id.hex())}: {why}" for id, why in islice(bad.items(), TOLD_MOST)]
        return found + ([f"and {len(bad) - TOLD_MOST:,} more messages"] if len(bad) > TOLD_MOST else [])

    def _bad(self) -> dict[bytes, str]:
        """The messages that cannot be read, that were set aside, or that stand in no lane, each with why."""
        bad: dict[bytes, str] = {}
        cursor = "0"
        while True:
            found, rows = self._call("verify", (cursor, False, None))
            bad |= {rows[n]: rows[n + 1].decode(errors="backslashreplace") for n in range(0, len(rows), 3)}
            cursor = found.decode()
            if cursor == "0":
                break
        page = self.peek(None, limit=500)
        while True:
            for message in page.messages:
                if message.damage is not None:
                    bad.setdefault(id_bytes(message.id), message.damage.why)
            if page.cursor is None:
                return bad
            page = self.peek(None, limit=500, cursor=page.cursor)

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        told = []
        for id, why in self._bad().items():
            (found,) = found_of(self._call, [id])
            if found is None:
                continue
            message = found[0]
            keep(message if message.damage is not None else replace(message, damage=Damage(why)))
            done = ""
            for _ in range(2):  # one that is met for the first time is set aside, and mended then
                _, rows = self._call("verify", ("0", True, True), id)
                done = rows[2].decode() if rows else done
            told.append(f"message {message.id}: {done or 'it cannot be mended: ' + why}")
        return told

    def doctor(self) -> list[str]:
        return list(findings(self._link))

    def about(self) -> dict[str, str | int]:
        return about(self._link)

    def close(self) -> None:
        self._wake.close()
        self._link.close()


class RedisCells:
    """Cells in the same namespace."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        found = self._timed("read_cells", Arguments(), (keys,))
        return [None if cell is None else Cell(*cell) for cell in found]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        arguments = Arguments()
        words = self._timed("swap_cells", arguments, (swap_rows(swaps, arguments),))
        return [word == 1 for word in words]

    def _timed(self, script: str, arguments: Arguments, asked: Any) -> Any:
        """Whoever looks at the clock next sees no time before that of this call."""
        sent_s = time.monotonic()
        now, answer = self._store._link.call(script, arguments.listed(self._store._now(), asked))
        self._store._saw_clock(now, sent_s)
        return answer


_HOLDS = (Hold.HELD, Hold.LOST, Hold.CANCEL)
_CANCELS = (Cancel.UNKNOWN, Cancel.CANCELLED, Cancel.REQUESTED, Cancel.TOO_LATE)


def _counted(numbers: Sequence[int], oldest_ms: int) -> Counts:
    ready, scheduled, leased, dead, quarantine, done = numbers
    return Counts(ready, scheduled, leased, dead, quarantine, done, oldest_ms / 1000)


def _drafts(verdict: Verdict) -> list[Draft]:
    return [verdict.draft] if isinstance(verdict, Replace) else []


def _said(verdict: Verdict, made: Sequence[str], arguments: Arguments) -> Sequence[Any]:
    """`made`: the id of what it puts."""
    match verdict:
        case Redrive(to_queue, _, attempts, run, keep_deadline):
            return ("redrive", to_queue, attempts, run, keep_deadline)
        case Discard():
            return ("discard",)
        case Isolate(why):
            return ("isolate", why)
        case Return(run):
            return ("return", run)
        case Readmit():
            return ("readmit",)
        case Replace(draft):
            zones = dict[tuple[int, str], int]()
            rows = draft_rows([draft], made, zones, arguments)
            return ("replace", rows, [*zones], arguments.blob(packed_ids(made)))


def _state(draft: Draft, now: int) -> str:
    later = draft.delay_ms > 0 if draft.due_ms is None else draft.due_ms > now
    return "scheduled" if later else "ready"
