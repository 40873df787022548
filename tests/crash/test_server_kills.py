"""kill -9 of the server under load: what was acknowledged is there when it is back, and all go on by themselves."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.crash.loads import Load, pause
from tests.support.servers import PostgresServer, RedisServer, Server, memory_disk

RECOVERY_S = 10.0  # from the server's return until every worker settles something again; asserted in soaks
# In memory, where a sync takes no time: with `everysec` Redis holds writes back while a sync takes long, and those are
# lost with it.
SERVERS = {
    "postgres": lambda: PostgresServer(folder=memory_disk()),
    "redis-everysec": lambda: RedisServer(appendonly=True, appendfsync="everysec", folder=memory_disk()),
    "redis-always": lambda: RedisServer(appendonly=True, appendfsync="always", folder=memory_disk()),
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this test's own, which it may kill."""
    with SERVERS[request.param]() as server:
        yield server


@pytest.fixture
def place(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))
    option = "schema" if isinstance(server, PostgresServer) else "namespace"
    (tmp_path / "url").write_text(f"{server.url}?{option}=crash_{secrets.token_hex(6)}")
    return tmp_path


@pytest.mark.turns(3)
@pytest.mark.slow
@pytest.mark.fault("kill -9 of the server under load, and its restart")
def test_server_killed_under_load_loses_nothing_and_workers_go_on(
    server: Server, place: Path, seed: int, record_property: pytest.RecordProperty
) -> None:
    _kill_under_load(server, place, seed, kills=2, record_property=record_property)


@pytest.mark.soak
@pytest.mark.fault("kill -9 of the server under load, and its restart")
def test_server_killed_again_and_again_loses_nothing_and_workers_go_on_within_ten_seconds(
    server: Server, place: Path, seed: int, record_property: pytest.RecordProperty
) -> None:
    slowest_s = _kill_under_load(server, place, seed, kills=20, record_property=record_property)
    assert slowest_s <= RECOVERY_S


def _kill_under_load(
    server: Server, place: Path, seed: int, *, kills: int, record_property: pytest.RecordProperty
) -> float:
    print(f"seed {seed}: {kills} kills of {type(server).__name__}")
    rng = random.Random(seed)
    took_s = []
    with Load(place, busy_s=kills * 2.0) as load:
        for _ in range(kills):
            pause(rng, 0.1, 0.6)
            server.kill()
            pause(rng, 0.0, 1.0)
            server.restart()
            took_s.append(load.goes_on(time.monotonic()))
        ledger = load.finish()
    print(f"went on after {', '.join(f'{s:.2f}' for s in took_s)} s; refused: {load.refusals()}")
    assert len(ledger.kind) == load.waiting + load.enqueued
    record_property("recovery_s", round(max(took_s), 2))
    record_property("kills", kills)
    return max(took_s)
