"""Features that work with queues of SQS reach the store by the interface in store/sqs.py."""

from __future__ import annotations

import pytest

from redrive.errors import Unsupported
from redrive.store.sqs import sqs_engine
from redrive.store.wrapper import StoreWrapper
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing import ManualClock


def test_the_store_on_sqs_is_seen_below_its_wrappers_and_no_other_engine_is_one() -> None:
    store = SqsStore("sqs://eu-central-1/shop?poll=0")
    assert sqs_engine(StoreWrapper(StoreWrapper(store))) is store
    assert (store.url, store.prefix, store.region) == ("sqs://eu-central-1/shop?poll=0", "shop", "eu-central-1")
    store.close()
    assert sqs_engine(StoreWrapper(MemoryStore(ManualClock()))) is None


def test_a_store_without_triage_has_none_to_own() -> None:
    store = SqsStore("sqs://eu-central-1/shop?poll=0")
    with pytest.raises(Unsupported):
        store.own_triage()
    store.close()
