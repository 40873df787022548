"""The state of the store that a runbook page is about: made in the working directory, before the page's commands run.

Each function has the name of its page, with underscores. It acts on a store whose clock it moves: so messages have
waited, failed and died long ago, in no time. The commands of the page then see that store by the real clock.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace
from tests.support.failing import failure_of

from redrive import App, Draft, Retry, presence
from redrive.duration import Duration, milliseconds
from redrive.fault import Crash, Fault
from redrive.fault.crash import crash_fault
from redrive.message import Ack, ClaimRequest, DeadLetter, Decision, Delivery, Quarantine, RetryAt, Settlement
from redrive.stores.sqlite.clock import MachineClocks
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock
from redrive.triage import pauses

WORKER = "web-3-4711"
NOTHING: Mapping[str, Duration] = MappingProxyType({})
SETTINGS = 'app = "tasks:app"\n'
TASKS = """
import time
from pathlib import Path

from redrive import App, Backoff, Breaker, Retry

app = App("sqlite:///work.db")
app.dependency("crm-api", breaker=Breaker(open_for="10m", max_open="10m"))
PATIENT = Retry(max_attempts=8, backoff=Backoff.fixed("5m"))


@app.task(name="crm.push", queue="crm", dependency="crm-api", retry=PATIENT)
def push(record: int) -> None:
    if not Path("crm-is-up").exists():
        raise ConnectionError("the CRM does not answer")


@app.task(name="crm.pull", queue="crm", dependency="crm-api", retry=PATIENT)
def pull(page: int) -> None:
    if page >= 20:
        raise ConnectionError("the CRM does not answer")


@app.task(name="mail.send", queue="mail")
def send(to: str) -> None:
    if "@" not in to:
        raise ValueError("this is no address")


@app.task(name="image.resize", queue="media")
def resize(path: str) -> None:
    time.sleep(0.2)


@app.task(name="report.build", queue="reports", retry=PATIENT)
def build(month: int) -> None:
    raise TimeoutError("the warehouse is slow")
"""
SCHEDULE = """

@app.periodic("0 * * * *", name="hourly-report", queue="reports")
def hourly() -> None: ...
"""
OBJECTIVE = ('@app.task(name="mail.send",', '@app.task(slo=SLO("99% within 30s", over="28d"), name="mail.send",')


def make(page: str) -> None:
    """Bring the store in the working directory into the state of the page. Raises LookupError if it has none."""
    Path("tasks.py").write_text(TASKS.lstrip())
    Path("redrive.toml").write_text(SETTINGS)
    state = globals().get(page.replace("-", "_"))
    if state is None:
        raise LookupError(f"no state is made for the page {page}; add it to {__name__}")
    state()


class Scene:
    """The app of the pages on a store whose clock starts in the past."""

    def __init__(self, app: App, store: SqliteStore, clock: ManualClock) -> None:
        self.app, self.store, self.clock = app, store, clock

    def put_all(self, task: str, values: Iterable[object], **options: Any) -> None:
        """Put a message of the task with each of these arguments."""
        self.store.put([self.app.tasks[task].using(**options).draft(value) for value in values])

    def claim(self, queue: str, count: int = 1, lease: Duration = "30s") -> list[Delivery]:
        return self.store.exchange([], [ClaimRequest(queue, count, milliseconds(lease), worker=WORKER)]).deliveries

    def settle(self, deliveries: Sequence[Delivery], decision: Decision, fault: Fault | None = None) -> None:
        found = [Settlement(d.receipt, decision, fault or self.failure(d)) for d in deliveries]
        self.store.exchange(found, [])

    def failure(self, delivery: Delivery) -> Fault | None:
        """That of a run of the message's handler, now."""
        return failure_of(self.app.tasks[delivery.message.task], delivery, self.clock.now_ms(), WORKER)

    def die(self, task: str, values: Iterable[object], reason: str = "exhausted") -> None:
        """Put a message with each of these arguments, and let all die now."""
        self.put_all(task, values)
        self.settle(self.claim(self.app.tasks[task].queue, 1000), DeadLetter(reason))

    def tell_worker(
        self,
        queue: str,
        held: int = 0,
        running: Mapping[str, Duration] = NOTHING,
        ahead: Duration = "2m",
        **figures: Any,
    ) -> None:
        """Tell now that a worker of the queue is alive; `running`: ids of messages, and for how long. It reports by a
        clock that is `ahead`, as on a busy machine the commands of a page take longer than a worker may be silent."""
        now_ms = self.store.now_ms()
        task = next(task.name for task in self.app.tasks.values() if task.queue == queue)
        since = {id: now_ms - milliseconds(ago) for id, ago in running.items()}
        presence.ProcessCell(self.store).write(
            presence.WorkerInfo(
                name=WORKER,
                host="web-3",
                pid=4711,
                app="tasks:app",
                started_ms=now_ms - milliseconds("6h"),
                seen_ms=now_ms + milliseconds(ahead),
                queues=(presence.QueueWork(name=queue, concurrency=10, held=held),),
                held=held,
                running=held,
                messages=tuple(presence.HeldMessage(id=id, task=task, since_ms=ms) for id, ms in since.items()),
                **figures,
            )
        )


