"""What the model holds, and all that can be seen of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Self

from tests.support.store_model.batches import PlainBatches
from tests.support.store_model.cells import PlainCells
from tests.support.store_model.kept import Kept
from tests.support.store_model.lines import PlainLines

from redrive.message import (
    ClaimRequest,
    Counts,
    Delivery,
    Filter,
    Lane,
    Message,
)
from redrive.store import Traits

CANCELLED_KEPT_MS = 86_400_000  # a cancelled message can be looked up that long at least


class Given(NamedTuple):
    """A delivery as the machine remembers it: an id may be used again once its message is gone, an order never is."""

    delivery: Delivery
    order: int


class PlainStored:
    """Messages, keys, cells, lines, batches; no call changes anything but what the store was free to choose."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits
        self.kept: dict[str, Kept] = {}
        self.paused: dict[str, bool] = {}
        self.holders: dict[tuple[str, str], tuple[str, int]] = {}  # (task, key): id, until_ms
        self.cells = PlainCells()
        self.lines = PlainLines()
        self.batches = PlainBatches()
        self.accepted = 0
        self.left = {"acked": 0, "discarded": 0, "swept": 0, "retired": 0}

    def copy(self) -> Self:
        other = copy.copy(self)
        other.kept = {id: k.copy() for id, k in self.kept.items()}
        other.paused, other.holders, other.left = dict(self.paused), dict(self.holders), dict(self.left)
        other.cells, other.lines, other.batches = self.cells.copy(), self.lines.copy(), self.batches.copy()
        return other

    def admit(self, now: int) -> None:
        """Give free places of groups to those who stand in line: the end of all that may have freed one."""
        self.lines.admit(self.kept.values(), now)

    def _remove(self, k: Kept, why: str, counted_as: str | None) -> None:
        """`counted_as`: by its batch, from now on."""
        del self.kept[k.id]
        self.left[why] += 1
        self.batches.leave(k, counted_as)

    # -- who holds what

    def held(self, given: Given) -> Kept | None:
        """The message whose current claim this is; a lease that ran out holds until somebody claims."""
        k = self.kept.get(given.delivery.message.id)
        if k is None or k.order != given.order or k.lane is not Lane.LEASED:
            return None
        return k if k.fence == given.delivery.receipt.fence else None

    def is_leased_anew(self, given: Given) -> bool:
        """Whether somebody else has the message now."""
        k = self.kept.get(given.delivery.message.id)
        return k is not None and k.order == given.order and k.lane is Lane.LEASED and not self.held(given)

    def claimable(self, ask: ClaimRequest, now: int) -> list[Kept]:
        if self.paused.get(ask.queue):
            return []
        return [
            k
            for k in self.kept.values()
            if k.queue == ask.queue and k.sent.task not in ask.skip and not k.parked and (k.due_ms or now + 1) <= now
        ]

    # -- looking

    def check(self, k: Kept, message: Message) -> None:
        """Assert that the store's message is ours."""
        if k.due_least_ms is not None and k.due_least_ms <= (message.due_ms or 0) <= (k.due_ms or 0):
            k.due_ms, k.due_least_ms = message.due_ms, None
        if k.lost and not self.traits.counts_crashes:  # then how many attempts it had is for the store to say
            k.attempt, k.crashes_alone, k.suspect = message.attempt, message.crashes_alone, message.suspect
        worker = message.worker if k.lapsed and message.worker is None else k.worker
        expected = (*_of_sent(k.sent), *_of_kept(k), worker, k.sent.headers or {}, k.sent.correlation_id or k.id)
        found = _of_all(message)
        if found == expected:
            return
        wrong = [
            f"its {name} is {is_!r}, expected {value!r}"
            for name, is_, value in zip(_ALL, found, expected, strict=True)
            if is_ != value
        ]
        assert not wrong, f"message {k.id}: {'; '.join(wrong)}"

    def find(self, ids: Sequence[str], found: Sequence[Message | None], now: int) -> None:
        assert len(found) == len(ids), "find gave another number of answers than were asked"
        for id, message in zip(ids, found, strict=True):
            k = self.kept.get(id)
            if message is None:
                if k is not None and self.may_be_swept(k, now):
                    self._remove(k, "swept", k.counted_as)
                    k = None
                assert k is None, f"message {id} is lost: it should lie in lane {k.lane}"
            else:
                assert k is not None, f"message {id} is stored, though it never was put, or is acked or discarded"
                self.check(k, message)

    def may_be_swept(self, k: Kept, now: int) -> bool:
        return k.lane is Lane.DONE and k.expires_ms is not None and k.expires_ms <= now

    def counts(self, queue: str | None, now: int) -> Counts:
        mine = [k for k in self.kept.values() if queue in (None, k.queue)]
        words = [k.counted_at(now) for k in mine]
        lanes = ("ready", "scheduled", "parked", "leased", "dead", "quarantine", "done")
        ages = [now - (k.due_ms or 0) for k, word in zip(mine, words, strict=True) if word == "ready"]
        return Counts(**{lane: words.count(lane) for lane in lanes}, oldest_age_s=max(ages, default=0) / 1000)

    def queues(self) -> list[str]:
        return sorted({k.queue for k in self.kept.values()} | self.paused.keys())

    def peek(self, lane: Lane | None, where: Filter) -> set[str]:
        return {k.id for k in self.kept.values() if lane in (None, k.lane) and _matches(k, where)}

    def failure_groups(self, where: Filter) -> dict[tuple[str, str], list[Kept]]:
        """The dead by fingerprint and task."""
        groups: dict[tuple[str, str], list[Kept]] = {}
        for k in self.kept.values():
            if k.lane is Lane.DEAD and _matches(k, where):
                groups.setdefault((k.fatal.fingerprint if k.fatal else "", k.sent.task), []).append(k)
        return groups

    def next_due_ms(self, now: int) -> int | None:
        return min((k.due_ms for k in self.kept.values() if k.due_ms is not None and k.due_ms > now), default=None)

    @property
    def stored(self) -> int:
        """How many there must be: all that were accepted and have not left."""
        return self.accepted - sum(self.left.values())


