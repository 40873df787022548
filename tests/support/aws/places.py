"""Where SQS is played: our own stand-in, ministack, and for a second opinion LocalStack, each private to the tests and
on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
import pytest
from botocore.config import Config
from tests.support.servers import free_ports

from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.stores.sqs.url import RECEIVES
from redrive.testing import ManualClock, StoreContract  # noqa: F401  # it has the assertions of its rules rewritten
from redrive.testing.contract.base import Contract
from redrive.testing.sqs import SqsServer
from redrive.testing.sqs.queues import ServedQueue

READY_WITHIN_S = 60.0
REGION = "eu-central-1"
LOCALSTACK_LOOKS_S = 1.5  # it looks once a second for what is due
LOCALSTACK = Path(__file__).parents[3] / "build" / "localstack"


def client(service: str, url: str, **options: Any) -> Any:
    """A boto3 client that fails at once: what is retried is the tests' affair."""
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=30, **options),
    )


class Stand:
    """Our stand-in, on a clock that the test moves."""

    name = "stand-in"

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = SqsServer(self.clock)

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.server.close()

    @property
    def url(self) -> str:
        return self.server.url

    def now_s(self) -> float:
        return self.clock() / 1000

    def passes(self, seconds: float) -> None:
        self.clock.advance(seconds)


def lay(server: SqsServer, *names: str) -> None:
    """Make queues as a store with `create=true` makes them, which asks nine times for each."""
    for name in names:
        dead, _ = made(server, f"{name}-dlq"), made(server, f"{name}-poison")
        policy = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": RECEIVES})
        made(server, name, RedrivePolicy=policy, VisibilityTimeout="60", ReceiveMessageWaitTimeSeconds="0")


def made(server: SqsServer, name: str, **attributes: str) -> ServedQueue:
    attributes |= {"MessageRetentionPeriod": str(14 * 24 * 3600)}
    server.account.call("CreateQueue", {"QueueName": name, "Attributes": attributes}, server.faults)
    return server.account.queues[name]


class Lasting(MemoryStore):
    """Stands for a store on a server: it outlives the handles on it."""

    def close(self) -> None:
        pass


class OnSqs(Contract):
    """The contract's rules on the module's fixture `stand`, with short polls: a claim does all it can before it
    returns."""

    mode = "visibility"
    more = ""
    beside = True  # a store for what rests, with its cells
    laid = ("default", "q")  # queues that are there; a store makes the others

    @pytest.fixture(autouse=True)
    def _stand(self, stand: Stand) -> None:
        self.stand, self.resting = stand, Lasting(stand.clock)

    @pytest.fixture
    def clock(self) -> ManualClock:
        return self.stand.clock

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        prefix = f"t{zlib.crc32(str(place).encode()):08x}"
        if self.laid:
            lay(self.stand.server, *(f"{prefix}-{queue}" for queue in self.laid))
        url = f"sqs://{REGION}/{prefix}?mode={self.mode}&poll=0&create=true&endpoint={self.stand.url}{self.more}"
        return SqsStore(url, clock_ms=clock, triage=self.resting if self.beside else None)


class Emulator:
    """One that runs as a process of its own, on a free port of loopback."""

    name, health = "", ""

    def __init__(self) -> None:
        port = next(free_ports())
        self._folder = tempfile.TemporaryDirectory(prefix=f"redrive-{self.name}-")
        self.url = f"http://127.0.0.1:{port}"
        self._env = os.environ | self.settings(port, self._folder.name)
        self._process: subprocess.Popen[bytes] | None = None

    def settings(self, port: int, folder: str) -> dict[str, str]:
        raise NotImplementedError

    def command(self) -> list[str]:
        """Raises RuntimeError where it is not installed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        command = self.command()
        path = Path(self._folder.name) / "log"
        with path.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=self._folder.name, env=self._env, stdout=log, stderr=log)
        end_s = time.monotonic() + READY_WITHIN_S
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/{self.health}", timeout=2).read()
                return self
            except OSError:
                if time.monotonic() > end_s or self._process.poll() is not None:
                    raise RuntimeError(f"{self.name} did not start: {path.read_text()[-2000:]}") from None
                time.sleep(0.05)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def now_s(self) -> float:
        return time.time()

    def passes(self, seconds: float) -> None:
        time.sleep(seconds)


class Ministack(Emulator):
    name, health = "ministack", "_ministack/health"

    def settings(self, port: int, folder: str) -> dict[str, str]:
        return {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SFN_WAIT_SCALE": "0"}

    def command(self) -> list[str]:
        program = Path(sys.executable).parent / "ministack"
        if not program.exists():
            raise RuntimeError("ministack is not installed here; pip install -e '.[dev]'")
        return [str(program)]


class Localstack(Emulator):
    """LocalStack's core, which wants an environment of its own: `scripts/setup-localstack` makes it."""

    name, health = "localstack", "_localstack/health"

    def settings(self, port: int, folder: str) -> dict[str, str]:
        return {
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "FILESYSTEM_ROOT": f"{folder}/files",
            "SERVICES": "sqs",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
            "PYTHONPATH": "",
        }

    @staticmethod
    def is_here() -> bool:
        return (LOCALSTACK / ".made").exists()

    def command(self) -> list[str]:
        return [str(LOCALSTACK / "bin" / "python"), str(Path(__file__).parent / "localstack_server.py")]

    def passes(self, seconds: float) -> None:
        time.sleep(seconds + LOCALSTACK_LOOKS_S)
