"""Redis runs no more commands for a claim, a settlement or a page among 200,000 messages than among 2,000, and none of
them names more members or asks for more."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Any

import pytest
from tests.support.plans import filling
from tests.support.plans.filling import DAY_MS, FINGERPRINTS, HOUR_MS, LATER, LINES, MAIN, SMALL
from tests.support.servers import RedisServer

from redrive.fault import Fault, Kind
from redrive.message import (
    SKIP_LOOKED,
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Filter,
    Keep,
    Lane,
    RetryAt,
    Settlement,
    Swap,
)
from redrive.stores.redis.store import RedisStore

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("plans-redis"), pytest.mark.timeout(900)]

FEW = 2_000
LIMIT = 10
BATCH = 2_000
LEASE_MS = 3_600_000  # none ends while the tests run, however busy the machine
FAULT = Fault(Kind.PERMANENT, "Error", "it cannot be done", "print0")
WHOLE = {"SMEMBERS", "HGETALL", "HKEYS", "HVALS", "ZUNIONSTORE", "KEYS"}  # their work grows with what they look at

END = "that was all"


def fill(store: RedisStore, rows: int) -> None:
    """Of each hundred: 60 delayed in `main`, 10 in `later`, 6 due in `main`, 2 leased, 5 dead, 3 done, 10 parked in
    `lines`, 3 that wait there, and 1 in `small`."""

    def put(share: int, **draft: Any) -> None:
        for first in range(0, rows * share // 100, BATCH):
            some = range(first, min(first + BATCH, rows * share // 100))
            store.put([Draft(task=f"task{n % 5}", body=b"{}", **draft_of(draft, n)) for n in some])

    put(8, queue=MAIN)
    for n in range(rows // 1000):
        ends: list[tuple[Decision, Fault | None]] = [(Ack(keep_ms=DAY_MS), None)] * 30
        fault = Fault(Kind.PERMANENT, "Error", "it cannot be done", f"print{n % FINGERPRINTS}")
        ends += [(DeadLetter("permanent"), fault)] * 50
        held = store.exchange([], [ClaimRequest(MAIN, 80, LEASE_MS, worker="w")]).deliveries
        store.exchange([Settlement(d.receipt, e, f) for d, (e, f) in zip(held, ends, strict=True)], [])
    put(8, queue=MAIN)
    for _ in range(rows // 1000):
        store.exchange([], [ClaimRequest(MAIN, 20, 100 * LEASE_MS, worker="somebody")])
    put(60, queue=MAIN, delay_ms=HOUR_MS)
    put(10, queue=LATER, delay_ms=HOUR_MS)
    put(10, queue=LINES, group="group")
    put(3, queue=LINES, group="group", delay_ms=HOUR_MS)
    put(1, queue=SMALL)


def draft_of(draft: dict[str, Any], n: int) -> dict[str, Any]:
    """A hundred of each group stand in line, and delays differ."""
    more: dict[str, Any] = {}
    if "group" in draft:
        more["group"] = f"group{n // 100}"
    if "delay_ms" in draft:
        more["delay_ms"] = HOUR_MS + n % 997 * 1000
    return draft | more


class Watched:
    """A store, and what its scripts ran."""

    def __init__(self, server: RedisServer, namespace: str, rows: int) -> None:
        self.rows = rows
        self.store = RedisStore(f"{server.url}?namespace={namespace}")
        fill(self.store, rows)
        self._server = server

    def ran(self, do: Callable[[], object]) -> list[tuple[str, int]]:
        """The commands, each with how many words it had and members it asked for; without those of the sweep of each
        minute, which a busy machine would come to in it."""
        found = []
        self.store._swept_ms = self.store.now_ms()
        for line in self._told(do):
            if b" lua] " in line:
                words = line.decode().rstrip()[:-1].partition('] "')[2].split('" "')
                found.append((words[0].upper(), len(words) + self._asked(words)))
        return found

    def _told(self, do: Callable[[], object]) -> list[bytes]:
        """What the server runs meanwhile. Nobody listens but here: else it would tell of all that fills the stores."""
        with (
            socket.create_connection(("127.0.0.1", self._server.port), timeout=60) as sock,
            sock.makefile("rb") as told,
        ):
            sock.sendall(b"MONITOR\r\n")
            assert told.readline() == b"+OK\r\n"
            do()
            self._server.command("ECHO", END)
            return list(takewhile(lambda line: END.encode() not in line, told))

    def _asked(self, words: list[str]) -> int:
        """How many members it may find."""
        name = words[0].upper()
        assert name not in WHOLE or words[1].endswith((":qs", ":set")), words  # names of queues, and their settings
        if name in ("ZRANGEBYSCORE", "ZREVRANGEBYSCORE"):
            assert words[-3].upper() == "LIMIT", words
            return int(words[-1])
        if name in ("ZRANGE", "ZREVRANGE"):
            first, last = int(words[2]), int(words[3])
            assert (first < 0) == (last < 0), words
            return last - first + 1
        count = re.fullmatch("[0-9]+", words[-1]) if name in ("SPOP", "ZPOPMIN", "SSCAN", "ZSCAN") else None
        return int(count[0]) if count else 0

    def close(self) -> None:
        self.store.close()


@pytest.fixture(scope="module")
def watched() -> Iterator[tuple[Watched, Watched]]:
    """One store with few messages, one with many."""
    with RedisServer() as server:
        few, many = Watched(server, "few", FEW), Watched(server, "many", filling.rows())
        yield few, many
        few.close()
        many.close()


Ran = list[tuple[str, int]]


def claimed(watched: Watched, queue: str, limit: int = LIMIT) -> list[Delivery]:
    deliveries = watched.store.exchange([], [ClaimRequest(queue, limit, LEASE_MS, worker="w")]).deliveries
    assert len(deliveries) == limit
    return deliveries


def claims(watched: Watched) -> Ran:
    return watched.ran(lambda: claimed(watched, MAIN))


def claims_that_skip(watched: Watched) -> Ran:
    """Among what is due: five hundred are looked at together."""
    ask = ClaimRequest(MAIN, LIMIT, LEASE_MS, frozenset({"task0", "task1"}))
    return watched.ran(lambda: watched.store.exchange([], [ask]))


def claims_where_nothing_is_due(watched: Watched) -> Ran:
    return watched.ran(lambda: watched.store.exchange([], [ClaimRequest(LATER, LIMIT, LEASE_MS)]))


def waits(watched: Watched) -> Ran:
    return watched.ran(lambda: watched.store._call("look", ([(LATER, None), (SMALL, None)],)))


def acks(watched: Watched) -> Ran:
    settlements = [Settlement(d.receipt, Ack()) for d in claimed(watched, MAIN)]
    return watched.ran(lambda: watched.store.exchange(settlements, []))


def settlements(watched: Watched) -> Ran:
    """Of every kind, three of each."""
    left = iter(claimed(watched, MAIN, 12))
    decisions: list[Decision] = [
        Ack(),
        Ack(keep_ms=DAY_MS),
        RetryAt(watched.store.now_ms() + HOUR_MS),
        DeadLetter("permanent"),
    ]
    follow = (Draft(task="t", queue="other", key="k"),)
    settlements = [
        Settlement(d.receipt, one, fault=None if isinstance(one, Ack) else FAULT, follow_ups=follow)
        for one in decisions
        for d in islice(left, 3)
    ]
    return watched.ran(lambda: watched.store.exchange(settlements, []))


def extensions(watched: Watched) -> Ran:
    held = [d.receipt for d in claimed(watched, MAIN)]
    return watched.ran(lambda: (watched.store.extend(held, lease_ms=LEASE_MS), watched.store.checkpoint(held[0], b"1")))


def cancels(watched: Watched) -> Ran:
    ids = [d.message.id for d in claimed(watched, MAIN)]
    return watched.ran(lambda: (watched.store.find(ids), watched.store.cancel(ids)))


def puts(watched: Watched) -> Ran:
    drafts = [Draft(task="t", queue="other", key=f"key{n}") for n in range(LIMIT)]
    return watched.ran(lambda: watched.store.put(drafts))


def puts_to_groups(watched: Watched) -> Ran:
    drafts = [Draft(task="t", queue=LINES, group=f"group{n % 2}") for n in range(LIMIT)]
    return watched.ran(lambda: watched.store.put(drafts))


def exchanges_of_groups(watched: Watched) -> Ran:
    (held,) = claimed(watched, LINES, 1)
    retry = Settlement(held.receipt, RetryAt(watched.store.now_ms() + HOUR_MS), fault=FAULT)
    return watched.ran(lambda: watched.store.exchange([retry], [ClaimRequest(LINES, 1, LEASE_MS)]))


def retention_of_nothing(watched: Watched) -> Ran:
    keep = Keep(count=10**9, age_ms=300 * DAY_MS)
    return watched.ran(lambda: watched.store.retain(MAIN, done=keep, dead=keep))


def counts(watched: Watched) -> Ran:
    return watched.ran(lambda: (watched.store.counts(MAIN), watched.store.paused()))


OPERATIONS = [claims, claims_where_nothing_is_due, waits, acks, settlements, extensions, cancels, puts, puts_to_groups]
OPERATIONS += [exchanges_of_groups, retention_of_nothing, counts]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda do: do.__name__)
def test_more_messages_take_no_more_commands_and_name_no_more_members(
    operation: Callable[[Watched], Ran], watched: tuple[Watched, Watched]
) -> None:
    few, many = (operation(one) for one in watched)
    assert few and len(many) <= 1.1 * len(few) + 2, (
        Counter(name for name, _ in few),
        Counter(name for name, _ in many),
    )
    assert sum(n for _, n in many) <= 1.1 * sum(n for _, n in few) + 20, (few, many)


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_a_claim_runs_a_few_commands_for_all_that_it_gives(limit: int, watched: tuple[Watched, Watched]) -> None:
    ran = watched[1].ran(lambda: claimed(watched[1], MAIN, limit))
    assert len(ran) <= 20, ran
    assert sum(n for _, n in ran) <= 250 + 12 * limit, ran


@pytest.mark.parametrize("skip", [(), ("other",)], ids=["", "skipping"])
def test_retries_are_found_behind_a_backlog_by_a_few_commands(
    skip: tuple[str, ...], watched: tuple[Watched, Watched]
) -> None:
    queue, store = f"retries{len(skip)}", watched[1].store
    store.put([Draft(task="t", queue=queue) for _ in range(200)])
    held = store.exchange([], [ClaimRequest(queue, 200, LEASE_MS)]).deliveries
    now_ms = int(time.time() * 1000)
    old = now_ms - HOUR_MS
    store.exchange([Settlement(d.receipt, RetryAt(now_ms - 5000), FAULT) for d in held], [])
    for _ in range(filling.rows() // 20 // BATCH):
        store.put([Draft(task="t", queue=queue, due_ms=old) for _ in range(BATCH)])
    for due in (1, 2):  # the second time some are gone already
        found: list[Delivery] = []
        ask = ClaimRequest(queue, LIMIT, LEASE_MS, frozenset(skip), retries=3)
        ran = watched[1].ran(lambda found=found, ask=ask: found.extend(store.exchange([], [ask]).deliveries))
        assert [d.message.attempt for d in found] == [2] * 3 + [1] * (LIMIT - 3), due
        assert len(ran) <= 40 and sum(n for _, n in ran) <= (2600 if skip else 1500), ran


def test_a_claim_that_skips_tasks_looks_at_a_hundred_at_once(watched: tuple[Watched, Watched]) -> None:
    ran = claims_that_skip(watched[1])
    assert len(ran) <= 30 and sum(n for _, n in ran) <= 1300, ran


def test_however_much_is_skipped_a_claim_and_a_wait_look_at_the_first_thousand(
    watched: tuple[Watched, Watched],
) -> None:
    """Due or delayed; and they say where they were cut off."""
    many = watched[1]
    for queue, delay_ms in (("skipped", 0), ("skipped later", HOUR_MS)):
        drafts = [Draft(task="gone", queue=queue, body=b"{}", delay_ms=delay_ms)] * BATCH
        for _ in range(0, many.rows // 10, BATCH):  # at the least twenty times what may be looked at
            many.store.put(drafts)
        ask = ClaimRequest(queue, LIMIT, LEASE_MS, frozenset({"gone"}))
        ran = many.ran(lambda: many.store.exchange([], [ask]))  # noqa: B023
        clogged = many.store.exchange([], [ask]).clogged
        assert clogged == (frozenset({queue}) if delay_ms == 0 else frozenset()), clogged
        assert len(ran) <= 20 + SKIP_LOOKED // 30 and sum(n for _, n in ran) <= 6 * SKIP_LOOKED, ran
        ran = many.ran(lambda: many.store._call("look", ([(queue, {"gone": 1})],)))  # noqa: B023
        assert len(ran) <= 20 + SKIP_LOOKED // 30 and sum(n for _, n in ran) <= 6 * SKIP_LOOKED, ran


def test_a_swap_in_each_settlement_takes_no_more_commands_than_one(watched: tuple[Watched, Watched]) -> None:
    store, ran = watched[1].store, []
    for many in (1, LIMIT):
        settlements = [
            Settlement(d.receipt, Ack(), swaps=(Swap(d.message.id, 0, b"1", ttl_ms=1000),))
            for d in claimed(watched[1], MAIN, many)
        ]
        ran.append(watched[1].ran(lambda: store.exchange(settlements, [])))  # noqa: B023
    assert len(ran[1]) <= len(ran[0]), ran


@pytest.mark.parametrize("where", [Filter(), Filter(queue=MAIN), Filter(reason="permanent")], ids=str)
def test_a_page_of_dead_letters_reads_five_hundred(where: Filter, watched: tuple[Watched, Watched]) -> None:
    ran = watched[1].ran(lambda: watched[1].store.peek(Lane.DEAD, where=where, limit=LIMIT))
    assert [n for name, n in ran if name == "HMGET"] and sum(n for _, n in ran) <= 16 * 500, ran


def test_a_page_of_a_fingerprint_reads_the_dead_once_at_most(watched: tuple[Watched, Watched]) -> None:
    where, dead = Filter(fingerprint="none"), watched[1].store.counts().dead
    ran = watched[1].ran(lambda: watched[1].store.peek(Lane.DEAD, where=where, limit=LIMIT))
    assert sum(n for _, n in ran) <= 16 * dead, ran


def test_failure_groups_are_read_off_their_index(watched: tuple[Watched, Watched]) -> None:
    groups = watched[1].store.failure_groups()
    ran = watched[1].ran(watched[1].store.failure_groups)
    assert sum(group.count for group in groups) >= watched[1].rows // 20
    assert sum(n for _, n in ran) <= 600 + 40 * len(groups), ran


def test_a_release_reads_the_leased_only(watched: tuple[Watched, Watched]) -> None:
    leased = watched[1].store.counts().leased
    ran = watched[1].ran(lambda: watched[1].store.reclaim("nobody", []))
    scans = [n for name, n in ran if name == "ZSCAN"]
    assert len(scans) <= 4 * 8 + leased // 500, ran


def test_retention_and_sweeps_take_a_thousand_at_once(watched: tuple[Watched, Watched]) -> None:
    store = watched[1].store
    ran = watched[1].ran(lambda: store.retain(MAIN, done=Keep(count=5)))
    assert sum(n for _, n in ran) <= 30 * 1000, ran
