"""The private servers of the tests: killed, paused, started again with the same data, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.support import guard
from tests.support.servers import PostgresServer, RedisCluster, RedisServer

from redrive.errors import ConfigError

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def redis() -> RedisServer:
    return RedisServer(appendonly=True)


def connected(server: PostgresServer) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(server.url, autocommit=True)


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.005)


def test_postgres_is_there_again_with_its_data_after_a_kill_and_a_stop() -> None:
    with PostgresServer(settings={"max_connections": 20}) as server:
        url = server.url
        with contextlib.closing(connected(server)) as connection:
            connection.execute("create table kept as select 7 as number")
            assert connection.execute("show max_connections").fetchone() == ("20",)
            assert connection.execute("show fsync").fetchone() == ("on",)
            processes = guard.tree(server.pid)
            assert len(processes) > 3
            server.kill()
            assert not server.running and not any(map(guard.alive, processes))
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        for end in (server.kill, server.stop):
            end()
            server.restart()
            with contextlib.closing(connected(server)) as connection:
                assert connection.execute("select number from kept").fetchone() == (7,)
        assert server.url == url


def test_redis_is_there_again_with_its_data_after_a_kill_and_a_stop() -> None:
    with RedisServer(appendonly=True, appendfsync="always", maxmemory="50mb") as server:
        assert server.command("SET", "kept", 7) == "OK"
        assert server.command("CONFIG", "GET", "maxmemory") == ["maxmemory", str(50 << 20)]
        for end in (server.kill, server.stop):
            url = server.url
            end()
            assert not server.running
            with pytest.raises(ConnectionRefusedError):
                server.command("PING")
            server.restart()
            assert (server.command("GET", "kept"), server.url) == ("7", url)


def test_a_paused_server_answers_only_when_it_is_resumed(redis: RedisServer) -> None:
    with redis as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        server.pause()
        sock.sendall(b"PING\r\n")
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        server.resume()
        sock.settimeout(PATIENCE_S)
        assert sock.recv(100) == b"+PONG\r\n"
        server.pause()
        server.stop()  # it is resumed for that
        assert not server.running


def test_cluster_serves_every_slot_after_a_node_was_killed_and_restarted() -> None:
    with RedisCluster(appendonly=True) as cluster:
        slots = cluster.nodes[0].command("CLUSTER", "SLOTS")
        assert sorted((first, last) for first, last, *_ in slots) == [(0, 5460), (5461, 10921), (10922, 16383)]
        owner = cluster.nodes[cluster.nodes[0].command("CLUSTER", "KEYSLOT", "kept") * 3 // 16384]
        assert owner.command("SET", "kept", 7) == "OK"
        owner.kill()
        cluster.restart()
        assert owner.command("GET", "kept") == "7"


OWNER = """
import json, sys, time
from tests.support.servers import PostgresServer, RedisServer
servers = [PostgresServer().start(), RedisServer().start()]
servers[1].pause()
print(json.dumps([[server.pid, str(server.folder)] for server in servers]), flush=True)
time.sleep(60)
"""


def test_no_server_is_left_behind_by_a_test_process_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None
        servers = json.loads(owner.stdout.readline())
        processes = [process for pid, _ in servers for process in guard.tree(pid)]
        assert len(processes) > 4 and all(map(guard.alive, processes))
        owner.kill()
    until(lambda: not any(map(guard.alive, processes)))
    until(lambda: not any(Path(folder).exists() for _, folder in servers))


def test_a_server_and_its_folder_are_gone_after_the_block(redis: RedisServer) -> None:
    with redis as server:
        pid, folder = server.pid, server.folder
        assert folder.is_dir()
    assert not guard.alive(pid) and not folder.exists()


def test_a_missing_program_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(ConfigError, match=r"redis-server is not installed.*apt-get install redis-server.*brew"):
        RedisServer()
