"""The same random calls on SQLite and on the reference store give the same answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import ConfigError, Conflict, EnqueueError
from redrive.fault import Fault, Kind
from redrive.ids import new_id
from redrive.message import (
    Ack,
    Ask,
    DeadLetter,
    Decision,
    Delivery,
    Discard,
    Draft,
    GroupOrder,
    Handle,
    Isolate,
    Keep,
    Lane,
    OnDead,
    Page,
    Quarantine,
    Receipt,
    Redrive,
    RetryAt,
    Settlement,
    Started,
    Swap,
    Verdict,
    Where,
)
from redrive.store import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock

STEPS = 300
QUEUES, TASKS, WORKERS = ("default", "q"), ("a", "b", "c"), ("w1", "w2")
GROUPS = ("g1", "g2", "ж")


class Pair:
    """Two stores, one clock; every call goes to both, and what they answer must be the same."""

    def __init__(self, clock: ManualClock, path: Path, rng: random.Random) -> None:
        self.clock, self.rng = clock, rng
        self.stores: tuple[Store, Store] = (MemoryStore(clock), SqliteStore(path, clock_ms=clock))
        self.deliveries: list[tuple[Delivery, Delivery]] = []  # every one ever given, by both
        self.ids: list[str] = []

    def both(self, name: str, *args: Any, **parts: Any) -> Any:
        """The answer of both; arguments that are pairs are for one each."""
        answers = [self._one(n, name, args, parts) for n in (0, 1)]
        if name == "find":  # one by one, so that a failure names the message
            for one, other in zip(*answers, strict=True):
                assert one == other
        assert answers[0] == answers[1], (name, args, parts)
        return answers[0]

    def _one(self, n: int, name: str, args: tuple[Any, ...], parts: dict[str, Any]) -> Any:
        target: Any = self.stores[n]
        for word in name.split("."):
            target = getattr(target, word)
        try:
            return target(*[arg[n] if isinstance(arg, tuple) else arg for arg in args], **parts)
        except (Conflict, EnqueueError, ConfigError) as error:
            return type(error)

    # -- random parts

    def draft(self, *, known_id: bool = False) -> Draft:
        rng = self.rng
        id = rng.choice(self.ids) if self.ids and known_id else new_id(self.clock())
        self.ids.append(id)
        return Draft(
            task=rng.choice(TASKS),
            queue=rng.choice(QUEUES),
            id=id,
            body=rng.randbytes(rng.choice((0, 1, 5))),
            delay_ms=rng.choice((0, 0, 0, 500, 5000)),
            priority=rng.choice((0, 2, 2, 3)),
            key=rng.choice((None, None, "k1", "k2", "k3")),
            key_for_ms=rng.choice((0, 0, 90_000)),
            deadline_ms=rng.choice((None, self.clock() + 1000)),
            headers=rng.choice((None, {"a": "1"})),
            keep_ms=rng.choice((0, 0, 1000)),
            group=rng.choice((None, *GROUPS)),
        )

    def swaps(self) -> list[Swap]:
        return [
            Swap(self.rng.choice("xyz"), self.rng.choice((0, 0, 1, 2, 3)), self.rng.choice((b"1", b"2", None)), ttl)
            for ttl in self.rng.choices((None, 1000), k=self.rng.choice((0, 0, 0, 1, 2)))
        ]

    def decision(self) -> Decision:
        rng, counts = self.rng, self.rng.random() < 0.8
        decisions: list[Decision] = [
            Ack(rng.choice((None, "no cache")), rng.choice((0, 0, 500, None))),
            RetryAt(self.clock() + rng.choice((0, 700)), counts=counts, held=rng.random() < 0.3),
            DeadLetter(rng.choice(("exhausted", "permanent")), counts=counts),
            Quarantine(counts=counts),
        ]
        return rng.choice(decisions)

    def fault(self) -> Fault | None:
        name = self.rng.choice("xy")
        return self.rng.choice((None, Fault(Kind.DEFAULT, f"Error{name}", f"text {name}", name * 16)))

    def settlements(self) -> tuple[list[Settlement], list[Settlement]]:
        chosen = self.rng.sample(self.deliveries[-12:], k=min(len(self.deliveries[-12:]), self.rng.choice((0, 1, 3))))
        pairs = []
        for delivery in chosen:
            parts = (self.decision(), self.fault(), tuple(self.draft() for _ in range(self.rng.choice((0, 0, 1)))))
            swaps = tuple(self.swaps())
            result = self.rng.choice((None, b"7"))
            pairs.append([Settlement(d.receipt, *parts, result, swaps) for d in delivery])
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def receipts(self) -> tuple[list[Receipt], list[Receipt]]:
        chosen = self.rng.sample(self.deliveries[-8:], k=min(len(self.deliveries[-8:]), 3))
        return [pair[0].receipt for pair in chosen], [pair[1].receipt for pair in chosen]

    def some_ids(self) -> list[str]:
        return self.rng.sample(self.ids, k=min(3, len(self.ids)))

    def where(self) -> Where:
        rng, since = self.rng, self.clock() - 3000
        return rng.choice([Where(), Where(queue="q"), Where(task="a"), Where(error="Errorx"), Where(since_ms=since)])

    # -- steps

    def put(self) -> None:
        drafts = [self.draft() for _ in range(self.rng.choice((1, 2, 5)))]
        if self.rng.random() < 0.06:
            drafts = [self.draft(known_id=True)]
        self.both("put", drafts, swaps=self.swaps())

    def exchange(self) -> None:
        rng = self.rng
        skip = frozenset(rng.sample(TASKS, k=rng.choice((0, 0, 1))))
        asks = [Ask(rng.choice(QUEUES), rng.choice((0, 1, 4)), 2000, skip, rng.choice(WORKERS)) for _ in range(2)]
        settlements, swaps = self.settlements(), self.swaps() if rng.random() < 0.2 else []
        answers = [self._one(n, "exchange", (settlements[n], asks), {"swaps": swaps}) for n in (0, 1)]
        if isinstance(answers[0], type) or isinstance(answers[1], type):
            assert answers[0] == answers[1]
            return
        assert answers[0].settled == answers[1].settled
        given = list(zip(answers[0].deliveries, answers[1].deliveries, strict=True))
        for one, other in given:
            assert (one.message, one.until_ms) == (other.message, other.until_ms)
        self.deliveries += given

    def extend(self) -> None:
        self.both("extend", self.receipts(), lease_ms=self.rng.choice((100, 4000)), alone=self.rng.random() < 0.3)

    def checkpoint(self) -> None:
        for pair in zip(*self.receipts(), strict=True):
            self.both("checkpoint", pair, self.rng.choice((b"", b"half")))

    def release(self) -> None:
        found = [message for message in self.stores[0].find(self.some_ids()) if message is not None]
        started = [Started(message.id, message.fence - (self.rng.random() < 0.2)) for message in found]
        self.both("release", self.rng.choice(WORKERS), self.rng.choice((None, [], started)))

    def cancel(self) -> None:
        self.both("cancel", self.some_ids())

    def triage(self) -> None:
        messages = [message for message in self.stores[0].find(self.some_ids() * 2) if message is not None]
        page = self.stores[0].peek(self.rng.choice((Lane.DEAD, Lane.QUARANTINE)), limit=2).messages
        handles = [Handle(m.id, m.redrives, m.lane) for m in messages + page]
        verdicts: list[Verdict] = [Redrive(delay_ms=self.rng.choice((0, 300)), to_queue="q", attempts=2)]
        verdicts += [Redrive(run="r", keep_deadline=True), Discard("no"), Isolate("poison")]
        self.both("triage", handles, self.rng.choice(verdicts))

    def swap(self) -> None:
        self.both("cells.swap", self.swaps())

    def configure(self) -> None:
        self.both("configure", self.rng.choice(QUEUES), paused=self.rng.choice((None, True, False, False)))

    def configure_groups(self) -> None:
        rng = self.rng
        order, on_dead = rng.choice((None, *GroupOrder)), rng.choice((None, *OnDead))
        width = rng.choice((None, 1, 1, 2, 3))
        self.both("configure", rng.choice(QUEUES), group_width=width, group_order=order, on_dead=on_dead)

    def configure_group(self) -> None:
        rng, width = self.rng, self.rng.choice((None, 0, 0, 1, 2))
        group = rng.choice((*GROUPS, None))
        self.both("configure_group", rng.choice(QUEUES), group, width=width, resume=rng.random() < 0.5)

    def retain(self) -> None:
        keeps = [Keep(self.rng.choice((None, 0, 2, 5)), self.rng.choice((None, 5000))) for _ in range(2)]
        self.both("retain", self.rng.choice(QUEUES), done=keeps[0], dead=keeps[1])

    def advance(self) -> None:
        self.clock.advance(self.rng.choice((0.001, 0.5, 2, 2.5, 61)))

    def look(self) -> None:
        """Everything that can be seen."""
        self.both("find", self.ids)
        for queue in (None, *QUEUES):
            self.both("counts", queue)
        for lane in (*Lane, None):
            self._pages(lane, self.where())
        self.both("queues")
        self.both("paused")
        assert self.both("check") == []
        for queue in QUEUES:
            self.both("groups", queue)
        self.both("cells.read", ["x", "y", "z"])
        groups = [store.failure_groups() for store in self.stores]
        assert groups[0] == groups[1]

    def _pages(self, lane: Lane | None, where: Where) -> None:
        pages = [store.peek(lane, where=where, limit=3) for store in self.stores]
        for _ in range(50):
            assert pages[0].messages == pages[1].messages
            if not pages[0].messages:
                return
            cursors = [page.cursor for page in pages]
            pages = [
                store.peek(lane, where=where, limit=3, cursor=cursor) if cursor else Page([])
                for store, cursor in zip(self.stores, cursors, strict=True)
            ]


WEIGHTS = {
    "put": 6,
    "exchange": 14,
    "extend": 2,
    "checkpoint": 1,
    "release": 1,
    "cancel": 2,
    "triage": 3,
    "swap": 1,
    "configure": 1,
    "configure_groups": 1,
    "configure_group": 1,
    "retain": 1,
    "advance": 6,
}


@pytest.mark.parametrize("walk", range(4))
def test_random_calls_have_the_same_answers(tmp_path: Path, seed: int, walk: int, soak: bool) -> None:
    rng = random.Random(f"{seed}.{walk}")
    pair = Pair(ManualClock(), tmp_path / "work.db", rng)
    try:
        for step in range(STEPS * (20 if soak else 1)):
            getattr(pair, rng.choices([*WEIGHTS], weights=[*WEIGHTS.values()])[0])()
            if step % 10 == 0:
                pair.look()
        pair.look()
    finally:
        for store in pair.stores:
            store.close()
