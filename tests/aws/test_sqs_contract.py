"""The SQS store against the contract that any store must keep, with the traits it declares, on the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.aws.places import OnSqs, Stand, client
from tests.support.turns import in_turn

from redrive.store import Store
from redrive.stores.sqs import batches, members
from redrive.stores.sqs.store import SqsStore
from redrive.testing import ManualClock, StoreContract
from redrive.testing.contract.batching import BatchRules
from redrive.testing.contract.claiming import ClaimRules
from redrive.testing.contract.deferring import CrashRules, DeferRules
from redrive.testing.contract.leasing import LeaseRules
from redrive.testing.contract.mending import ReplaceRules, RestoreRules
from redrive.testing.contract.putting import PutRules
from redrive.testing.contract.settling import SettledSwapRules, SettleRules
from redrive.testing.contract.triaging import TriageRules
from redrive.testing.contract.unique_keys import UniqueKeyRules


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        yield stand


class Retried(ClaimRules, LeaseRules, SettleRules, SettledSwapRules, DeferRules, CrashRules, TriageRules):
    """What depends on how a message is kept while it waits for its retry."""


class TestVisibility(OnSqs, StoreContract):
    pass


class TestSmallPages(OnSqs, BatchRules):
    """Batches whose members lie in many cells."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (members, batches):
            monkeypatch.setattr(module, "PAGE", 2)


@in_turn(0, of=2)
class TestRequeue(OnSqs, Retried):
    mode = "requeue"


@in_turn(1, of=2)
class TestBare(OnSqs, Retried):
    beside = False


class Tracked(OnSqs):
    """What is cancelled, looked up and unique goes by records."""

    more = "&track=true"


class TestTracked(Tracked):
    """The rules that a record or a key has a part in."""

    ids, rich = RestoreRules.ids, RestoreRules.rich

    test_member_runs = BatchRules.test_a_cancelled_member_is_counted_whether_it_waits_or_runs
    test_member_waits = BatchRules.test_a_waiting_member_is_cancelled
    test_duplicate_member = BatchRules.test_a_draft_whose_key_is_held_is_a_duplicate
    test_cancel = TriageRules.test_a_waiting_message_is_cancelled_at_once  # held to what goes by a record
    test_same_id = PutRules.test_the_same_id_under_the_same_key_is_a_duplicate
    test_held = UniqueKeyRules.test_a_key_is_held_from_enqueue_until_the_message_is_done
    test_resting = UniqueKeyRules.test_resting_messages_hold_their_keys_until_discarded
    test_cancelled = UniqueKeyRules.test_a_cancelled_message_gives_its_key_back
    test_again = UniqueKeyRules.test_a_message_that_is_put_again_under_its_id_and_key_is_there_already
    test_in_one_put = UniqueKeyRules.test_a_key_is_unique_within_one_put_too
    test_longer = UniqueKeyRules.test_a_key_can_be_held_longer_than_its_message_lives
    test_outlasted = UniqueKeyRules.test_a_key_outlasts_its_time_while_its_message_waits
    test_refused = UniqueKeyRules.test_a_refused_put_holds_no_key
    test_race = UniqueKeyRules.test_threads_that_race_for_a_key_get_one_message
    test_dropped = SettleRules.test_a_follow_up_whose_key_is_held_is_dropped
    test_followed = SettleRules.test_a_message_can_be_followed_by_one_with_its_own_key
    test_replaced = ReplaceRules.test_its_key_is_free_for_the_draft
    test_blocked = ReplaceRules.test_a_key_that_another_message_holds_is_refused
    test_restored = RestoreRules.test_a_key_that_is_held_is_refused
    test_as_it_was = RestoreRules.test_a_message_is_restored_as_it_was


@pytest.mark.soak
class TestWholeTracked(Tracked, StoreContract):
    pass


@pytest.mark.soak
class TestWholeTrackedRequeue(Tracked, StoreContract):
    mode = "requeue"


@pytest.mark.soak
class TestFifo(OnSqs, Retried):
    """Each message without a group is one of its own."""

    laid = ()

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
