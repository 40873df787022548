"""Stores whose bytes a test can spoil: for each the fields of a message, and how to put garbage into one."""

from __future__ import annotations

import random
import sqlite3
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psycopg
import redis

from redrive.store import Store
from redrive.stores.postgres.store import PostgresStore
from redrive.stores.redis.store import RedisStore
from redrive.stores.sqlite.store import SqliteStore

CHOSEN: Sequence[Any] = (
    "garbage",
    "{",
    '[{"kind":1}]',
    '{"content":7}',
    b"\x00\xff\xfe",
    -1.5,
    -7,
    2**62,
    "",
)  # texts that are no numbers and no JSON, JSON of another shape, blobs, numbers that are no counts


class Host(Protocol):
    """A store and its bytes."""

    name: str
    url: str
    rare: str  # a field that cannot be read when it is a word of garbage, and that a message can be without

    def open(self, clock_ms: Callable[[], int] | None = None) -> Store: ...

    def fields(self) -> Sequence[str]: ...

    def clear(self) -> None:
        """Remove all messages."""
        ...

    def close(self) -> None: ...

    def spoil(self, id: str, field: str, garbage: Any) -> bool:
        """Put it there; False where the engine itself refuses it."""
        ...

    def strand(self, id: str) -> None:
        """Let it stand nowhere, so that nothing would ever claim it."""
        ...

    def renew(self, id: str, word: str) -> None:
        """Let it look as a newer version would write it: a fault of another kind, another lane, or fields that
        are not known here."""
        ...

    def renewed(self, id: str, word: str) -> bool:
        """Whether that stands there still."""
        ...