@contextmanager
def scene(ago: Duration | None = None) -> Iterator[Scene]:
    """A scene that begins so long ago; without it, one at the real time, in which workers can run."""
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    clock = ManualClock(time.time_ns() // 1_000_000 - milliseconds(ago or 0))
    store = SqliteStore("work.db", clock_ms=clock if ago else None)
    logging.getLogger("redrive").addHandler(logging.NullHandler())
    try:
        app: App = importlib.import_module("tasks").app
        app._store = store
        yield Scene(app, store, clock)
    finally:
        store.close()
        del sys.modules["tasks"]  # commands import it with the store that it names


# -- one for each page


def dead_letters_growing() -> None:
    with scene("46m") as at:
        at.die("mail.send", ["bob", "eve"], "permanent")
        for batch in range(1, 11):
            at.die("crm.push", range(4 * batch))
            at.clock.advance("5m")


def dead_letters() -> None:
    with scene("50h") as at:
        at.die("crm.push", range(104))
        at.clock.advance("47h")
        at.die("mail.send", ["ann", "bob", "eve"], "permanent")
    Path("crm-is-up").touch()


def quarantined() -> None:
    with scene("20m") as at:
        at.put_all("image.resize", ["in/banner.tiff"])
        for crashes in (1, 2, 3):
            at.clock.advance("1m")
            crash = Crash(cause="signal", signal="SIGSEGV", run_s=0.8, alone=True, worker=WORKER, host="web-3")
            last: Decision = Quarantine("its process died three times while it ran alone", crashed=True)
            decision = RetryAt(at.clock.now_ms(), crashed=True) if crashes < 3 else last
            at.settle(at.claim("media"), decision, crash_fault(crash, at.clock.now_ms()))


def oldest_too_old() -> None:
    with scene("25m") as at:
        pauses.pause(at.store, "crm", actor="ann", reason="their maintenance")
        at.put_all("crm.push", range(40))
    with scene() as at:
        at.tell_worker("crm")


def backlog() -> None:
    with scene("10m") as at:
        at.put_all("mail.send", [f"user{number}@example.net" for number in range(5200)])
        at.claim("mail", 10, "20m")
    with scene() as at:
        at.tell_worker("mail", held=10, claims_per_s=3.5, cpu_share=0.04)


def error_rate() -> None:
    with scene() as at:
        at.put_all("crm.pull", range(32))
        at.app.run_worker(burst=True)


def retry_storm() -> None:
    with scene() as at:
        at.put_all("report.build", range(150))
        at.app.run_worker(burst=True)


def coming_wave() -> None:
    with scene("1m") as at:
        at.put_all("mail.send", [f"user{number}@example.net" for number in range(1200)], delay="15m")


def no_workers() -> None:
    with scene("3m") as at:
        at.put_all("mail.send", ["ann@example.net"] * 30)
        at.clock.advance("1m")
        at.tell_worker("mail", held=10, ahead=0)


def worker_stuck() -> None:
    with scene("40m") as at:
        at.put_all("report.build", [10])
        (held,) = at.claim("reports", 1, "41m")
    with scene() as at:
        hung = presence.Hung(
            since_ms=at.store.now_ms() - 40 * 60_000, queues=("reports",), task="report.build", id=held.message.id,
            place="reports.py:12 in build",
        )  # fmt: skip
        at.tell_worker("reports", held=1, running={held.message.id: "40m"}, hung=hung)


def run_stalled() -> None:
    with scene("30m") as at:
        at.die("crm.push", range(60))
        at.clock.advance("5m")
        at.app.dlq.select("task:crm.push").plan(rate="200/s", canary=2).start(reason="the CRM is up, CRM-77")
    Path("crm-is-up").touch()


def canary_failed() -> None:
    with scene("5m") as at:
        at.die("crm.push", range(60))
    with scene() as at:
        at.app.dlq.select("task:crm.push").plan(canary=5, attempts=1).start(reason="the CRM is up, CRM-77")
        at.app.run_worker(drain=True)


def batch_partial() -> None:
    with scene("30m") as at:
        drafts = [at.app.tasks["crm.push"].draft(number) for number in range(60)]
        follows = at.app.tasks["mail.send"].draft("ann@example.net")
        at.app.batch(drafts, name="nightly-import", on_success=follows).enqueue()
        members = at.claim("crm", 60)
        at.settle(members[:3], DeadLetter("exhausted"))
        at.store.exchange([Settlement(member.receipt, Ack()) for member in members[3:]], [])
    Path("crm-is-up").touch()


def breaker_open() -> None:
    with scene() as at:
        at.put_all("crm.push", range(60))
        at.app.run_worker(burst=True)


def store_errors() -> None:
    Path("redrive.toml").write_text('url = "postgresql://app@127.0.0.1:1/app"\n')


def slo_burn() -> None:
    Path("tasks.py").write_text(TASKS.lstrip().replace("import App,", "import SLO, App,").replace(*OBJECTIVE))
    with scene() as at:
        at.put_all("mail.send", ["ann@example.net"] * 40)
        at.put_all("mail.send", ["ann"] * 10)
        at.app.tasks["mail.send"].policy = replace(at.app.tasks["mail.send"].policy, retry=Retry(max_attempts=1))
        at.app.run_worker(burst=True)


def clock_skew() -> None:
    store = SqliteStore("work.db", host=Ahead())
    store.put([Draft(task="mail.send", queue="mail", body=b'["ann@example.net"]')])
    store.close()
    with scene() as at:
        at.tell_worker("mail", clock_ahead_ms=-90_000)


class Ahead(MachineClocks):
    """This machine while its clock was 90 s ahead; since then somebody has set it back."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_s = lambda: time.time() + 90


def schedule_late() -> None:
    Path("tasks.py").write_text(TASKS.lstrip() + SCHEDULE)
    with scene("150m") as at:
        asyncio.run(_tick(at.app))


async def _tick(app: App) -> None:
    async with app.scheduler():
        await asyncio.to_thread(_until_known, app)


def _until_known(app: App) -> None:
    while None in app.store.cells.read([schedule.key for schedule in app.schedules.values()]):
        time.sleep(0.01)


def slow() -> None:
    with scene() as at:
        at.put_all("image.resize", [f"in/{number}.tiff" for number in range(20)])
        at.app.run_worker(burst=True)
    with scene("1m") as at:
        at.put_all("image.resize", [f"in/{number}.tiff" for number in range(20, 420)])
        at.claim("media", 10, "3m")
    with scene() as at:
        at.tell_worker("media", held=10)
