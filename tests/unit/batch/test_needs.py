"""Which batches need a person in `app.status()`: partial ones that a redrive lets go on, and abandoned ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.sites import Browser

from redrive import App, Retry
from redrive.batch import BatchInfo, BatchPhase
from redrive.message import BatchCounts, Lane, Page
from redrive.present.batches import batch_record
from redrive.program.main import run as redrive
from redrive.status import Need, batches
from redrive.status.batches import IDLE_MS, NAMED_MAX, PEEKED, READ_MAX, batch_needs
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

PARTIAL, FILLING = BatchPhase.PARTIAL, BatchPhase.FILLING


class Counted(MemoryStore):
    """Counts the batches and the cells that are read, and the calls."""

    read = calls = 0

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        self.read, self.calls = self.read + len(ids), self.calls + 1
        return super().batch_counts(ids)

    def batch_ids(self, **named: Any) -> list[str]:
        self.calls += 1
        return super().batch_ids(**named)

    def changed_batches(self, **named: Any) -> list[str]:
        self.calls += 1
        return super().changed_batches(**named)


def app_on(store: MemoryStore | str) -> App:
    app = App(store) if isinstance(store, str) else App(store=store)

    @app.task(name="push", retry=Retry(max_attempts=1))
    def push(n: int) -> None:
        if n < 0:
            raise ValueError("no room")

    return app


def fill(app: App, numbers: Sequence[int], name: str = "sync", **options: Any) -> str:
    return app.batch((app.tasks["push"].draft(n) for n in numbers), name=name, **options).enqueue().id


def needs(app: App) -> list[Need]:
    return [need for need in app.status().needs if need.area == "batches"]


def info(state: BatchPhase, created_ms: int = 0, filled_ms: int = 0, **counts: int) -> BatchInfo:
    return BatchInfo(f"id-{created_ms}", "sync", state, BatchCounts(**counts), created_ms, 1, None, filled_ms)


def test_a_partial_batch_is_a_need_until_its_dead_members_are_redriven_or_given_up() -> None:
    app = app_on("memory://")
    id = fill(app, [1, 2, -1])
    fill(app, [1, -1], name="half", tolerate="50%")
    assert needs(app) == []  # they run
    app.run_worker(drain=True)
    [need] = needs(app)
    [group] = app.dlq.select(f"batch:{id}").groups()
    waits = f"it waits for failure group {group.fingerprint} (ValueError)"
    assert need.text == f"batch sync is partial: 1 of 3 members is dead; {waits}"
    assert (need.about, need.next, need.severity) == (f"batch/{id}", f"dlq list batch:{id}", "ticket")
    [dead] = (message.id for message in app.batch_ref(id).members("dead"))
    app.dlq.quarantine(ids=[dead], reason="it kills the parser")
    [need] = needs(app)
    assert need.text == "batch sync is partial: 1 of 3 members is in quarantine"
    assert need.next == f"dlq list batch:{id} lane:quarantine"
    app.dlq.discard(ids=[dead], reason="nobody needs it")
    assert app.batch_ref(id).state == "partial" and needs(app) == []  # nothing is left that could be done


def test_the_need_of_a_batch_names_the_failure_group_of_a_member_two_levels_below() -> None:
    app = app_on("memory://")
    inner = app.batch([app.tasks["push"].draft(-1)], name="inner")
    app.batch([app.batch([inner], name="middle")], name="outer").enqueue()
    app.run_worker(drain=True)
    [need], [group] = needs(app), app.dlq.groups()
    assert f"it waits for failure group {group.fingerprint}" in need.text


def test_a_cancelled_batch_and_one_whose_redrive_runs_are_no_needs() -> None:
    app = app_on("memory://")
    later = app.tasks["push"].using(delay="1h").draft(1)
    cancelled = app.batch([app.tasks["push"].draft(-1), later], name="sync").enqueue()
    redriven = fill(app, [-1], name="other")
    app.run_worker(burst=True)
    assert [need.about for need in needs(app)] == [f"batch/{redriven}"]
    assert cancelled.cancel(reason="they gave it up") == 1 and cancelled.state == "cancelled"
    assert [need.about for need in needs(app)] == [f"batch/{redriven}"]
    app.dlq.retry(ids=[message.id for message in app.batch_ref(redriven).members("dead")])
    assert needs(app) == []


def test_a_batch_that_is_not_sealed_is_a_need_an_hour_after_its_last_member() -> None:
    clock = ManualClock()
    app = app_on(MemoryStore(clock))
    batch = app.batch(name="crawl", key="monday")
    batch.__enter__()
    clock.advance("5h")  # its producer is slow, and works
    batch.add(*(app.tasks["push"].draft(n) for n in range(1000)))
    clock.advance("59m")
    assert needs(app) == []
    clock.advance("1m")
    [need] = needs(app)
    assert need.text == "batch crawl is not sealed after 1,000 members, and its producer adds no more"
    assert need.line(clock.now_ms()).endswith("; for 1h") and need.next == f"batch show {batch.ref.id}"
    fill(app, range(1000), name="crawl", key="monday")  # the next one goes on, and seals it
    assert needs(app) == []


def test_a_batch_that_is_not_sealed_is_no_need_once_it_is_cancelled() -> None:
    clock = ManualClock()
    app = app_on(MemoryStore(clock))
    batch = app.batch(name="crawl")
    batch.__enter__()
    batch.add(*(app.tasks["push"].draft(n) for n in range(1000)))
    app.run_worker(drain=True)
    clock.advance("1h")
    assert [need.about for need in needs(app)] == [f"batch/{batch.ref.id}"] and batch.ref.counts.open == 0
    assert batch.ref.cancel(reason="its producer is gone") == 0 and batch.ref.state == "cancelled"
    assert needs(app) == [] and batch.ref.cancel() == 0
    assert [entry.reason for entry in app.audit if entry.action == "cancel"] == ["its producer is gone"]


def test_many_partial_batches_have_one_need_for_those_beyond_the_first() -> None:
    some = [info(PARTIAL, created_ms=n, dead=2, quarantine=1, done=9_997) for n in range(NAMED_MAX + 5, 0, -1)]
    found = list(batch_needs([*some, info(PARTIAL, discarded=1), info(FILLING, filled_ms=1)], IDLE_MS))
    assert [need.about for need in found] == [f"batch/id-{n + 1}" for n in range(NAMED_MAX)] + [""]  # the oldest first
    assert found[0].text == "batch sync is partial: 2 of 10,000 members are dead, 1 in quarantine"
    assert (found[-1].text, found[-1].next) == ("5 more batches are partial", "batch list --state partial")
    assert list(batch_needs(some[:1] * NAMED_MAX, IDLE_MS))[-1].about


def test_what_is_read_does_not_grow_with_the_batches_and_those_with_needs_are_found_among_them() -> None:
    clock = ManualClock()
    store = Counted(clock)
    app = app_on(store)
    app.status()
    assert (store.read, store.calls) == (0, 1)  # one look where there are none
    for n in range(READ_MAX):
        fill(app, [], name=f"b{n}")
        fill(app, [n], name=f"b{n}", key=str(n))
    app.run_worker(drain=True)
    assert not app.status().unread_batches

    def last(name: str) -> str:
        """Return a key whose batch comes after those that are read first."""
        return max((f"k{n}" for n in range(2000)), key=lambda key: app.batch(name=name, key=key).ref.id)

    batch = app.batch(name="z", key=last("z"))
    batch.__enter__()
    batch.add(*(app.tasks["push"].draft(n) for n in range(1000)))
    app.run_worker(drain=True)
    clock.advance("1h")
    partial = fill(app, [-1], key=last("sync"))
    app.run_worker(drain=True)
    clock.advance("1m")
    app.run_worker(drain=True)
    assert partial not in [*store.changed_batches(), *store.batch_ids(limit=READ_MAX)]
    store.read = store.calls = 0
    status = app.status()
    assert not status.unread_batches and batch.ref.id not in store.batch_ids(limit=READ_MAX)
    assert READ_MAX < store.read <= 2 * READ_MAX and store.calls == 5
    about = {need.about for need in status.needs if need.area == "batches"}
    assert about == {f"batch/{batch.ref.id}", f"batch/{partial}"}


def test_a_need_names_its_runbook_and_links_to_it_where_that_is_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, page = f"sqlite:///{tmp_path / 'work.db'}", "https://docs.example.com/runbooks/batch-partial.html"
    app = app_on(url)
    fill(app, [-1])
    app.run_worker(drain=True)

    def runbook() -> str:
        redrive(["status", "-o", "json", "--url", url])
        shown = [need for need in json.loads(capsys.readouterr().out)["needs"] if need["area"] == "batches"]
        pages = Browser(app.dashboard())
        assert shown[0]["runbook"] == pages.json("/")["needs"][-1]["runbook"]
        assert (f'href="{page}"' in pages.get("/").text) is (shown[0]["runbook"] == page)
        return str(shown[0]["runbook"])

    assert runbook() == "batch-partial"
    monkeypatch.setenv("REDRIVE_RUNBOOK_URL", "https://docs.example.com/runbooks")
    assert runbook() == page
    redrive(["status", "-o", "table", "--url", url])
    assert page in capsys.readouterr().out
    app.store.close()


def test_the_command_names_partial_batches_and_says_that_there_are_more_than_it_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "READ_MAX", 3)
    url = f"sqlite:///{tmp_path / 'work.db'}"
    app = app_on(url)
    id = min(fill(app, [-1], key=str(n)) for n in range(3))
    fill(app, [1])
    app.run_worker(drain=True)
    app.store.close()
    assert redrive(["status", "-o", "table", "--url", url]) == 1
    text = capsys.readouterr().out
    assert "only some of the batches were looked at" in text
    redrive(["status", "-o", "json", "--url", url])
    record = json.loads(capsys.readouterr().out)
    assert record["unread_batches"] is True and "https://" not in text
    assert f"dlq list batch:{id}" in text and f"batch/{id}" in [need["about"] for need in record["needs"]]


class Peeking(MemoryStore):
    """Counts the messages that a status reads of batches."""

    peeked = 0

    def peek(self, lane: Any = Lane.DEAD, **named: Any) -> Page:
        page = super().peek(lane, **named)
        if named.get("where") is not None and named["where"].batch is not None:
            self.peeked += len(page.messages)
        return page


def test_a_batch_that_runs_longer_than_expected_is_a_need_and_names_what_it_waits_for() -> None:
    clock = ManualClock()
    app = app_on(store := Peeking(clock))

    @app.task(name="other", retry=Retry(max_attempts=1))
    def other() -> None:
        raise KeyError("no such shop")

    later = [app.tasks["push"].using(delay="9h").draft(n) for n in range(3)]
    with app.batch(name="sync", expect="1h") as batch:
        batch.add(*later, *(app.tasks["push"].draft(-n - 1) for n in range(150)), other.draft())
        clock.advance("2h")  # its producer is slow: the time counts from the seal
    easy = app.batch(later[:1], name="easy", expect="1h").enqueue()
    app.run_worker(burst=True)
    clock.advance("59m")
    assert needs(app) == [] and store.peeked == 0
    clock.advance("2m")
    one, two = needs(app)
    fingerprint = app.dlq.select("task:push").groups()[0].fingerprint
    assert one.text == (
        "batch sync runs longer than expected: 3 of 154 members are open, 151 dead; it waits for failure group "
        f"{fingerprint} (ValueError)"
    )
    assert (one.about, one.next) == (f"batch/{batch.ref.id}", f"batch show {batch.ref.id}")
    assert one.line(clock.now_ms()).endswith("; for 1m") and store.peeked == 2 * PEEKED
    assert two.text == "batch easy runs longer than expected: 1 of 1 members is open"
    app.dlq.discard(select="task:push", reason="no such record")
    text = needs(app)[0].text
    assert text.endswith(f"; it waits for failure group {app.dlq.groups()[0].fingerprint} (KeyError)")
    clock.advance("9h")
    app.run_worker(burst=True)
    partial = needs(app)
    assert [need.about for need in partial] == [f"batch/{batch.ref.id}"] and "is partial" in partial[0].text
    app.dlq.retry(select="task:other", delay="1h")
    assert needs(app) == [] and easy.state == "done"  # a redrive is as slow as a person wants it


def test_a_partial_batch_with_several_causes_says_so_and_one_that_was_stopped() -> None:
    app = app_on("memory://")

    @app.task(name="other", retry=Retry(max_attempts=1))
    def other() -> None:
        raise KeyError("no such shop")

    push = app.tasks["push"]
    drafts = [push.draft(-1), push.draft(-2), other.draft(), push.using(delay="1h").draft(1)]
    app.batch(drafts, name="sync", stop_if="dead>1").enqueue()
    app.run_worker(burst=True)
    app.run_worker(burst=True)
    [need] = needs(app)
    assert need.text.startswith("batch sync was stopped by its stop_if, and is partial: 3 of 4 members are dead; it ")
    assert need.text.endswith("(ValueError) and others")


def test_many_late_batches_have_one_need_for_those_beyond_the_first() -> None:
    some = [replace(info(BatchPhase.RUNNING, created_ms=n, open=1), expected_ms=5) for n in range(NAMED_MAX + 2)]
    assert list(batch_needs(some, 4)) == []
    found = list(batch_needs(some, 5))
    assert len(found) == NAMED_MAX + 1 and found[-1].next == "batch list --state running"
    assert found[-1].text == "2 more batches run longer than expected"


@pytest.mark.parametrize("wrong", ["soon", -1, True])
def test_an_expectation_that_is_no_time_is_refused(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="expect"):
        app_on("memory://").batch(name="sync", expect=wrong)


def test_a_rate_and_the_time_left_are_known_while_the_first_episode_runs() -> None:
    clock = ManualClock()
    app = app_on(MemoryStore(clock))
    push = app.tasks["push"]
    later = [push.using(delay="1h").draft(n) for n in (1, 2, -3)]
    with app.batch(name="sync") as batch:
        batch.add(*(push.draft(n) for n in range(1000)), *later)
        clock.advance("100s")
        app.run_worker(burst=True)
        filling = batch.ref.info()
        assert (filling.state, filling.per_s, filling.eta_s) == ("filling", 10.0, None)  # more members may come

    ref = batch.ref
    assert (ref.info().per_s, ref.info().eta_s) == (10.0, 0.3)
    clock.advance("100s")
    running = ref.info()
    assert (running.per_s, running.eta_s) == (5.0, 0.6)
    record = batch_record(running)
    assert (record["per_s"], record["eta_s"]) == (5.0, 0.6)
    clock.advance("1h")
    app.run_worker(burst=True)
    partial = ref.info()
    assert (partial.state, partial.per_s, partial.eta_s) == ("partial", None, None)
    app.dlq.retry(select=f"batch:{ref.id}", delay="1h")
    assert (ref.info().state, ref.info().per_s, ref.info().eta_s) == ("running", None, None)
    twice = app.batch([push.using(key="k").draft(1)] * 2, name="twice").enqueue()
    assert twice.info().per_s is None
    clock.advance("4s")
    app.run_worker(burst=True)
    clock.advance("1h")
    assert (twice.info().state, twice.info().per_s, twice.info().eta_s) == ("done", 0.25, None)


def test_the_page_and_the_command_tell_the_rate_and_the_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    app = app_on(url)
    push = app.tasks["push"]
    ref = app.batch([push.draft(1), push.using(delay="1h").draft(2)], name="sync").enqueue()
    assert "Rate" not in Browser(app.dashboard()).get(f"/batches/{ref.id}").text  # nothing ended
    app.run_worker(burst=True)
    redrive(["batch", "show", ref.id, "-o", "json", "--url", url])
    record = json.loads(capsys.readouterr().out)
    assert record["per_s"] > 0 and record["eta_s"] is not None
    text = Browser(app.dashboard()).get(f"/batches/{ref.id}").text
    assert "<dt>Rate</dt>" in text and "at this rate the rest takes" in text
    app.store.close()
