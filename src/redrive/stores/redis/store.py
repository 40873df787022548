"""The Redis store: messages in hashes and sorted sets of one namespace, changed only by Lua scripts.

Every key begins with `{namespace}:`, so that each script touches one slot. Each call is one script and so one commit;
the scripts are in `scripts`, named as the methods.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ...errors import StoreError, Unsupported
from ...fault import Fault
from ...ids import is_id, new_id
from ...message import (
    ClaimRequest,
    Draft,
    Exchange,
    LeaseStatus,
    Message,
    PutResult,
    Receipt,
    Settlement,
    Started,
    Swap,
)
from .. import validation
from ..meta import encode
from .admin import RedisAdmin
from .arguments import Arguments, Zone, draft_rows, packed_ids
from .exchange import HeldReceipts, RedisSettling, skip_row, swap_rows
from .pages import QUEUES_AT_ONCE, with_faults
from .rows import NO_NAME, claimed_of, id_bytes, id_text
from .search import RedisQueries

SWEEP_EVERY_MS, SWEEP_MAX = 60_000, 1000
SET_ASIDE_MAX = 100


class RedisStore(RedisQueries, RedisAdmin):
    """A store in one namespace of a Redis server (or Valkey, or a Cluster).

    `clock_ms` replaces the server's clock in tests. Raises ConfigError for an invalid URL and a server that may lose
    messages, StoreUnavailable for an unreachable server.
    """

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        if tx is not None:
            raise Unsupported("Redis has no transactions of the caller's to write in; enqueue without tx=")
        validation.admit(drafts, self.traits)
        made_ms = self.now_ms()
        ids = [draft.id or new_id(made_ms) for draft in drafts]
        zones = dict[Zone, int]()

        def asked(again: bool = False) -> list[bytes]:
            arguments = Arguments()
            arguments.blob(packed_ids(ids))
            rows = draft_rows(drafts, ids, zones, arguments)
            # In a repetition, stored messages with these ids may be from this put, as only its reply was lost.
            return arguments.listed(self._now(), (rows, [*zones], swap_rows(swaps, arguments), again))

        first = asked()
        self._begin_batches(zones)
        self.failpoint("put")
        sent_s = time.monotonic()
        reply = self._check_written(self._link.call("put", first, repeated=lambda: asked(True)), swaps)
        self.failpoint("acknowledge")
        now, duplicates = reply
        self._saw_clock(now, sent_s)
        puts = [PutResult(id, False, _state(draft, now)) for draft, id in zip(drafts, ids, strict=True)]
        for n in range(0, len(duplicates), 3):
            at, held, word = duplicates[n : n + 3]
            state = word.decode()
            puts[at - 1] = PutResult(id_text(held.hex()), True, state.lstrip("+"), state.startswith("+"))
        return puts

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        settling = RedisSettling(settlements, self.traits, self.now_ms)
        asked = settling.asked(swaps, asks)
        self._begin_batches(settling.zones)
        self.failpoint("settled")
        self.failpoint("claim")
        sent_s = time.monotonic()
        reply = self._check_written(self._link.call("exchange", settling.arguments.listed(self._now(), asked)), swaps)
        now, stale, other, words, parts, clogged, aside, batches = reply
        self._saw_clock(now, sent_s)
        if parts:
            self._wake.busy()
        deliveries = []
        for part in parts:
            ask = asks[part[0]]
            claimed, bad = claimed_of(part, ask.queue, ask.worker, now + ask.lease_ms)
            deliveries += claimed
            if bad:
                asked = (ask.queue, part[1], [why for _, why in bad])
                with suppress(StoreError):  # otherwise the next claim sets them aside, when their leases have run out
                    batches += self._call("set_aside", asked, b"".join(member for member, _ in bad))
                    aside = [*aside, *(member[6:] for member, _ in bad)]
        if now - self._swept_ms >= SWEEP_EVERY_MS:
            with suppress(StoreError):  # what was committed must be returned; a later exchange sweeps
                self._sweep(now)
        clogged_queues = frozenset(asks[at].queue for at in clogged) if clogged else frozenset()
        damaged = self._damaged(aside) if aside else ()
        named = tuple(sorted(batch.decode() for batch in {*batches})) if batches else ()
        return Exchange(settling.words(stale, other, words), deliveries, clogged_queues, damaged, named)

    def _damaged(self, aside: Sequence[bytes]) -> tuple[Message, ...]:
        try:
            stored = with_faults(self._call, aside[:SET_ASIDE_MAX])
        except StoreError:  # what was committed must be returned; these are in quarantine, and only not reported
            return ()
        return tuple(one[0] for one in stored if one is not None)

    def _sweep(self, now: int) -> None:
        self._swept_ms = now
        if self._call("sweep", None) == SWEEP_MAX:
            self._swept_ms = now - SWEEP_EVERY_MS  # more has expired, so the next exchange continues

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        held = HeldReceipts(receipts)
        self.failpoint("extend")
        words = self._call("extend", (lease_ms, alone, held.zones, held.zone_of), held.members, held.fences)
        holds = [LeaseStatus.LOST] * len(receipts)
        for at, word in zip(held.at, words, strict=True):
            holds[at] = _HOLDS[word]
        return holds

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        packed = b"".join(
            id_bytes(id) + fence.to_bytes(4, "big") for id, fence in started or () if is_id(id) and not fence >> 32
        )
        died = [] if fault is None else [encode(fault)]
        self.failpoint("release")
        released = lapsed = 0
        for priority, queue in self._leased():
            cursor = "0"
            while True:  # each call releases one page of leases
                asked = (worker or NO_NAME, priority, queue, cursor, started is not None, None if fault is None else 4)
                next_cursor, given_back, run_out = self._call("release", asked, packed, *died)
                released, lapsed, cursor = released + given_back, lapsed + run_out, next_cursor.decode()
                if cursor == "0":
                    break
        return released, lapsed

    def _leased(self) -> Iterator[tuple[int, str]]:
        """Yield priority and queue of each set that may have leased messages."""
        queues = self._queues()
        for first in range(0, len(queues), QUEUES_AT_ONCE):
            some = queues[first : first + QUEUES_AT_ONCE]
            leased = self._call("leased", (some,))
            yield from ((leased[n + 1], some[leased[n]]) for n in range(0, len(leased), 2))

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        held = HeldReceipts([receipt])
        return bool(held.at) and self._call("checkpoint", None, held.members, held.fences, state) == 1

    # -- waiting

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        wanted = [(ask.queue, skip_row(ask)) for ask in asks if ask.limit > 0]

        def look() -> float | None:
            due_ms = self._call("look", (wanted,))
            return None if due_ms is None else due_ms / 1000

        self._wake.wait([ask.queue for ask in asks if ask.limit > 0], look, timeout_ms)

    def nudge(self) -> None:
        self._wake.nudge()


_HOLDS = (LeaseStatus.HELD, LeaseStatus.LOST, LeaseStatus.CANCEL)


def _state(draft: Draft, now: int) -> str:
    later = draft.delay_ms > 0 if draft.due_ms is None else draft.due_ms > now
    return "scheduled" if later else "ready"
