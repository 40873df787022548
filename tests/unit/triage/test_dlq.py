"""The dead lane by hand: what is listed, what a retry moves, and what it leaves."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer

from redrive.audit.actor import user
from redrive.errors import ConfigError
from redrive.fault import Fault, Kind
from redrive.message import (
    ClaimRequest,
    DeadLetter,
    Draft,
    Filter,
    Handle,
    Lane,
    Message,
    Quarantine,
    Settlement,
    Swap,
    Verdict,
)
from redrive.stores import open_store
from redrive.stores.memory.store import MemoryStore
from redrive.triage.dlq import PAGE, DeadLetters, Retried


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(Clock())
    yield store
    store.close()


def kill(store: MemoryStore, count: int = 1, *, queue: str = "default", reason: str = "exhausted") -> list[str]:
    """Put that many messages and let them die."""
    ids = [put.id for put in store.put([Draft(task="t", queue=queue) for _ in range(count)])]
    rest(store, queue, count, DeadLetter(reason))
    return ids


def rest(store: MemoryStore, queue: str, count: int, decision: DeadLetter | Quarantine) -> None:
    deliveries = store.exchange([], [ClaimRequest(queue, count, 1000)]).deliveries
    assert len(deliveries) == count
    fault = Fault(Kind.DEFAULT, "ValueError", "bad", f"f-{queue}")
    store.exchange([Settlement(d.receipt, decision, fault) for d in deliveries], [])


def message(store: MemoryStore, id: str) -> Message:
    found = store.find([id])[0]
    assert found is not None
    return found


def test_iterating_yields_every_dead_message_over_all_pages_the_longest_dead_first(store: MemoryStore) -> None:
    ids = kill(store, PAGE + 7)
    assert [m.id for m in DeadLetters(store)] == ids


@pytest.mark.parametrize("engine", ["memory", "sqlite", "redis", "postgres"])
def test_a_lane_may_be_named_by_its_text_on_every_engine(
    engine: str, tmp_path: Path, redis_server: RedisServer, postgres_server: PostgresServer
) -> None:
    """Whatever the text is: what is no lane never reaches the engine."""
    place = f"lane_{os.getpid()}"
    url = {
        "memory": "memory://",
        "sqlite": f"sqlite:///{tmp_path / 'work.db'}",
        "redis": f"{redis_server.url}?namespace={place}",
        "postgres": f"{postgres_server.url}?schema={place}",
    }[engine]
    store = open_store(url)
    store.put([Draft(task="t") for _ in range(2)])
    ends: Sequence[DeadLetter | Quarantine] = DeadLetter("exhausted"), Quarantine()
    deliveries = store.exchange([], [ClaimRequest("default", 2, 1000)]).deliveries
    store.exchange([Settlement(d.receipt, end) for d, end in zip(deliveries, ends, strict=True)], [])
    letters, (dead, poison) = DeadLetters(store), [d.message.id for d in deliveries]
    assert [m.id for m in letters.all(lane="quarantine")] == [poison]
    assert [m.id for m in letters.list(lane="dead").messages] == [dead]
    for word in ("ready", "ded", "' or true --"):
        with pytest.raises(ConfigError, match="expected 'dead' or 'quarantine'"):
            letters.list(lane=word)
    store.close()


def test_list_gives_a_page_and_its_cursor_leads_on(store: MemoryStore) -> None:
    ids = kill(store, 3)
    letters = DeadLetters(store)
    first = letters.list(limit=2)
    assert [m.id for m in first.messages] == ids[:2]
    assert [m.id for m in letters.list(limit=2, cursor=first.cursor).messages] == ids[2:]


def test_list_refuses_a_lane_where_nothing_rests(store: MemoryStore) -> None:
    with pytest.raises(ConfigError, match="expected 'dead' or 'quarantine'"):
        DeadLetters(store).list(lane=Lane.READY)


def test_show_gives_resting_messages_only(store: MemoryStore) -> None:
    dead = kill(store)[0]
    waiting = store.put([Draft(task="t")])[0].id
    letters = DeadLetters(store)
    shown = letters.show(dead)
    assert shown is not None and shown.id == dead
    assert letters.show(waiting) is None and letters.show("unknown") is None


def test_groups_are_by_fingerprint_the_largest_first(store: MemoryStore) -> None:
    kill(store, 1, queue="a")
    kill(store, 2, queue="b")
    assert [(g.fingerprint, g.count) for g in DeadLetters(store).groups()] == [("f-b", 2), ("f-a", 1)]


def test_retry_by_id_moves_those_at_rest_and_names_the_others(store: MemoryStore) -> None:
    one, other = kill(store, 2)
    waiting = store.put([Draft(task="t")])[0].id
    result = DeadLetters(store).retry([one, waiting, "unknown", one])
    assert result == Retried((one,), (waiting,), ("unknown",)) and len(result) == 1
    moved = message(store, one)
    assert (moved.lane, moved.attempt, moved.redrives, len(moved.faults)) == (Lane.READY, 0, 1, 1)
    assert message(store, other).lane is Lane.DEAD


def test_retry_all_moves_every_dead_message_in_batches_and_leaves_quarantine(store: MemoryStore) -> None:
    ids = kill(store, PAGE + 7)
    poison = store.put([Draft(task="t", queue="poison")])[0].id
    rest(store, "poison", 1, Quarantine("killed its worker"))
    assert DeadLetters(store).retry(all=True) == Retried(tuple(ids))
    assert message(store, poison).lane is Lane.QUARANTINE
    assert len(DeadLetters(store).retry([poison])) == 1


def test_retry_all_moves_only_what_the_filter_matches(store: MemoryStore) -> None:
    kill(store, 2, queue="a")
    chosen = kill(store, 2, queue="b")
    assert DeadLetters(store).retry(all=True, where=Filter(queue="b")).ids == tuple(chosen)
    assert store.counts("a").dead == 2


def test_retry_sets_queue_delay_and_attempts_of_the_new_life(store: MemoryStore) -> None:
    id = kill(store)[0]
    DeadLetters(store).retry([id], to_queue="slow", delay="5m", attempts=3)
    moved = message(store, id)
    assert (moved.queue, moved.attempts_allowed) == ("slow", 3)
    assert moved.due_ms is not None and moved.due_ms >= store.now_ms() + 299_000


class DiesAgain(MemoryStore):
    """A store beside which a worker is so quick that what is retried is dead again at once."""

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        moved = super().triage(handles, verdict, swaps=swaps)
        rest_again = self.exchange([], [ClaimRequest("default", 10_000, 1000)]).deliveries
        self.exchange([Settlement(d.receipt, DeadLetter("exhausted")) for d in rest_again], [])
        return moved


def test_retry_all_moves_what_dies_again_meanwhile_only_once() -> None:
    store = DiesAgain(Clock())
    ids = kill(store, 2 * PAGE)
    assert DeadLetters(store).retry(all=True).ids == tuple(ids)
    assert {m.redrives for m in DeadLetters(store)} == {1}
    store.close()


@pytest.mark.parametrize("ids, every", [(None, False), (["x"], True), ("x", False)])
def test_retry_takes_ids_or_all_and_not_both(store: MemoryStore, ids: list[str] | None, every: bool) -> None:
    with pytest.raises(ConfigError, match="give one of them: a sequence of ids, all=True"):
        DeadLetters(store).retry(ids, all=every)


def test_retry_refuses_a_life_without_attempts(store: MemoryStore) -> None:
    with pytest.raises(ConfigError, match="attempts=0"):
        DeadLetters(store).retry(all=True, attempts=0)


def test_a_retry_stands_in_the_audit_log_with_each_batch(store: MemoryStore) -> None:
    ids, dlq = kill(store, 3), DeadLetters(store)
    dlq.retry(ids[:1], reason="mended", actor="ann")
    dlq.retry(all=True, where=Filter(reason="exhausted"))
    assert [
        (entry.action, entry.claimed or entry.actor, entry.reason, entry.about, entry.count) for entry in dlq.audit()
    ] == [
        ("retry", user(), "", "reason:exhausted", 2),
        ("retry", "ann", "mended", "", 1),
    ]


def test_a_retry_that_moves_nothing_leaves_no_entry(store: MemoryStore) -> None:
    ids, dlq = kill(store), DeadLetters(store)
    dlq.retry(ids)
    assert dlq.retry(ids).changed == tuple(ids) and dlq.retry(all=True).ids == ()
    assert len(list(dlq.audit())) == 1


def test_what_a_standing_rule_holds_goes_back_only_by_its_id(store: MemoryStore) -> None:
    held, free = kill(store, 2), kill(store, reason="elapsed")
    dlq = DeadLetters(store)
    fingerprint = message(store, held[0]).faults[-1].fingerprint
    assert message(store, free[0]).faults[-1].fingerprint == fingerprint
    dlq.rule(fingerprint, "hold", reason="not now")
    done = dlq.retry(all=True)
    assert (done.ids, done.held) == ((), 3) and dlq.retry(select="reason:elapsed").held == 1
    assert dlq.retry(free).ids == tuple(free)
    dlq.rule(fingerprint, None, reason="now")
    assert len(dlq.retry(select="")) == 2
