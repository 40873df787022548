"""`app.lambda_handler()` on the stand-in: Lambda's poller is played here, the rest is the real thing."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any

import pytest
from tests.support.aws.places import REGION, Stand, lay

from redrive import App, AutoRedrive, Backoff, Idempotency, Reject, Retry, Snooze, context
from redrive.aws.lambda_.events import answer, queue_named, queues_of, raw_of, records_of
from redrive.aws.lambda_handlers import LambdaHandler, redrive
from redrive.aws.redriver import settings as redriving
from redrive.aws.redriver.run import Continuation
from redrive.aws.redriver.transfer import calls
from redrive.awsapi.client import client
from redrive.errors import ConfigError
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing.sqs import EventSource
from redrive.testing.sqs.event_source import Remaining

NUMBERS = count(1)
OPEN: list[Any] = []
PUSH = Retry(max_attempts=3, backoff=Backoff.fixed("60s"))


@cache
def calls_of(url: str) -> Any:
    return client("sqs", region=REGION, endpoint=url)


class Lambda:
    """A queue, an app on it, and the event source mapping between them."""

    def __init__(
        self, stand: Stand, *, fifo: bool = False, mode: str = "visibility", cells: bool = True, track: bool = False
    ) -> None:
        self.stand, self.prefix = stand, f"l{next(NUMBERS)}"
        self.queue = "q.fifo" if fifo else "q"
        url = f"sqs://{REGION}/{self.prefix}?endpoint={stand.url}&create=true&poll=0&mode={mode}"
        url += "&track=true" if track else ""
        if not fifo:
            lay(stand.server, f"{self.prefix}-q")
        self.cells = MemoryStore(stand.clock) if cells else None
        self.store = SqsStore(url, clock_ms=stand.clock, triage=self.cells)
        self.app = App(url, store=self.store)
        self.place = self.store.sqs_queues.of(self.queue)
        self.sqs = calls_of(stand.url)
        self.source = EventSource(self.sqs, self.place.url)
        self.handler: LambdaHandler | None = None
        OPEN.append(self.store)

    def receive(self) -> list[dict[str, Any]]:
        return self.source.receive()

    def invoke(self, *, seconds: float = 30, records: list[dict[str, Any]] | None = None, **options: Any) -> list[str]:
        """One event, as the poller does it; the ids of those that came back."""
        if self.handler is None:
            self.handler = self.app.lambda_handler(**{"metrics": False, **options})
            OPEN.append(self.handler)
        return self.source.deliver(self.handler, seconds=seconds, records=records)

    def count(self) -> int:
        """How many messages lie in the queue, in any state."""
        return sum(self.store.sqs_queues.counts(self.place.url))


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as place:
        yield place


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def test_what_is_done_is_deleted_and_what_failed_comes_back_when_its_policy_says(stand: Stand) -> None:
    f = Lambda(stand)
    ran: list[tuple[int, int]] = []

    @f.app.task(name="push", queue="q", retry=PUSH)
    async def push(n: int) -> None:
        ran.append((n, context().attempt))
        if n == 3 and context().attempt == 1:
            raise ConnectionError("down")

    f.app.enqueue_many([push.draft(n) for n in range(5)])
    assert len(f.invoke()) == 1
    assert sorted(ran) == [(n, 1) for n in range(5)] and f.count() == 1
    stand.passes(59)
    assert f.invoke() == [] and len(ran) == 5
    stand.passes(1)
    assert f.invoke() == [] and ran[-1] == (3, 2)
    assert f.count() == 0


def test_what_is_done_costs_a_function_no_call(stand: Stand) -> None:
    f = Lambda(stand)

    @f.app.task(name="push", queue="q", retry=PUSH)
    async def push(n: int) -> None:
        if n > 9 and context().attempt == 1:
            raise ConnectionError("down")

    push.enqueue(0)
    push.enqueue(10)
    f.invoke()  # the first event looks at the queue, and the first retry
    f.app.enqueue_many([push.draft(n) for n in range(10)])
    records, before = f.receive(), Counter(stand.server.requests)
    f.invoke(records=records)
    assert Counter(stand.server.requests) - before == {"DeleteMessageBatch": 1}  # Lambda's own
    f.app.enqueue_many([push.draft(n) for n in range(11, 21)])
    records, before = f.receive(), Counter(stand.server.requests)
    f.invoke(records=records)
    assert Counter(stand.server.requests) - before == {"ChangeMessageVisibilityBatch": 1}


def test_an_event_may_have_thousands_of_messages(stand: Stand) -> None:
    f = Lambda(stand)
    seen: list[int] = []

    @f.app.task(name="push", queue="q", retry=PUSH)
    async def push(n: int) -> None:
        seen.append(n)
        if n % 100 == 7:
            raise ConnectionError("down")

    f.app.enqueue_many([push.draft(n) for n in range(1000)])
    f.app.enqueue_many([push.draft(n) for n in range(1000, 1200)])
    records = [record for _ in range(120) for record in f.receive()]
    told = f.app.lambda_handler(metrics=False)
    OPEN.append(told)
    failed = told({"Records": records}, Remaining(60))["batchItemFailures"]
    assert sorted(seen) == list(range(1200)) and len(failed) == 12


def test_sync_handlers_run_beside_each_other_too(stand: Stand) -> None:
    f = Lambda(stand)
    met = threading.Barrier(3, timeout=10)

    @f.app.task(name="meet", queue="q")
    def meet(n: int) -> None:
        met.wait()

    f.app.enqueue_many([meet.draft(n) for n in range(3)])
    assert f.invoke() == [] and f.count() == 0


def test_a_task_that_gathers_gets_calls_of_one(stand: Stand) -> None:
    f = Lambda(stand)
    lists: list[list[int]] = []

    @f.app.task(name="push", queue="q", retry=PUSH, gather=10)
    async def push(items: list[int]) -> list[Exception | None]:
        lists.append(items)
        return [ConnectionError("down") if n == 3 else None for n in items]

    f.app.enqueue_many([push.draft(n) for n in range(5)])
    assert len(f.invoke()) == 1
    assert sorted(lists) == [[n] for n in range(5)] and f.count() == 1


def test_the_dead_are_sent_on_first_and_then_lambda_deletes_them(stand: Stand) -> None:
    f = Lambda(stand)

    @f.app.task(name="bad", queue="q", retry=PUSH)
    async def bad() -> None:
        raise Reject("never")

    ref = bad.enqueue()
    assert f.invoke() == [] and f.count() == 0
    [dead] = f.app.dlq.list().messages
    assert (dead.id, dead.reason) == (ref.id, "rejected")


def test_without_a_triage_store_the_dead_go_to_the_dead_letter_queue(stand: Stand) -> None:
    f = Lambda(stand, cells=False)

    @f.app.task(name="bad", queue="q")
    async def bad() -> None:
        raise Reject("never")

    bad.enqueue()
    assert f.invoke() == [] and f.count() == 0
    url = f.place.url.replace("-q", "-q-dlq")
    [message] = f.sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"]["reason"]["StringValue"] == "rejected"


@pytest.mark.parametrize("mode", ["visibility", "requeue"])
def test_a_snooze_costs_no_attempt(stand: Stand, mode: str) -> None:
    f = Lambda(stand, mode=mode)
    seen: list[int] = []

    @f.app.task(name="later", queue="q")
    async def later() -> None:
        seen.append(context().attempt)
        if len(seen) < 3:
            raise Snooze("5m")

    later.enqueue()
    for _ in range(3):
        f.invoke()
        stand.passes(300)
    assert seen == [1, 1, 1] and f.count() == 0


def test_what_a_requeue_sent_on_is_deleted(stand: Stand) -> None:
    f = Lambda(stand, mode="requeue")
    seen: list[int] = []

    @f.app.task(name="push", queue="q", retry=PUSH)
    async def push() -> None:
        seen.append(context().attempt)
        raise ConnectionError("down")

    push.enqueue()
    for _ in range(3):
        assert f.invoke() == []
        stand.passes(60)
    assert seen == [1, 2, 3] and f.count() == 0
    assert [m.reason for m in f.app.dlq.list().messages] == ["exhausted"]


@pytest.mark.parametrize("kind", ["async", "sync", "deaf"])
def test_a_handler_that_outlives_the_invocation_is_cancelled_and_retried(stand: Stand, kind: str) -> None:
    f = Lambda(stand)
    stop = threading.Event()

    if kind == "async":

        @f.app.task(name="slow", queue="q", retry=PUSH)
        async def slow(n: int) -> None:
            if n:
                await asyncio.sleep(60)

    else:

        @f.app.task(name="slow", queue="q", retry=PUSH)
        def slow(n: int) -> None:
            while n and not stop.wait(0.01):
                if kind == "sync":
                    context().check()

    f.app.enqueue_many([slow.draft(0), slow.draft(1)])
    begun_s = time.monotonic()
    failed = f.invoke(seconds=3, margin="1s")
    took_s = time.monotonic() - begun_s
    stop.set()
    assert len(failed) == 1 and f.count() == 1 and 1.9 < took_s < 3
    stand.passes(60)
    again = f.receive()
    record = f.store.adopt("q", [raw_of(r) for r in again], lease_ms=1000)[0].message
    assert record.attempt == 2 and record.faults[0].kind == "timeout"


def test_what_can_no_longer_be_started_goes_back_uncounted(stand: Stand) -> None:
    f = Lambda(stand)
    seen: list[int] = []

    @f.app.task(name="slow", queue="q", timeout="1m")
    async def slow(n: int) -> None:
        seen.append(n)
        await asyncio.sleep(0.3)

    f.app.enqueue_many([slow.draft(n) for n in range(9)])
    failed = f.invoke(seconds=2, concurrency=1, margin="0.6s")
    assert 1 <= len(seen) < 9 and len(failed) == 9 - len(seen)
    rest = f.receive()  # at once
    deliveries = f.store.adopt("q", [raw_of(r) for r in rest], lease_ms=1000)
    assert [d.message.attempt for d in deliveries] == [1] * len(failed)


def test_a_fifo_group_stops_at_its_first_failure_and_keeps_its_order(stand: Stand) -> None:
    f = Lambda(stand, fifo=True)
    ran: list[str] = []

    @f.app.task(name="step", queue="q.fifo", retry=PUSH)
    async def step(group: str, n: int) -> None:
        ran.append(f"{group}{n}")
        if group == "a" and n == 1 and context().attempt == 1:
            raise ConnectionError("down")

    f.app.enqueue_many([step.using(group=g).draft(g, n) for n in range(3) for g in ("a", "b")])
    failed = f.invoke()
    assert sorted(ran) == ["a0", "a1", "b0", "b1", "b2"] and len(failed) == 2
    assert f.invoke() == []
    stand.passes(60)
    assert f.invoke() == []
    assert ran[5:] == ["a1", "a2"] and f.count() == 0


def test_a_key_is_held_no_longer_than_the_invocation_and_kept_by_what_still_runs(stand: Stand) -> None:
    f = Lambda(stand)
    stop, seen = threading.Event(), list[int]()

    @f.app.task(name="pay", queue="q", timeout="1h", retry=PUSH, idempotency=Idempotency(key=lambda n: f"pay-{n}"))
    def pay(n: int) -> int:
        seen.append(n)
        stop.wait(20)
        return n

    pay.enqueue(1)
    assert len(f.invoke(seconds=1, margin="0.3s")) == 1
    pay.enqueue(1)  # another message of the same key: deferred while the first one's run may be going on
    assert len(f.invoke()) == 1 and seen == [1]
    stop.set()
    stand.passes(120)
    f.invoke()
    stand.passes(120)
    f.invoke()
    assert seen == [1, 1] and f.count() == 0


def test_a_deferral_of_flow_control_is_hidden_until_its_slot(stand: Stand) -> None:
    f = Lambda(stand)
    seen: list[int] = []

    @f.app.task(name="limited", queue="q", rate="1/m")
    async def limited(n: int) -> None:
        seen.append(context().attempt)

    f.app.enqueue_many([limited.draft(n) for n in range(3)])
    assert len(f.invoke()) == 2
    for _ in range(20):
        stand.passes(20)
        f.invoke()
    assert seen == [1, 1, 1] and f.count() == 0


def test_follow_ups_are_sent_before_the_ack(stand: Stand) -> None:
    f = Lambda(stand)
    seen: list[str] = []

    @f.app.task(name="second", queue="q")
    async def second() -> None:
        seen.append("second")

    @f.app.task(name="first", queue="q")
    async def first() -> None:
        seen.append("first")
        context().enqueue(second)

    first.enqueue()
    f.invoke()
    f.invoke()
    assert seen == ["first", "second"] and f.count() == 0


def test_where_the_store_fails_everything_comes_back(stand: Stand) -> None:
    f = Lambda(stand, cells=False, mode="requeue")

    @f.app.task(name="push", queue="q", retry=PUSH)
    async def push() -> None:
        raise ConnectionError("down")

    push.enqueue()
    records = f.receive()
    stand.server.faults.fail("SendMessageBatch", 1000)
    assert len(f.invoke(seconds=1.5, records=records)) == 1
    stand.server.faults.clear()
    assert f.count() == 1
    stand.passes(360)
    assert f.invoke() == [] and f.count() == 1  # the copy that waits


def test_a_suspect_runs_alone_when_the_others_are_deleted(stand: Stand) -> None:
    f = Lambda(stand)
    left: list[int] = []

    @f.app.task(name="push", queue="q")
    async def push(n: int) -> None:
        left.append(f.count())

    push.enqueue(0)
    f.receive()  # a function that dies of it
    stand.passes(360)
    push.enqueue(1)
    push.enqueue(2)
    assert f.invoke() == []
    assert left == [3, 3, 1] and f.count() == 0


@pytest.mark.parametrize("fifo", [False, True])
def test_what_is_tracked_holds_its_key_and_can_be_cancelled(stand: Stand, fifo: bool) -> None:
    f = Lambda(stand, fifo=fifo, track=True)
    ran: list[int] = []

    @f.app.task(name="push", queue=f.queue, retry=PUSH)
    async def push(n: int) -> None:
        ran.append(n)
        if n < 3:
            raise ConnectionError("down")

    group = {"group": "g"} if fifo else {}
    first = push.using(key="order-1", **group).enqueue(1)
    assert push.using(key="order-1", **group).enqueue(2).id == first.id
    assert len(f.invoke()) == 1 and ran == [1]
    found = f.app.job(first.id)
    assert found is not None and found.task == "push"
    assert f.app.cancel(first.id) == "cancelled"
    later = push.using(key="order-1", **group).enqueue(3)
    assert not later.duplicate
    stand.passes(61)
    for _ in range(2):  # of a FIFO group one at a time
        f.invoke()
    assert ran == [1, 3] and f.count() == 0
    assert not push.using(key="order-1", **group).enqueue(4).duplicate


def test_metrics_of_an_event_are_in_the_log(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    f = Lambda(stand)

    @f.app.task(name="push", queue="q")
    async def push(n: int) -> None:
        if n:
            raise Reject("no")

    f.app.enqueue_many([push.draft(n) for n in range(3)])
    f.invoke(metrics=True)
    found = [line for text in capsys.readouterr().out.splitlines() if "_aws" in (line := json.loads(text))]
    line, attempt, fault = found
    assert (line["Queue"], line["Runs"], line["Done"], line["Dead"]) == (f"{f.prefix}-q", 3, 1, 2)
    assert (attempt["Attempt"], attempt["Done"], attempt["Dead"]) == ("1", 1, 2)
    assert (fault["Fault"], fault["Faults"]) == ("permanent", 2)


def test_each_message_is_one_line_of_the_log_and_each_death_one_record(
    stand: Stand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records, doubles = list[logging.LogRecord](), list[logging.LogRecord]()

    class LambdaLoggerHandler(logging.Handler):
        """As Lambda's own handler, which writes to the same log as stdout."""

        __module__ = "awslambdaric.bootstrap"

        def emit(self, record: logging.LogRecord) -> None:
            doubles.append(record)

    class Others(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("redrive")
    monkeypatch.setattr(logger, "handlers", [LambdaLoggerHandler(), Others()])
    f = Lambda(stand)

    @f.app.task(name="push", queue="q", retry=PUSH)
    def push(n: int) -> None:
        if n == 1:
            raise Reject("password=hunter2of7")
        if n == 2:
            raise ConnectionError("refused")

    f.app.enqueue_many([push.draft(n) for n in range(3)])
    f.invoke()
    lines = {line["outcome"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert lines.keys() == {"done", "dead", "retry"}
    dead = lines["dead"]
    assert (dead["attempt"], dead["error"], dead["text"]) == (1, "redrive.errors.Reject", "password=***")
    assert "in push" in dead["traceback"] and "hunter2" not in str(lines) and len(dead["id"]) == 36
    assert sorted(record.levelname for record in records) == ["ERROR", "WARNING"] and doubles == []
    assert all(record.exc_info is not None for record in records)
    monkeypatch.setenv("REDRIVE_LOG", "off")
    quiet = Lambda(stand)
    quiet.app.task(name="push", queue="q")(push.handler).enqueue(1)
    quiet.invoke()
    assert capsys.readouterr().out == "" and [record.levelname for record in doubles] == ["ERROR"]


def test_an_event_of_something_else_is_refused(stand: Stand) -> None:
    f = Lambda(stand)
    with pytest.raises(ConfigError, match="ReportBatchItemFailures"):
        f.app.lambda_handler()({"Records": [{"eventSource": "aws:s3"}]}, Remaining(1))
    with pytest.raises(ConfigError, match="prefix"):
        queue_named("other-orders", "shop")
    assert queue_named("shop-orders.fifo", "shop") == "orders"
    assert queues_of([{"eventSourceARN": "arn:aws:sqs:r:1:shop-q", "messageId": "1"}]).keys() == {"shop-q"}
    assert records_of({"Records": []}) == [] and answer([]) == {"batchItemFailures": []}


def test_an_app_on_another_store_is_refused_at_its_first_event() -> None:
    handler = App("memory://").lambda_handler()
    with pytest.raises(ConfigError, match="sqs://"):
        handler({"Records": []}, Remaining(1))


def test_process_isolation_is_refused(stand: Stand) -> None:
    f = Lambda(stand)

    @f.app.task(name="apart", queue="q", isolation="process")
    def apart() -> None: ...

    with pytest.raises(ConfigError, match="isolation"):
        f.app.lambda_handler()({"Records": []}, Remaining(1))


def test_what_no_task_takes_dies_whole_after_its_wait(stand: Stand) -> None:
    f = Lambda(stand)
    f.app.park_for_s = 20
    f.sqs.send_message(QueueUrl=f.place.url, MessageBody='{"from": "elsewhere"}')
    for _ in range(4):
        f.invoke()
        stand.passes(10)
    assert f.count() == 0
    [dead] = f.app.dlq.list().messages
    assert (dead.reason, dead.attempt, json.loads(f.app.body(dead))) == ("unroutable", 0, {"from": "elsewhere"})


def test_arguments_that_a_function_does_not_know_wait_for_a_newer_one(stand: Stand) -> None:
    f, ran = Lambda(stand), list[str]()

    @f.app.task(name="push", queue="q")
    async def push(n: int) -> None:
        ran.append("old")

    newer = App(f.app.url, store=f.store)

    @newer.task(name="push", queue="q")
    async def newer_push(n: int, color: str = "red") -> None:
        ran.append(color)

    newer_push.enqueue(1, "blue")
    for _ in range(3):
        f.invoke()
        stand.passes(10)
    assert (f.count(), ran) == (1, [])
    f.app, f.handler = newer, None
    f.invoke()
    assert (f.count(), ran) == (0, ["blue"])


@pytest.mark.parametrize("cells", [True, False])
def test_a_wait_of_13_hours_hops_and_costs_one_attempt(stand: Stand, cells: bool) -> None:
    f = Lambda(stand, cells=cells)
    seen: list[tuple[int, int]] = []
    slow = Retry(max_attempts=3, backoff=Backoff.fixed("13h"), max_elapsed=None)

    @f.app.task(name="slow", queue="q", retry=slow)
    async def wait() -> None:
        seen.append((context().attempt, stand.clock()))
        raise ConnectionError("down")

    wait.enqueue()
    f.invoke()
    for _ in range(60):  # copies hop by 15 minutes at most
        stand.passes(15 * 60)
        f.invoke()
    assert [attempt for attempt, _ in seen] == [1, 2] and f.count() == 1
    waited_ms = seen[1][1] - seen[0][1]
    assert 13 * 3600_000 <= waited_ms <= 13 * 3600_000 + 15 * 60_000


def test_threads_that_never_end_do_not_stop_the_next_events(stand: Stand) -> None:
    f = Lambda(stand)
    stop, seen = threading.Event(), list[int]()

    @f.app.task(name="stuck", queue="q", timeout="1s", retry=Retry(max_attempts=2, backoff=Backoff.fixed("1h")))
    def stuck(n: int) -> None:
        seen.append(n)
        if n < 2:
            stop.wait(60)

    f.app.enqueue_many([stuck.draft(0), stuck.draft(1)])
    assert len(f.invoke(seconds=1, margin="0.5s", concurrency=2)) == 2
    f.app.enqueue_many([stuck.draft(2), stuck.draft(3)])
    assert f.invoke(seconds=10) == []
    stop.set()
    assert sorted(seen) == [0, 1, 2, 3] and f.count() == 2


def test_a_dead_letter_that_is_redriven_begins_a_fresh_life(stand: Stand) -> None:
    f = Lambda(stand, cells=False)
    seen: list[tuple[int, int]] = []

    @f.app.task(name="push", queue="q", retry=Retry(max_attempts=1))
    async def push() -> None:
        message = context().message
        seen.append((message.redrives, message.attempt))
        if not message.redrives:
            raise ConnectionError("down")

    ref = push.enqueue()
    assert f.invoke() == [] and f.count() == 0
    urls = [
        f.place.url,
        *(f.sqs.get_queue_url(QueueName=f"{f.place.sqs_name}-{end}")["QueueUrl"] for end in ("dlq", "poison")),
    ]
    auto = AutoRedrive(jitter=0)
    settings = redriving.RedriverSettings(queue=urls[0], dead=urls[1], poison=urls[2], auto=auto)
    told = redrive({}, calls(f.sqs), settings, Continuation(), None, lambda: 1.0, stand.clock)
    assert told["redriven"] == 1
    stand.passes(60)
    assert f.invoke() == [] and f.count() == 0
    assert seen == [(0, 1), (1, 1)] and ref.id


class Killed(BaseException):
    """The function's process dies here."""


@pytest.mark.parametrize("mode", ["visibility", "requeue"])
@pytest.mark.parametrize("cells", [True, False])
def test_a_function_that_dies_anywhere_loses_nothing(stand: Stand, mode: str, cells: bool) -> None:
    """At each point of settling, once; what it had comes again when its visibility ends."""
    died = set[str]()
    with_cells = ("bury", "buried", "keep", "kept") if cells else ()
    for point in (*with_cells, "send", "sent", "end", "ended"):
        f = Lambda(stand, cells=cells, mode=mode)
        runs: Counter[int] = Counter()

        @f.app.task(name="mixed", queue="q", retry=Retry(max_attempts=2, backoff=Backoff.fixed("1s")))
        async def mixed(n: int, runs: Counter[int] = runs) -> None:
            runs[n] += 1
            if n % 3 == 1:
                raise ConnectionError("down")
            if n % 3 == 2:
                raise Reject("never")

        f.app.enqueue_many([mixed.draft(n) for n in range(6)])

        def die(at: str, point: str = point, f: Lambda = f) -> None:
            if at == point:
                f.store.failpoint = lambda _: None
                raise Killed

        f.store.failpoint = die
        for _ in range(8):
            records = f.receive()
            try:
                f.invoke(records=records)
            except Killed:
                died.add(point)
                f.store.let_go([record["receiptHandle"] for record in records])
                f.handler = None
            stand.passes(370)
        assert f.count() == 0, point
        if cells:
            dead = f.app.dlq.list(limit=100).messages
            assert {json.loads(m.body)["n"] for m in dead} == {1, 2, 4, 5}, point
        assert runs.keys() == set(range(6)), point
    assert {"end", "ended", "bury" if cells else "send"} <= died
