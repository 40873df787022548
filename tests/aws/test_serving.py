"""The stand-in SQS as a process of its own, and the tutorial's consumers on it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.support.aws.places import client

from redrive.testing.sqs import SqsServer

EXAMPLES = Path(__file__).parents[2] / "examples" / "sqs_consumer"


def test_the_stand_in_serves_from_the_command_line_until_it_is_told_to_end() -> None:
    argv = [sys.executable, "-m", "redrive.testing.sqs", "--port", "0", "--receive-max", "3"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        sqs = client("sqs", url)
        queue = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(n), "MessageBody": str(n)} for n in range(5)])
        found = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
        assert [message["Body"] for message in found] == ["0", "1", "2"]
        told = urllib.request.urlopen(url, timeout=10).read()
        assert told == b'{"CreateQueue": 1, "SendMessageBatch": 1, "ReceiveMessage": 1}'
        sqs.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_port_that_is_taken_is_said_at_once() -> None:
    with SqsServer() as server:
        port = server.url.rpartition(":")[2]
        argv = [sys.executable, "-m", "redrive.testing.sqs", "--port", port]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith(f"port {port} of 127.0.0.1 cannot be listened on")


@pytest.mark.slow
def test_the_naive_consumer_takes_three_requests_and_loses_what_it_retries(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, str(EXAMPLES / "naive.py"), "20"], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert told.stdout.splitlines() == ["20 orders, 18 pushed, 0 waiting, 2 lost", "3.60 requests per message"]
    assert re.findall(r"^order \d+", told.stderr, re.MULTILINE) == ["order 5", "order 7"]
    assert "Value 3600 for parameter DelaySeconds is invalid" in told.stderr


@pytest.mark.slow
def test_redrive_loses_none_of_them_and_takes_a_fraction_of_the_requests(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, str(EXAMPLES / "with_redrive.py"), "20"],
        capture_output=True, text=True, timeout=100, cwd=tmp_path,
    )  # fmt: skip
    ends, cost = told.stdout.splitlines()
    assert ends == "20 orders, 19 pushed, 1 waiting, 0 lost"
    assert float(cost.split()[0]) < 1.8
