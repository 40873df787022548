"""The history of each engine: what a worker did, and many processes that write it at once."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.urls import url_of

from redrive import App, Backoff, Reject, Retry
from redrive.history import flusher
from redrive.history.chunk import MINUTE_MS
from redrive.history.tally import ENQUEUED
from redrive.history.writer import HistoryWriter
from redrive.program.main import run
from redrive.stores import open_store


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def test_a_worker_tells_what_became_of_its_messages(url: str) -> None:
    app = App(url)
    app.dependency("push", budget=None, breaker=None)

    @app.task(name="push", queue="crm", retry=Retry(max_attempts=2, backoff=Backoff.fixed("20ms")))
    async def push(n: int) -> None:
        if n < 3:
            raise Reject("no")
        if n < 10:
            raise ConnectionError("no answer")

    app.enqueue_many([push.draft(n) for n in range(40)])
    app.run_worker(["crm"], drain=True)
    total = app.history("crm", "push", since="1h").total
    assert total.outcomes == {"done": 30, "retry": 7, "dead": 10}
    assert total.by_attempt == {"done": {"1": 30}, "retry": {"1": 7}, "dead": {"1": 3, "2": 7}}
    assert (total.enqueued, total.dead) == (40, {"exhausted": 7, "rejected": 3})
    assert total.faults == {"permanent": 3, "transient": 14}
    assert (total.run.count, total.wait.count, total.first_try.count, total.retry_delay.count) == (47, 47, 30, 7)
    assert total == app.history(since="1h").total == app.history(queue="crm", since="1h").total
    assert app.history(task="other", since="1h").total.outcomes == {}
    app.store.close()


def connect(url: str, path: Path) -> Any:
    """A connection of a program's own, to the database of the store at `url`."""
    return sqlite3.connect(path) if url.startswith("sqlite") else psycopg.connect(url.partition("?")[0])


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_enqueued_counts_commits_and_not_what_a_rollback_took_back(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    app = App(url_of(engine, request, tmp_path))

    @app.task(name="push", queue="crm")
    def push(n: int) -> None: ...

    assert app.flusher is not None and app.store.now_ms()
    kept, taken_back, later = (connect(str(app.url), tmp_path / "work.db") for _ in range(3))
    push.using(tx=kept).enqueue(1)
    push.using(tx=kept, key="a").enqueue(2)
    push.using(tx=kept, key="a").enqueue(3)  # a duplicate of the same transaction
    kept.commit()
    push.using(tx=taken_back).enqueue(4)
    taken_back.rollback()
    app.flusher.flush()
    assert enqueued(app) == 2 and app.flusher.recorder.put_in_all() == {("crm", "push"): 2}
    app.run_worker(burst=True)  # what was committed runs and is gone: the count does not need the message
    app.enqueue_many([push.draft(5), push.draft(6)], tx=later)
    if engine == "postgres":  # on SQLite nobody else can write meanwhile
        app.flusher.flush()
        assert enqueued(app) == 2
    later.commit()
    app.flusher.flush()
    app.flusher.flush()
    assert enqueued(app) == 4 and app.counts("crm").ready == 2
    assert len(app.flusher._open) == 1, "only the transaction that was rolled back is asked for again"
    for connection in (kept, taken_back, later):
        connection.close()
    app.store.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_put_that_is_dropped_while_the_commits_are_read_stops_no_count(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond OPEN_MAX a put of another thread drops the oldest, at any moment of a turn."""
    monkeypatch.setattr(flusher, "OPEN_MAX", 1)
    app = App(url_of(engine, request, tmp_path))

    @app.task(name="push", queue="crm")
    def push(n: int) -> None: ...

    assert app.flusher is not None and app.store.now_ms()
    first, second = (connect(str(app.url), tmp_path / "work.db") for _ in range(2))
    push.using(tx=first).enqueue(1)
    first.commit()
    read = app.store.cells.read

    def read_beside_a_put(keys: Sequence[str]) -> Any:
        monkeypatch.undo()
        monkeypatch.setattr(flusher, "OPEN_MAX", 1)
        push.using(tx=second).enqueue(2)
        second.commit()
        return read(keys)

    monkeypatch.setattr(app.store.cells, "read", read_beside_a_put)
    app.flusher.flush()
    app.flusher.flush()
    assert enqueued(app) == 2 and not app.flusher._open
    for connection in (first, second):
        connection.close()
    app.store.close()


def enqueued(app: App) -> int:
    return app.history("crm", "push", since="1h").total.enqueued


def test_what_commands_schedules_and_files_of_lines_put_is_counted_as_enqueued(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App(url)

    @app.periodic("0 3 * * *", name="nightly")
    @app.task(name="push", queue="crm")
    def push(n: int = 0) -> None: ...

    app.store.now_ms()
    monkeypatch.chdir(tmp_path)
    assert run(["enqueue", "push", '{"n": 1}', "-q", "crm", "--url", url]) == 0
    Path("lines.jsonl").write_text(json.dumps({"n": 2}) + "\n" + json.dumps({"n": 3}) + "\n")
    assert run(["enqueue", "lines.jsonl", "--task", "push", "-q", "crm", "--url", url]) == 0
    app.schedules["nightly"].run(reason="a test")
    assert app.flusher is not None
    app.flusher.flush()
    capsys.readouterr()
    assert enqueued(app) == 4
    app.store.close()


@pytest.mark.slow
def test_many_processes_that_write_at_once_lose_nothing_and_spread_over_cells(url: str, soak: bool) -> None:
    processes, writes = (200, 3) if soak else (40, 2)
    with contextlib.ExitStack() as ending:
        stores = [ending.enter_context(contextlib.closing(open_store(url))) for _ in range(processes // 20)]
        writers = [HistoryWriter(stores[n % len(stores)]) for n in range(processes)]
        together = threading.Barrier(processes)

        def go(writer: HistoryWriter) -> None:
            for _ in range(writes):
                together.wait()  # worse than in life, where they write at random moments
                minute = stores[0].now_ms() // MINUTE_MS
                writer.write({("crm", "push"): {minute: {ENQUEUED: 1, "R3": 1, "R+": 5}}})
            while writer.pending:
                writer.write({})

        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(go, writers))
        at_once = sum(writer.retries for writer in writers) / processes / writes

        def at_random(writer: HistoryWriter) -> None:
            time.sleep(random.uniform(0, 10 if soak else 0.5))
            writer.write({("crm", "push"): {stores[0].now_ms() // MINUTE_MS: {ENQUEUED: 1, "R3": 1, "R+": 5}}})

        before = sum(writer.retries for writer in writers)
        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(at_random, writers))
        spread = (sum(writer.retries for writer in writers) - before) / processes
        print(
            f"\n{processes} processes: {at_once:.1f} lost swaps a write at once, {spread:.2f} at random in ten seconds"
        )
        total = App(store=stores[0]).history("crm", "push", since="1h").total
        assert total.enqueued == total.run.count == processes * (writes + 1)
        assert sum(writer.dropped for writer in writers) == 0
