"""A private pgbouncer in transaction mode before a server of the tests'."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import HOST, PostgresServer, free_ports

READY_WITHIN_S = 20.0


@contextlib.contextmanager
def pgbouncer(server: PostgresServer, *, pool_size: int = 3) -> Iterator[str]:
    """The URL to reach the server's database through it; `pool_size` sessions of the server serve all clients."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    assert found, "pgbouncer is missing; scripts/setup-servers installs it"
    user = pwd.getpwnam("postgres").pw_name if os.getuid() == 0 else None  # it refuses to run as root
    with tempfile.TemporaryDirectory(prefix="redrive-pgbouncer-") as folder:
        port = next(free_ports())
        Path(folder).chmod(0o755)
        config = Path(folder, "pgbouncer.ini")
        config.write_text(
            f"[databases]\n* = host={HOST} port={server.port} user=postgres\n[pgbouncer]\nlisten_addr={HOST}\n"
            f"listen_port={port}\nunix_socket_dir=\nauth_type=any\npool_mode=transaction\nserver_tls_sslmode=disable\n"
            f"default_pool_size={pool_size}\nmax_client_conn=200\nadmin_users=postgres\nquery_wait_timeout=20\n"
        )
        log = Path(folder, "log")  # a pipe that nobody reads would fill, and stop it
        with log.open("w") as words:
            process = subprocess.Popen([found, str(config)], stdout=words, stderr=words, user=user)
        try:
            _wait_for(port, process, log)
            yield f"postgresql://postgres@{HOST}:{port}/postgres"
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + READY_WITHIN_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        if process.poll() is not None or time.monotonic() > end_s:
            raise AssertionError(f"pgbouncer did not start: {log.read_text()}")
        time.sleep(0.02)
