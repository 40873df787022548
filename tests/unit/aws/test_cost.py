"""What SQS bills, worked out beforehand."""

from __future__ import annotations

import json

import pytest

from redrive.aws.cost import MILLION, bill
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
    assert "expected" in said or "missing option '--messages'" in said