class SqliteHost:
    name, rare = "sqlite", "meta"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "work.db"
        self.url = f"sqlite:///{self.path}"

    def open(self, clock_ms: Callable[[], int] | None = None) -> Store:
        return SqliteStore(self.path, clock_ms=clock_ms)

    def fields(self) -> Sequence[str]:
        with closing(sqlite3.connect(self.path)) as c:
            return [row[1] for row in c.execute("pragma table_info(message)") if row[1] != "seq"]

    def close(self) -> None: ...

    def clear(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as c:
            c.execute("delete from message")

    def spoil(self, id: str, field: str, garbage: Any) -> bool:
        value = "cast(? as text)" if isinstance(garbage, bytes) and garbage[:1] == b"t" else "?"
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as c:
            try:
                return c.execute(f"update message set {field} = {value} where id = ?", (garbage, id)).rowcount == 1
            except sqlite3.IntegrityError:  # such as a second row with this id
                return False

    def strand(self, id: str) -> None:
        self._run("update message set due_ms = null where id = ?", id)

    def renew(self, id: str, word: str) -> None:
        match word:
            case "kind":
                self._run("update message set faults = json_replace(faults, '$[0].kind', 'cosmic') where id = ?", id)
            case "lane":
                self._run("update message set lane = 'frozen' where id = ?", id)
            case _:
                self._run("update message set faults = json_set(faults, '$[0].mood', 'blue') where id = ?", id)
                self._run("update message set meta = json_set(meta, '$.mood', 'blue') where id = ?", id)

    def renewed(self, id: str, word: str) -> bool:
        sign = {"kind": "cosmic", "lane": "frozen", "field": "blue"}[word]
        return sign in str(self._run("select lane, faults, meta from message where id = ?", id))

    def _run(self, sql: str, *args: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as c:
            return c.execute(sql, args).fetchall()


HEAD = struct.Struct(">cIBIIIIBQQQ")  # of a state, as `_states.lua` packs it
COLD = 128


class RedisHost:
    name, rare = "redis", "state tail"

    def __init__(self, url: str, namespace: str) -> None:
        self.url = f"{url}?namespace={namespace}"
        self._root = b"{%s}:" % namespace.encode()
        self._redis = redis.Redis.from_url(url)

    def open(self, clock_ms: Callable[[], int] | None = None) -> Store:
        return RedisStore(self.url, clock_ms=clock_ms)

    def fields(self) -> Sequence[str]:
        return (
            "message",
            "message tail",
            "message cut",
            "message gone",
            "state",
            "state head",
            "state tail",
            "state cut",
            "fault",
        )

    def parts(self) -> Sequence[str]:
        """What else can be spoiled: a state that is gone, and each part of what is rarely set, by its name there."""
        cold = ("g", "pr", "t", "wk", "pk", "q", "r", "rm", "fk", "fp", "ex", "n", "b", "w")
        return ("state gone", *(f"cold {name}" for name in cold), "rare k", "rare g", "rare")

    def close(self) -> None:
        self._redis.close()

    def clear(self) -> None:
        keys = self._redis.keys(b"*")
        ours = [key for key in keys if key.startswith(self._root)]
        if ours:
            self._redis.delete(*ours)

    def spoil(self, id: str, field: str, garbage: Any) -> bool:
        key = bytes.fromhex(id.replace("-", ""))
        rot = garbage if isinstance(garbage, bytes) else str(garbage).encode()
        message, state = self._get(b"m", key), self._get(b"s", key)
        assert message is not None
        if field.startswith(("cold ", "rare")):
            return self._spoil_part(key, message, state, field, garbage)
        if state is None and field in ("state head", "state tail", "state cut"):
            state = HEAD.pack(b"R", 0, 0, 0, 0, 0, 0, 0, 1, 0, 0)
        match field:
            case "message":
                self._set(b"m", key, rot)
            case "message tail":
                self._set(b"m", key, message[:20] + rot)
            case "message cut":
                self._set(b"m", key, message[: len(message) // 2])
            case "message gone":
                self._redis.hdel(self._root + b"m", key)
            case "state gone":
                return self._redis.hdel(self._root + b"s", key) == 1
            case "state":
                self._set(b"s", key, rot)
            case "state head":
                assert state is not None
                self._set(b"s", key, rot[: len(state)] + state[len(rot) :])
            case "state tail":
                assert state is not None
                self._set(b"s", key, state[:5] + bytes([state[5] | COLD]) + state[6:47] + rot)
            case "state cut":
                assert state is not None
                self._set(b"s", key, state[:30])
            case _:
                self._set(b"f", key + b"\0", rot)
        return True

    def _spoil_part(self, key: bytes, message: bytes, state: bytes | None, field: str, value: Any) -> bool:
        """It is sound msgpack, of another type or another range; the part is gone where the garbage is empty."""
        name = field.partition(" ")[2]
        if field.startswith("cold"):
            if state is None or not state[5] & COLD:
                return False
            cold = msgspec.msgpack.decode(state[47:])
            put_part(cold, name, value)
            self._set(b"s", key, state[:47] + msgspec.msgpack.encode(cold))
            return True
        row = msgspec.msgpack.decode(message)
        if name:
            row[6] = row[6] or {}
            put_part(row[6], name, value)
        else:
            row[6] = value
        # The first three stand at fixed offsets.
        self._set(b"m", key, message[:20] + b"".join(msgspec.msgpack.encode(part) for part in row[3:]))
        return True

    def strand(self, id: str) -> None:
        member = self._get(b"m", key := bytes.fromhex(id.replace("-", "")))
        assert member is not None
        self._redis.zrem(self._root + b"d2:default", member[4:10] + key)

    def renew(self, id: str, word: str) -> None:
        key = bytes.fromhex(id.replace("-", ""))
        message, state, fault = self._get(b"m", key), self._get(b"s", key), self._get(b"f", key + b"\0")
        assert message is not None and state is not None and fault is not None
        match word:
            case "kind":
                self._set(b"f", key + b"\0", fault.replace(b"transient", b"cosmic"))
            case "lane":
                self._set(b"s", key, b"Z" + state[1:])
                for name in (b"d2:default", b"a2:default"):
                    self._redis.zrem(self._root + name, message[4:10] + key)
            case _:
                cold = msgspec.msgpack.encode({"w": "w", "mood": "blue"})
                self._set(b"s", key, state[:5] + bytes([state[5] | COLD]) + state[6:47] + cold)
                self._set(b"f", key + b"\0", fault[:-1] + b',"mood":"blue"}')

    def renewed(self, id: str, word: str) -> bool:
        key = bytes.fromhex(id.replace("-", ""))
        state, fault = self._get(b"s", key) or b"", self._get(b"f", key + b"\0") or b""
        match word:
            case "kind":
                return b"cosmic" in fault
            case "lane":
                return state[:1] == b"Z"
            case _:
                return b"blue" in state and b"blue" in fault

    def _get(self, hash: bytes, field: bytes) -> bytes | None:
        found: bytes | None = self._redis.hget(self._root + hash, field)  # type: ignore[assignment]
        return found

    def _set(self, hash: bytes, field: bytes, value: bytes) -> None:
        self._redis.hset(self._root + hash, field, value)


def put_part(parts: dict[str, Any], name: str, value: Any) -> None:
    if value == "":
        parts.pop(name, None)
    else:
        parts[name] = value


class PostgresHost:
    name, rare = "postgres", "meta"

    def __init__(self, url: str, schema: str) -> None:
        self.url = f"{url}{'&' if '?' in url else '?'}schema={schema}"
        self._server, self._schema = url, schema
        self._connection: psycopg.Connection[Any] | None = None

    def open(self, clock_ms: Callable[[], int] | None = None) -> Store:
        return PostgresStore(self.url, clock_ms=clock_ms)

    def fields(self) -> Sequence[str]:
        return [name for name in self._kinds() if name != "seq"]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def clear(self) -> None:
        self._run(f"delete from {self._schema}.message")

    def spoil(self, id: str, field: str, garbage: Any) -> bool:
        """The server keeps each column to its type: what is not of it is refused."""
        said = garbage.decode("latin-1").replace("\0", "?") if isinstance(garbage, bytes) else str(garbage)
        kind = self._kinds()[field]
        value: Any = [said] if kind == "ARRAY" else said.encode() if kind == "bytea" else said
        cast = {"ARRAY": "::text[]", "bytea": ""}.get(kind, f"::{kind}")
        try:
            self._run(f"update {self._schema}.message set {field} = %s{cast} where id = %s", value, id)
        except psycopg.Error:
            return False
        return True

    def strand(self, id: str) -> None:
        self._run(f"update {self._schema}.message set due_ms = null where id = %s", id)

    def renew(self, id: str, word: str) -> None:
        at, blue = f"update {self._schema}.message set", """'{mood}', '"blue"')::text where id = %s"""
        match word:
            case "kind":
                self._run(f"{at} faults[1] = replace(faults[1], 'transient', 'cosmic') where id = %s", id)
            case "lane":
                self._run(f"{at} lane = 'frozen', due_ms = null where id = %s", id)
            case _:
                self._run(f"{at} faults[1] = jsonb_set(faults[1]::jsonb, {blue}", id)
                self._run(f"{at} meta = jsonb_set(meta::jsonb, {blue}", id)

    def renewed(self, id: str, word: str) -> bool:
        sign = {"kind": "cosmic", "lane": "frozen", "field": "blue"}[word]
        return sign in str(self._run(f"select lane, faults, meta from {self._schema}.message where id = %s", id))

    def _kinds(self) -> dict[str, str]:
        return dict(
            self._run(
                """select column_name::text, data_type::text from information_schema.columns
                where table_schema = %s and table_name = 'message'""",
                self._schema,
            )
        )

    def _run(self, sql: str, *args: Any) -> list[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self._server, autocommit=True)
        done = self._connection.execute(sql, args)  # type: ignore[call-overload]
        return done.fetchall() if done.description else []


def garbage(seed: int, field: str, count: int = 4) -> list[Any]:
    """The chosen ones, and random bytes as blob and as text; the same for the same seed."""
    draw = random.Random(seed ^ zlib.crc32(field.encode()))
    return [
        *CHOSEN,
        *(bytes([draw.choice(b"t\x00\x92\xde")]) + draw.randbytes(draw.randrange(1, 60)) for _ in range(count)),
    ]
