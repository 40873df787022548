"""`redrive top` under Textual's pilot: a store with something of everything, and a window on it that a test works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen as Window
from textual.widgets import Input

from redrive import App, Breaker
from redrive.audit.log import Entry
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Draft, Message, Quarantine, Settlement
from redrive.presence import HeldMessage, QueueWork, WorkerInfo
from redrive.presence.directory import ProcessCell
from redrive.store import Store
from redrive.stores.sqlite.store import SqliteStore
from redrive.top import Model, Top
from redrive.top.lines import Lines
from redrive.top.question import Question
from redrive.top.screen import Screen

PATIENCE_S = 60.0  # long, for a busy machine: what is waited for comes at once or never
NO, GONE = "ab" * 8, "cd" * 8  # fingerprints
ACTOR = "ann@ops"


class Scene:
    """A store with waiting, dead and quarantined messages, a run, a worker and a dependency; and its app."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        """`url`: of another engine than SQLite."""
        self.app = App(url) if url is not None else App(store=SqliteStore(folder / "work.db"))
        self.store: Store = self.app.store
        self.app.dependency("stripe", breaker=Breaker())
        self.app.task(name="crm.push", queue="crm", dependency="stripe")(_nothing)
        self.app.task(name="mail.send", queue="mail")(_nothing)
        self.dead = [self.bury("crm.push", "crm", NO, "no such record") for _ in range(3)]
        self.dead.append(self.bury("mail.send", "mail", GONE, "mailbox gone"))
        self.poison = self.settled(Draft(task="mail.send", queue="mail"), Quarantine("it kills"))
        self.waiting = [put.id for put in self.store.put([Draft(task="crm.push", queue="crm", delay_ms=10**7)] * 2)]

    def bury(self, task: str, queue: str, fingerprint: str, text: str, **parts: Any) -> str:
        """A message that died of this."""
        fault = Fault(Kind.PERMANENT, "ValueError", text, fingerprint, attempt=1, traceback=f"ValueError: {text}")
        return self.settled(Draft(task=task, queue=queue, **parts), DeadLetter("permanent"), fault)

    def settled(self, draft: Draft, decision: DeadLetter | Quarantine, fault: Fault | None = None) -> str:
        (put,) = self.store.put([draft])
        (taken,) = self.store.exchange([], [ClaimRequest(draft.queue, 1, 30_000)]).deliveries
        self.store.exchange([Settlement(taken.receipt, decision, fault)], [])
        return put.id

    def planned(self) -> str:
        """A run of what is dead in queue crm, which no worker carries."""
        return self.app.dlq.select("queue:crm").plan(rate="1/s").start(reason="crm is back", actor=ACTOR).id

    def works(self, name: str = "vm/worker-0") -> None:
        """A worker tells that it is alive, and runs the first waiting message."""
        now_ms = self.store.now_ms()
        held = HeldMessage(id=self.waiting[0], task="crm.push", since_ms=now_ms)
        told = WorkerInfo(
            name=name, host="vm", pid=7, version="9.9", started_ms=now_ms, seen_ms=now_ms, held=1, running=1,
            queues=(QueueWork(name="crm", concurrency=20, held=1),), messages=(held,), claims_per_s=12.5,
        )  # fmt: skip
        ProcessCell(self.store).write(told)

    def message(self, id: str) -> Message | None:
        return self.store.find([id])[0]

    @property
    def entries(self) -> list[Entry]:
        """The audit log, newest first."""
        return list(self.app.audit)

    def model(self) -> Model:
        return Model(self.store, self.app, "sqlite:///work.db", actor=ACTOR)

    def watch(self, test: Callable[[Watched], Awaitable[None]], size: tuple[int, int] = (120, 40)) -> None:
        """Run the test in a window of that size."""
        watch(self.model(), test, size)


def _nothing(n: int = 0) -> None: ...


class Watched:
    """The window: what it shows, and the keys."""

    def __init__(self, top: Top, pilot: Pilot[None]) -> None:
        self.top, self.pilot = top, pilot

    @property
    def window(self) -> Window[Any]:
        return self.top.screen_stack[0]

    @property
    def screen(self) -> Screen:
        return self.top.now

    @property
    def text(self) -> str:
        """All that is on the terminal, but a question."""
        return "\n".join(text for lines in self.window.query(Lines) for text in lines.texts)

    def part(self, id: str) -> str:
        return "\n".join(self.window.query_one(f"#{id}", Lines).texts)

    @property
    def cursor(self) -> str:
        """The line with the cursor."""
        return next((line for line in self.part("rows").splitlines() if line.startswith("›")), "")

    @property
    def question(self) -> str:
        """What is asked; empty if nothing is."""
        asked = self.top.screen
        return "\n".join(asked.told) if isinstance(asked, Question) else ""

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type into the box that has the focus, and press enter."""
        box = self.top.focused
        assert isinstance(box, Input), box
        box.value = text
        await self.pilot.press("enter")

    async def until(self, holds: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end_s, self.text
            await self.pilot.pause(0.01)

    async def sees(self, *texts: str) -> None:
        """Wait until all of it is shown."""
        await self.until(lambda: all(text in self.text for text in texts))

    async def answers(self, key: str, reason: str = "CRM-77") -> None:
        """Press an upper-case key and answer its question."""
        await self.press(key)
        await self.until(lambda: self.question)
        await self.type(reason)
        await self.until(lambda: not self.question)


def watch(model: Model, test: Callable[[Watched], Awaitable[None]], size: tuple[int, int] = (120, 40)) -> None:
    """Run a test of a window."""

    async def run() -> None:
        top = Top(model)
        async with top.run_test(size=size) as pilot:
            await test(Watched(top, pilot))

    asyncio.run(run())