SENT = (
    "keep_ms",
    "task",
    "body",
    "priority",
    "producer",
    "version",
    "key",
    "group",
    "content",
    "causation_id",
    "traceparent",
)
_KEPT = (
    *("id", "queue", "lane", "due_ms", "fence", "attempt", "enqueued_ms", "life_ms", "crashes", "redrives", "cancel"),
    *("crashes_alone", "suspect", "parked", "deferral", "batch"),
    *("held_ms", "deadline_ms", "attempts_allowed", "run", "reason", "rested_ms", "progress", "faults", "result"),
)
_ALL = (*SENT, *_KEPT, "worker", "headers", "correlation_id")
_of_sent, _of_kept, _of_all = attrgetter(*SENT), attrgetter(*_KEPT), attrgetter(*_ALL)  # at once: it is done often


def _matches(k: Kept, where: Filter) -> bool:
    since = k.enqueued_ms if k.rested_ms is None else k.rested_ms
    told = [
        (where.queue, k.queue),
        (where.task, k.sent.task),
        (where.reason, k.reason),
        (where.fingerprint, k.fatal and k.fatal.fingerprint),
        (where.error, k.fatal and k.fatal.error),
        (where.redrives, k.redrives),
        (where.run, k.run),
        (where.batch, k.batch),
    ]
    return (
        all(w is None or (is_ in w if isinstance(w, tuple) else is_ == w) for w, is_ in told)
        and (where.ids is None or k.id in where.ids)
        and (where.since_ms is None or where.since_ms <= since)
        and (where.until_ms is None or since < where.until_ms)
    )
