"""SQS behind encryption: its rules hold, queues and dead-letter queues show nothing, Lambda opens what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.aws.places import REGION, Ministack, OnSqs, Stand, client, lay
from tests.support.encrypted_stores import KEYS, SECRET, an_app, fill, forms_in

from redrive import App, Keys
from redrive.crypto import Box, key_uses, sealed_by
from redrive.crypto.kms import KmsKeys
from redrive.message import Lane
from redrive.store import Store
from redrive.stores import open_store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing import ManualClock, StoreContract  # noqa: F401  # it has the assertions of its rules rewritten
from redrive.testing.contract.leasing import LeaseRules
from redrive.testing.contract.settling import SettleRules
from redrive.testing.contract.triaging import TriageRules
from redrive.testing.sqs import EventSource


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        yield stand


class TestSqs(OnSqs, LeaseRules, SettleRules, TriageRules):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return sealed_by(super().make_store(clock, place), Box(KEYS))


def queue_bytes(url: str, prefix: str) -> bytes:
    """All that its queues give, body and attributes."""
    sqs, found = client("sqs", url), []
    for name in sqs.list_queues(QueueNamePrefix=prefix).get("QueueUrls", []):
        for _ in range(5):
            answer = sqs.receive_message(
                QueueUrl=name, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"],
                VisibilityTimeout=0,
            )  # fmt: skip
            found += answer.get("Messages", [])
    return repr(found).encode()


@pytest.mark.slow
@pytest.mark.parametrize("keys", [KEYS, None], ids=["encrypted", "in the clear"])
def test_queues_and_what_died_of_them_show_nothing(ministack: Ministack, tmp_path: Path, keys: Keys | None) -> None:
    prefix = f"p{uuid4().hex[:10]}"
    url = f"sqs://{REGION}/{prefix}?create=true&poll=1&endpoint={ministack.url}&triage=sqlite:///{tmp_path}/dead.db"
    store, ran = open_store(url), list[str]()
    app = an_app(store, ran, keys)
    app.tasks["waits"].enqueue(SECRET)
    queued = queue_bytes(ministack.url, prefix)
    fill(app)
    while not app.store.peek(Lane.DEAD).messages:
        app.run_worker(["q"], burst=True)
    (dead, *_) = app.store.peek(Lane.DEAD).messages
    assert SECRET in dead.faults[-1].text and SECRET.encode() in dead.body
    found = queued + queue_bytes(ministack.url, prefix)
    found += b"".join(path.read_bytes() for path in tmp_path.glob("dead.db*") if path.is_file())
    assert b"waits" in queued and b"ValueError" in found
    assert forms_in(found) == [] if keys else forms_in(queued) and forms_in(found)
    if keys:
        uses, unseen = key_uses(app.store)
        assert {use.key for use in uses if use.used} == {"new"} and "ready" in " ".join(unseen)
    app.store.close()


def test_a_lambda_function_opens_what_it_is_given_and_parks_what_it_cannot(stand: Stand) -> None:
    def function(keys: Keys | None) -> tuple[App, Any]:
        cells = MemoryStore(stand.clock)
        url = f"sqs://{REGION}/lam?endpoint={stand.url}&poll=0"
        app = App(url, store=SqsStore(url, clock_ms=stand.clock, triage=cells), encrypt=keys)

        @app.task(name="push", queue="q")
        def push(card: str) -> None:
            ran.append(card)

        return app, app.lambda_handler(metrics=False)

    ran: list[str] = []
    lay(stand.server, "lam-q")
    (app, handler), (keyless, blind) = function(KEYS), function(None)
    app.tasks["push"].enqueue(SECRET)
    source = EventSource(client("sqs", stand.url), app.store.engine.sqs_queues.of("q").url)  # type: ignore[attr-defined]
    assert len(source.deliver(blind, seconds=30)) == 1 and ran == []
    stand.passes(120)
    assert source.deliver(handler, seconds=30) == [] and ran == [SECRET]
    for each in (handler, blind):
        each.close()
    for opened in (app, keyless):
        opened.store.close()


@pytest.mark.slow
def test_data_keys_come_from_kms_and_go_back_to_it(ministack: Ministack) -> None:
    kms = client("kms", ministack.url)
    kms.create_alias(AliasName="alias/redrive", TargetKeyId=kms.create_key()["KeyMetadata"]["KeyId"])
    writes, reads = (Box(KmsKeys("alias/redrive", client=kms)) for _ in range(2))
    place = "body", "json", "an id", "a task"
    sealed = writes.seal(SECRET.encode(), *place)
    assert reads.open(sealed, *place) == SECRET.encode() and SECRET.encode() not in sealed
