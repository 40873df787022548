"""The re-driver in process, on the stand-in: only the Lambda's context is made up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.aws.places import Stand
from tests.support.aws.redriver import ALARM, WORK, Deployment
from tests.support.endpoints import endpoint

from redrive import Gates
from redrive.aws.lambda_handlers import redrive
from redrive.aws.redriver.run import FAN_OUT
from redrive.aws.redriver.steps import ATTEMPT
from redrive.aws.redriver.transfer import SqsCall
from redrive.errors import ConfigError
from redrive.flow import breaker as breakers
from redrive.flow import dependency as flow
from redrive.flow.auto_redrive import AutoRedrive
from redrive.message import Swap

AT_ONCE = AutoRedrive(base=0, cap=0)


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as place:
        yield place


def attempts(messages: list[dict[str, Any]]) -> Counter[str]:
    return Counter(m["MessageAttributes"][ATTEMPT]["StringValue"] for m in messages)


def test_137_dead_messages_and_one_alarm_none_is_left_waiting(stand: Stand) -> None:
    d = Deployment(stand)
    spent = {ATTEMPT: {"DataType": "Number", "StringValue": "5"}}
    entries = [{"MessageBody": f"m{n}", "MessageAttributes": spent if n % 10 == 0 else {}} for n in range(137)]
    d.send(d.dead, *[{k: v for k, v in entry.items() if v} for entry in entries])
    d.call(ALARM, batches=3)
    assert d.total(d.dead) == 107 and d.total(d.work) == 2  # one Lambda more for more than a hundred, and its own rest
    d.work_on(batches=3)
    assert d.calls > 4
    assert (d.total(d.dead), d.total(d.main), d.total(d.poison)) == (0, 123, 14)
    stand.passes(60 + 123)  # all were sent in one tenth of a second, of which a second has one
    redriven = d.take(d.main)
    assert attempts(redriven) == Counter({"1": 123})
    poison = d.take(d.poison)
    assert {m["Body"] for m in redriven + poison} == {f"m{n}" for n in range(137)}
    assert {m["Body"] for m in poison} == {f"m{n}" for n in range(0, 137, 10)}


def test_the_end_of_an_alarm_moves_nothing(stand: Stand) -> None:
    d = Deployment(stand)
    d.send(d.dead, {"MessageBody": "x"})
    ended = {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps({"NewStateValue": "OK"})}}]}
    assert d.call(ended)["redriven"] == 0
    assert (d.total(d.dead), d.total(d.work)) == (1, 0)


def test_a_message_that_dies_again_and_again_ends_in_the_poison_queue(
    stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    d = Deployment(stand, auto=AutoRedrive(jitter=0))
    d.send(d.dead, {"MessageBody": "x"})
    for wait_s in (60, 120, 240, 480, 900):
        d.call(ALARM)
        stand.passes(wait_s - 1)
        assert not d.take(d.main)
        stand.passes(1)
        assert [m["Body"] for m in d.take(d.main, delete=False)] == ["x"]
        stand.passes(5)
        assert not d.take(d.main)  # its redrive policy moves what was received once already
        assert d.total(d.dead) == 1
    told = d.call(ALARM)
    assert (told["redriven"], told["isolated"], d.total(d.poison)) == (0, 1, 1)
    logged = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    actions = [line for line in logged if "action" in line]
    assert [(line["action"], line["redrives"], line["attempt"]) for line in actions] == [
        ("redriven", 1, 1),
        *(("redriven", n, 2) for n in range(2, 6)),  # SQS counts the re-driver's own receive too
        ("isolated", 5, 2),
    ]
    assert actions[-1]["why"] == "poison: dead again after 5 redrives" and actions[-1]["level"] == "error"
    lines = [line for line in logged if "_aws" in line]
    sums = [(line["SuccessfulRedrives"], line["PoisonPillsIsolated"], line["RedriveFailures"]) for line in lines]
    assert sums == [(1, 0, 0)] * 5 + [(0, 1, 0)]
    assert (
        lines[0]["Queue"] == d.main.rpartition("/")[2]
        and lines[0]["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Redrive"
    )


def test_nothing_moves_while_the_breaker_is_open_and_it_comes_again(stand: Stand) -> None:
    d = Deployment(stand, dependency="stripe")
    d.send(d.dead, {"MessageBody": "x"})
    opened = breakers.State(status="open", until_ms=stand.clock() + 90_000)
    d.cells.swap([Swap("flow/stripe", 0, flow.encode(flow.DependencyState(breaker=opened)))])
    told = d.call(ALARM)
    assert (told["redriven"], told["again_s"]) == (0, 90) and "stripe" in told["why"]
    assert d.counts(d.work)["Delayed"] == 1 and d.total(d.dead) == 1
    d.work_on()
    assert (d.total(d.dead), d.total(d.main), d.total(d.work)) == (0, 1, 0)


def test_a_breaker_that_a_person_holds_open_is_looked_at_again_after_a_minute(stand: Stand) -> None:
    d = Deployment(stand, dependency="stripe/acme")
    d.send(d.dead, {"MessageBody": "x"})
    forced = flow.DependencyState(breaker=breakers.State(status="forced_open", since_ms=stand.clock()))
    d.cells.swap([Swap("flow/stripe/acme", 0, flow.encode(forced))])
    for _ in range(5):
        told = d.call(ALARM) if not d.calls else d.call(WORK)
        assert (told["redriven"], told["again_s"]) == (0, 60) and "stripe/acme" in told["why"]
        stand.passes(60)
        assert len(d.take(d.work)) == 1
    cell = d.cells.read(["flow/stripe/acme"])[0]
    assert cell is not None and d.cells.swap(
        [Swap("flow/stripe/acme", cell.version, flow.encode(flow.DependencyState()))]
    ) == [True]
    assert d.call(WORK)["redriven"] == 1


def test_alarms_that_find_it_held_make_no_more_calls_than_there_are_already(stand: Stand) -> None:
    """The rule calls every five minutes: each would begin a chain of calls that all look once a minute."""
    d = Deployment(stand, dependency="stripe")
    d.send(d.dead, *({"MessageBody": "x"} for _ in range(5)))
    forced = flow.DependencyState(breaker=breakers.State(status="forced_open"))
    d.cells.swap([Swap("flow/stripe", 0, flow.encode(forced))])
    assert sum(d.calls_by_minute(60)) <= 60 + 12 * (1 + 3)  # the chain's, and each alarm's with its three looks
    assert d.total(d.work) <= 3 and d.total(d.dead) == 5


def test_a_rule_that_finds_it_held_and_nothing_dead_ends_at_once(stand: Stand) -> None:
    d = Deployment(stand, dependency="stripe")
    forced = flow.DependencyState(breaker=breakers.State(status="forced_open"))
    d.cells.swap([Swap("flow/stripe", 0, flow.encode(forced))])
    rule = {"source": "aws.events", "detail-type": "Scheduled Event"}
    assert d.call(rule)["again_s"] is None and d.total(d.work) == 0
    d.send(d.dead, {"MessageBody": "x"})
    assert d.call(rule)["again_s"] == 60 and d.counts(d.dead)[""] == 1  # and what it saw is not hidden


def test_alarms_that_find_the_rate_full_make_no_more_calls_than_there_are_already(stand: Stand) -> None:
    d = Deployment(stand, auto=AutoRedrive(rate="1/s"))
    d.send(d.dead, *({"MessageBody": "x"} for _ in range(5000)))
    assert d.calls_by_minute(60)[-1] <= FAN_OUT + 3 and d.total(d.dead) > 0


def test_nothing_moves_while_the_health_url_fails_and_it_comes_again(stand: Stand) -> None:
    code = 503
    with endpoint(lambda: code) as url:
        d = Deployment(stand, auto=AutoRedrive(gates=Gates(health=url)))
        d.send(d.dead, *({"MessageBody": "x"} for _ in range(30)))
        told = d.call(ALARM)
        assert (told["redriven"], told["again_s"], told["why"]) == (0, 60, f"{url} answered 503")
        assert d.counts(d.work)["Delayed"] == 1 and d.total(d.dead) == 30
        stand.passes(60)
        assert d.call(WORK)["why"] == f"{url} answered 503" and d.total(d.dead) == 30
        code = 204
        d.work_on()
    assert (d.total(d.dead), d.total(d.main), d.total(d.work)) == (0, 30, 0)


def test_a_health_url_is_asked_again_while_messages_move(stand: Stand) -> None:
    asked: list[int] = []

    def answer() -> int:
        asked.append(stand.clock())
        return 200 if len(asked) < 3 else 500

    with endpoint(answer) as url:
        d = Deployment(stand, auto=AutoRedrive(gates=Gates(health=url)))
        d.send(d.dead, *({"MessageBody": "x"} for _ in range(60)))

        def slow(action: str, **parameters: Any) -> dict[str, Any]:
            if action == "DeleteMessageBatch":
                stand.passes(6)
            return d.sqs_call(action, **parameters)

        told = d.call(ALARM, by=slow)
    assert (told["redriven"], told["again_s"], told["why"]) == (40, 60, f"{url} answered 500")
    assert len(asked) == 3 and d.total(d.dead) == 20


def test_a_health_url_without_a_server_holds_it(stand: Stand) -> None:
    with endpoint(lambda: 200) as url:
        pass
    d = Deployment(stand, auto=AutoRedrive(gates=Gates(health=url)))
    d.send(d.dead, {"MessageBody": "x"})
    told = d.call(ALARM)
    assert told["redriven"] == 0 and told["why"] == f"{url} did not answer: ConnectionRefusedError"


def test_a_health_check_by_name_is_refused(stand: Stand) -> None:
    d = Deployment(stand, auto=AutoRedrive(gates=Gates(health="crm-up")))
    with pytest.raises(ConfigError, match="health='crm-up': a re-driver has no app that knows checks by name"):
        d.call(ALARM)


def test_what_is_sent_and_not_deleted_is_there_twice_and_never_lost(stand: Stand) -> None:
    d = Deployment(stand)
    d.send(d.dead, *({"MessageBody": f"m{n}"} for n in range(10)))
    stand.server.faults.fail_entries("DeleteMessageBatch", 3)
    told = d.call(ALARM)
    assert (told["redriven"], told["failed"], told["again_s"]) == (7, 3, 60)
    d.work_on()
    assert d.total(d.dead) == 0
    stand.passes(900)
    bodies = Counter(m["Body"] for m in d.take(d.main))
    assert len(bodies) == 10 and bodies.total() == 13


def test_what_cannot_be_sent_stays_and_is_moved_later(stand: Stand) -> None:
    d = Deployment(stand)
    d.send(d.dead, *({"MessageBody": f"m{n}"} for n in range(10)))
    stand.server.faults.fail_entries("SendMessageBatch", 4)
    told = d.call(ALARM)
    assert (told["redriven"], told["failed"]) == (6, 4)
    d.work_on()
    assert (d.total(d.dead), d.total(d.main)) == (0, 10)


def test_what_its_queue_refuses_for_what_it_is_goes_to_the_poison_queue(stand: Stand) -> None:
    d = Deployment(stand)
    d.sqs_call("SetQueueAttributes", QueueUrl=d.main, Attributes={"MaximumMessageSize": "1024"})
    d.send(d.dead, {"MessageBody": "x" * 2000}, {"MessageBody": "short"})
    told = d.call(ALARM)
    assert (told["redriven"], told["isolated"], told["failed"]) == (1, 1, 0)
    assert [m["Body"] for m in d.take(d.poison)] == ["x" * 2000]


class Dying:
    """Dies at its nth call of SQS: before it is made, or before its answer is known."""

    def __init__(self, call: SqsCall, at: int, *, made: bool) -> None:
        self._call, self._left, self._made = call, at, made

    def __call__(self, action: str, **parameters: Any) -> dict[str, Any]:
        self._left -= 1
        if not self._left and not self._made:
            raise KeyboardInterrupt
        answer = self._call(action, **parameters)
        if not self._left:
            raise KeyboardInterrupt
        return answer


def test_a_crash_anywhere_loses_nothing(stand: Stand) -> None:
    """Another Lambda goes on when what was held is visible again."""
    for at in range(1, 4):  # receive, send, delete
        for made in (False, True):
            d = Deployment(stand, auto=AT_ONCE)
            d.send(d.dead, *({"MessageBody": f"m{n}"} for n in range(15)))
            with pytest.raises(KeyboardInterrupt):
                redrive(
                    WORK, Dying(d.sqs_call, at, made=made), d.settings, d.work_on_it, None, lambda: 1.0, stand.clock
                )
            stand.passes(60)
            d.call(WORK)
            d.work_on()
            assert d.total(d.dead) == 0
            bodies = Counter(m["Body"] for m in d.take(d.main))
            assert bodies.keys() == {f"m{n}" for n in range(15)}
            sent_and_kept = (at, made) in ((2, True), (3, False))
            assert (bodies.total() > 15) is sent_and_kept  # and twice only where it died between send and delete


def test_fifo_groups_keep_their_order_and_wait_together(stand: Stand) -> None:
    d = Deployment(stand, fifo=True)
    words = [(group, n) for n in range(3) for group in ("a", "b")]
    for group, n in words:
        d.send(d.dead, {"MessageBody": f"{group}{n}", "MessageGroupId": group, "MessageDeduplicationId": f"{group}{n}"})
    d.call(ALARM)
    assert d.total(d.main) == 0 and d.total(d.dead) == 6  # a FIFO queue delays no single message: they wait here
    stand.passes(59)
    assert d.total(d.main) == 0
    d.work_on()
    assert d.total(d.dead) == 0
    arrived = [m["Body"] for m in d.take(d.main)]
    assert [b for b in arrived if b[0] == "a"] == ["a0", "a1", "a2"]
    assert [b for b in arrived if b[0] == "b"] == ["b0", "b1", "b2"]


def test_a_failure_holds_up_the_rest_of_its_group_only(stand: Stand) -> None:
    d = Deployment(stand, fifo=True, auto=AT_ONCE)
    for n in range(4):
        for group in ("a", "b"):
            d.send(
                d.dead,
                {"MessageBody": f"{group}{n}", "MessageGroupId": group, "MessageDeduplicationId": f"{group}{n}"},
            )
    stand.server.faults.fail_entries("SendMessageBatch", 1)
    told = d.call(ALARM)
    assert (told["redriven"], told["failed"]) == (4, 4)
    d.work_on()
    arrived = [m["Body"] for m in d.take(d.main)]
    assert [b for b in arrived if b[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert [b for b in arrived if b[0] == "b"] == ["b0", "b1", "b2", "b3"]


def test_requests_stay_few(stand: Stand) -> None:
    d = Deployment(stand)
    d.send(d.dead, *({"MessageBody": f"m{n}"} for n in range(100)))
    before = Counter(stand.server.requests)
    d.call(ALARM)
    asked = Counter(stand.server.requests) - before
    assert asked == {"ReceiveMessage": 11, "SendMessageBatch": 11, "DeleteMessageBatch": 10, "GetQueueAttributes": 2}


def test_what_dies_before_the_alarm_is_quiet_again_is_not_left_waiting(stand: Stand) -> None:
    d = Deployment(stand)
    d.send(d.dead, {"MessageBody": "first"})
    d.call(ALARM)
    d.send(d.dead, {"MessageBody": "second"})  # the alarm rings still: its state does not change, and nobody is called
    assert d.counts(d.work)["Delayed"] == 1
    d.work_on()
    assert (d.total(d.dead), d.total(d.main), d.total(d.work)) == (0, 2, 0)
