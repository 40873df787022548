"""A store with twenty-odd messages of every state, cells of every kind, and a ledger of what has to become of each."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from typing import Any

from msgspec import Struct

from redrive import App, Breaker, Context, Retry
from redrive.errors import Reject
from redrive.events import Notice
from redrive.fault import Fault, Kind, fingerprint
from redrive.message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Deferral,
    Delivery,
    Draft,
    Isolate,
    Lane,
    Message,
    Quarantine,
    Redrive,
    RetryAt,
    Settlement,
)
from redrive.store import Store
from redrive.triage.pauses import pause

PLAIN, LINES, STRICT = "plain", "lines", "strict"
QUEUES = (PLAIN, LINES, STRICT)
FAR_MS = 86_400_000
ENDLESS_S = 4.0


class Entry(Struct, frozen=True):
    """What a worker has to do with one message: `runs` says how often it runs, in its `attempt`; else it stays in
    `lane`. `group` is its queue's and name."""

    runs: int
    attempt: int
    lane: str
    group: tuple[str, str] | None


Ledger = dict[str, Entry]


def build(store: Store) -> Ledger:
    """Fill an empty store."""
    world = _World(store)
    world.plain()
    world.lines()
    world.strict()
    world.cells()
    return world.ledger()


class _World:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._run: set[str] = set()

    def _put(self, count: int = 1, runs: bool = True, **options: Any) -> list[str]:
        drafts = [Draft(**{"task": "work", "queue": PLAIN, "body": b'{"n":%d}' % n, **options}) for n in range(count)]
        ids = [put.id for put in self._store.put(drafts)]
        if runs:
            self._run.update(ids)
        return ids

    def _claim(self, limit: int, queue: str = PLAIN, lease_ms: int = FAR_MS) -> list[Delivery]:
        return self._store.exchange([], [ClaimRequest(queue, limit, lease_ms, worker="other")]).deliveries

    def _settle(self, deliveries: list[Delivery], decision: Any, text: str = "") -> None:
        fault = _fault(text, self._store.now_ms()) if text else None
        self._store.exchange([Settlement(d.receipt, decision, fault) for d in deliveries], [])

    def _dead(self, text: str, count: int = 1, **options: Any) -> list[Message]:
        ids = self._put(count, runs=False, **options)
        self._settle(self._claim(count), DeadLetter("exhausted", "no more"), text)
        return [message for message in self._store.find(ids) if message is not None]

    def plain(self) -> None:
        store, now = self._store, self._store.now_ms()
        self._dead("no route to 17", 2, headers={"tenant": "a"})
        self._dead("timeout", key="dead-key")
        self._put(runs=False)
        self._settle(self._claim(1), Quarantine("it kills"), "died")
        isolated = self._dead("poison")
        store.triage([isolated[0].handle], Isolate("somebody looks at it"))
        self._put(runs=False, keep_ms=FAR_MS)
        [done] = self._claim(1)
        store.checkpoint(done.receipt, b"half")
        self._settle([done], Ack(keep_ms=FAR_MS))
        cancelled = self._put(runs=False)
        store.cancel(cancelled)
        moved = self._dead("moved", 2)
        store.triage([moved[0].handle], Redrive(run="0123456789abcdef"))
        store.triage([moved[1].handle], Redrive(attempts=2))
        self._run.update(message.id for message in moved)
        self._put(2, correlation_id="order-7", causation_id="c", producer="p")
        [lapsed] = self._put()
        claimed = self._claim(10, lease_ms=1)
        first = [d for d in claimed if d.message.id == moved[0].id]
        self._settle(first, RetryAt(now, held=True, deferral=Deferral("breaker", "far")), "twice")
        self._settle([d for d in claimed if d not in first and d.message.id != lapsed], RetryAt(now), "once")
        self._put(2, headers={"a": "1"}, priority=0, key="k")
        self._put(1, task="fail")
        self._put(2)
        self._put(1, runs=False, delay_ms=FAR_MS)
        leased = self._put(2, runs=False, queue="held")
        self._claim(2, queue="held")
        store.cancel(leased[:1])

    def lines(self) -> None:
        self._store.configure(LINES, group_width=1)
        self._put(3, queue=LINES, group="a")
        self._put(2, queue=LINES, group="b", priority=1)
        self._put(1, queue=LINES, group="b", delay_ms=FAR_MS, runs=False)
        self._store.configure_group(LINES, "c", width=2)
        self._put(3, queue=LINES, group="c")

    def strict(self) -> None:
        self._store.configure(STRICT, group_order="strict", on_dead="block")
        self._put(1, queue=STRICT, group="blocked", runs=False)
        self._settle(self._claim(1, STRICT), DeadLetter("exhausted"), "it blocks")
        self._put(2, queue=STRICT, group="blocked", runs=False)
        self._put(3, queue=STRICT, group="open")

    def cells(self) -> None:
        """An audit log, a plan, a run that waits, a note, a pause, a breaker, an objective's counts."""
        app = app_of(self._store)
        pause(self._store, "elsewhere", reason="for a test")
        plan = app.dlq.select("queue:plain error:ConnectionError").plan()
        plan.start(reason="for a test").pause(reason="for a test")
        group = next(iter(app.dlq.groups()))
        app.dlq.note(group.fingerprint, "known", reason="for a test")
        app.flow.open("far", reason="for a test", for_="1d")
        app.flow.auto("far", reason="for a test")

    def ledger(self) -> Ledger:
        found: Ledger = {}
        cursor = None
        while True:
            page = self._store.peek(None, cursor=cursor)
            for m in page.messages:
                group = None if m.group is None else (m.queue, m.group)
                counts = m.attempt + (m.lane is Lane.READY)
                found[m.id] = Entry(int(m.id in self._run), counts, m.lane, group)
            cursor = page.cursor
            if cursor is None:
                return found


