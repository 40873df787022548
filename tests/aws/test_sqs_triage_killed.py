"""Whoever takes dead letters out of SQS, or drives them back, may be killed -9 at any moment: nothing is lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.aws.places import REGION, client

from redrive.aws.dead_letters.ingest import HIDDEN_S
from redrive.message import Lane
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing.clock import ManualClock
from redrive.testing.sqs import SqsServer

MESSAGES = 1500
KILLS = 5
INGEST = """
from redrive.aws import ingest
ingest.EMPTY_S = 0
from redrive.aws.dead_letters.sources import ingest_of, sources
from redrive.stores.sqs.store import SqsStore
import sys
store = SqsStore(sys.argv[1])
print("ready", flush=True)
for source in sources(store, ["crm"]):
    ingest_of(store).drain(source)
"""
PUMP = """
from redrive.stores import _sqs_outbox
_sqs_outbox.LEASE_MS, _sqs_outbox.BATCH = 1000, 50
from redrive.message import Lane, Redrive
from redrive.stores.sqs.store import SqsStore
import sys, time
store = SqsStore(sys.argv[1])
print("ready", flush=True)
while (dead := store.peek(Lane.DEAD, limit=50).messages):
    store.triage([message.handle for message in dead], Redrive())
while store.triage_store.counts().ready + store.triage_store.counts().leased:
    store.outbox.pump(1000)
    time.sleep(0.05)
"""


def until_it_ends(code: str, url: str, rng: random.Random, after_kill: Callable[[], object]) -> int:
    """Run it, killed a few times at moments that the seed chooses; how many kills hit it alive."""
    kills = 0
    while True:
        with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it begins
            try:
                assert process.wait(None if kills >= KILLS else rng.uniform(0.0, 0.6)) == 0
                return kills
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
        after_kill()


@pytest.mark.fault("kill -9 of who drains dead letters into the triage store, or sends them back", store="sqs")
@pytest.mark.soak
def test_nothing_is_lost_where_the_ingest_and_the_way_back_are_killed(
    tmp_path: Path, seed: int, record_property: pytest.RecordProperty
) -> None:
    rng, clock = random.Random(seed), ManualClock(time.time_ns() // 1_000_000)
    with SqsServer(clock) as server:
        url = f"sqs://{REGION}/shop?create=true&endpoint={server.url}&triage=sqlite:///{tmp_path / 'dead.db'}"
        boto = client("sqs", server.url)
        for name in ("shop-crm", "shop-crm-dlq", "shop-crm-poison"):
            boto.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "43200"})
        dead, queue = server.account.queues["shop-crm-dlq"], server.account.queues["shop-crm"]
        for n in range(0, MESSAGES, 10):
            entries = [{"Id": str(k), "MessageBody": json.dumps({"n": n + k})} for k in range(10)]
            boto.send_message_batch(QueueUrl=dead.url, Entries=entries)

        hits = until_it_ends(INGEST, url, rng, lambda: clock.advance(HIDDEN_S + 1))
        clock.advance(HIDDEN_S + 1)
        hits += until_it_ends(INGEST, url, rng, lambda: None)
        assert not dead.messages
        triage = SqliteStore(tmp_path / "dead.db")
        assert triage.counts().dead == MESSAGES

        kills = until_it_ends(PUMP, url, rng, lambda: None)
        arrived = Counter(json.loads(message.body)["n"] for message in queue.messages.values())
        assert arrived.keys() == {*range(MESSAGES)}
        assert sum(arrived.values()) - MESSAGES <= 50 * kills  # no more than was under way at a kill
        assert not triage.peek(Lane.DEAD).messages
        assert triage.counts().ready == triage.counts().leased == 0
        triage.close()
        record_property("kills", hits + kills)
