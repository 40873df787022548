"""The exchange of the PostgreSQL store: settle, then claim, in one transaction and one round trip.

An exchange waits for no result before it sends the commit, except for settlements with follow-ups or swaps, which are
decided one by one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from msgspec.structs import replace

from ...errors import StoreError
from ...ids import new_id
from ...message import (
    SKIP_LOOKED,
    ClaimRequest,
    Delivery,
    Draft,
    Exchange,
    Lane,
    Message,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from . import batches, groups
from .cells import names_of, swap_all
from .damage import UNREADABLE, Beyond, stand_in
from .floors import Floors, IndexReads
from .notifications import Wakes, spots_of
from .rows import (
    GROUPED,
    GROUPED_MEMBER,
    KEYED,
    MEMBER,
    PLAIN,
    full_message,
    group_of,
    ids,
    ints,
    queue_of,
    read_rare,
    texts,
)
from .session import Session
from .statements import AnyConnection, Cursor, Statements
from .writes import SettledRow, SettlementBatch, apart, insert_all, is_simple, plain_acks, settle_each, words_of

NEVER_MS = 2**63 - 1
GROUPS_SEEN_FOR_S = 60.0  # how long exchanges let waiting messages join groups after one met a group
_tuple = tuple.__new__


class Exchanges:
    """Runs exchanges in a session. If there are no groups, an exchange spends one read of an empty index on them."""

    def __init__(
        self, link: Session, st: Statements, floors: Floors, beyond: Beyond, failpoint: Callable[[str], None]
    ) -> None:
        self._link, self._st, self._floors, self._beyond, self._failpoint = link, st, floors, beyond, failpoint
        self._groups_seen_s = -GROUPS_SEEN_FOR_S

    def run(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], swaps: Sequence[Swap]) -> Exchange:
        one = _One(self._st, self._floors, self._failpoint, settlements, [ask for ask in asks if ask.limit > 0], swaps)
        one.waking = time.monotonic() - self._groups_seen_s < GROUPS_SEEN_FOR_S
        if not (settlements or one.asks or swaps):
            return Exchange([], [])
        self._floors.meet(one.queues)
        self._send(one)
        if one.kept_back and not one.waking:  # let waiting messages join, and claim again what claimed nothing
            left = [n for n, deliveries in enumerate(one.deliveries) if not deliveries]
            again = _One(self._st, self._floors, self._failpoint, (), [one.asks[n] for n in left], ())
            again.waking = True
            with contextlib.suppress(StoreError):  # what is committed must be returned; the next exchange claims them
                self._send(again)
                for n, deliveries in zip(left, again.deliveries, strict=True):
                    one.deliveries[n] = deliveries
                one.clogged = one.clogged - {ask.queue for ask in again.asks} | again.clogged
                one.bad += again.bad
        claimed = [d for deliveries in one.deliveries for d in deliveries]
        damaged = (*(self._beyond.take() if self._beyond.moved else ()),)
        if one.bad:
            with contextlib.suppress(StoreError):  # they are claimed again when their leases end
                damaged += self._set_aside(one.bad)
        one.died.update(message.batch for message in damaged if message.batch is not None)
        over = batches.ended(self._link, self._st, one.counted, one.died) if one.counted or one.died else ()
        return Exchange(one.words, claimed, frozenset(one.clogged), damaged, over)

    def _set_aside(self, bad: Sequence[tuple[Any, ...]]) -> tuple[Message, ...]:
        """Quarantine claimed messages whose rows (of COLUMNS) are unreadable, so that they do not block others."""
        stand_ins = [stand_in(row, claimed=True) for row in bad]
        messages = [message for message, _ in stand_ins]
        whys = [message.damage.why if message.damage else "" for message in messages]
        names = {(m.queue, m.group) for m in messages if m.group is not None}
        args = (ids([m.id for m in messages]), ints([row[3] for row in bad]), texts(whys))

        def work(c: AnyConnection) -> None:
            now = self._st.now()
            if names:
                groups.lock(self._st, c, names, now)
            self._st.do(c, "set_aside", *args, texts([",".join(wrong) for _, wrong in stand_ins]), now)
            groups.admit(self._st, c, names, now)

        self._link.run(work, wake={queue for queue, _ in names})
        return tuple(replace(message, lane=Lane.QUARANTINE, due_ms=None) for message in messages)

    def _send(self, one: _One) -> None:
        sent_s, wakes = time.monotonic(), one.wakes()
        for queue in wakes.dues_ms:  # so that claims of this process find messages that become due below a floor
            self._floors.expect(queue, spots_of(wakes, queue))
        self._link.pipeline(one.work, wake=wakes)
        one.read()
        if self._st.by_server:
            self._link.saw_clock(one.now_ms, sent_s)
        if one.groups_seen:
            self._groups_seen_s = time.monotonic()


class _One:
    """One exchange in progress: the cursors of the statements sent, and what was read from them."""

    def __init__(
        self,
        st: Statements,
        floors: Floors,
        failpoint: Callable[[str], None],
        settlements: Sequence[Settlement],
        asks: Sequence[ClaimRequest],
        swaps: Sequence[Swap],
    ) -> None:
        self._st, self._floors, self._failpoint = st, floors, failpoint
        self._settlements, self.asks, self._swaps = settlements, asks, swaps
        self.queues = [ask.queue for ask in asks]
        self._acks = plain_acks(settlements)
        self._names = set[tuple[str, str]]()
        if self._acks is None:
            self._names = {name for s in settlements if (name := group_of(s.receipt.handle)) is not None}
            self._names |= {name for s in settlements for name in names_of(s.follow_ups)}
        self.waking = False
        self.words: list[Settled] = []
        self.deliveries: list[list[Delivery]] = []  # by claim request
        self.clogged = set[str]()
        self.bad: list[tuple[Any, ...]] = []  # unreadable rows of COLUMNS, of claimed messages
        self.now_ms = 0
        self.kept_back = False  # True: a message waits to join its group and is due
        self.groups_seen = bool(self._names)
        self.counted, self.died = set[str](), set[str]()  # batches whose counts changed; those with a death

    def wakes(self) -> Wakes:
        """Return the queues to wake other processes for: messages become due that this process may lack room for."""
        wakes = Wakes()
        if self._acks is None:
            wakes.update(queue for queue, _ in self._names)
            now_ms = self._st.now_ms()
            for s in self._settlements:
                if type(s.decision) is RetryAt:
                    wakes.due(queue_of(s.receipt.handle), s.decision.at_ms, now_ms)
                for draft in s.follow_ups:
                    wakes.due(draft.queue, draft.due_ms, now_ms)
        return wakes

    # -- sending

    def work(self, c: AnyConnection, pipeline: psycopg.Pipeline) -> None:
        st, now = self._st, self._st.now()
        self._sent: list[tuple[list[Receipt], Cursor]] = []
        self._swapping: list[Settlement] = []
        self._decided: list[tuple[Receipt, Settled]] | None = None  # results if decided one by one
        self._claims: list[Cursor] = []
        reads = self._floors.reads(self.queues)
        if self._names or self.waking:
            woken = self.asks if self.waking else ()
            groups.lock(st, c, self._names, now, woken, reads)
        if self._settlements:
            self._settle(c, now)
        if self._swaps:
            swap_all(st, c, self._swaps, now)
        self._failpoint("settled")
        for ask in self.asks:
            if self.waking:
                groups.wake(st, c, ask, now, reads)
            self._failpoint("claim")
            self._claims.append(claim(reads, c, ask, now, waking=self.waking))
        self._look = reads.look(c, self.queues, now)
        self._floor_look = self._floors.look(c, self.queues)

    def _settle(self, c: AnyConnection, now: int | None) -> None:
        st = self._st
        if self._acks is not None:
            self._sent = self._acks.write(st, c, now)
            return
        swapping, others = apart(self._settlements)
        if is_simple(others):
            batch, drafts = SettlementBatch(), list[Draft]()
            for s in others:
                batch.add(s)
        else:
            words, batch, drafts = settle_each(st, c, others, now)
            self._decided = [*zip([s.receipt for s in others], words, strict=True)]
        batch.swapping = self._swapping = swapping
        self._sent = batch.write(st, c, now)
        if drafts:  # after the settlements, so that follow-ups can use a key that these free
            insert_all(st, c, drafts, [draft.id or new_id(self._st.now_ms()) for draft in drafts], now)
        groups.regroup(st, c, batch.grouped, now)
        groups.admit(st, c, self._names, now)

    # -- reading

    def read(self) -> None:
        """Read the results, after the commit."""
        if self._settlements:
            self.words = self._words()
        row = self._look.fetchone()
        assert row is not None
        self.now_ms, self.kept_back = row
        if self._floor_look is not None:
            self._floor_look.take(self.now_ms)
        self.groups_seen = self.groups_seen or self.kept_back
        claims = zip(self.asks, self._claims, strict=True)
        self.deliveries = [self._deliveries(ask, claim.fetchall()) for ask, claim in claims]

    def _words(self) -> list[Settled]:
        sent: list[SettledRow] = []
        for receipts, made in self._sent:
            row = made.fetchone()
            assert row is not None
            sent.append((receipts, row))
            for known, listed in zip((self.counted, self.died), row[3:], strict=False):
                known.update(listed or ())
        if self._decided is None:
            return words_of(self._settlements, sent)
        if not self._swapping:
            return [word for _, word in self._decided]
        words = dict(self._decided)  # no message has a result in both
        acked = words_of(self._swapping, sent[:1])
        words.update(zip([s.receipt for s in self._swapping], acked, strict=True))
        return [words[s.receipt] for s in self._settlements]

    def _deliveries(self, ask: ClaimRequest, rows: list[tuple[Any, ...]]) -> list[Delivery]:
        queue, worker, until = ask.queue, ask.worker, self.now_ms + ask.lease_ms
        leased = Lane.LEASED
        if ask.skip and rows and rows[-1][0] is None:  # the claim stopped at its limit, though more are due
            rows.pop()
            if len(rows) < ask.limit:
                self.clogged.add(queue)
        deliveries = []
        for row in rows:
            id, task, priority, fence, attempt, enqueued, producer, group, body, rare, faults, seq, due = row
            mark, batch = PLAIN, None
            if rare is not None and rare[0] == MEMBER:
                mark, batch, rare = MEMBER, rare[1:], None
            if rare is None and faults is None and fence > 0 and attempt > 0:  # most messages, with few steps
                message = Message(
                    id,
                    task,
                    queue,
                    body,
                    id,
                    leased,
                    priority,
                    until,
                    fence,
                    attempt,
                    enqueued,
                    enqueued,
                    worker,
                    producer,
                    group=group,
                    batch=batch,
                )
            else:
                try:
                    known = None if row[9] is None else read_rare(row[9])
                    message = full_message(row, known, queue, leased, until, worker)
                except UNREADABLE:
                    self.bad.append((*row[:11], queue, leased.value, until, worker))
                    continue
                if fence <= 0 or attempt <= 0:
                    self.bad.append((*row[:11], queue, leased.value, until, worker))
                    continue
                if message.batch is not None:
                    mark = MEMBER
                elif message.key is not None:
                    mark = KEYED
            if group is not None:
                mark, end = GROUPED_MEMBER if mark == MEMBER else GROUPED, f"{queue}\0{group}"
                self.groups_seen = True
            else:
                end = queue
            handle = f"{id}{mark}{seq & 0xFFFF_FFFF_FFFF_FFFF:016x}{end}"  # `hex_of(seq)`, inlined
            deliveries.append(Delivery(message, _tuple(Receipt, (handle, fence)), until, due or 0))
        return deliveries


def claim(reads: IndexReads, c: AnyConnection, ask: ClaimRequest, now: int | None, *, waking: bool) -> Cursor:
    lapsed_by = NEVER_MS if ask.lapsed_by_ms is None else ask.lapsed_by_ms
    args = (ask.limit, ask.lease_ms, ask.worker, now, not waking, lapsed_by)
    if ask.retries > 0:
        return reads.do(c, "claim_sharing", ask.queue, *args, *_skipping(ask), ask.retries)
    if not ask.skip:
        return reads.do(c, "claim", ask.queue, *args)
    return reads.do(c, "claim_skipping", ask.queue, *args, *_skipping(ask))


def next_due(reads: IndexReads, c: AnyConnection, ask: ClaimRequest, now: int | None) -> tuple[Any, ...]:
    """Return the server's time, and when this claim request may find a message."""
    if not ask.skip:
        return reads.do(c, "next_due", ask.queue, now).fetchall()[0]
    return reads.do(c, "next_due_skipping", ask.queue, now, *_skipping(ask)).fetchall()[0]


def _skipping(ask: ClaimRequest) -> tuple[bytes, int]:
    return texts(sorted(ask.skip)), SKIP_LOOKED
