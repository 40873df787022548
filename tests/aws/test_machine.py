"""The state machine at work: its definition interpreted, its tasks on our stand-in SQS, by a clock of the test's."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.support.aws.places import Stand, client
from tests.support.aws.states_language import Execution, Failed
from tests.support.endpoints import endpoint

from redrive import Gates
from redrive.aws.redriver.settings import RedriverSettings, settings_of
from redrive.aws.redriver.steps import ATTEMPT
from redrive.aws.redriver.transfer import calls
from redrive.aws.stepfunctions import tasks
from redrive.aws.stepfunctions.machine import TASKS, Machine, batches_max, definition, events_of_turn
from redrive.aws.stepfunctions.pages import Pages
from redrive.aws.stepfunctions.tasks import HIDE_MAX_S, Tasks
from redrive.errors import ConfigError, StoreUnavailable
from redrive.flow import breaker, dependency
from redrive.flow.auto_redrive import AutoRedrive
from redrive.message import Swap, version_of
from redrive.stores.memory.store import MemoryStore

DEPENDENCY = "crm"
STRICT = AutoRedrive(jitter=0)
MACHINE = Machine(auto=STRICT)


class Bench:
    """A machine on queues of a stand-in, with the cells in memory. `arrived`: when each body came into the queue or the
    poison queue, of the clock in s; `sent` is called with the action before each call."""

    def __init__(self, stand: Stand, machine: Machine = MACHINE, *, fifo: bool = False, retention_s: int = 0) -> None:
        self.stand, self.machine = stand, machine
        self.sqs = client("sqs", stand.url)
        more: dict[str, str] = {"FifoQueue": "true"} if fifo else {}
        more |= {"MessageRetentionPeriod": str(retention_s or 14 * 86_400)}
        end = ".fifo" if fifo else ""
        self.queue, self.dead, self.poison = (
            self.sqs.create_queue(QueueName=f"{name}{end}", Attributes=more)["QueueUrl"]
            for name in ("work", "work-dlq", "work-poison")
        )
        self.store = MemoryStore(clock_ms=stand.clock)
        self.before: Callable[[str, dict[str, Any]], None] = lambda action, given: None
        self.sent: list[tuple[str, str, int]] = []
        settings = RedriverSettings(
            queue=self.queue, dead=self.dead, poison=self.poison, auto=machine.auto, dependency=DEPENDENCY
        )
        asks_s = machine.approval_s if machine.approval else 0
        self.tasks = Tasks(self._call, self.store.cells, settings, stand.clock, asks_s)
        self.functions: dict[str, Callable[[Any], Any]] = {
            "CheckBreaker": lambda event: msgspec.to_builtins(self.tasks.check_breaker(event)),
            "Fetch": lambda event: msgspec.to_builtins(self.tasks.fetch(event)),
            "Redrive": lambda event: msgspec.to_builtins(self.tasks.redrive(event)),
            "Isolate": lambda event: msgspec.to_builtins(self.tasks.isolate(event)),
        }
        self.definition = definition(machine, functions={name: name for name in TASKS}, ask="ask", partition="aws")

    def _call(self, action: str, **given: Any) -> dict[str, Any]:
        self.before(action, given)
        answer = calls(self.sqs)(action, **given)
        if action == "SendMessageBatch":
            name = given["QueueUrl"].rpartition("/")[2].removesuffix(".fifo")
            self.sent += [(name, entry["MessageBody"], self.stand.clock()) for entry in given["Entries"]]
        return answer

    def execution(self, ask: Callable[[Any], Any] | None = None) -> Execution:
        return Execution(self.definition, self.functions, self.stand.clock, ask)

    def put(self, *bodies: str, attempt: int = 0, group: str | None = None) -> None:
        told = {ATTEMPT: {"DataType": "Number", "StringValue": str(attempt)}} if attempt else {}
        for body in bodies:
            fifo = {"MessageGroupId": group, "MessageDeduplicationId": body} if group else {}
            self.sqs.send_message(QueueUrl=self.dead, MessageBody=body, MessageAttributes=told, **fifo)

    def bodies(self, url: str) -> list[str]:
        found: list[str] = []
        while True:
            answer = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=43_200)
            if not answer.get("Messages"):
                return found
            found += [message["Body"] for message in answer["Messages"]]

    def breaks(self, status: breaker.BreakerStatus, until_ms: int = 0) -> None:
        key = dependency.cell_of(DEPENDENCY, "")
        state = dependency.DependencyState(breaker=breaker.State(status=status, until_ms=until_ms))
        cell = self.store.cells.read([key])[0]
        assert self.store.cells.swap([Swap(key, version_of(cell), dependency.encode(state))]) == [True]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setattr(tasks, "POLL_S", 0)  # a long poll on a clock that stands still takes true time
    with Stand() as stand:
        yield stand


def test_all_is_moved_after_its_wait_or_isolated_and_none_is_left_waiting(stand: Stand) -> None:
    bench, due_s = Bench(stand), (60, 120, 240, 480, 900)
    for attempt in range(6):
        bench.put(*(f"{attempt}-{n}" for n in range(23)), attempt=attempt)
    begun_ms = stand.clock()
    fetched_ms: list[int] = []
    fetch = bench.functions["Fetch"]
    bench.functions["Fetch"] = lambda event: fetched_ms.append(stand.clock()) or fetch(event)
    execution = bench.execution()
    end = execution.run({"detail-type": "CloudWatch Alarm State Change", "id": "x", "source": "aws.cloudwatch"})
    assert (end["redriven"], end["isolated"], end["failed"]) == (115, 23, 0)
    assert execution.path[-1] == "Done"
    assert len(bench.bodies(bench.queue)) == 115 and len(bench.bodies(bench.poison)) == 23
    stand.passes(43_200)
    assert bench.bodies(bench.dead) == []
    for name, body, at_ms in bench.sent:
        attempt = int(body[0])
        assert name == ("work" if attempt < 5 else "work-poison")
        page_ms = max(ms for ms in fetched_ms if ms < at_ms or attempt == 5)
        if attempt < 5:
            assert at_ms - page_ms >= 1000 * due_s[attempt]
    assert Counter(body for _, body, _ in bench.sent).most_common(1)[0][1] == 1
    waits = {seconds for name, seconds in execution.waits if name == "Wait"}
    assert waits <= {due + n for due in due_s for n in range(3)}  # 23 have one wait: three batches, a second apart
    assert stand.clock() - begun_ms - 43_200_000 <= 3 * (900 + 600) * 1000


def test_what_dies_again_waits_longer_each_time_and_is_isolated_after_five(stand: Stand) -> None:
    bench = Bench(stand)
    bench.put("bad")
    waits: list[int] = []
    for _ in range(6):
        execution = bench.execution()
        execution.run({})
        waits += [seconds for name, seconds in execution.waits if name == "Wait"]
        answer = bench.sqs.receive_message(QueueUrl=bench.queue, MessageAttributeNames=["All"])
        for message in answer.get("Messages", []):  # its consumer fails, and SQS moves it as it is
            bench.sqs.delete_message(QueueUrl=bench.queue, ReceiptHandle=message["ReceiptHandle"])
            bench.sqs.send_message(
                QueueUrl=bench.dead, MessageBody=message["Body"], MessageAttributes=message["MessageAttributes"]
            )
    assert waits == [60, 120, 240, 480, 900]
    assert bench.bodies(bench.poison) == ["bad"] and bench.bodies(bench.queue) == []


def test_an_open_breaker_is_waited_for_and_nothing_is_fetched_meanwhile(stand: Stand) -> None:
    bench = Bench(stand)
    bench.put("a")
    begun_ms = stand.clock()
    bench.breaks("open", begun_ms + 700_000)
    execution = bench.execution()
    end = execution.run({})
    assert execution.path[: execution.path.index("Fetch")] == [
        *("CheckBreaker", "BreakerAnswer", "WaitForBreaker") * 3, "CheckBreaker", "BreakerAnswer"
    ]  # fmt: skip
    assert execution.waits == [("WaitForBreaker", 300), ("WaitForBreaker", 300), ("WaitForBreaker", 100), ("Wait", 60)]
    assert end["redriven"] == 1 and bench.sent[0][2] >= begun_ms + 760_000


def test_a_breaker_that_stays_open_fails_the_execution_where_checks_are_bounded(stand: Stand) -> None:
    bench = Bench(stand, Machine(breaker_checks=3))
    bench.put("a")
    bench.breaks("forced_open")
    execution = bench.execution()
    with pytest.raises(Failed, match="CircuitOpen"):
        execution.run({})
    assert execution.waits == [("WaitForBreaker", 60)] * 2  # a person may let go at any time
    assert bench.bodies(bench.dead) == ["a"]


def test_what_waits_when_the_breaker_opens_is_put_back_and_goes_when_it_closes(stand: Stand) -> None:
    bench = Bench(stand)
    bench.put("a", "b")
    fetch = bench.functions["Fetch"]

    def fetch_and_break(event: Any) -> Any:
        if not bench.sent and stand.clock() < begun_ms + 1000:
            bench.breaks("open", stand.clock() + 90_000)
        return fetch(event)

    begun_ms = stand.clock()
    bench.functions["Fetch"] = fetch_and_break
    end = bench.execution().run({})
    assert end["redriven"] == 2 and all(at_ms >= begun_ms + 90_000 for _, _, at_ms in bench.sent)


def test_nothing_moves_before_a_person_agrees(stand: Stand) -> None:
    bench = Bench(stand, Machine(approval="sns"))
    bench.put("a", "b")
    asked: list[Any] = []

    def ask(given: Any) -> Any:
        assert bench.sent == []
        asked.append(given)
        stand.passes(3600)
        return {"approved": True, "actor": "ann", "reason": "fixed"}

    end = bench.execution(ask).run({})
    assert end["redriven"] == 2 and len(asked) == 1
    assert asked[0]["TopicArn"] == "ask" and asked[0]["Message"].startswith("2 dead messages wait to be driven back.")
    assert asked[0]["Message"].endswith("token")


@pytest.mark.parametrize("answer", [{"approved": False}, {}, {"approved": "yes"}])
def test_any_other_answer_means_no(stand: Stand, answer: Any) -> None:
    bench = Bench(stand, Machine(approval="sqs"))
    bench.put("a")
    with pytest.raises(Failed, match="NotApproved"):
        bench.execution(lambda given: answer).run({})
    assert bench.bodies(bench.dead) == ["a"]


def test_a_question_that_cannot_be_sent_is_sent_again_and_fails_in_the_end(stand: Stand) -> None:
    bench, asked = Bench(stand, Machine(approval="sns")), []

    def ask(given: Any) -> Any:
        asked.append(given)
        if len(asked) in (1, 3, 4, 5, 6):
            raise Failed("SNS.ThrottledException")
        return {"approved": True}

    assert bench.execution(ask).run({})["approved"] is True
    assert len(asked) == 2
    with pytest.raises(Failed, match="ApprovalFailed"):
        bench.execution(ask).run({})
    assert len(asked) == 6


def test_silence_means_no(stand: Stand) -> None:
    bench = Bench(stand, Machine(approval="sqs"))

    def ask(given: Any) -> Any:
        raise Failed("States.Timeout")

    with pytest.raises(Failed, match="ApprovalTimedOut"):
        bench.execution(ask).run({})


def drains(bench: Bench, count: int) -> list[Execution]:
    """The executions, one after the other, that move so many messages."""
    for at in range(0, count, 10):
        entries = [{"Id": str(n), "MessageBody": str(at + n)} for n in range(10)]
        bench.sqs.send_message_batch(QueueUrl=bench.dead, Entries=entries)
    executions, given = [bench.execution()], {"approved": True}
    most = events_of_turn(bench.definition, batches_max(bench.machine.auto))
    while True:
        execution = executions[-1]
        execution.run(given)
        assert execution.events <= 2 + execution.path.count("CheckBreaker") * most
        if not execution.started:
            assert sorted(int(body) for body in bench.bodies(bench.queue)) == list(range(count))
            return executions
        (started,) = execution.started
        assert execution.path[-1] == "Continued" and len(started["Name"]) == 64
        given = started["Input"]
        assert given["approved"] is True and given["chain"] == executions[0].id and "turns" not in given
        executions.append(bench.execution())


def test_another_execution_goes_on_after_so_many_turns(stand: Stand) -> None:
    bench = Bench(stand)
    bench.definition["States"]["BreakerAnswer"]["Choices"][1]["NumericGreaterThan"] = 2
    assert [execution.path.count("Fetch") for execution in drains(bench, 250)] == [2, 2, 2]


def test_the_next_execution_is_started_once_however_often_it_is_tried(stand: Stand) -> None:
    bench, tries = Bench(stand), []
    bench.definition["States"]["BreakerAnswer"]["Choices"][1]["NumericGreaterThan"] = 0

    def starts(given: Any) -> None:
        tries.append(given)
        raise Failed("States.Timeout" if len(tries) == 1 else "StepFunctions.ExecutionAlreadyExistsException")

    execution = bench.execution()
    execution.starts = starts
    execution.run({})
    assert execution.path[-1] == "Continued" and tries[0] == tries[1] and len(tries) == 2


@pytest.mark.soak
def test_a_long_queue_never_fills_the_history(stand: Stand) -> None:
    executions = drains(Bench(stand), 4000)
    assert len(executions) == 3
    assert max(execution.events for execution in executions) < 10_000


def test_one_chain_of_executions_is_at_work_at_a_time(stand: Stand) -> None:
    bench = Bench(stand)
    bench.put("a")
    bench.breaks("open", stand.clock() + 3_600_000)
    first = bench.tasks.check_breaker({"state": {}, "execution": "first"})
    assert first.open
    second = bench.execution()
    assert second.run({})["busy"] and second.path == ["CheckBreaker", "BreakerAnswer", "AlreadyRunning"]
    assert bench.tasks.check_breaker({"state": {"chain": "first"}, "execution": "successor"}).open
    assert bench.tasks.check_breaker({"state": {"takeover": True}, "execution": "third"}).open
    stand.passes(3_600)  # whoever had it is gone
    assert bench.execution().run({})["redriven"] == 1


def test_a_task_that_died_after_its_delete_sends_nothing_twice_when_it_is_tried_again(stand: Stand) -> None:
    bench = Bench(stand)
    bench.put("a", "b", "c")
    swap, died = bench.store.cells.swap, []

    def dies(swaps: Any, *, durable: bool = True) -> list[bool]:
        if swaps[0].value is None and swaps[0].key.startswith("redriver/page/") and not died:
            died.append(list(bench.sent))
            raise StoreUnavailable("killed")
        return swap(swaps, durable=durable)

    bench.store.cells.swap = dies  # type: ignore[method-assign]
    execution = bench.execution()
    execution.run({})
    assert [len(sent) for sent in died] == [3] and ("Redrive", 3) not in execution.waits
    assert sorted(body for _, body, _ in bench.sent) == ["a", "b", "c"]
    assert sorted(bench.bodies(bench.queue)) == ["a", "b", "c"]


def test_cut_off_between_send_and_delete_a_message_is_sent_again_and_never_lost(stand: Stand) -> None:
    bench = Bench(stand)
    bench.put("a")
    cut: list[str] = []

    def cut_once(action: str, given: Any) -> None:
        if action == "DeleteMessageBatch" and not cut:
            cut.append(action)
            raise StoreUnavailable("cut off")

    bench.before = cut_once
    end = bench.execution().run({})
    assert (end["failed"], end["redriven"]) == (1, 1)
    assert bench.bodies(bench.queue) == ["a", "a"] and bench.bodies(bench.dead) == []


def test_a_batch_whose_task_keeps_failing_is_left_and_goes_with_a_later_page(stand: Stand) -> None:
    bench = Bench(stand)
    bench.put("a", "b")
    redrive, failures = bench.functions["Redrive"], []

    def fails(event: Any) -> Any:
        if len(failures) < 4:
            failures.append(event)
            raise RuntimeError("out of memory")
        return redrive(event)

    bench.functions["Redrive"] = fails
    execution = bench.execution()
    end = execution.run({})
    assert (end["failed"], end["redriven"]) == (2, 2)
    assert execution.path.count("Failed") == 1 and "WaitForHeld" in execution.path
    assert sorted(bench.bodies(bench.queue)) == ["a", "b"]


def test_a_task_that_is_set_up_wrongly_is_not_tried_again(stand: Stand) -> None:
    bench, calls_made = Bench(stand), []

    def wrong(event: Any) -> Any:
        calls_made.append(event)
        return bench.tasks.fetch({"state": {"turns": "many"}})

    bench.functions["Fetch"] = wrong
    with pytest.raises(Failed, match="ConfigError"):
        bench.execution().run({})
    assert len(calls_made) == 1


@pytest.mark.parametrize("base", ["7h", "3d"])
def test_a_wait_of_any_length_is_never_early_and_loses_nothing(stand: Stand, base: str) -> None:
    wait_s = {"7h": 25_200, "3d": 259_200}[base]
    bench = Bench(stand, Machine(auto=AutoRedrive(base=base, cap="10d", jitter=0)))
    bench.put("a")
    begun_ms, given = stand.clock(), {}
    for _ in range(20):
        execution = bench.execution()
        end = execution.run(given)
        if not execution.started:
            break
        given = execution.started[0]["Input"]
    assert end["redriven"] == 1 and end["failed"] == 0
    late_s = (bench.sent[0][2] - begun_ms) / 1000 - wait_s
    assert 0 <= late_s <= 1800
    (message,) = bench.sqs.receive_message(QueueUrl=bench.queue, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"][ATTEMPT]["StringValue"] == "1"


def test_a_message_goes_back_early_rather_than_being_deleted_by_sqs_while_it_waits(stand: Stand) -> None:
    bench = Bench(stand, Machine(auto=AutoRedrive(base="3d", cap="10d", jitter=0)), retention_s=2 * 86_400)
    bench.put("a")
    begun_ms, given = stand.clock(), {}
    for _ in range(20):
        execution = bench.execution()
        execution.run(given)
        if not execution.started:
            break
        given = execution.started[0]["Input"]
    assert bench.bodies(bench.queue) == ["a"]
    assert 0 <= bench.sent[0][2] - begun_ms - 1000 * (2 * 86_400 - HIDE_MAX_S) < 1_800_000


def test_bodies_of_a_megabyte_do_not_travel_through_the_states(stand: Stand) -> None:
    bench = Bench(stand)
    large = noise(1_000_000)
    bench.put(large, large + "!", "small")
    execution = bench.execution()
    assert execution.run({})["redriven"] == 3
    assert execution.bytes < 10_000
    assert sorted(map(len, bench.bodies(bench.queue))) == [5, 1_000_000, 1_000_001]


def test_a_batch_that_waits_for_its_turn_is_hidden_for_that_long_too(stand: Stand) -> None:
    bench = Bench(stand, Machine(auto=AutoRedrive(batch=5, concurrency=1, jitter=0)))
    for attempt in range(5):
        bench.put(f"{attempt}", attempt=attempt)
    execution = bench.execution()
    assert execution.run({})["redriven"] == 5
    assert execution.waits == [("Wait", wait_s) for wait_s in (60, 120, 240, 480, 900)]
    assert execution.path.count("Fetch") == 2


def test_messages_with_one_wait_share_a_batch_wherever_they_lie_in_the_queue(stand: Stand) -> None:
    bench = Bench(stand)
    for n in range(8):
        bench.put(f"{n}", attempt=n % 2)
    execution = bench.execution()
    assert execution.run({})["redriven"] == 8
    assert sorted(execution.waits) == [("Wait", 60), ("Wait", 120)]


def test_a_page_fits_the_items_of_dynamodb_and_is_all_there_or_nothing() -> None:
    cells = MemoryStore().cells
    pages = Pages(cells)
    raws = [{"MessageId": str(n), "ReceiptHandle": "r", "Body": noise(600_000)} for n in range(2)]
    key = pages.write(raws, 0, 60_000)
    names = [f"redriver/page/{key}/{n}" for n in range(int(key.partition("/")[0]))]
    found = [cell for cell in cells.read(names) if cell is not None]
    assert len(found) == len(names) > 2 and max(len(cell.value) for cell in found) <= 390 * 1024
    assert pages.read(key) == raws
    assert cells.swap([Swap(names[1], found[1].version, None)]) == [True]
    assert pages.read(key) == []


def noise(length: int) -> str:
    """Text that packing does not shrink much."""
    return base64.b64encode(random.Random(length).randbytes(length // 4 * 3)).decode()


def test_a_page_of_as_many_batches_as_there_may_be_is_small(stand: Stand) -> None:
    machine = Machine(auto=AutoRedrive(batch=1, concurrency=40, max_redrives=1000))
    bench = Bench(stand, machine)
    bench.put(*(str(n) for n in range(45)))
    execution = bench.execution()
    assert execution.run({})["redriven"] == 45
    assert execution.bytes < 32 * 1024


def test_fifo_groups_keep_their_order(stand: Stand) -> None:
    bench = Bench(stand, fifo=True)
    for n in range(8):
        bench.put(f"a{n}", group="a", attempt=n % 3)
        bench.put(f"b{n}", group="b", attempt=(n + 1) % 3)
    assert bench.execution().run({})["redriven"] == 16
    for group in "ab":
        order = [body for _, body, _ in bench.sent if body[0] == group]
        assert order == sorted(order) and len(order) == 8


def test_what_sqs_hands_out_twice_is_sent_once(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, once = Bench(stand), tasks.receive
    monkeypatch.setattr(tasks, "receive", lambda *given, **named: once(*given, **named) * 2)
    bench.put("a", "b")
    assert bench.execution().run({})["redriven"] == 2
    assert sorted(body for _, body, _ in bench.sent) == ["a", "b"]


def test_metrics_are_written_by_their_pinned_names(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(stand)
    bench.put("a", "b")
    bench.put("p", attempt=5)
    bench.execution().run({})
    logged = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = [line for line in logged if "_aws" in line]
    assert Counter(line["action"] for line in logged if "action" in line) == {"redriven": 2, "isolated": 1}
    names = ("SuccessfulRedrives", "PoisonPillsIsolated", "RedriveFailures")
    assert [sum(line[name] for line in lines) for name in names] == [2, 1, 0]
    assert {line["Queue"] for line in lines} == {"work"}


# -- the pace


def most_in(sent: list[tuple[str, str, int]], seconds: float) -> int:
    """The most that came to the queue in so many seconds, wherever they begin."""
    times_ms = sorted(at_ms for name, _, at_ms in sent if name == "work")
    return max(sum(at_ms <= other_ms < at_ms + 1000 * seconds for other_ms in times_ms) for at_ms in times_ms)


@pytest.mark.parametrize("base, fifo", [(0, False), ("60s", False), (0, True)])
def test_batches_go_back_at_the_rate_from_page_to_page(stand: Stand, base: Any, fifo: bool) -> None:
    bench = Bench(stand, Machine(auto=AutoRedrive(base=base, jitter=0)), fifo=fifo)  # 10/s
    for n in range(170):
        bench.put(str(n), group=f"g{n}" if fifo else None)
    assert bench.execution().run({})["redriven"] == 170
    assert most_in(bench.sent, 1) <= 10 and most_in(bench.sent, 10) <= 100
    if not base:
        assert max(at_ms for _, _, at_ms in bench.sent) - bench.sent[0][2] <= 25_000


def test_a_slow_rate_holds_from_page_to_page_and_from_execution_to_execution(stand: Stand) -> None:
    bench = Bench(stand, Machine(auto=AutoRedrive(base=0, rate="2/m", batch=1, concurrency=2, jitter=0)))
    for part in "ab":
        bench.put(*(f"{part}{n}" for n in range(5)))
        assert bench.execution().run({})["redriven"] == 5
    times_ms = sorted(at_ms for _, _, at_ms in bench.sent)
    assert len(times_ms) == 10 and all(30_000 <= b - a <= 61_000 for a, b in pairwise(times_ms))


def test_the_waits_of_batches_are_spread_by_their_jitter(stand: Stand) -> None:
    bench = Bench(stand, Machine(auto=AutoRedrive(batch=1, concurrency=40, rate="100/s")))
    bench.put(*(str(n) for n in range(120)))
    execution = bench.execution()
    assert execution.run({})["redriven"] == 120
    waits_s = sorted(seconds for name, seconds in execution.waits if name == "Wait")
    assert len(waits_s) == 120 and 48 <= waits_s[0] <= 50 and 70 <= waits_s[-1] <= 72
    assert min(Counter(min(3, (wait_s - 48) // 6) for wait_s in waits_s).values()) >= 8


def test_the_jitter_of_a_long_wait_takes_no_message_beyond_its_retention(stand: Stand) -> None:
    auto = AutoRedrive(base="3d", cap="10d", jitter=1)
    bench = Bench(stand, Machine(auto=auto), retention_s=2 * 86_400)
    bench.put(*(str(n) for n in range(30)))
    given: Any = {}
    for _ in range(40):
        execution = bench.execution()
        execution.run(given)
        if not execution.started:
            break
        given = execution.started[0]["Input"]
    assert sorted(map(int, bench.bodies(bench.queue))) == list(range(30))


# -- the health URL


def test_a_health_url_that_fails_is_waited_for_and_nothing_is_fetched_meanwhile(stand: Stand) -> None:
    answers = [500, 503]
    with endpoint(lambda: answers.pop(0) if answers else 200) as url:
        bench = Bench(stand, Machine(auto=AutoRedrive(jitter=0, gates=Gates(health=url))))
        bench.put("a")
        execution = bench.execution()
        told: list[tuple[bool, str]] = []
        check = bench.functions["CheckBreaker"]

        def checked(event: Any) -> Any:
            found = check(event)
            told.append((found["open"], found["why"]))
            return found

        bench.functions["CheckBreaker"] = checked
        assert execution.run({})["redriven"] == 1
    assert execution.path[:7] == ["CheckBreaker", "BreakerAnswer", "WaitForBreaker"] * 2 + ["CheckBreaker"]
    assert execution.waits == [("WaitForBreaker", 60), ("WaitForBreaker", 60), ("Wait", 60)]
    assert told[:3] == [(True, f"{url} answered 500"), (True, f"{url} answered 503"), (False, "")]


def test_what_waits_when_health_fails_is_put_back_and_goes_when_it_passes(stand: Stand) -> None:
    answers = [200, 500, 500]  # to CheckBreaker, to Redrive, to CheckBreaker
    with endpoint(lambda: answers.pop(0) if answers else 200) as url:
        bench = Bench(stand, Machine(auto=AutoRedrive(jitter=0, gates=Gates(health=url))))
        bench.put("a", "b")
        begun_ms = stand.clock()
        execution = bench.execution()
        assert execution.run({})["redriven"] == 2
    assert execution.waits == [("Wait", 60), ("WaitForBreaker", 60), ("Wait", 60)]
    assert all(at_ms >= begun_ms + 180_000 for _, _, at_ms in bench.sent)


def test_a_health_url_that_stays_down_fails_the_execution_where_checks_are_bounded(stand: Stand) -> None:
    with endpoint(lambda: 503) as url:
        bench = Bench(stand, Machine(auto=AutoRedrive(gates=Gates(health=url)), breaker_checks=2))
        bench.put("a")
        with pytest.raises(Failed, match="CircuitOpen"):
            bench.execution().run({})
    assert bench.bodies(bench.dead) == ["a"]


def test_a_machine_has_no_app_that_knows_checks_by_name() -> None:
    with pytest.raises(ConfigError, match="health='crm-up': a re-driver has no app that knows checks by name"):
        Machine(auto=AutoRedrive(gates=Gates(health="crm-up")))


def test_the_functions_of_a_machine_go_by_its_settings() -> None:
    gates = Gates(health="https://crm.example.com/up")
    auto = AutoRedrive("5s", 3, "10m", 7, 4, 3, 2, gates, rate="90/m", jitter=0.35)
    urls = {"REDRIVE_DLQ_URL": "d", "REDRIVE_QUEUE_URL": "q", "REDRIVE_POISON_URL": "p"}
    assert settings_of(urls | Machine(auto=auto).environment).auto == auto
