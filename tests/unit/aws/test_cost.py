"""What SQS bills, worked out beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Backoff, Retry
from redrive.aws.cost import MILLION, beside, bill, retries_of
from redrive.errors import ConfigError
from redrive.program.main import run


def test_three_requests_of_ten_are_the_floor() -> None:
    found = bill(10 * MILLION, pollers=0)
    assert found.requests == {"SendMessage": MILLION, "ReceiveMessage": MILLION, "DeleteMessage": MILLION}
    assert (found.per_message, round(found.dollars, 6)) == (0.3, 1.2)


def test_a_retry_by_visibility_takes_two_requests_and_by_a_copy_three() -> None:
    assert bill(MILLION, retries=0.2).per_message == 0.34
    assert bill(MILLION, retries=0.2, requeue=True).per_message == 0.36
    assert bill(MILLION, fill=1, retries=0.2, requeue=True).per_message == 3.6


def test_each_64_kib_of_a_batch_is_billed() -> None:
    assert bill(1000, body_bytes=6553, pollers=0).requests["SendMessage"] == 100  # ten are one chunk
    assert bill(1000, body_bytes=6554, pollers=0).requests["SendMessage"] == 200
    large = bill(1000, body_bytes=200 * 1024, pollers=0)  # five fit into a batch of a megabyte
    assert (large.per_message, large.requests["ReceiveMessage"], large.requests["DeleteMessage"]) == (0.6, 3200, 200)


def test_an_idle_poller_costs_five_cents_a_month() -> None:
    assert bill(0).requests == {"ReceiveMessage (idle)": 129_600} and round(bill(0).dollars, 2) == 0.05


def test_prices_by_kind_of_queue_and_the_free_million() -> None:
    dollars = [
        bill(10 * MILLION, pollers=0, **kind).dollars for kind in ({"fifo": True}, {"fair": True}, {"free": True})
    ]
    assert [round(one, 6) for one in dollars] == [1.5, 1.5, 0.8]
    assert bill(10, free=True).dollars == 0 and round(bill(MILLION, price=1, pollers=0).dollars, 6) == 0.3


def test_the_figures_that_are_often_told_are_those_less_the_free_million() -> None:
    def dollars(requests: int) -> float:  # by hand: $0.40 a million, less one million
        return round((requests - 1_000_000) * 0.4 / 1_000_000, 2)

    runs_out, changed, copied = 10 * 3 + 2, 10 * 3 + 2 * 2, 10 * 3 + 2 * 3  # millions, one by one
    assert [dollars(each * MILLION) for each in (runs_out, changed, copied)] == [12.4, 13.2, 14.0]
    assert [dollars(each * MILLION // 10) for each in (runs_out, changed, copied)] == [0.88, 0.96, 1.04]
    assert dollars((10 + 2) * MILLION) == 4.4
    for fill, each in ((1, 1), (10, 10)):
        for requeue, hand in ((False, changed), (True, copied)):
            found = bill(10 * MILLION, retries=0.2, fill=fill, requeue=requeue, pollers=0, free=True)
            assert round(found.dollars, 2) == dollars(hand * MILLION // each)


@pytest.mark.parametrize("wrong", [{"fill": 0}, {"fill": 11}, {"retries": -1}, {"body_bytes": 2**21}, {"poll_s": 0}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        bill(1, **wrong)  # type: ignore[arg-type]


def test_the_command_tells_both_consumers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "--messages", "10M", "--retries", "20%", "--body", "2KB", "-o", "json"]) == 0
    ours, naive = json.loads(capsys.readouterr().out)
    assert (ours["per_message"], naive["per_message"]) == (0.34, 3.6)
    assert (ours["change"], ours["idle"], ours["dollars"]) == (200_000, 129_600, 1.41)


@pytest.mark.parametrize("args", [["--messages", "ten"], ["--messages", "1", "--fill", "11"], []])
def test_the_command_says_what_it_expected(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", *args]) == 2
    said = capsys.readouterr().err
    assert "expected" in said


def in_all(messages: int, *, sqs: dict[str, Any], others: dict[str, Any] | None = None) -> float:
    retries = sqs.get("retries", 0.0)
    lines = beside(messages, retries=retries, fill=sqs.get("fill", 10.0), **(others or {}))
    return bill(messages, pollers=0, **sqs).dollars + sum(line.dollars for line in lines)


DAY = 4 * 30 * 86_400  # reads or writes of a month with four a second
WORKLOADS = [
    # 10 M messages, a fifth retried once, one by one with copies: 10 M x (3 + 0.2 x 3) = 36 M requests at 0.40
    (10 * MILLION, {"fill": 1, "retries": 0.2, "requeue": True}, {}, 36 * 0.40),
    # one by one by visibility: a retry is a receive and a change: 10 M x (3 + 0.2 x 2) = 34 M
    (10 * MILLION, {"fill": 1, "retries": 0.2}, {}, 34 * 0.40),
    # in tens by visibility: 3.4 M; with copies: 3.6 M
    (10 * MILLION, {"retries": 0.2}, {}, 3.4 * 0.40),
    (10 * MILLION, {"retries": 0.2, "requeue": True}, {}, 3.6 * 0.40),
    # FIFO, bodies of 20 KiB: ten are 200 KiB, four units; sends and receives 4 x 0.1 M each, deletes 0.1 M: 0.9 M
    (MILLION, {"body_bytes": 20 * 1024, "fifo": True}, {}, 0.9 * 0.50),
    # a breaker shared by two workers all month, in a cell of 3 KiB: 3 write units, 1 read unit, of 2 x DAY each
    (MILLION, {}, {"sharers": 2, "cell_bytes": 3072}, 0.3 * 0.40 + 2 * DAY / 1e6 * (3 * 0.625 + 0.125)),
    # Lambda: 5 M messages in tens are 0.5 M invocations of 400 ms with 512 MB: 0.5 M x 0.4 s x 0.5 GB = 100,000 GB-s
    (5 * MILLION, {}, {"lambda_ms": 400, "memory_mb": 512}, 1.5 * 0.40 + 0.5 * 0.20 + 100_000 * 0.0000166667),
    # S3: a tenth of 2 M has 3 MB, kept 15 days: 0.2 M PUTs; runs 2.5 M, so 0.25 M GETs; 600,000 GB... for half a month:
    # 0.2 M x 3 MB = 600 GB, 300 GB-months. SQS: 2 M x (0.3 + 0.25 x 0.2) = 0.7 M
    (2 * MILLION, {"retries": 0.25}, {"blobs": 0.1, "blob_bytes": 3 * MILLION, "blob_days": 15},
     0.7 * 0.40 + 0.2 * 5 + 0.25 * 0.40 + 300 * 0.023),
    # CloudWatch: two queues of 24 metrics, three alarms, four processes of 7 kB each 10 s: 4 x 1.8144 GB
    (0, {}, {"metered": 2, "alarms": 3, "loggers": 4}, 48 * 0.30 + 3 * 0.10 + 4 * 1.8144 * 0.50),
    # poison: 1 % of 10 M fails 20 times: 0.19 retries a message, 10 M x (0.3 + 0.19 x 0.2) = 3.38 M
    (10 * MILLION, {"retries": 0.19}, {}, 3.38 * 0.40),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "sqs", "others", "dollars"), WORKLOADS)
def test_ten_workloads_cost_what_a_hand_works_out(
    messages: int, sqs: dict[str, Any], others: dict[str, Any], dollars: float
) -> None:
    assert in_all(messages, sqs=sqs, others=others) == pytest.approx(dollars, rel=1e-9)


def test_poison_and_storms_are_retries() -> None:
    assert retries_of(0.2, poison=0.5, attempts=11) == 0.1 + 5
    assert retries_of(0.2) == 0.2


@pytest.mark.parametrize("wrong", [{"busy": 2}, {"blobs": -1}, {"fill": 0}, {"sharers": -1}, {"cell_bytes": 0}])
def test_services_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        beside(1, **wrong)
    with pytest.raises(ConfigError, match="expected"):
        retries_of(0, poison=1.5)


def test_the_command_adds_the_services_and_their_total(capsys: pytest.CaptureFixture[str]) -> None:
    said = ["cost", "--messages", "10M", "--poison", "1%", "--attempts", "20", "--pollers", "0", "--sharers", "1"]
    assert run([*said, "-o", "json"]) == 0
    ours, _, writes, reads, total = json.loads(capsys.readouterr().out)
    assert (ours["per_message"], writes["requests"], reads["dollars"]) == (0.338, DAY, 1.3)
    assert total["dollars"] == round(3.38 * 0.40 + DAY / 1e6 * 0.75, 2) and total["send"] is None


def test_a_month_goes_on_as_the_history_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    app = App(url)

    @app.task(name="push", retry=Retry(2, backoff=Backoff.fixed("0s")))
    def push(n: int) -> None:
        if n < 2:
            raise ConnectionError("down")

    try:
        app.enqueue_many([push.draft(n) for n in range(8)])
        app.run_worker(burst=True)
    finally:
        app.store.close()
    assert run(["cost", "--from-history", "10m..0s", "--pollers", "0", "--url", url, "-o", "json"]) == 0
    ours = json.loads(capsys.readouterr().out)[0]
    month = 8 * 30 * 24 * 6  # eight in ten minutes
    assert (ours["send"], ours["change"]) == (round(month / 10), round(month * 0.25 / 10))
    assert run(["cost", "--from-history", "10m..0s", "--messages", "5", "--url", url]) == 2
