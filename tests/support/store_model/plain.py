"""What a store does, said once more in the plainest Python: a dict of messages and no index.

Written from the documents and not from any store: it shares no code with `redrive.stores`, so that what is wrong
there cannot be wrong here too. Where a store is free (which of several equal messages it gives, the id it makes), the
model looks at what the store did, asserts that it was allowed, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace
from tests.support.store_model.kept import Kept
from tests.support.store_model.stored import SENT, Given, PlainStored

from redrive.errors import Conflict, EnqueueError, Unsupported
from redrive.fault import Fault
from redrive.message import (
    RESTING,
    Ack,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Delivery,
    Discard,
    Draft,
    Edit,
    Handle,
    Hasten,
    Isolate,
    Keep,
    Lane,
    LeaseStatus,
    Message,
    Postpone,
    PutResult,
    Quarantine,
    Readmit,
    Redrive,
    Replace,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Started,
    Swap,
    Verdict,
    WaitFields,
)

CANCELLED_KEPT_MS = 86_400_000  # a cancelled message can be looked up that long at least
_CARRIED = (
    *("lane", "worker", "fence", "attempt", "crashes", "crashes_alone", "suspect", "redrives", "held_ms"),
    *("attempts_allowed", "reason", "rested_ms", "progress", "faults", "batch"),
)


class PlainStore(PlainStored):
    """Call it after the store, with what the store answered; it raises what the store should have raised, returns what
    it should have returned, and asserts the rest."""

    named: tuple[str, ...] = ()  # the batches that the last settlements give reason to look at

    # -- putting

    def put(self, drafts: Sequence[Draft], now: int, answer: Sequence[PutResult] | None) -> list[PutResult]:
        """`answer` tells the ids the store made; None where it refused."""
        if not self.traits.unique and any(draft.key is not None for draft in drafts):
            raise Unsupported("keys")
        puts: list[PutResult] = []
        for n, draft in enumerate(drafts):
            made = answer[n].id if answer else f"one that was not made {n}"
            puts.append(self._put(draft, made, now))
        return puts

    def _put(self, draft: Draft, made: str, now: int) -> PutResult:
        name = (draft.task, draft.key or "")
        if draft.key is not None:
            if (holder := self._holder(name, now)) is not None:
                self.batches.refuse(draft.batch)
                return holder
            self.holders[name] = (draft.id or made, now + draft.key_for_ms if draft.key_for_ms else 0)
        id = draft.id or made
        if id in self.kept:
            raise EnqueueError(id)
        k = self.kept[id] = Kept(
            order=self.accepted,
            id=id,
            sent=draft,
            queue=draft.queue,
            enqueued_ms=now,
            life_ms=now,
            due_ms=draft.due_ms,
            deadline_ms=draft.deadline_ms,
            batch=draft.batch,
            opened=1,
        )
        if draft.due_ms is None:
            self._delay(k, draft.delay_ms, now)
        self.accepted += 1
        if draft.group is not None:
            self.lines.join(k, now)
        return PutResult(id, False, k.state_at(now))

    def _delay(self, k: Kept, delay_ms: int, now: int) -> None:
        """The millisecond that is under way may count or not."""
        k.due_ms = now + delay_ms + (delay_ms > 0)
        k.due_least_ms = now + delay_ms

    def _holder(self, name: tuple[str, str], now: int) -> PutResult | None:
        if name not in self.holders:
            return None
        id, until_ms = self.holders[name]
        k = self.kept.get(id)
        if k is not None and (k.sent.task, k.sent.key) != name:  # the id was used again
            k = None
        if (k is None or k.lane is Lane.DONE) and until_ms <= now:
            return None
        return PutResult(id, True, "done" if k is None else k.state_at(now))

    # -- settling and claiming

    def settle(self, pairs: Sequence[tuple[Given, Settlement]], now: int) -> list[Settled]:
        if not self.traits.atomic_moves and any(s.swaps for _, s in pairs):
            raise Unsupported("swaps in a settlement")
        drafts = [draft for _, s in pairs for draft in s.follow_ups]
        if not self.traits.unique and any(draft.key is not None for draft in drafts):
            raise Unsupported("keys")
        batches = {k.batch for given, _ in pairs if (k := self.held(given)) is not None and k.batch is not None}
        before = self.batches.count(self.kept.values())
        words = [self._settle(self.held(given), s, now) for given, s in pairs]
        for (_, s), word in zip(pairs, words, strict=True):
            if word is Settled.OK:
                self.put(s.follow_ups, now, None)
        after = self.batches.count(self.kept.values())
        self.named = tuple(sorted(b for b in batches if not after[b].open or after[b].died > before[b].died))
        return words if self.traits.fenced else [Settled.OK if w is Settled.STALE else w for w in words]

    def _settle(self, k: Kept | None, s: Settlement, now: int) -> Settled:
        if k is None or not self.cells.swap_together(s.swaps, now):
            return Settled.STALE
        match s.decision:
            case Ack(degraded, keep_ms):
                if keep_ms == 0:
                    self._remove(k, "acked", "done")
                    return Settled.OK
                k.rest(Lane.DONE, None if degraded is None else "degraded", now)
                k.result, k.expires_ms = s.result, None if keep_ms is None else now + keep_ms
                self.lines.settled(k, now)
                return Settled.OK
            case RetryAt(at_ms, _, counts, held, deferral, crashed):
                k.lane, k.due_ms, k.deferral = Lane.READY, at_ms, deferral
                k.held_ms += max(0, at_ms - now) if held else 0
                if crashed:
                    counts = self._crash(k, s.decision.in_company)
            case DeadLetter(reason, _, counts):
                k.rest(Lane.DEAD, reason, now)
                k.fatal = s.fault
            case Quarantine(_, reason, counts, crashed):
                if crashed:
                    counts = self._crash(k, s.decision.in_company)
                k.rest(Lane.QUARANTINE, reason, now)
                k.fatal = s.fault
        k.attempt -= not counts
        k.alone, k.suspect = False, k.suspect and not counts
        if s.fault is not None:
            k.keep_fault(s.fault)
        word = Settled.CANCELLED if k.cancel else Settled.OK
        if k.cancel:
            self._end(k, now)
        k.died += k.lane in RESTING
        self.lines.settled(k, now)
        return word

    def _crash(self, k: Kept, in_company: bool) -> bool:
        """Its process died; the attempt was for nothing and does not count."""
        k.suspect = True
        k.crashes += self.traits.counts_crashes
        k.crashes_alone += not in_company
        return False

    def _end(self, k: Kept, now: int) -> None:
        k.rest(Lane.DONE, "cancelled", now)
        k.place = False
        k.expires_ms = now + CANCELLED_KEPT_MS

    def swap_all(self, swaps: Sequence[Swap], now: int) -> None:
        if not self.cells.swap_together(swaps, now):
            raise Conflict("swaps")

    def claim(self, asks: Sequence[ClaimRequest], deliveries: Sequence[Delivery], now: int) -> list[Given]:
        """Assert that these are what the asks had to get, in their order."""
        given: list[Given] = []
        rest = list(deliveries)
        self.admit(now)
        for ask in asks:
            if ask.limit > 0:
                self.lines.wake(ask.queue, self.kept.values(), now)
                self.admit(now)
            wanted = self.claimable(ask, now)
            n = min(max(0, ask.limit), len(wanted))
            mine, rest = rest[:n], rest[n:]
            assert len(mine) == n, f"{ask} gave {len(mine)} deliveries; due were {n} of {[k.id for k in wanted]}"
            taken = [self.kept[d.message.id] for d in mine if d.message.id in self.kept]
            assert len(taken) == n, f"{ask} gave a message that is not stored"
            _check_order(ask, wanted, taken)
            given += [self._lease(k, ask, delivery, now) for k, delivery in zip(taken, mine, strict=True)]
        assert not rest, f"given although nobody asked for them, or not in the order of the asks: {rest}"
        return given

    def _lease(self, k: Kept, ask: ClaimRequest, delivery: Delivery, now: int) -> Given:
        if k.lane is Lane.LEASED:
            k.lost = True
            k.crashes += self.traits.counts_crashes
            k.crashes_alone += k.alone
            k.suspect = True
        else:
            k.attempt += 1
        k.lane, k.worker, k.lapsed = Lane.LEASED, ask.worker, False
        k.fence += 1
        k.alone = False
        k.due_ms, k.due_least_ms = now + ask.lease_ms, None
        self.check(k, delivery.message)
        assert (delivery.receipt.fence, delivery.until_ms) == (k.fence, k.due_ms), f"receipt or lease of {delivery}"
        return Given(delivery, k.order)

    # -- leases

    def extend(self, given: Sequence[Given], lease_ms: int, alone: bool, now: int) -> list[LeaseStatus]:
        words: list[LeaseStatus] = []
        for one in given:
            k = self.held(one)
            if k is None:
                words.append(LeaseStatus.LOST if self.traits.fenced else LeaseStatus.HELD)
                continue
            k.due_ms, k.due_least_ms = now + lease_ms, None
            k.alone, k.suspect = k.alone or alone, k.suspect or alone
            words.append(LeaseStatus.CANCEL if k.cancel else LeaseStatus.HELD)
        return words

    def checkpoint(self, given: Given, state: bytes) -> bool:
        k = self.held(given)
        if k is not None:
            k.progress = state
        return k is not None

    def reclaim(self, worker: str, started: Sequence[Started] | None, fault: Fault | None) -> tuple[int, int]:
        released = lapsed = 0
        for k in self.kept.values():
            if k.lane is not Lane.LEASED or k.worker != worker or k.lapsed:
                continue
            # Due at once, and before what was enqueued after it.
            k.due_ms, k.due_least_ms = k.life_ms, 0
            if started is None or (k.id, k.fence) in started:
                k.lapsed = True
                lapsed += 1
                if fault is not None:
                    k.keep_fault(fault)
            else:
                k.lane = Lane.READY
                k.attempt -= 1
                k.alone = False
                released += 1
        return released, lapsed

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, swaps: Sequence[Swap], now: int) -> list[bool]:
        words = [self._judge(handle, verdict, at, now) for at, handle in enumerate(handles)]
        if any(words) or not isinstance(verdict, Replace):
            self.swap_all(swaps, now)
        self.admit(now)
        return words

    def can_return(self, k: Kept, run: str) -> bool:
        """Whether this run was the last to move it, and it was not run since. That it crashed, the store knows, though
        it need not tell how often."""
        moved = k.run == run and k.before is not None and k.before.redrives == k.redrives - 1
        crashed = k.lost or k.crashes > 0 or k.crashes_alone > 0
        return moved and k.lane is Lane.READY and k.attempt == 0 and not crashed

    def _may_judge(self, k: Kept, verdict: Verdict) -> bool:
        if isinstance(verdict, Return):
            return self.can_return(k, verdict.run)
        if isinstance(verdict, Readmit):
            return k.lane is Lane.QUARANTINE
        if isinstance(verdict, Hasten | Postpone):
            back = isinstance(verdict, Postpone) and verdict.back
            return k.lane is Lane.READY and (not back or (k.run or "").partition("@")[0] == verdict.run)
        if isinstance(verdict, Edit):
            if verdict.back and (k.run or "").partition("@")[0] != verdict.run:
                return False
            if not (verdict.back and verdict.cancel):
                return k.lane is Lane.READY
            named = (k.sent.task, k.sent.key or "")
            alone = k.sent.group is None and k.batch is None
            free = k.sent.key is None or self.holders.get(named, ("", 0))[0] == k.id
            return k.lane is Lane.DONE and k.reason == "cancelled" and alone and free
        replayed = isinstance(verdict, Redrive) and k.lane is Lane.DONE and k.reason != "cancelled"
        return k.lane in (Lane.DEAD, Lane.QUARANTINE) or replayed

    def _judge(self, handle: Handle, verdict: Verdict, at: int, now: int) -> bool:
        k = self.kept.get(handle.id)
        if isinstance(verdict, Replace) and verdict.draft.id == handle.id:
            raise EnqueueError(handle.id)
        if k is None or (k.id, k.redrives, k.lane) != handle[:3] or not self._may_judge(k, verdict):
            return False
        if handle.fence not in (None, k.fence) or handle.due_ms not in (None, k.due_ms):
            return False
        match verdict:
            case Discard(_, waive):
                self._remove(k, "discarded", "done" if waive else "discarded")
            case Isolate(why):
                k.before = k.before if k.lane is Lane.QUARANTINE else k.copy()
                k.rest(Lane.QUARANTINE, why, now)
            case Hasten(run):
                if k.due_ms is not None and k.due_ms > now:
                    k.due_ms = now
                    k.run = k.run if run is None else f"{run}@{k.attempt}" if k.attempt else run
                elif run is not None:
                    return False
            case Postpone(run, dues_ms, back):
                if not back and (k.due_ms or 0) <= now:
                    return False
                k.run = None if back else f"{run}@{k.attempt}" if k.attempt else run
                self.lines.put_off(k, dues_ms[at])
            case Edit(run, to, cancel, back):
                said = to[at] if to else WaitFields()
                if k.sent.group is not None and (said.queue or said.due_ms is not None):
                    return False
                k.run = None if back else f"{run}@{k.attempt}" if k.attempt else run
                if cancel and not back:
                    self._end(k, now)
                else:
                    k.lane, k.reason, k.rested_ms, k.expires_ms = Lane.READY, None, None, None
                    k.queue = said.queue or k.queue
                    k.sent = replace(k.sent, priority=k.sent.priority if said.priority is None else said.priority)
                    k.due_ms = k.due_ms if said.due_ms is None else said.due_ms
                    k.deadline_ms = k.deadline_ms if said.deadline_ms is None else said.deadline_ms or None
            case Readmit():
                isolated = k.before is not None and k.before.redrives == k.redrives
                k.lane, k.reason = Lane.DEAD, k.before.reason if k.before and isolated else k.reason
                k.before = None
            case Return():
                assert k.before is not None
                k.rest_again(k.before, self.lines.blocks(k.before.queue))
                k.died += k.lane in RESTING
            case Replace(draft):
                self._replace(k, draft, now)
            case Redrive(to_queue, delay_ms, attempts, run, keep_deadline, delays_ms):
                k.before = k.copy() if run is not None else None
                if k.lane is Lane.DONE:
                    k.progress = k.result = k.expires_ms = None
                    self.batches.leave(k, "done")
                    k.batch = None
                head = k.place and to_queue in (None, k.queue)  # it stays head of the line that it blocks
                k.lane, k.queue = Lane.READY, to_queue or k.queue
                self._delay(k, delay_ms + (delays_ms[at] if delays_ms else 0), now)
                if k.sent.group is not None and not head:
                    self.lines.join(k, now)
                k.redrives += 1
                k.opened += 1
                k.attempt = k.crashes = k.crashes_alone = k.held_ms = 0
                k.life_ms, k.attempts_allowed, k.run = now, attempts, run
                k.deadline_ms = k.deadline_ms if keep_deadline else None
                k.reason = k.rested_ms = k.fatal = None
                k.lost = k.suspect = k.cancel = False
        return True

    def _replace(self, k: Kept, draft: Draft, now: int) -> None:
        """What the key was held for stays, under the new id."""
        self._remove(k, "discarded", None)
        id, until_ms = self.holders.get((draft.task, draft.key or ""), ("", 0))
        if id == k.id:
            del self.holders[draft.task, draft.key or ""]
        (put,) = self.put([draft], now, None)
        if put.duplicate:
            raise EnqueueError(put.id)
        if id == k.id and until_ms > now + draft.key_for_ms:
            self.holders[draft.task, draft.key or ""] = put.id, until_ms

    def restore(self, messages: Sequence[Message], now: int) -> list[bool]:
        return [self._restore(message, now) for message in messages]

    def _restore(self, m: Message, now: int) -> bool:
        holder = None if m.key is None else self._holder((m.task, m.key), now)
        if m.id in self.kept or (holder is not None and holder.id != m.id):
            return False
        if m.key is not None and holder is None:
            self.holders[m.task, m.key] = m.id, 0
        sent = Draft(**{name: getattr(m, name) for name in (*SENT, "queue", "headers", "correlation_id")})
        k = Kept(self.accepted, m.id, sent, m.queue, m.enqueued_ms, m.life_ms, None, m.deadline_ms)
        for name in _CARRIED:
            setattr(k, name, getattr(m, name))
        k.fatal = m.faults[-1] if m.faults else None
        self.kept[m.id] = k
        self.accepted += 1
        return True

    def cancel(self, ids: Sequence[str], now: int) -> list[Cancel]:
        words: dict[str, Cancel] = {}
        for id in ids:
            if id not in words:
                words[id] = self._cancel(id, now)
        self.admit(now)
        return [words[id] for id in ids]

    def _cancel(self, id: str, now: int) -> Cancel:
        k = self.kept.get(id)
        if k is None:
            return Cancel.UNKNOWN
        if k.lane is Lane.READY:
            self._end(k, now)
            return Cancel.CANCELLED
        if k.lane is Lane.LEASED:
            k.cancel = True
            return Cancel.REQUESTED
        return Cancel.TOO_LATE

    def retain(self, queue: str, lane: Lane, keep: Keep, found: Sequence[Message | None], now: int) -> int:
        """How many are removed, those longest at rest first. `found` are those of the lane that are still stored; of
        several that came to rest at the same time, which go is for the store to say."""
        mine = [k for k in self.kept.values() if k.queue == queue and k.lane is lane]
        times = sorted(k.rested_ms or 0 for k in mine)
        old = sum(keep.age_ms is not None and at_ms < now - keep.age_ms for at_ms in times)
        going = max(old, 0 if keep.count is None else len(mine) - keep.count)
        stay = {message.id for message in found if message is not None}
        gone = [k for k in mine if k.id not in stay]
        assert sorted(k.rested_ms or 0 for k in gone) == times[:going], f"retain({queue}, {lane}) removed {gone}"
        for k in gone:
            self._remove(k, "retired", "discarded" if lane is Lane.DEAD else k.counted_as)
        return len(gone)

    def configure(self, queue: str, paused: bool | None, now: int, **groups: Any) -> None:
        self.lines.configure(queue, self.kept.values(), now, **groups)
        self.paused[queue] = self.paused.get(queue, False) if paused is None else paused
        self.admit(now)

    def configure_group(self, queue: str, group: str | None, width: int | None, resume: bool, now: int) -> None:
        if width is not None:
            self.lines.set_width(queue, group, width)
        for k in self.kept.values():
            if resume and group is not None and (k.queue, k.sent.group) == (queue, group):
                k.place = k.place and k.lane not in (Lane.DEAD, Lane.QUARANTINE)
        self.admit(now)


def _check_order(ask: ClaimRequest, wanted: Iterable[Kept], taken: Sequence[Kept]) -> None:
    """By priority, then by due time; what was never claimed and is due at the same time, in the order of putting."""
    ids = {k.id for k in wanted}
    assert len({k.id for k in taken}) == len(taken), f"{ask} gave a message twice"
    strangers = [k for k in taken if k.id not in ids]
    assert not strangers, f"{ask} gave what is not for it, or not due: {strangers}"
    order = sorted(map(_rank, wanted))[: len(taken)]
    assert [_rank(k) for k in taken] == order, f"{ask} gave {taken} out of order"
    for rank in set(order):
        fresh = [k.order for k in wanted if _rank(k) == rank and k.fence == 0]
        got = [k.order for k in taken if _rank(k) == rank and k.fence == 0]
        assert got == sorted(fresh)[: len(got)], f"{ask} did not keep the order of putting"


def _rank(k: Kept) -> tuple[int, int]:
    return k.sent.priority, k.due_ms or 0
