"""Fill a room's store with everything that its pages show."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.browsing.history import write_history
from tests.support.browsing.room import Room
from tests.support.failing import failure_of
from tests.support.sites import enqueued

from redrive import App
from redrive.fault import Fault
from redrive.message import ClaimRequest, DeadLetter, Delivery, Settlement
from redrive.simulate import foretell
from redrive.store import Store
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock
from redrive.triage import pauses
from redrive.triage.dlq import DeadLetters
from redrive.triage.views import save_view
from redrive.web.table import PAGES

WORKER = "web-3-4711"
LEASE_MS = 30_000
QUARANTINE_WHY = "it killed two workers; look at the file first"


@dataclass(frozen=True, slots=True)
class Seeded:
    """The ids of what pages are about."""

    group: str  # of crm.push
    dead: str
    bad_mail: str
    big: str
    plan: str
    run: str
    batch: str
    app: App

    def worker(self) -> str:
        """The name of a worker that reports now; the first one of a room takes a moment."""
        until_s = time.monotonic() + 30
        while not (found := [each.name for each in self.app.workers() if each.kind == "worker" and not each.gone]):
            assert time.monotonic() < until_s, "no worker reports"
            time.sleep(0.1)
        return found[0]

    def address(self, page: str) -> str:
        """The address of a page, by its name in the table: of one that has something to show."""
        ids = {"message": self.dead, "edit": self.bad_mail, "plan": self.plan, "run": self.run}
        ids["batch"] = self.batch
        parts = {
            "queue": "crm",
            "task": "crm.push",
            "worker": self.worker() if page == "worker" else "",
            "fingerprint": self.group,
            "dependency": "crm-api",
            "id": ids.get(page, ""),
        }
        path = next(each.path for each in PAGES if each.name == page)
        return path.replace(":path", "").format(**parts)


class Past:
    """The room's app on its store, at a time that moves on by hand. Only SQLite's clock can be moved."""

    def __init__(self, app: App, store: Store, clock: ManualClock | None) -> None:
        self.app, self.store, self._clock = app, store, clock

    def goes_on(self, ms: int) -> None:
        if self._clock is not None:
            self._clock.advance(ms / 1000)

    def put(self, task: str, values: Iterable[object], **options: object) -> list[str]:
        """Put a message of the task with each of these as its first argument."""
        using = self.app.tasks[task].using(**options)  # type: ignore[arg-type]
        return [put.id for put in self.store.put([using.draft(value) for value in values])]

    def die(self, task: str, values: Iterable[object], reason: str = "exhausted") -> list[str]:
        """Put a message with each of these arguments, and let all die now, of what their handler raises."""
        self.put(task, values)
        return self.kill(task, reason)

    def kill(self, task: str, reason: str = "exhausted") -> list[str]:
        """Let all that wait in the task's queue die now, of what their handler raises."""
        claimed = self.store.exchange(
            [], [ClaimRequest(self.app.tasks[task].queue, 1000, LEASE_MS, worker=WORKER)]
        ).deliveries
        self.store.exchange([Settlement(each.receipt, DeadLetter(reason), self._fault(each)) for each in claimed], [])
        return [each.message.id for each in claimed]

    def _fault(self, delivery: Delivery) -> Fault:
        fault = failure_of(self.app.tasks[delivery.message.task], delivery, self.store.now_ms(), WORKER)
        assert fault is not None, f"{delivery.message.task} did not fail"
        return fault


@contextmanager
def past(room: Room, ago_s: float) -> Iterator[Past]:
    """The room so long ago, where its store is a file of SQLite; else now."""
    if not room.url.startswith("sqlite"):
        yield Past(room.app, room.app.store, None)
        return
    clock = ManualClock(room.app.store.now_ms() - round(ago_s * 1000))
    store = SqliteStore(room.folder / "work.db", clock_ms=clock)
    try:
        yield Past(room.app, store, clock)
    finally:
        store.close()


def seed(room: Room) -> Seeded:
    """Dead groups of several tasks, quarantined, scheduled, parked, a plan, a run that stopped itself, annotations,
    mutes, schedules, an objective, a breaker that is held open, and 35 days of history. No worker may run meanwhile."""
    app, dlq = room.app, room.app.dlq
    pauses.pause(app.store, "reports", actor="ann", reason="the warehouse moves until noon")
    with past(room, 3 * 3600) as at:
        bad_mail = at.die("mail.send", ["bob", "eve", "ann"], "permanent")
        for batch in range(1, 6):
            dead = at.die("crm.push", range(10 * batch, 10 * batch + 4 * batch))
            at.die("billing.charge", range(700 + batch, 704 + batch))
            at.goes_on(30 * 60_000)
        big = at.die("data.take_in", [[{"row": n, "name": f"Customer {n}", "price": 2**60 + n} for n in range(400)]])
        at.put("report.build", range(1, 7), group="tenant-acme")
        at.put("report.build", range(1, 4), group="tenant-umbrella")
    resize, send = app.tasks["image.resize"], app.tasks["mail.send"]
    drafts = [resize.draft(f"in/{name}.tiff") for name in ("banner", "map")]
    drafts += [send.draft(f"user{n}@example.net") for n in range(40)]
    catalogue = enqueued(app.batch(drafts, name="catalogue"))
    later = (send.using(delay=f"{n * n + 10}m").draft(f"later{n}@example.net") for n in range(12))
    enqueued(app.batch(later, name="reminders"))
    with past(room, 0) as at:
        broken = at.kill("image.resize")
        room.work("mail", "--burst")
    dlq.quarantine(broken, reason=QUARANTINE_WHY, actor="ann")
    groups = {group.task: group.fingerprint for group in dlq.groups()}
    _annotate(room, dlq, groups)
    planned = dlq.select("task:billing.charge").plan(canary=5, attempts=1)
    foretell(app.store, app, planned)
    run = planned.start(reason="the bank is up, PAY-12", actor="ann")
    room.work("billing", "--drain")
    plan = dlq.select("task:crm.push").plan(rate="50/s", canary=5, slow_start=True, note="CRM-77")
    app.flow.open("crm-api", reason="their maintenance, until 14:00", actor="ann")
    write_history(app.store)
    save_view(app.store, "Dead of the CRM", "messages?q=queue%3Acrm", actor="ann")
    save_view(app.store, "The last day against last week", "?since=24h&against=week", actor="ann")
    return Seeded(groups["crm.push"], dead[0], bad_mail[0], big[0], plan.id, run.id, catalogue.id, app)


def _annotate(room: Room, dlq: DeadLetters, groups: dict[str, str]) -> None:
    dlq.note(groups["crm.push"], "Their maintenance; see CRM-77.", actor="ann")
    dlq.own(groups["crm.push"], "team-crm", actor="ann")
    dlq.mute(groups["mail.send"], "6h", reason="the form is mended; 3 old ones are left", actor="ann")
    room.app.alerts.mute(queue="reports", for_="4h", reason="the warehouse moves", actor="ann")
