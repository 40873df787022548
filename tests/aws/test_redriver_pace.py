"""The pace of the re-driver: what comes back in each second, over all invocations at once, with cells and without; on
the stand-in, whose clock stands still while they work and is moved by the test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from tests.support.aws.places import Stand
from tests.support.aws.redriver import ALARM, WORK, Deployment

from redrive.aws.cloudformation.lambdas import AT_ONCE
from redrive.aws.lambda_handlers import redrive
from redrive.aws.redriver.pace import AHEAD_S, Known
from redrive.aws.redriver.steps import ATTEMPT
from redrive.errors import StoreUnavailable
from redrive.flow.auto_redrive import AutoRedrive

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]
DEFAULT = AutoRedrive()  # 10/s, ± 20 %
RATE = 10


class Fleet(Deployment):
    """Lambda with so many invocations at once, each in an environment of its own: they share what is in the cells, if
    there are any, and in the queues, and nothing else. `came`: how many came back in each step of the clock."""

    def __init__(self, stand: Stand, *, shared: bool = True, auto: AutoRedrive = DEFAULT, **more: Any) -> None:
        super().__init__(stand, auto=auto, **more)
        self.shared = shared
        self.came: list[int] = []
        self.bodies: list[str] = []
        self.looks = 0
        self.told: list[dict[str, Any]] = []

    def kill(self, number: int, *, attempt: int = 0) -> None:
        told = {ATTEMPT: {"DataType": "Number", "StringValue": str(attempt)}} if attempt else {}
        entry = {"MessageAttributes": told} if told else {}
        self.send(self.dead, *({"MessageBody": f"{attempt}/{n}", **entry} for n in range(number)))

    def invoke(self, event: Any, batches: int) -> dict[str, Any]:
        """One invocation, which has time for so many batches."""
        left = count(batches, -1)
        told = redrive(
            event, self.sqs_call, self.settings, self.work_on_it, self.cells if self.shared else None,
            lambda: float(next(left)), self.stand.clock, Known(),
        )  # fmt: skip
        self.told.append(told)
        return told

    def step(self, *, alarms: int = 0, batches: int = 40, s: float = 1) -> None:
        """What happens in a second: alarms and messages of the work queue call, all at once; what came back is taken,
        and the clock moves on."""
        messages = self.called() if self.visible(self.work) else []
        events = [ALARM] * alarms
        events += [{"Records": [{"eventSource": "aws:sqs", "body": message["Body"]}]} for message in messages]
        with ThreadPoolExecutor(max(1, len(events))) as pool:
            list(pool.map(lambda event: self.invoke(event, batches), events))
        for message in messages:
            handles = [{"Id": "0", "ReceiptHandle": message["ReceiptHandle"]}]
            self.sqs_call("DeleteMessageBatch", QueueUrl=self.work, Entries=handles)
        self.looks += len(messages)
        taken = [message["Body"] for message in self.take(self.main)] if self.visible(self.main) else []
        self.came.append(len(taken))
        self.bodies += taken
        self.stand.passes(s)

    def called(self) -> list[dict[str, Any]]:
        most, given = AT_ONCE, {"QueueUrl": self.work, "VisibilityTimeout": 900}
        return list(self.sqs_call("ReceiveMessage", MaxNumberOfMessages=most, **given).get("Messages") or ())

    def visible(self, url: str) -> bool:
        """Asked within this process, as there is nothing in most seconds, and nothing else is under way."""
        server, name = self.stand.server, "ApproximateNumberOfMessages"
        told = server.account.call("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": [name]}, server.faults)
        return told["Attributes"][name] != "0"

    def until(self, over: Callable[[], object], *, within: int, **words: Any) -> None:
        for _ in range(within):
            if over():
                return
            self.step(**words)
        raise AssertionError(f"not within {within} s: {len(self.bodies)} came, {self.total(self.dead)} are dead")


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as place:
        yield place


def most_in(came: list[int], steps: int) -> int:
    """The most that came in so many steps on end."""
    return max(sum(came[n : n + steps]) for n in range(len(came)))


shared_or_not = pytest.mark.parametrize("shared", [True, False], ids=["cells", "no cells"])


@shared_or_not
def test_3000_dead_and_several_invocations_at_once_come_back_at_the_rate(stand: Stand, shared: bool) -> None:
    fleet = Fleet(stand, shared=shared)
    fleet.kill(3000)
    fleet.step(alarms=3)  # the alarm's, the rule's, and a person's
    fleet.until(lambda: len(fleet.bodies) >= 100, within=300)
    fleet.step(alarms=2)
    fleet.until(lambda: len(fleet.bodies) == 3000, within=1000)
    assert Counter(fleet.bodies) == Counter(f"0/{n}" for n in range(3000))
    for seconds in (1, 2, 10, 60):
        assert most_in(fleet.came, seconds) <= RATE * seconds
    assert 48 <= next(n for n, came in enumerate(fleet.came) if came) <= 300
    assert len(fleet.came) < 700  # 300 s at the rate, the first wait, and what the looks of the chain take
    fleet.until(lambda: not fleet.total(fleet.work), within=1500)  # and it comes to an end
    assert fleet.looks < 100


@shared_or_not
def test_seconds_that_begin_anywhere_see_the_rate_and_a_second_of_it_more_at_most(stand: Stand, shared: bool) -> None:
    fleet = Fleet(stand, shared=shared)
    fleet.kill(900)
    fleet.step(alarms=2, s=0.3)
    fleet.until(lambda: len(fleet.bodies) == 900, within=2500, batches=7, s=0.3)
    assert most_in(fleet.came, 3) <= 2 * RATE
    for steps in (10, 100):
        assert most_in(fleet.came, steps) <= RATE * (steps * 0.3 + 1)


@shared_or_not
def test_messages_of_every_wait_share_one_rate(stand: Stand, shared: bool) -> None:
    fleet = Fleet(stand, shared=shared)
    for attempt in range(5):
        fleet.kill(240, attempt=attempt)  # 60 s, 120 s, … 900 s
    fleet.step(alarms=2)
    fleet.until(lambda: len(fleet.bodies) == 1200, within=1500)
    assert most_in(fleet.came, 1) <= RATE and most_in(fleet.came, 30) <= RATE * 30


@pytest.mark.parametrize("rate, per_s", [("30/m", 0.5), ("2.5/s", 2.5), ("300/s", 300)])
def test_any_rate_holds(stand: Stand, rate: str, per_s: float) -> None:
    number = int(min(1500, per_s * 160))
    fleet = Fleet(stand, auto=AutoRedrive(rate=rate))
    fleet.kill(number)
    fleet.step(alarms=2)
    fleet.until(lambda: len(fleet.bodies) == number, within=1500)
    for seconds in (1, 7, 60):
        assert most_in(fleet.came, seconds) <= per_s * seconds + 1


@pytest.mark.parametrize(
    "attempt, low_s, high_s", [(0, 48, 72), (1, 96, 144), (3, 384, 576), (4, 720, 900)]  # of which SQS delays no longer
)  # fmt: skip
def test_the_waits_of_what_died_together_are_spread_by_their_jitter(
    stand: Stand, attempt: int, low_s: int, high_s: int
) -> None:
    # All are sent in one tenth of a second. In it, each second takes a tenth of the rate: 40, and about 16 wish for it.
    fleet = Fleet(stand, auto=AutoRedrive(rate="400/s"))
    fleet.kill(400, attempt=attempt)
    fleet.step(alarms=1)
    fleet.until(lambda: len(fleet.bodies) == 400, within=1000)
    seconds = [n for n, came in enumerate(fleet.came) for _ in range(came)]
    assert low_s <= min(seconds) and max(seconds) <= high_s
    fifths = Counter(min(4, 5 * (second - low_s) // (high_s - low_s)) for second in seconds)
    assert len(fifths) == 5 and min(fifths.values()) > 40 and max(fifths.values()) < 130


def test_the_rate_holds_within_a_second_too(stand: Stand) -> None:
    """A batch is sent at once, and all of it came at once: ten in an instant, and none for the rest of the second."""
    fleet, due_ms = Fleet(stand, auto=AutoRedrive(jitter=0)), list[int]()
    call = fleet.sqs_call

    def takes_time(action: str, **given: Any) -> Any:
        told = call(action, **given)
        if action == "SendMessageBatch" and given["QueueUrl"] == fleet.main:
            due_ms.extend(stand.clock() + entry.get("DelaySeconds", 0) * 1000 for entry in given["Entries"])
            stand.passes(0.07)
        return told

    fleet.sqs_call = takes_time
    fleet.kill(2000)
    fleet.invoke(ALARM, 400)
    assert len(due_ms) == 2000

    def most(span_ms: int) -> int:
        """The most in so many ms, wherever they begin."""
        due, ends = sorted(due_ms), 0
        found = 0
        for n, at_ms in enumerate(due):
            while ends < len(due) and due[ends] < at_ms + span_ms:
                ends += 1
            found = max(found, ends - n)
        return found

    assert (most(50), most(1000), most(10_000)) <= (2, RATE + 2, 10 * RATE + 2)
    assert max(due_ms) - min(due_ms) < 230_000, "and it is not slower: 2,000 take 200 s"


def test_without_jitter_they_come_as_soon_as_the_rate_lets_them(stand: Stand) -> None:
    fleet = Fleet(stand, auto=AutoRedrive(jitter=0))
    fleet.kill(50)
    fleet.step(alarms=1)
    fleet.until(lambda: len(fleet.bodies) == 50, within=400)
    assert fleet.came.index(1) == 60 and max(fleet.came) <= RATE


def test_what_waits_as_long_as_sqs_can_delay_keeps_the_rate_without_jitter_too(stand: Stand) -> None:
    fleet = Fleet(stand, auto=AutoRedrive(jitter=0))
    fleet.kill(2000, attempt=4)
    fleet.step(alarms=1)
    fleet.until(lambda: len(fleet.bodies) == 2000, within=1200)
    assert most_in(fleet.came, 1) <= RATE
    assert next(n for n, came in enumerate(fleet.came) if came) >= 780


def test_what_is_far_behind_stays_dead_where_gates_still_hold_it(stand: Stand) -> None:
    fleet = Fleet(stand)
    fleet.kill(4500)
    told = fleet.invoke(WORK, 1000)
    assert told["redriven"] == 4500 - fleet.total(fleet.dead) <= RATE * (24 + AHEAD_S + 1)
    assert (told["why"], told["again_s"]) == ("its rate of 10/s has no room yet", 60)


def test_poison_has_no_rate(stand: Stand) -> None:
    fleet = Fleet(stand, auto=AutoRedrive(rate="1/m"))
    fleet.kill(100, attempt=5)
    fleet.step(alarms=1)
    assert fleet.total(fleet.poison) == 100


@shared_or_not
def test_fifo_queues_get_the_rate_in_the_order_of_their_groups(stand: Stand, shared: bool) -> None:
    fleet = Fleet(stand, shared=shared, fifo=True, auto=AutoRedrive(base="5s"))
    for n in range(60):
        entries = [{"MessageBody": f"{g} {n:02}", "MessageGroupId": g, "MessageDeduplicationId": f"{g}{n}"}
                   for g in "abcde"]  # fmt: skip
        fleet.send(fleet.dead, *entries)
    fleet.step(alarms=2)
    fleet.until(lambda: len(fleet.bodies) == 300, within=1500)
    for group in "abcde":
        assert [body for body in fleet.bodies if body[0] == group] == [f"{group} {n:02}" for n in range(60)]
    assert most_in(fleet.came, 1) <= 2 * RATE  # a second may have what the one before it left
    assert most_in(fleet.came, 30) <= RATE * 31


def test_cells_that_cannot_be_reached_let_nothing_go_and_it_comes_again(stand: Stand) -> None:
    fleet = Fleet(stand)
    fleet.kill(20)
    swap = fleet.cells.swap

    def down(*given: Any, **words: Any) -> Any:
        raise StoreUnavailable("the table is not there")

    fleet.cells.swap = down  # type: ignore[method-assign]
    fleet.step(alarms=1)
    told = fleet.told[0]
    assert (told["redriven"], told["again_s"]) == (0, 60) and told["why"].endswith("the table is not there")
    fleet.cells.swap = swap  # type: ignore[method-assign]
    fleet.until(lambda: len(fleet.bodies) == 20, within=200)


# -- without cells


def test_without_cells_one_works_and_the_others_leave_it_to_that_one(stand: Stand) -> None:
    fleet = Fleet(stand, shared=False)
    fleet.kill(100)
    assert fleet.invoke(ALARM, 4)["redriven"] == 30
    told = fleet.invoke(ALARM, 100)
    assert (told["redriven"], told["why"]) == (0, "another re-driver is at work, or comes")
    fleet.until(lambda: len(fleet.bodies) == 100, within=200)


def test_a_chain_lives_for_as_long_as_what_it_sent_is_to_come(stand: Stand) -> None:
    """So that a call that comes then knows of it."""
    fleet = Fleet(stand, shared=False, auto=AutoRedrive(base="15m", jitter=0))
    fleet.kill(10)
    fleet.step(alarms=1)
    for _ in range(880):
        assert fleet.total(fleet.work)
        fleet.step()
    fleet.until(lambda: not fleet.total(fleet.work), within=60)
    assert len(fleet.bodies) == 10


def test_a_call_that_died_after_it_had_begun_is_looked_after(stand: Stand) -> None:
    fleet = Fleet(stand, shared=False)
    fleet.kill(30)
    call = fleet.sqs_call

    def dies(action: str, **given: Any) -> Any:
        if action == "SendMessageBatch" and given["QueueUrl"] == fleet.main:
            raise KeyboardInterrupt
        return call(action, **given)

    fleet.sqs_call = dies
    with pytest.raises(KeyboardInterrupt):
        fleet.invoke(ALARM, 10)
    fleet.sqs_call = call
    fleet.until(lambda: len(fleet.bodies) == 30, within=300)


def test_one_environment_remembers_what_it_sent_where_nothing_else_does(stand: Stand) -> None:
    """Without cells and without a work queue: with a reserved concurrency of 1 that is most of it."""
    d = Deployment(stand)
    for _ in range(3):
        d.send(d.dead, *({"MessageBody": "x"} for _ in range(100)))
        redrive(ALARM, d.sqs_call, d.settings, type(d.work_on_it)(), None, lambda: 1.0, stand.clock)
    came = []
    for _ in range(400):
        came.append(len(d.take(d.main)))
        stand.passes(1)
    assert sum(came) == 300 and max(came) <= RATE


def test_a_message_of_the_work_queue_says_what_the_next_one_needs(stand: Stand) -> None:
    fleet = Fleet(stand, shared=False)
    fleet.kill(10)
    fleet.invoke(ALARM, 10)
    stand.passes(300)
    bodies = [json.loads(message["Body"]) for message in fleet.take(fleet.work)]
    assert sorted(body["redrive"] for body in bodies) == ["go on", "look"]
    assert [len(body.get("slots", "")) > 20 for body in bodies if body["redrive"] == "go on"] == [True]


def test_a_slow_rate_on_a_fifo_queue_is_not_slower_for_one_group(stand: Stand) -> None:
    fleet = Fleet(stand, fifo=True, auto=AutoRedrive(base=0, cap=0, rate="1/s"))
    fleet.send(
        fleet.dead,
        *({"MessageBody": f"{n:02}", "MessageGroupId": "g", "MessageDeduplicationId": f"{n}"} for n in range(40)),
    )
    fleet.step(alarms=1)
    fleet.until(lambda: len(fleet.bodies) == 40, within=100)
    assert fleet.bodies == [f"{n:02}" for n in range(40)] and most_in(fleet.came, 10) <= 11