def _fault(text: str, now_ms: int) -> Fault:
    return Fault(Kind.TRANSIENT, "ConnectionError", text, fingerprint("ConnectionError", text), at_ms=now_ms, attempt=1)


class Ran(Struct):
    """What a worker did: runs and attempts by id, the names of what it complained about, and whether it had to be asked
    to end."""

    runs: Counter[str]
    attempts: dict[str, int]
    notices: list[str]
    endless: bool = False
    texts: list[str] = []


def app_of(store: Store | str, ran: Ran | None = None) -> App:
    app = App(store) if isinstance(store, str) else App(store=store)
    app.dependency("far", breaker=Breaker())
    for name in (*QUEUES, "held"):
        app.queue(name, **({"group_width": 1} if name == LINES else {}), **(
            {"group_order": "strict", "on_dead": "block"} if name == STRICT else {}))  # fmt: skip

    @app.task(name="work", ctx=True, queue=PLAIN, retry=Retry(max_attempts=3))
    def work(ctx: Context, n: int) -> None:
        if ran is not None:
            ran.runs[ctx.message_id] += 1
            ran.attempts[ctx.message_id] = ctx.attempt

    @app.task(name="fail", ctx=True, queue=PLAIN)
    def fail(ctx: Context, n: int) -> None:
        if ran is not None:
            ran.runs[ctx.message_id] += 1
            ran.attempts[ctx.message_id] = ctx.attempt
        raise Reject("it is not wanted")

    return app


def work_off(url: str) -> Ran:
    """A worker runs until nothing is due."""
    ran = Ran(Counter(), {}, [])
    app = app_of(url, ran)

    def hear(events: Any) -> None:
        some = [event for event in events if isinstance(event, Notice)]
        ran.notices.extend(event.name for event in some)
        ran.texts.extend(event.text for event in some)

    def end() -> None:
        ran.endless = True
        os.kill(os.getpid(), signal.SIGTERM)

    app.subscribe(hear)
    timer = threading.Timer(ENDLESS_S, end)
    timer.start()
    try:
        with contextlib.closing(app.store):
            app.run_worker([*QUEUES], burst=True, grace=2)
    finally:
        timer.cancel()
    return ran


__all__ = ["QUEUES", "Entry", "Ledger", "Ran", "app_of", "build", "work_off"]
