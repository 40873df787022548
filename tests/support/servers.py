"""Private PostgreSQL and Redis servers for tests: each in a temporary folder on a free port of loopback, to be killed,
paused and started again as a test likes.

    with PostgresServer() as server:
        app = App(server.url)

No server outlives the tests: a guard process ends it when they are gone, however they ended.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import guard

from redrive.errors import ConfigError

READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 20.0
# Below the ports that Linux and macOS give to outgoing connections: else a client that tries to reconnect to a dead
# server may take its port, even by connecting to itself. A cluster's nodes take the port 10,000 above theirs, too.
PORTS = range(11_000, 22_000)
PORT_TRIES = 20
HOST = "127.0.0.1"


class ServerFailed(RuntimeError):
    """A private server did not start or did not stop; the message holds the end of its log."""


class Server(ABC):
    """A private server. As a context manager it starts at the beginning and is gone, with its data, at the end.

    `folder` is where its temporary folder is made (default: the system's place for such); `under` is a command that
    the server is run by, such as strace; it runs in that folder. `pid` is its main process, `url` what `App` takes,
    `log` what it wrote to its standard output.
    """

    def __init__(self, *, folder: str | Path | None = None, under: Sequence[str] = ()) -> None:
        self._parent, self._under = folder, tuple(under)
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._paused: list[int] = []
        self._port = 0

    # -- its life

    def start(self) -> Self:
        """Make its folder, start it and wait until it answers. Nothing, if it runs."""
        if self._pid is None:
            if self._guard is None:
                self._open()
            self._launch()
        return self

    def kill(self) -> None:
        """SIGKILL to the whole server, its children too; gone when this returns. The data stay for `restart`."""
        if self._pid is not None:
            self._gone(guard.kill_tree(self._pid))

    def stop(self) -> None:
        """Ask it to end, and wait until it has; the data stay for `restart`."""
        if self._pid is not None:
            self.resume()
            pids = guard.tree(self._pid)
            os.kill(self._pid, self._stop_signal)
            self._gone(pids)

    def restart(self) -> Self:
        """Start it again on the same port with the same data, after it was stopped or killed; one that runs is stopped
        first."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP to the whole server: its connections stay open, and nothing answers."""
        pid = self.pid
        guard.send([pid], signal.SIGSTOP)
        self._paused = guard.tree(pid)
        guard.send(self._paused, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to what `pause` stopped."""
        guard.send(reversed(self._paused), signal.SIGCONT)
        self._paused = []

    def close(self) -> None:
        """Kill it and remove its folder; it cannot be started again."""
        self.kill()
        if self._guard is not None:
            self._guard.communicate()  # ends its input; it removes the folder before it ends
            self._guard = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- what it is

    @property
    def url(self) -> str:
        """What `App` takes."""
        return self.url_at(self.port)

    @abstractmethod
    def url_at(self, port: int) -> str:
        """The same by way of another port of loopback, such as a `FaultProxy`'s."""

    @property
    def port(self) -> int:
        """Its port on 127.0.0.1; the same after a restart."""
        if not self._port:
            raise ServerFailed(f"{type(self).__name__} was not started: use it as `with {type(self).__name__}() as …`")
        return self._port

    @property
    def pid(self) -> int:
        """Its main process."""
        if self._pid is None:
            raise ServerFailed(f"{type(self).__name__} does not run")
        return self._pid

    @property
    def running(self) -> bool:
        """Whether its main process lives."""
        return self._pid is not None and guard.alive(self._pid)

    @property
    def folder(self) -> Path:
        """Where its data and its log lie."""
        return self._folder

    @property
    def log(self) -> str:
        """What it has written to standard output and standard error."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- what each kind of server says of itself

    _stop_signal: signal.Signals = signal.SIGTERM
    _user: tuple[int, int] | None = None  # (user, group) it runs as, None: ours

    def _prepare(self) -> None:
        """Make its data, in an empty folder."""
        return

    def _mend(self) -> None:
        """Remove what a kill left and a start does not."""
        return

    @abstractmethod
    def _argv(self) -> list[str]: ...

    @abstractmethod
    def _ready(self) -> bool: ...

    # -- how it is done

    def _open(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="redrive-test-", dir=self._parent))
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._tell({"folder": str(self._folder)})
        if self._user is not None:
            os.chown(self._folder, *self._user)
        self._prepare()

    def _tell(self, words: Mapping[str, object]) -> None:
        assert self._guard is not None and self._guard.stdin is not None
        self._guard.stdin.write(json.dumps(words).encode() + b"\n")
        self._guard.stdin.flush()

    def _launch(self) -> None:
        """The port is chosen at the first start, and another one if a process of someone else's took it meanwhile."""
        self._mend()
        if self._port:
            self._run()
            return
        for port in free_ports():
            self._port = port
            try:
                return self._run()
            except ServerFailed as error:
                if "in use" not in str(error):
                    raise
        raise ServerFailed(f"{type(self).__name__} found no free port")

    def _run(self) -> None:
        who = {} if self._user is None else {"user": self._user[0], "group": self._user[1]}
        since = len(self.log)
        self._tell(
            {"argv": [*self._under, *self._argv()], "log": str(self._folder / "log"), "cwd": str(self._folder), **who}
        )
        assert self._guard is not None and self._guard.stdout is not None
        answer: dict[str, Any] = json.loads(self._guard.stdout.readline())
        if "error" in answer:
            raise ServerFailed(answer["error"])
        self._pid = answer["pid"]
        end_s = time.monotonic() + READY_WITHIN_S
        while not self._ready():
            if not self.running or time.monotonic() > end_s:
                ended, log = not self.running, self.log[since:][-4000:]
                self.kill()
                raise ServerFailed(f"{type(self).__name__} {'ended' if ended else 'is not ready'}; its log:\n{log}")
            time.sleep(0.005)

    def _gone(self, pids: Sequence[int]) -> None:
        """Once they are gone it does not run; those that do not go are killed."""
        assert self._pid is not None
        if not guard.wait_gone(pids, STOPPED_WITHIN_S) and not guard.wait_gone(guard.kill_tree(self._pid)):
            raise ServerFailed(f"{type(self).__name__} ({self._pid}) does not end, not even by SIGKILL")
        self._pid, self._paused = None, []


def memory_disk() -> Path | None:
    """A folder in memory with room for a server's data, if there is one: there a sync costs nothing."""
    folder = Path("/dev/shm")
    roomy = folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 2 << 30
    return folder if roomy else None


def free_ports(also: int = 0) -> Iterator[int]:
    """Some ports of loopback that nobody listens on; with `also` the port that much above each is free too."""
    chosen = random.SystemRandom().sample(PORTS, PORT_TRIES)  # not from a test's seed: workers must not meet
    yield from (port for port in chosen if _is_free(port) and (not also or _is_free(port + also)))


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            sock.bind((HOST, port))
            return True
    return False


def program(name: str, package: str, brew: str, *places: str) -> str:
    """The path of a server's program; raises ConfigError with the command that installs it."""
    for place in places:
        found = sorted(glob.glob(place), key=_versions)  # noqa: PTH207  # of absolute paths
        if found and (path := shutil.which(name, path=found[-1])):
            return path
    if path := shutil.which(name):
        return path
    raise ConfigError(
        f"{name} is not installed, and these tests need it. "
        f"Debian: apt-get install {package}   macOS: brew install {brew}"
    )


def _versions(path: str) -> list[int]:
    return [int(part) for part in "".join(c if c.isdigit() else " " for c in path).split()]


# -- PostgreSQL


class PostgresServer(Server):
    """A PostgreSQL server with one database, `postgres`, whose user `postgres` needs no password.

    `settings` are PostgreSQL's own (`{"max_connections": 20}`), over small ones that suit tests; nothing of it makes a
    commit less durable. Where the tests run as root the server runs as the user `postgres`. The newest version
    installed is taken, or that in `programs`, the folder of its binaries.
    """

    _stop_signal = signal.SIGINT  # the fast shutdown: it does not wait for clients to leave

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        folder: str | Path | None = None,
        under: Sequence[str] = (),
        programs: str | Path | None = None,
    ) -> None:
        super().__init__(folder=folder, under=under)
        places = [str(programs)] if programs else ["/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql@*/bin"]
        self._postgres = program("postgres", "postgresql", "postgresql", *places)
        self._initdb = program("initdb", "postgresql", "postgresql", str(Path(self._postgres).resolve().parent))
        self._settings = {
            "shared_buffers": "32MB",
            "max_wal_size": "256MB",
            "min_wal_size": "32MB",
            "wal_recycle": "off",
            "autovacuum_naptime": "5s",
            **(settings or {}),
        }
        if os.getuid() == 0:
            who = pwd.getpwnam("postgres")
            self._user = who.pw_uid, who.pw_gid

    def url_at(self, port: int) -> str:
        return f"postgresql://postgres@{HOST}:{port}/postgres"

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self._folder / "data"

    def _prepare(self) -> None:
        argv = [self._initdb, "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        user, group = self._user or (None, None)
        done = subprocess.run(
            [*argv, "--locale=C"],
            capture_output=True,
            text=True,
            cwd=self._folder,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
        )
        if done.returncode != 0:
            raise ServerFailed(f"initdb failed: {done.stderr or done.stdout}")

    def _mend(self) -> None:
        # Its number may be another process's by now, and then the server takes itself to be running.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _argv(self) -> list[str]:
        settings = {"listen_addresses": HOST, "port": self._port, "unix_socket_directories": "", **self._settings}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [self._postgres, "-D", str(self.data), *options]

    def _ready(self) -> bool:
        """What its pid file says: `ready` in the eighth line, once it takes connections."""
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[7].strip() == "ready" and int(lines[0]) in guard.tree(self.pid)
        return False


# -- Redis


class RedisServer(Server):
    """A Redis server. Without `appendonly` it keeps nothing on disk; `appendfsync` is `always`, `everysec` or `no`.

    `maxmemory` is as Redis writes it (`"50mb"`). `options` are any others of redis.conf. With
    `program="valkey-server"`, or REDIS_SERVER=valkey-server in the environment, it is Valkey.
    """

    def __init__(
        self,
        *,
        appendonly: bool = False,
        appendfsync: str = "everysec",
        maxmemory: str = "0",
        maxmemory_policy: str = "noeviction",
        options: Mapping[str, object] | None = None,
        folder: str | Path | None = None,
        under: Sequence[str] = (),
        program: str = "",
    ) -> None:
        super().__init__(folder=folder, under=under)
        self._program = _redis(program or os.environ.get("REDIS_SERVER") or "redis-server")
        self._options = {
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            "maxmemory": maxmemory,
            "maxmemory-policy": maxmemory_policy,
            "save": "",
            **(options or {}),
        }

    def url_at(self, port: int) -> str:
        return f"redis://{HOST}:{port}/0"

    def command(self, *words: str | int) -> Any:
        """Send one command on a connection of its own and return the reply; an error reply is raised as
        RuntimeError."""
        with socket.create_connection((HOST, self.port), timeout=10) as sock, sock.makefile("rb") as replies:
            sent = [str(word).encode() for word in words]
            sock.sendall(b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in sent))
            return _reply(replies)

    def _argv(self) -> list[str]:
        own = {"port": self._port, "bind": HOST, "dir": self._folder, "daemonize": "no", **self._options}
        return [self._program, *(word for name, value in own.items() for word in (f"--{name}", str(value)))]

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, RuntimeError):  # refused, or still loading
            return bool(self.command("PING") == "PONG")
        return False


