"""A store and its model side by side, and the intentions that become calls on both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace
from tests.support.store_model.draws import BATCH_OF, QUEUES, Ended, Exchanged, Pool, Sent, Wanted
from tests.support.store_model.kept import Kept
from tests.support.store_model.plain import PlainStore
from tests.support.store_model.stored import Given

from redrive.errors import ConfigError, Conflict, EnqueueError, StoreError, Unsupported
from redrive.message import ClaimRequest, Draft, Lane, Message, Settlement, Swap
from redrive.store import Store
from redrive.testing import ManualClock

REMEMBERED = 8  # deliveries of which one may be settled, extended, checkpointed
REFUSALS = (ConfigError, Conflict, EnqueueError, Unsupported)
NEVER = 10**12  # a version no cell has

OpenStore = Callable[[ManualClock], Store]
Draw = Callable[[Pool[Any]], Any]
Say = Callable[[Callable[[], str]], None]


class World:
    """`open_store(clock)` gives a handle on an empty store at the first call, and on the same data from then on; `say`
    is given the words for each call that is made."""

    def __init__(self, open_store: OpenStore, say: Say) -> None:
        self.say = say
        self.clock = ManualClock()
        self.open_store = open_store
        self.handles = [open_store(self.clock)]
        self.store = self.handles[0]
        self.traits = self.store.traits
        self.plain = PlainStore(self.traits)
        self.given: list[Given] = []  # every delivery there ever was
        self.ids: list[str] = []  # of every message, also of those that are gone
        self.carried: list[Message] = []  # messages as an export had them
        self._numbers = count(1)
        self._looks = 0

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
        for handle in self.handles:
            handle.close()
            try:
                handle.find([])
            except StoreError:
                continue
            raise AssertionError("a closed store still answers")

    # -- calls

    def _call(self, name: str, *args: Any, **parts: Any) -> Any:
        """What the store answers, or the class of what it raises."""
        target: Any = self.store
        for word in name.split("."):
            target = getattr(target, word)
        try:
            answer = target(*args, **parts)
        except REFUSALS as error:
            answer = type(error)
        self.say(lambda: f"{name}{args}{parts or ''} -> {answer}")
        return answer

    def _expect(self, work: Callable[[], Any]) -> Any:
        """What the model says, or what it raises; then it is as before."""
        before = self.plain.copy()
        try:
            return work()
        except REFUSALS as error:
            self.plain = before
            return type(error)

    @property
    def now(self) -> int:
        return self.clock()

    def _draft(self, sent: Sent, *, own_id: bool = False) -> Draft:
        """`own_id`: of a follow-up nobody says which id the store made, so it brings one."""
        number, now = next(self._numbers), self.now
        id: str | None = f"{now >> 16:08x}-{now & 0xFFFF:04x}-7000-8000-{number:012x}"
        id = id if own_id or sent.own_id else None
        batch = BATCH_OF[number % len(BATCH_OF)] if self.traits.batches else None
        if self.plain.batches.may_be_forgotten(batch, now):
            batch = None  # whether it joins the old members or begins anew would be for the store to say
        if sent.used_id is not None and self.ids:
            id = self.ids[-1 - sent.used_id % len(self.ids)]
        return Draft(
            task=sent.task,
            queue=sent.queue,
            id=id,
            body=b"%d" % number,
            content="raw" if number % 5 == 0 else "json",
            priority=sent.priority,
            delay_ms=sent.delay_ms,
            due_ms=None if sent.due_in_ms is None else now + sent.due_in_ms,
            key=sent.key if self.traits.unique else None,
            key_for_ms=sent.key_for_ms,
            deadline_ms=None if sent.deadline_in_ms is None else now + sent.deadline_in_ms,
            keep_ms=sent.keep_ms,
            group=sent.group,
            batch=batch,
            version=1 + number % 3,
            headers={"n": str(number)} if number % 4 == 0 else None,
            correlation_id=f"c{number}" if number % 6 == 0 else None,
            causation_id=f"d{number}" if number % 7 == 0 else None,
            producer="p" if number % 8 == 0 else None,
        )

    def _settlement(self, given: Given, ended: Ended) -> Settlement:
        follow_ups = tuple(self._draft(one, own_id=True) for one in ended.follow_ups)
        swaps = self._swaps(ended.swaps) if self.traits.atomic_moves else ()
        result = b"%d" % next(self._numbers) if ended.decision == "done" else None
        decision = ended.decide(self.now)
        return Settlement(given.delivery.receipt, decision, ended.fault, follow_ups, result, tuple(swaps))

    def _ask(self, wanted: Wanted) -> ClaimRequest:
        """For `q` and not for `r` where only `q` has something due: what is asked for in vain shows little."""
        skip = frozenset([wanted.skip] if wanted.skip else [])
        ask = ClaimRequest(wanted.queue, min(wanted.limit, self.traits.batch_max), wanted.lease_ms, skip, wanted.worker)
        other = replace(ask, queue=QUEUES[ask.queue == QUEUES[0]])
        return other if not self.plain.claimable(ask, self.now) and self.plain.claimable(other, self.now) else ask

    def _swaps(self, exchanged: Sequence[Exchanged]) -> list[Swap]:
        swaps: list[Swap] = []
        for one in exchanged:
            version = self.plain.cells.version(one.key, self.now)
            wrong = NEVER if version == 0 else 0
            swaps.append(Swap(one.key, version if one.right else wrong, one.value, one.ttl_ms))
        return swaps

    def _pick(self, which: Sequence[int]) -> list[Given]:
        """Mostly deliveries that hold, each once; else what somebody else was given since, or is gone. Where a store
        does not fence, only what is gone: a late word on another's delivery may do anything there."""
        holding = [given for given in self.given if self.plain.held(given)]
        late = [given for given in self.given[-REMEMBERED:] if given not in holding]
        if not self.traits.fenced:
            late = [given for given in late if given.delivery.message.id not in self.plain.kept]
        taken = [given for given in late if self.plain.is_leased_anew(given)] or late
        picked: list[Given] = []
        for n in which:
            among = taken if n % 5 == 4 else [given for given in holding if given not in picked]
            picked += among[-1 - n % len(among) :][:1] if among else []
        return picked

    def _remember(self, ids: Iterable[str]) -> None:
        self.ids += [id for id in dict.fromkeys(ids) if id not in self.ids]

    def _some_ids(self, which: Sequence[int]) -> list[str]:
        return [self.ids[-1 - n % len(self.ids)] for n in which] if self.ids else []

    def _resting(self) -> list[Kept]:
        return [k for k in self.plain.kept.values() if k.lane in (Lane.DEAD, Lane.QUARANTINE)]
