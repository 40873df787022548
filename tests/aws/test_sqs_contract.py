"""The SQS store against the contract that any store must keep, with the traits it declares, on the stand-in."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.store import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.sqs import SqsStore
from redrive.testing import ManualClock, StoreContract
from redrive.testing._contract.base import Contract
from redrive.testing._contract.claiming import ClaimRules
from redrive.testing._contract.deferring import CrashRules, DeferRules
from redrive.testing._contract.leasing import LeaseRules
from redrive.testing._contract.settling import SettleRules
from redrive.testing._contract.swapping import SettledSwapRules
from redrive.testing._contract.triaging import TriageRules

from .places import REGION, Stand, client


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        yield stand


class Lasting(MemoryStore):
    """Stands for a store on a server: it outlives the handles on it."""

    def close(self) -> None:
        pass


class OnSqs(Contract):
    """Short polls, so that a claim does all it can before it returns."""

    mode = "visibility"
    beside = True  # a store for what rests, with its cells

    @pytest.fixture(autouse=True)
    def _stand(self, stand: Stand) -> None:
        self.stand, self.resting = stand, Lasting(stand.clock)

    @pytest.fixture
    def clock(self) -> ManualClock:
        return self.stand.clock

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        prefix = f"t{zlib.crc32(str(place).encode()):08x}"
        url = f"sqs://{REGION}/{prefix}?mode={self.mode}&poll=0&create=true&endpoint={self.stand.url}"
        return SqsStore(url, clock_ms=clock, triage=self.resting if self.beside else None)


class Retried(ClaimRules, LeaseRules, SettleRules, SettledSwapRules, DeferRules, CrashRules, TriageRules):
    """What depends on how a message is kept while it waits for its retry."""


class TestVisibility(OnSqs, StoreContract):
    pass


class TestRequeue(OnSqs, Retried):
    mode = "requeue"


class TestBare(OnSqs, Retried):
    beside = False


@pytest.mark.soak
class TestFifo(OnSqs, Retried):
    """Each message without a group is one of its own."""

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        store = super().make_store(clock, place)
        assert isinstance(store, SqsStore)
        for name in ("default", "q", "a", "b", "slow", "crm"):
            client("sqs", self.stand.url).create_queue(
                QueueName=f"{store.at.prefix}-{name}.fifo", Attributes={"FifoQueue": "true"}
            )
        return store


@pytest.mark.soak
class TestWholeRequeue(OnSqs, StoreContract):
    mode = "requeue"


@pytest.mark.soak
class TestWholeBare(OnSqs, StoreContract):
    beside = False


@pytest.mark.soak
class TestRequeueBare(OnSqs, StoreContract):
    mode = "requeue"
    beside = False