def _redis(name: str) -> str:
    package = name.removesuffix("-server")
    return program(name, name if package == "redis" else "valkey", package, "/opt/homebrew/bin")


def _reply(file: Any) -> Any:
    """One reply of the protocol RESP2."""
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise RuntimeError(rest)
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else file.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if rest == "-1" else [_reply(file) for _ in range(int(rest))]
    return rest


class RedisCluster:
    """Three Redis masters that form a cluster; `nodes` are RedisServers that can be killed and restarted one by one.

    The options are those of RedisServer, for each node. A slot whose node is down is not served by another: there are
    no replicas.
    """

    def __init__(self, **options: Any) -> None:
        own = {"cluster-enabled": "yes", "cluster-node-timeout": 2000, "cluster-require-full-coverage": "no"}
        options["options"] = own | dict(options.get("options") or {})
        self.nodes = [_Node(**options) for _ in range(3)]
        self._formed = False

    @property
    def url(self) -> str:
        """What `App` takes: the first node's, which tells of the others."""
        return f"redis+cluster://{HOST}:{self.nodes[0].port}"

    @property
    def pids(self) -> list[int]:
        """The nodes' processes."""
        return [node.pid for node in self.nodes]

    def start(self) -> Self:
        """Start all nodes and join them; returns once every slot is served."""
        for node in self.nodes:
            node.start()
        if not self._formed:
            self._join()
            self._formed = True
        end_s = time.monotonic() + READY_WITHIN_S
        while not self._joined():
            if time.monotonic() > end_s:
                raise ServerFailed(f"the cluster does not form: {self.nodes[0].command('CLUSTER', 'INFO')}")
            time.sleep(0.02)
        return self

    def _join(self) -> None:
        bounds = [16384 * n // len(self.nodes) for n in range(len(self.nodes) + 1)]
        for n, node in enumerate(self.nodes):
            node.command("CLUSTER", "ADDSLOTS", *range(bounds[n], bounds[n + 1]))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", HOST, node.port)

    def _joined(self) -> bool:
        """Whether each node knows of all, and every slot is served."""
        infos = [node.command("CLUSTER", "INFO").split() for node in self.nodes]
        wanted = {"cluster_state:ok", "cluster_slots_ok:16384", f"cluster_size:{len(self.nodes)}"}
        return all(wanted <= {*info} for info in infos)

    def kill(self) -> None:
        """SIGKILL to all nodes."""
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        """Ask all nodes to end, and wait until they have."""
        for node in self.nodes:
            node.stop()

    def restart(self) -> Self:
        """Start all nodes again on their ports; what they keep on disk is there again."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Kill all and remove their folders."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Node(RedisServer):
    """Its second port, for what the nodes tell each other, must be free too."""

    def _launch(self) -> None:
        if not self._port:
            self._port = next(free_ports(also=10_000))
        super()._launch()
