"""A store that is away for all workers takes no message from the one that runs it: neither by a claim of another worker
once it is back, nor, where no other worker can have claimed it, by the worker's own caution."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.away import make_app
from tests.support.servers import PostgresServer, RedisServer, Server

PATIENCE_S = 60.0
PROGRAM = Path(__file__).parents[1] / "support" / "away.py"
AWAY_S = 3.0  # longer than the lease of two seconds

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]


class Away:
    """A store, and the way to take it from everybody for a while."""

    def __init__(self, url: str, server: Server | None, file: Path) -> None:
        self.url, self._server, self._file = url, server, file

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        if self._server is not None:
            self._server.pause()
            try:
                yield
            finally:
                self._server.resume()
            return
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None, timeout=30)) as stranger:
            stranger.execute("begin exclusive")
            yield


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))
    if request.param == "sqlite":
        yield Away(f"sqlite:///{tmp_path / 'work.db'}", None, tmp_path / "work.db")
        return
    with PostgresServer() if request.param == "postgres" else RedisServer() as server:
        yield Away(server.url, server, tmp_path)


@pytest.mark.parametrize("task", ["thread", "coroutine"])
def test_who_held_a_message_when_the_store_went_away_settles_it(store: Away, task: str, tmp_path: Path) -> None:
    """Handlers end while the store is away, and their leases too; the other workers have room for all messages."""
    on_a_server = not store.url.startswith("sqlite")
    # On a server a coroutine is ended before its lease is: the server may be away for this worker alone.
    run_s = 1.0 if task == "coroutine" and on_a_server else AWAY_S - 0.5
    app, journal = make_app(store.url), tmp_path / "journal"
    argv = [sys.executable, str(PROGRAM), store.url, str(journal), str(run_s)]
    with contextlib.ExitStack() as ending:
        workers = [ending.enter_context(subprocess.Popen(argv, stderr=subprocess.DEVNULL)) for _ in range(4)]
        for worker in workers:
            ending.callback(worker.kill)
        _until(lambda: _count(journal)["ready"] == 4)
        ids = [ref.id for ref in app.enqueue_many([app.tasks[task].draft() for _ in range(20)])]
        _until(lambda: _count(journal)["start"] >= 20)
        with store.away():
            time.sleep(AWAY_S)
        _until(lambda: _count(journal)["end"] >= 20 and not app.counts().leased)
        for worker in workers:
            worker.terminate()
        assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0, 0, 0]
    assert Counter(journal.read_text().splitlines()) == Counter(
        ["ready"] * 4 + [f"{what} {id}" for what in ("start", "end") for id in ids]
    )
    app.store.close()


def _count(journal: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in journal.read_text().splitlines()) if journal.exists() else Counter()


def _until(condition: object) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.02)
