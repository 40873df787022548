"""Check if a Redis server is safe for messages, when a store is opened, and by its `doctor`.

Least rights. A user of its own needs the namespace's keys and channels, and these commands:

    ACL SETUSER redrive reset on >PASSWORD ~{redrive}:* &{redrive}:* -@all +@read +@write +@connection +time
        +evalsha +script|load +ssubscribe +sunsubscribe +spublish +info +config|get +cluster|slots

`redrive` between the braces is the namespace of the URL. Without `+config|get` the doctor cannot check how often the
append-only file is synced, and without `+cluster|slots` a cluster's other nodes must be in the URL; the rest is
required. Redis 6.2 does not have all of these rules: there use `+script +config +cluster`, and `+subscribe +unsubscribe
+publish`.

Read-only commands (queue list, dlq list, job show, store doctor) need no more than this:

    ACL SETUSER looker reset on >PASSWORD %R~{redrive}:* -@all +@read +@connection +time +evalsha_ro +script|load +info
        +config|get +cluster|slots

Redis 6.2 has neither `%R~` nor EVALSHA_RO: there use `~{redrive}:*` and `+evalsha`; scripts of this user still cannot
call commands that write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import redis
from msgspec import Struct
from redis.utils import HIREDIS_AVAILABLE

from ...errors import ConfigError, RedriveError, Refused, StoreUnavailable
from .connection import Connection
from .errors import code_of
from .session import Session

VERSION_LEAST = (6, 2)
MEMORY_MOST = 0.8  # share of maxmemory in use above which the doctor warns
NO_AOF = (
    "the append-only file is off: a restart or crash of the server loses every message since its last snapshot, or all "
    "of them; run CONFIG SET appendonly yes, and write it into the server's configuration"
)
# Returns the time, after a check that the user may call the commands of every script.
_PROBE = """
redis.call(redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH', KEYS[1] .. 'x:', '')
return redis.call('TIME')
"""
_LOOK_PROBE = "return redis.call('TIME')"
_warned: set[str] = set()  # servers without append-only file about which this process has warned
_log = logging.getLogger("redrive.stores")


class RedisServerInfo(Struct, frozen=True):
    """Facts from a server's reply to INFO."""

    engine: str
    version: tuple[int, ...]
    mode: str
    role: str
    master: str
    policy: str
    memory_bytes: int
    memory_max: int
    aof: bool
    aof_failed: bool
    snapshot_failed: bool


def preflight(link: Session) -> RedisServerInfo:
    """Check the server; warn, once per process, if it has no append-only file.

    Raises Refused, with the remedy, for a server that may drop messages; ConfigError for one that is too old or is not
    what the URL says; StoreUnavailable for a replica, or if the server cannot be reached.
    """
    link.add("probe", _PROBE)
    try:
        link.call("probe", [])  # a script call first, so that INFO goes to the node of the namespace's slot
    except ConfigError as error:
        if not _only_looks(link, error):
            raise
    server = look(link)
    if server.mode == "sentinel":
        raise ConfigError(f"{link.where}: this is a Sentinel; give the URL of the master it watches")
    if server.mode == "cluster" and not link.url.cluster:
        raise ConfigError(f"{link.where}: this server is a node of a cluster; write redis+cluster:// (rediss+cluster)")
    if server.version < VERSION_LEAST:
        raise ConfigError(f"{link.where}: {_too_old(server)}")
    if server.role != "master":
        raise StoreUnavailable(f"{link.where}: {_replica(server)}")
    if server.policy != "noeviction":
        raise Refused(f"{link.where}: {_evicts(server)}")
    if not server.aof and link.where not in _warned:
        _warned.add(link.where)
        _log.warning("%s: %s", link.where, NO_AOF)
    return server


def _only_looks(link: Session, error: ConfigError) -> bool:
    """True if the user, who was refused with `error`, may read but not write. Then sets the session to read only."""
    refused = error.__cause__
    if not isinstance(refused, redis.RedisError) or code_of(refused) != "NOPERM" or _may_write(link):
        return False
    link.add("look_probe", _LOOK_PROBE)
    for verb in ("EVALSHA_RO", "EVALSHA"):  # Redis has EVALSHA_RO from version 7 on
        link.only_look(f"user {link.url.username or 'default'!r} may only look: it has no right to write", verb=verb)
        try:
            link.call("look_probe", [])
        except RedriveError:
            continue
        return True
    return False


def _may_write(link: Session) -> bool:
    def ask(c: Connection) -> bool:
        try:
            c.run("DEL", link.root + b"-")  # a key that never exists
        except redis.RedisError as error:
            if code_of(error) == "NOPERM":
                return False
            raise
        return True

    return link.attempt(ask)


def look(link: Session) -> RedisServerInfo:
    """Read INFO: it has the eviction policy even where CONFIG is forbidden, as with many providers."""
    text = link.command("INFO").decode(errors="replace")
    said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    valkey = said.get("server_name") == "valkey"
    version = said.get("valkey_version" if valkey else "redis_version", "0")
    return RedisServerInfo(
        engine=f"{'Valkey' if valkey else 'Redis'} {version}",
        version=tuple(int(part) for part in said.get("redis_version", "0").split(".") if part.isdecimal()),
        mode=said.get("redis_mode") or said.get("server_mode", ""),
        role=said.get("role", ""),
        master=f"{said.get('master_host', '')}:{said.get('master_port', '')}",
        policy=said.get("maxmemory_policy", ""),
        memory_bytes=int(said.get("used_memory", 0)),
        memory_max=int(said.get("maxmemory", 0)),
        aof=said.get("aof_enabled") == "1",
        aof_failed=said.get("aof_last_write_status", "ok") != "ok",
        snapshot_failed=said.get("rdb_last_bgsave_status", "ok") != "ok",
    )


def findings(link: Session) -> Iterator[str]:
    """Yield a line for each unsafe or slow setting of the server."""
    server = look(link)
    if server.version < VERSION_LEAST:
        yield _too_old(server)
    if server.role != "master":
        yield _replica(server)
    if server.policy != "noeviction":
        yield _evicts(server)
    if not server.aof:
        yield NO_AOF
    elif setting(link, "appendfsync") == "no":
        yield (
            "appendfsync is no: the kernel writes the append-only file when it likes, and a power cut loses up to half "
            "a minute of messages; run CONFIG SET appendfsync everysec (loses a second) or always (loses none)"
        )
    if server.aof_failed:
        yield "the server cannot write its append-only file, and takes no messages: see its log, and make room"
    if server.snapshot_failed:
        yield (
            "the server's last snapshot failed; unless stop-writes-on-bgsave-error is no it takes no messages: see its "
            "log, and its disk"
        )
    if server.memory_max and server.memory_bytes > MEMORY_MOST * server.memory_max:
        yield (
            f"{server.memory_bytes / 1e6:,.0f} of {server.memory_max / 1e6:,.0f} MB (maxmemory) are used: where none "
            "are left, nothing can be put; raise maxmemory, or find out why messages pile up (redrive queue list)"
        )
    if not HIREDIS_AVAILABLE:
        yield "hiredis is not installed, and replies are read slowly; pip install 'redrive[redis]'"


def about(link: Session) -> dict[str, str | int]:
    """Return the data of `Store.info` about the server; `memory_bytes` is all of its memory in use."""
    server = look(link)
    return {
        "engine": server.engine + (" (cluster)" if server.mode == "cluster" else ""),
        "namespace": link.namespace,
        "memory_bytes": server.memory_bytes,
    }


def setting(link: Session, name: str) -> str | None:
    """Read a setting of the server; None if the user may not read it, or the server does not have it."""

    def ask(c: Connection) -> str | None:
        try:
            reply = c.run("CONFIG", "GET", name)
        except redis.ResponseError:
            return None
        return reply[1].decode() if reply else None

    return link.attempt(ask)


def _too_old(server: RedisServerInfo) -> str:
    least = ".".join(map(str, VERSION_LEAST))
    return f"{server.engine} is too old: redrive needs Redis {least} or later, or Valkey"


def _replica(server: RedisServerInfo) -> str:
    return f"this server is a replica of {server.master} and takes no writes; give the URL of the master"


def _evicts(server: RedisServerInfo) -> str:
    return (
        f"maxmemory-policy is {server.policy or 'unknown'}: when its memory is full the server would delete messages; "
        "run CONFIG SET maxmemory-policy noeviction, and write it into the server's configuration"
    )
