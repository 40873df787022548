"""A session with the Redis server: scripts called by name, repeated after temporary errors, each waiting no longer for
data than the URL's `timeout`; in a cluster, on the node of the namespace's slot; and the server's clock, estimated
without requests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import redis
from msgspec import Struct

from ...chance import uniform
from ...errors import ConfigError, ReadOnly, StoreUnavailable
from ..clock import Clock
from ..pool import ConnectionPool
from .connection import Connection, ConnectionSlot
from .errors import LOST, SLOW, code_of, is_lost, passes, store_error
from .url import Address, RedisUrl

T = TypeVar("T")
Arg = bytes | int | str
RETRY_FOR_S = 2.0  # how long a call is repeated: shorter than a worker's own patience
BACKOFF_S = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.4, 0.4, 0.4, 0.4)
# The scripts that a read-only session may call. They write nothing, except `verify`, which writes if it is to mend.
LOOKS = frozenset(
    (
        *("batch_counts", "batch_ids", "changed_batches", "check", "counted_batches", "counts", "damage", "due_counts"),
        *("failure_groups", "failures", "find", "group_names", "groups", "ids", "live", "look", "look_probe", "odd"),
        *("paused", "queues", "read_cells", "resting", "scan", "verify"),
    )
)
HOPS_MAX = 5  # how many times a call follows MOVED before it pauses


class Script(Struct, frozen=True):
    """A script, and the hash by which the server knows it."""

    text: str
    sha: str


def script_text(name: str) -> str:
    """Return the text of a script, with the shared pieces that its first line lists before it."""
    folder = files(__package__) / "scripts"
    own = (folder / f"{name}.lua").read_text()
    first = own.partition("\n")[0]
    shared = first.removeprefix("-- needs: ").split() if first.startswith("-- needs: ") else []
    return "\n".join([(folder / f"_{piece}.lua").read_text() for piece in ["base", *shared]] + [own])


class _Tries:
    """The attempts of one call, at growing intervals, for a bounded time."""

    def __init__(self, begun_s: float) -> None:
        self._until_s = begun_s + RETRY_FOR_S
        self._delays, self._hops = iter(BACKOFF_S), 0

    def another(self, *, at_once: bool) -> bool:
        """Wait until the next attempt is due; False if there is none. `at_once`: do not wait, as after MOVED."""
        self._hops += at_once
        if at_once and self._hops <= HOPS_MAX:
            return True
        delay_s = next(self._delays, None)
        if delay_s is None or time.monotonic() > self._until_s:
            return False
        time.sleep(uniform(delay_s / 2, delay_s))
        return True


class Session:
    """Calls scripts on the server of a URL. Thread-safe, even after a fork. Connects at first use.

    Raises the errors of errors.py: StoreUnavailable when the server is unreachable, silent for too long or not ready;
    StoreFull when the server has no space; ConfigError when it refuses the first call because of the URL.
    """

    url: RedisUrl
    where: str
    namespace: str
    read_only: str

    def __init__(self, url: RedisUrl, *, failpoint: Callable[[str], None] = lambda point: None) -> None:
        self.url, self.where, self.namespace = url, url.shown, url.namespace
        self.root: bytes = b"{%s}:" % url.namespace.encode()
        self._failpoint, self._clock = failpoint, Clock()
        self.saw_clock: Callable[[int, float], None] = self._clock.saw
        self._scripts: dict[str, Script] = {}
        self.read_only = ""  # why writes are impossible, so that only scripts of LOOKS are called; or empty
        self._verb = "EVALSHA"
        self._opened = False  # True: the server has answered once
        self._nodes = Nodes(url)
        self._pool = ConnectionPool("Redis", lambda deadline_s: self.connect(), url.pool)

    def call(
        self,
        script: str,
        args: Sequence[Arg],
        *,
        again: bool = True,
        repeated: Callable[[], Sequence[Arg]] | None = None,
    ) -> Any:
        """Call a script; returns its reply. KEYS[1] is the root of all its keys. After a temporary error or a lost
        connection the call is repeated; with `again=False`, not once it was sent. After a lost reply, the repetition
        has the arguments that `repeated` returns, if given."""
        if self.read_only and script not in LOOKS:
            raise ReadOnly(f"{self.where}: {self.read_only}; nothing was changed")
        known = self._scripts.get(script) or self.add(script, script_text(script))
        lost = False

        def do(c: Connection) -> Any:
            nonlocal lost
            try:
                return self._evaluate(c, known, repeated() if lost and repeated else args)
            except redis.RedisError:
                lost = lost or c.sent
                raise

        self._failpoint("commit")
        value = self.attempt(do, again=again)
        self._failpoint("committed")
        return value

    def add(self, name: str, text: str) -> Script:
        """Register a script under this name, for `call`; returns it with its hash."""
        script = Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        self._scripts[name] = script
        return script

    def _evaluate(self, c: Connection, script: Script, args: Sequence[Arg]) -> Any:
        """Run a script by its hash. Loads the script first if the server lacks it, as after SCRIPT FLUSH, a restart or
        a failover. EVAL is not used, as newer servers evict scripts that it sends."""
        try:
            return c.run(self._verb, script.sha, 1, self.root, *args)
        except redis.exceptions.NoScriptError:
            c.run("SCRIPT", "LOAD", script.text)
            return c.run(self._verb, script.sha, 1, self.root, *args)

    def only_look(self, why: str, *, verb: str) -> None:
        """From now on call only scripts of LOOKS, with the command `verb`. `why` explains refused writes."""
        self.read_only, self._verb = why, verb

    def command(self, *words: Arg) -> Any:
        """Send a plain command, one that may be repeated; returns the reply."""
        return self.attempt(lambda c: c.run(*words))

    # -- repetition

    def attempt(self, do: Callable[[Connection], T], *, again: bool = True, place: ConnectionSlot | None = None) -> T:
        """Return the value of `do` on a connection of `place` (default: the pool). Repeats it as `call` does."""
        place = place or self._pool
        tries: _Tries | None = None
        begun_s = time.monotonic()
        deadline_s = begun_s + self.url.timeout_s
        while True:
            at, c = self._nodes.at, None
            try:
                c = place.take(deadline_s)
                value = do(c)
            except redis.RedisError as error:
                unknown = c is not None and c.sent and not again
                self._put_back(place, c, error)
                if unknown:
                    raise StoreUnavailable(
                        f"{self.where}: the connection broke during the call: it may have taken place"
                    ) from error
                moved = self._nodes.follow(error, at)
                tries = tries or _Tries(begun_s)
                if not (moved or passes(error)) or not tries.another(at_once=moved):
                    raise self._typed(error) from error
            except BaseException:
                if c is not None:  # there may be a command on it whose reply was not read
                    place.lose(c)
                raise
            else:
                place.give(c)
                self._opened = True
                return value

    def _put_back(self, place: ConnectionSlot, c: Connection | None, error: redis.RedisError) -> None:
        if is_lost(error):
            place.clear()
        if c is None:
            return
        if is_lost(error) or c.sent or c.closed or c.address != self._nodes.at:
            place.lose(c)
        else:
            place.give(c)

    def _typed(self, error: redis.RedisError) -> Exception:
        code, opened = code_of(error), self._opened
        if code == SLOW and self.url.tls and not opened:
            text = f"{self.where}: no answer to a TLS handshake (if the port is one without TLS, write redis://)"
            return StoreUnavailable(f"{text}; nothing was acknowledged")
        if code == SLOW:
            return StoreUnavailable(
                f"{self.where}: no answer within {self.url.timeout_s:g} s (?timeout=); nothing was acknowledged"
            )
        if code == LOST and not (self.url.tls or opened or "connecting to" in str(error)):  # the server had accepted
            return StoreUnavailable(f"{self.where}: {error} (if the port is one for TLS, write rediss://)")
        return store_error(error, self.where, opened=opened)

    # -- connecting

    @property
    def at(self) -> Address | None:
        """The address of the server with the namespace's keys, as far as is known."""
        return self._nodes.at

    def connect(self) -> Connection:
        """Open a connection outside the pool, for the caller to close. Raises redis-py's errors."""
        c = Connection(self.url, self._nodes.at)
        try:
            self._nodes.learn(c)
        except BaseException:
            c.drop()
            raise
        return c

    # -- the clock

    def now_ms(self) -> int:
        """Return the server's estimated time in ms. Contacts the server only before the first estimate."""
        now = self._clock.now_ms()
        if now is None:
            sent_s = time.monotonic()
            seconds, micros = self.command("TIME")
            self.saw_clock(int(seconds) * 1000 + int(micros) // 1000, sent_s)
            now = self._clock.now_ms()
        assert now is not None
        return now

    def close(self) -> None:
        self._pool.close()


class Nodes:
    """Knows which server has the namespace's keys.

    In a cluster that is the master of one slot. Another node answers MOVED, which is followed; if a node is
    unreachable, the next known one is tried.

    ASK and TRYAGAIN, while the slot moves, are waited out and not followed. The root of the keys (KEYS[1]) is itself
    not a key, so the old node answers ASK before a script begins, and without ASKING the new node refers back.
    Otherwise a script would run where part of its keys is missing, and treat those as empty.
    """

    def __init__(self, url: RedisUrl) -> None:
        self._cluster = url.cluster
        self._given = self._known = list(url.addresses)
        self._stale = url.cluster
        self.at: Address | None = self._known[0] if self._known else None

    def follow(self, error: redis.RedisError, at: Address | None) -> bool:
        """Go to the node that MOVED names and return True; if the error means that the node `at` is unreachable, go to
        the next known node, unless a thread did so before, and return False."""
        if at is None or not self._cluster:
            return False
        if code_of(error) == "MOVED":  # MOVED SLOT HOST:PORT; an empty host means the host that answered
            host, _, port = str(error).split()[-1].rpartition(":")
            self._go(Address(host.strip("[]") or at.host, int(port)))
            return True
        if at == self.at and (is_lost(error) or code_of(error) == "CLUSTERDOWN"):
            known = self._known
            self._go(known[(known.index(at) + 1) % len(known)] if at in known else known[0])
        return False

    def _go(self, address: Address) -> None:
        self.at, self._stale = address, True

    def learn(self, c: Connection) -> None:
        """Read the addresses of the cluster's nodes, once after each move to another node."""
        if not self._stale or c.address is None:
            return
        try:
            slots = c.run("CLUSTER", "SLOTS")
        except redis.ResponseError as error:
            if "cluster support disabled" in str(error):
                raise ConfigError(f"{c.address}: this server is not a cluster; write redis:// (rediss://)") from error
            return  # without the right, use the nodes in the URL and in MOVED
        nodes = [node for slot in slots for node in slot[2:]]
        addresses = [Address(node[0].decode() if node[0] else c.address.host, node[1]) for node in nodes]
        self._known = list(dict.fromkeys([*self._given, *addresses]))
        self._stale = False
