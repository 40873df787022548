"""Save a store as a file that any server can load: the SQLite file itself, SQL for PostgreSQL, commands for Redis."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
from pathlib import Path

import msgspec
import redis

from redrive.stores import open_store

NOT_SQL = ("SET ", "\\", "SELECT pg_catalog.set_config", "--")


def save_sqlite(out: Path, manifest: dict, path: Path) -> None:
    assert not path.with_name(path.name + "-wal").exists()
    _save(out, "sqlite", manifest, path.read_bytes(), path.with_name(path.name + "-workers"))


def save_postgres(out: Path, manifest: dict, url: str, schema: str) -> None:
    words = ["pg_dump", f"--schema={schema}", "--inserts", "--rows-per-insert=200", "--no-owner", "--no-acl", url]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    sql = "\n".join(line for line in lines if line and not line.startswith(NOT_SQL))
    _save(out, "postgres", manifest, sql.encode(), _state_dir(f"{url}?schema={schema}"))


def save_redis(out: Path, manifest: dict, url: str, namespace: str) -> None:
    """A list of commands, each a list of bytes: older servers do not load the dumps of newer ones."""
    with redis.Redis.from_url(url) as client:
        commands = [command for key in sorted(client.keys()) for command in _commands(client, key)]
    _save(out, "redis", manifest, msgspec.msgpack.encode(commands), _state_dir(f"{url}?namespace={namespace}"))


def _commands(client: redis.Redis, key: bytes) -> list:
    assert client.pttl(key) == -1, key
    match client.type(key):
        case b"string":
            return [[b"SET", key, client.get(key)]]
        case b"hash":
            words = [word for pair in client.hgetall(key).items() for word in pair]
            return [[b"HSET", key, *words]]
        case b"zset":
            words = [word for name, score in client.zrange(key, 0, -1, withscores=True) for word in (repr(score), name)]
            return [[b"ZADD", key, *(w if isinstance(w, bytes) else w.encode() for w in words)]]
        case b"list":
            return [[b"RPUSH", key, *client.lrange(key, 0, -1)]]
        case b"set":
            return [[b"SADD", key, *sorted(client.smembers(key))]]
        case other:
            raise ValueError(f"{key} is a {other}")


def _state_dir(url: str) -> Path:
    """Where workers on this machine keep what they started."""
    store = open_store(url)
    store.close()
    return store.state_dir


def _save(out: Path, engine: str, manifest: dict, data: bytes, state: Path) -> None:
    files = {f"state/{path.name}": path.read_bytes() for path in sorted(state.iterdir()) if path.is_file()}
    save(out, engine, manifest, {"data": data, **files})


def save(out: Path, engine: str, manifest: dict, files: dict[str, bytes]) -> None:
    """One archive of an engine: manifest.json and the files; the same input makes the same bytes."""
    files = {"manifest.json": msgspec.json.format(msgspec.json.encode(manifest)), **files}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    (out / f"{engine}.tar.gz").write_bytes(gzip.compress(archive.getvalue(), 9, mtime=0))
