"""What becomes of messages in a worker: each way a run can end, and what is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import SOON, Heard, Watched, stored, until

import redrive
from redrive import App, Backoff, Context, Draft, Quarantine, Reject, Retry, RetryAfter, Snooze
from redrive.errors import Cancelled, LeaseLost
from redrive.message import ClaimRequest, Lane


def empty(app: App) -> bool:
    counts = app.counts()
    return (counts.ready, counts.scheduled, counts.leased, counts.dead, counts.quarantine) == (0, 0, 0, 0, 0)


# -- runs that end well


def test_async_and_sync_handlers_run_each_message_once(app: App) -> None:
    seen: Counter[tuple[str, int]] = Counter()

    @app.task()
    async def coroutine(n: int) -> None:
        await asyncio.sleep(0)
        seen["coroutine", n] += 1

    @app.task()
    def thread(n: int, *, on: str) -> None:
        assert threading.current_thread() is not threading.main_thread() and on == "thread"
        seen["thread", n] += 1

    app.enqueue_many([t for n in range(150) for t in (coroutine.draft(n), thread.draft(n, on="thread"))])
    app.run_worker(burst=True)
    assert seen == {(kind, n): 1 for kind in ("coroutine", "thread") for n in range(150)} and empty(app)


def test_a_retry_comes_back_and_succeeds(app: App) -> None:
    heard, attempts = Heard(app), []

    @app.task(retry=SOON)
    async def flaky() -> None:
        attempts.append(redrive.context().attempt)
        if len(attempts) < 3:
            raise ConnectionError("not yet")

    flaky.enqueue()
    app.run_worker(drain=True)
    assert attempts == [1, 2, 3] and heard.outcomes == ["retry", "retry", "done"] and empty(app)


def test_when_attempts_are_exhausted_it_is_dead_with_every_fault(app: App) -> None:
    heard = Heard(app)

    @app.task(retry=SOON)
    def fails() -> None:
        raise ConnectionError(f"attempt {redrive.context().attempt}")

    ref = fails.enqueue()
    app.run_worker(drain=True)
    message = stored(app, ref.id)
    assert (message.lane, message.reason, message.attempt, message.crashes) == (Lane.DEAD, "exhausted", 3, 0)
    assert [(f.attempt, f.kind.value, f.error, f.text) for f in message.faults] == [
        (n, "transient", "ConnectionError", f"attempt {n}") for n in (1, 2, 3)
    ]
    assert all("raise ConnectionError" in f.traceback and f.worker and f.at_ms for f in message.faults)
    assert [f.delay_ms is None for f in message.faults] == [False, False, True]
    assert heard.outcomes == ["retry", "retry", "dead"]


def test_a_handlers_own_rules_come_first(app: App) -> None:
    class Rejected(Exception): ...

    @app.task(retry=SOON, rules=[(Rejected, "permanent"), ("try later", "throttled")])
    async def ruled(how: str) -> None:
        raise Rejected(how) if how == "class" else ConnectionError(how)

    by_class, by_text = ruled.enqueue("class"), ruled.enqueue("please TRY LATER")
    app.run_worker(drain=True)
    message = stored(app, by_class.id)
    assert (message.reason, message.attempt, message.faults[0].kind.value) == ("permanent", 1, "permanent")
    assert [f.kind.value for f in stored(app, by_text.id).faults] == ["throttled"] * 3


# -- steering


def test_retry_after_is_a_floor_and_spends_an_attempt(app: App) -> None:
    heard, runs = Heard(app), []

    @app.task(retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    async def asks() -> None:
        runs.append((redrive.context().attempt, app.store.now_ms()))
        raise RetryAfter("300ms", "slow down")

    ref = asks.enqueue()
    app.run_worker(drain=True)
    assert [attempt for attempt, _ in runs] == [1, 2] and runs[1][1] - runs[0][1] >= 300
    message = stored(app, ref.id)
    assert 300 <= (message.faults[0].delay_ms or 0) <= 361
    assert 0 < (heard.fates[0].delay_ms or 0) <= 361  # from when it is told, which comes later
    assert message.reason == "exhausted" and message.faults[0].text == "slow down"


def test_snooze_comes_back_and_spends_no_attempt(app: App) -> None:
    heard, runs = Heard(app), []

    @app.task(retry=Retry(max_attempts=1))
    def snoozes() -> None:
        ctx = redrive.context()
        runs.append((ctx.attempt, ctx.fence))
        if len(runs) < 4:
            raise Snooze("10ms")

    snoozes.enqueue()
    app.run_worker(drain=True)
    assert runs == [(1, 1), (1, 2), (1, 3), (1, 4)] and empty(app)
    assert heard.outcomes == ["snoozed"] * 3 + ["done"] and [f.attempt for f in heard.fates] == [0, 0, 0, 1]


def test_reject_is_dead_at_once_with_its_words(app: App) -> None:
    @app.task(retry=SOON)
    async def rejects() -> None:
        raise Reject("no such customer")

    ref = rejects.enqueue()
    app.run_worker(drain=True)
    message = stored(app, ref.id)
    assert (message.lane, message.reason, message.attempt) == (Lane.DEAD, "rejected", 1)
    assert [f.text for f in message.faults] == ["no such customer"]


def test_quarantine_is_a_lane_of_its_own(app: App) -> None:
    heard = Heard(app)

    @app.task(retry=SOON)
    def poison() -> None:
        raise Quarantine("it kills printers")

    ref = poison.enqueue()
    app.run_worker(drain=True)
    assert stored(app, ref.id).lane is Lane.QUARANTINE and ref.state == "quarantine"
    assert (app.counts().quarantine, app.counts().dead) == (1, 0) and heard.outcomes == ["quarantined"]
    assert [f.text for f in stored(app, ref.id).faults] == ["it kills printers"]


# -- timeouts


def test_a_timeout_cancels_the_coroutine_and_is_a_fault_of_that_kind(app: App) -> None:
    ended = []

    @app.task(timeout="50ms", retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(redrive.context().cancelled)
            raise

    ref = slow.enqueue()
    app.run_worker(drain=True)
    assert ended == [True, True]
    message = stored(app, ref.id)
    assert (message.reason, message.attempt) == ("exhausted", 2)
    assert {(f.kind.value, f.error) for f in message.faults} == {("timeout", "TimeoutError")}
    assert "0.05 s" in message.faults[0].text


def test_a_coroutine_that_finishes_in_spite_of_its_timeout_is_done(app: App) -> None:
    @app.task(timeout="50ms")
    async def stubborn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    stubborn.enqueue()
    app.run_worker(drain=True)
    assert empty(app)


def test_a_thread_is_told_of_its_timeout(app: App) -> None:
    seen: list[str] = []

    @app.task(timeout="400ms", retry=Retry(max_attempts=1))
    def checks(how: str) -> None:
        ctx = redrive.context()
        assert not ctx.cancelled and 0 < ctx.remaining <= 0.4
        while not ctx.cancelled:
            time.sleep(0.002)
        assert ctx.remaining == 0.0
        seen.append(how)
        if how == "checks":
            ctx.check()

    checked, returned = checks.enqueue("checks"), checks.enqueue("returns")
    app.run_worker(drain=True)
    assert sorted(seen) == ["checks", "returns"]
    assert [f.kind.value for f in stored(app, checked.id).faults] == ["timeout"]
    assert app.job(returned.id) is None  # the effect happened


def test_remaining_counts_down_to_the_timeout(app: App) -> None:
    seen: list[float] = []

    @app.task(timeout="1h", ctx=True)
    async def handler(ctx: Context) -> None:
        seen.append(ctx.remaining)
        await asyncio.sleep(0.01)
        seen.append(ctx.remaining)

    handler.enqueue()
    app.run_worker(burst=True)
    assert 3600 >= seen[0] > seen[1] > 3500


# -- cancelling


async def told_to_stop(app: App, kind: str, ending: str) -> tuple[str, list[str]]:
    heard, running = Heard(app), threading.Event()

    def end(ctx: Context) -> None:
        if ending == "check":
            with pytest.raises(Cancelled):
                ctx.check()
            ctx.check()
        if ending == "raise":
            raise ConnectionError("cut off")

    @app.task(name="coroutine", retry=SOON)
    async def coroutine() -> None:
        running.set()
        await until(lambda: redrive.context().cancelled)
        end(redrive.context())

    @app.task(name="thread", retry=SOON)
    def thread() -> None:
        running.set()
        ctx = redrive.context()
        while not ctx.cancelled:
            time.sleep(0.002)
        end(ctx)

    async with app.worker(lease="600ms"):
        ref = await app.tasks[kind].aenqueue()
        await until(running.is_set)
        assert app.cancel(ref.id) == "requested"
        await until(lambda: heard.fates)
    return ref.state, heard.outcomes


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("ending, state", [("return", "done"), ("check", "cancelled"), ("raise", "cancelled")], ids=str)
def test_a_running_message_is_told_and_its_end_decides(app: App, kind: str, ending: str, state: str) -> None:
    found, outcomes = asyncio.run(told_to_stop(app, kind, ending))
    assert (found, outcomes) == (state, [state])
    assert app.counts().ready == app.counts().scheduled == 0  # never retried


def test_a_cancelled_message_that_waits_never_runs(app: App) -> None:
    runs: list[int] = []

    @app.task(retry=Retry(max_attempts=9, backoff=Backoff.fixed("5s")))
    async def fails(n: int) -> None:
        runs.append(n)
        raise ConnectionError("no")

    waiting, retrying = fails.using(delay="5s").enqueue(1), fails.enqueue(2)
    app.run_worker(burst=True)
    assert [app.cancel(ref.id) for ref in (waiting, retrying)] == ["cancelled", "cancelled"]
    app.run_worker(drain=True)
    assert runs == [2] and (waiting.state, retrying.state) == ("cancelled", "cancelled")


def test_a_message_cancelled_between_claim_and_start_is_told_once_it_runs(app: App) -> None:
    """It may be claimed and wait for a place: then its run begins, and is told at the next heartbeat."""
    gate, states = threading.Event(), []

    @app.task(queue="one")
    async def blocks() -> None:
        await until(gate.is_set)

    @app.task(queue="one")
    async def waits() -> None:
        await until(lambda: redrive.context().cancelled)
        redrive.context().check()

    async def main() -> None:
        async with app.worker({"one": 1}, lease="600ms", prefetch=1):
            await blocks.aenqueue()
            ref = await waits.aenqueue()
            await until(lambda: ref.state == "leased")
            assert app.cancel(ref.id) == "requested"
            gate.set()
            await until(lambda: ref.state != "leased")
            states.append(ref.state)

    asyncio.run(main())
    assert states == ["cancelled"]


# -- messages that are not run


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"null", b'{"n":"x"}', b'{"n":NaN}', b'{"m":2}', b"[" * 100_000, b'{"n":"\\ud800"}'],
    ids=lambda body: repr(body[:12]),
)
def test_an_unreadable_body_is_dead_as_it_came_and_the_others_run(app: App, body: bytes) -> None:
    heard, runs = Heard(app), []

    @app.task(name="t")
    async def task(n: int) -> None:
        runs.append(n)

    task.enqueue(1)
    [put] = app.store.put([Draft(task="t", body=body, content="raw")])
    task.enqueue(2)
    app.run_worker(drain=True)
    message = stored(app, put.id)
    assert (message.lane, message.reason, message.attempt, message.body) == (Lane.DEAD, "unreadable", 0, body)
    assert [(f.kind.value, f.error) for f in message.faults] == [("unreadable", "redrive.errors.Unreadable")]
    assert "t(n: " in message.faults[0].text
    assert sorted(runs) == [1, 2]
    [dead] = [fate for fate in heard.fates if fate.outcome == "dead"]
    assert (dead.id, dead.reason, dead.fault, dead.attempt, dead.run_ms) == (
        put.id,
        "unreadable",
        "unreadable",
        0,
        None,
    )


def test_an_unknown_task_is_dead_as_unroutable_and_names_the_known_ones(app: App) -> None:
    app.park_for_s = 0.0

    @app.task(name="known")
    def known() -> None: ...

    [put] = app.store.put([Draft(task="forgotten", body=b"\x00anything", content="raw")])
    app.run_worker(drain=True)
    message = stored(app, put.id)
    assert (message.reason, message.attempt, message.body) == ("unroutable", 0, b"\x00anything")
    assert message.faults[0].kind.value == "unroutable" and "'forgotten'" in message.faults[0].text
    assert "known" in message.faults[0].text and message.faults[0].attempt == 0


def test_past_its_deadline_a_message_dies_unrun(app: App) -> None:
    runs: list[int] = []

    @app.task()
    def task() -> None:
        runs.append(1)

    ref = task.using(deadline=datetime(2020, 1, 1, tzinfo=UTC)).enqueue()
    app.run_worker(drain=True)
    message = stored(app, ref.id)
    assert (message.reason, message.attempt, runs) == ("deadline", 0, [])


@dataclass
class Part:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise KeyError("a way to fail that no decoder expects")


# -- handlers that try to end more than their run


class Odd(BaseException):
    """Not an Exception."""


def _exit() -> None:
    sys.exit(3)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _cancel() -> None:
    raise asyncio.CancelledError


def _generator_exit() -> None:
    raise GeneratorExit


def _odd() -> None:
    raise Odd("odd")


def _stop() -> None:
    raise StopIteration


def _lost() -> None:
    raise LeaseLost("says the handler")


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize(
    "end", [_exit, _interrupt, _cancel, _generator_exit, _odd, _stop, _lost], ids=lambda f: f.__name__
)
def test_whatever_a_handler_raises_is_its_messages_fault_alone(app: App, kind: str, end: Callable[[], None]) -> None:
    done: list[int] = []

    @app.task(name="coroutine", retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    async def coroutine() -> None:
        await asyncio.sleep(0)
        end()

    @app.task(name="thread", retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    def thread() -> None:
        end()

    @app.task()
    async def good(n: int) -> None:
        done.append(n)

    refs = app.enqueue_many([good.draft(1), app.tasks[kind].draft(), good.draft(2)])
    app.run_worker(drain=True)
    message = stored(app, refs[1].id)
    assert (message.lane, message.reason, message.attempt, message.crashes) == (Lane.DEAD, "exhausted", 2, 0)
    assert len(message.faults) == 2 and sorted(done) == [1, 2]


def test_a_coroutine_that_cancels_itself_is_a_fault(app: App) -> None:
    @app.task(retry=Retry(max_attempts=1))
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    ref = suicidal.enqueue()
    app.run_worker(drain=True)
    assert "CancelledError" in stored(app, ref.id).faults[0].text


def test_a_plain_function_around_an_async_one_is_not_taken_for_done(app: App) -> None:
    ran: list[int] = []

    async def push(n: int) -> None:
        ran.append(n)

    @app.task(retry=Retry(max_attempts=1))
    def wrapper(n: int) -> Any:
        return push(n)

    ref = wrapper.enqueue(1)
    app.run_worker(drain=True)
    assert ran == [] and "async def" in stored(app, ref.id).faults[0].text


def test_an_argument_whose_own_code_fails_does_not_hold_up_its_batch(app: App) -> None:
    done: list[int] = []

    @app.task(name="bad")
    def bad(part: Part) -> None: ...

    @app.task()
    async def good(n: int) -> None:
        done.append(n)

    [put] = app.store.put([Draft(task="bad", body=b'{"part":{"n":-1}}')])
    app.enqueue_many([good.draft(n) for n in range(5)])
    app.run_worker(drain=True)
    assert sorted(done) == list(range(5)) and stored(app, put.id).reason == "unreadable"


def _fail_delay(n: int, fault: object) -> float:
    raise KeyError("delay")


def _fail_override(*_: object) -> None:
    raise KeyError("override")


@pytest.mark.parametrize(
    "retry",
    [Retry(max_attempts=3, backoff=Backoff.custom(_fail_delay)), Retry(max_attempts=3, override=_fail_override)],
    ids=["custom delay", "override"],
)
def test_a_policy_whose_own_function_fails_neither_ends_the_worker_nor_loses_the_message(
    app: App, retry: Retry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.decide.draw", lambda *_: 0.5)  # not due again before it is looked at
    done: list[int] = []

    @app.task(retry=retry)
    async def fails() -> None:
        raise ConnectionError("down")

    @app.task()
    async def good(n: int) -> None:
        done.append(n)

    ref = fails.enqueue()
    app.enqueue_many([good.draft(n) for n in range(5)])
    app.run_worker(burst=True)
    message = stored(app, ref.id)
    assert sorted(done) == list(range(5)) and message.state_at(app.store.now_ms()) == "scheduled"
    assert "ConnectionError" in message.faults[0].text and "KeyError" in message.faults[0].text


# -- what a handler knows, and what observers hear


def test_a_handler_knows_its_message(app: App) -> None:
    seen: list[tuple[Any, ...]] = []

    @app.task(ctx=True, retry=SOON)
    def handler(ctx: Context, n: int) -> None:
        assert redrive.context() is ctx
        seen.append((ctx.message_id, ctx.attempt, ctx.crashes, ctx.fence, ctx.idempotency_key, ctx.correlation_id, n))
        if ctx.attempt < 3:
            raise ConnectionError("again")

    ref = handler.using(correlation_id="c").enqueue(7)
    app.run_worker(drain=True)
    assert seen == [(ref.id, n, 0, n, ref.id, "c", 7) for n in (1, 2, 3)]


def test_a_message_claimed_by_a_worker_that_died_counts_a_crash_and_no_attempt(app: App) -> None:
    seen: list[tuple[int, int, int]] = []

    @app.task(ctx=True)
    async def handler(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.crashes, ctx.fence))

    handler.enqueue()
    app.store.exchange([], [ClaimRequest("default", 1, 50, worker="dead")])
    app.run_worker(burst=True)  # it waits for what is leased
    assert seen == [(1, 1, 2)]


def test_each_settled_message_has_one_fate_that_says_what_happened(app: App) -> None:
    heard = Heard(app)

    @app.task(name="good", queue="crm")
    async def good() -> None:
        await asyncio.sleep(0.01)

    @app.task(name="bad", queue="crm", retry=Retry(max_attempts=2, backoff=Backoff.fixed("20ms")))
    def bad() -> None:
        raise ConnectionError("down")

    one, two = app.enqueue_many([good.using(correlation_id="c").draft(), bad.draft()])
    before_ms = app.store.now_ms()
    app.run_worker(drain=True, name="tester")
    assert Counter((f.id, f.outcome) for f in heard.fates) == {
        (one.id, "done"): 1,
        (two.id, "retry"): 1,
        (two.id, "dead"): 1,
    }
    [done] = [f for f in heard.fates if f.id == one.id]
    retry, dead = [f for f in heard.fates if f.id == two.id]
    assert (done.task, done.queue, done.attempt, done.crashes, done.redrives, done.correlation_id) == (
        "good",
        "crm",
        1,
        0,
        0,
        "c",
    )
    assert done.run_ms is not None and done.run_ms >= 9 and before_ms <= done.at_ms <= app.store.now_ms()
    assert (done.delay_ms, done.fault, done.error, done.text, done.reason) == (None,) * 5
    assert "tester" in done.worker and done.worker == dead.worker
    assert (retry.attempt, retry.fault, retry.error, retry.text) == (1, "transient", "ConnectionError", "down")
    assert 0 <= (retry.delay_ms or 0) <= 20 and retry.reason is None
    assert (dead.attempt, dead.reason, dead.delay_ms, dead.fault) == (2, "exhausted", None, "transient")
    assert heard.notices[0] == "started"


def test_an_observer_that_fails_changes_nothing(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(events: object) -> None:
        raise ZeroDivisionError("observer's bug")

    app.subscribe(broken)
    heard, done = Heard(app), []

    @app.task()
    async def good(n: int) -> None:
        done.append(n)

    app.enqueue_many([good.draft(n) for n in range(5)])
    app.run_worker(burst=True)
    assert sorted(done) == list(range(5)) and heard.outcomes == ["done"] * 5
    assert "observer's bug" in capsys.readouterr().err


def test_many_messages_of_all_kinds_are_each_settled_once(tmp_path: Path, seed: int) -> None:
    """One worker, every ending at random; the store's own count of claims and settlements must balance."""
    import random

    rng, store = random.Random(seed), Watched(tmp_path)
    app = App(store=store)
    heard = Heard(app)
    endings = ["ok", "ok", "ok", "retry", "snooze", "reject", "quarantine", "exit"]

    def end(how: str) -> None:
        first = redrive.context().fence == 1
        match how:
            case "retry" if first:
                raise ConnectionError("once")
            case "snooze" if first:
                raise Snooze("5ms")
            case "reject":
                raise Reject("no")
            case "quarantine":
                raise Quarantine("no")
            case "exit":
                sys.exit(1)

    @app.task(queue="a", retry=SOON)
    async def coroutine(how: str) -> None:
        await asyncio.sleep(rng.random() / 500)
        end(how)

    @app.task(queue="b", retry=SOON)
    def thread(how: str) -> None:
        end(how)

    drafts = [rng.choice((coroutine, thread)).draft(rng.choice(endings)) for _ in range(400)]
    hows = Counter(draft.body.decode().split('"')[3] for draft in drafts)
    app.enqueue_many(drafts)
    app.run_worker(["a", "b"], drain=True)
    outcomes = Counter(heard.outcomes)
    assert outcomes["done"] == hows["ok"] + hows["retry"] + hows["snooze"]
    assert outcomes["dead"] == hows["reject"] + hows["exit"] == app.counts().dead
    assert outcomes["quarantined"] == hows["quarantine"] == app.counts().quarantine
    assert outcomes["snoozed"] == hows["snooze"] and outcomes["retry"] == hows["retry"] + 2 * hows["exit"]
    assert set(outcomes) == {"done", "dead", "quarantined", "snoozed", "retry"} and store.held == set()
    store.close()
