"""The bytes of a store that is fuzzed: saved, brought back, and changed in one place, by the seed."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol
from uuid import UUID

import msgspec
import psycopg
import redis

EXTREMES = (0, 1, -1, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**31), -(2**63))
ODD = (
    "",
    " ",
    "garbage",
    "{",
    "[]",
    "{}",
    "null",
    "-1",
    "1e400",
    "NaN",
    "dead",
    "ready",
    "leased",
    "done",
    "a",
    "work",
)
NAMESPACE = "t"


class Corruption(msgspec.Struct, frozen=True):
    """A change of one place. `victim`: the id of the message that it is about, if it is about one only; `reach` is
    `row`, `cell` or `all`: what else it may rightly harm. Nothing was changed where the engine refused it."""

    text: str
    reach: str
    victim: str | None = None
    refused: bool = False
    renamed: bool = False  # the victim has another id, or nothing of it is left: it is not to be met


class Bytes(Protocol):
    """A store's bytes."""

    url: str

    def clear(self) -> None:
        """Remove all, before a world is built."""
        ...

    def save(self) -> None: ...

    def restore(self) -> None: ...

    def corrupt(self, draw: random.Random) -> Corruption: ...

    def close(self) -> None: ...


def bytes_of(engine: str, place: str) -> Bytes:
    """`place`: a folder for SQLite, else the server's URL."""
    match engine:
        case "sqlite":
            return SqliteBytes(Path(place))
        case "redis":
            return RedisBytes(place)
        case _:
            return PostgresBytes(place)


# -- values


def other(draw: random.Random, now: Any, pool: Sequence[Any]) -> Any:
    """Another value in the place of this one. `pool`: what else is in such places."""
    way = draw.randrange(8)
    if way == 0:
        return None
    if way == 1:
        return draw.choice(EXTREMES)
    if way == 2:
        return draw.choice(ODD)
    if way == 3 and pool:
        return draw.choice(list(pool))
    if way == 4 and isinstance(now, str) and now[:1] in ("{", "["):
        return _other_json(draw, now)
    if way == 5:
        return draw.choice([-1.5, 1e300, b"\x00\xff\xfe", draw.randbytes(draw.randrange(1, 60)), "x" * 100_000])
    return spoiled(draw, now)


def spoiled(draw: random.Random, now: Any) -> Any:
    """Cut, or with one bit flipped."""
    if isinstance(now, int):
        return now ^ (1 << draw.randrange(62))
    text = isinstance(now, str)
    raw = bytearray(now.encode() if text else bytes(now or b""))
    if not raw:
        return draw.randbytes(3)
    if draw.random() < 0.4:
        raw = raw[: draw.randrange(len(raw))]
    else:
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    if text:
        with suppress(UnicodeDecodeError):
            return bytes(raw).decode()
    return bytes(raw)


def _other_json(draw: random.Random, text: str) -> str:
    """With another value somewhere in it."""
    try:
        value = json.loads(text)
    except ValueError:
        return text[1:]
    places: list[tuple[Any, Any]] = []

    def walk(each: Any) -> None:
        some = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for key, inner in some:
            places.append((each, key))
            walk(inner)

    walk(value)
    if not places:
        return "[" * 3000
    inside, key = draw.choice(places)
    inside[key] = draw.choice([*EXTREMES, *ODD, None, True, [], {}, [[]], {"a": 1}, 1.5, "\ud800"[:0] + "\0"])
    return json.dumps(value)


# -- SQLite


class SqliteBytes:
    WEIGHTS: ClassVar = {"message": 14, "unique_key": 1, "queue": 1, "group_width": 1, "cell": 3, "cell_gone": 1}

    def __init__(self, folder: Path) -> None:
        self._path = folder / "work.db"
        self._kept = folder / "kept.db"
        self.url = f"sqlite:///{self._path}"

    def clear(self) -> None:
        for path in self._path.parent.glob("work.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def save(self) -> None:
        with closing(sqlite3.connect(self._path)) as c:
            c.execute("pragma wal_checkpoint(truncate)")
        shutil.copy(self._path, self._kept)

    def restore(self) -> None:
        self.clear()
        shutil.copy(self._kept, self._path)

    def corrupt(self, draw: random.Random) -> Corruption:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as c:
            c.text_factory = _text
            c.execute("pragma ignore_check_constraints = on")
            table = draw.choices([*self.WEIGHTS], [*self.WEIGHTS.values()])[0]
            names = [row[1] for row in c.execute(f"pragma table_info({table})")]
            rows = c.execute(f"select * from {table}").fetchall()
            if not rows:
                return Corruption(f"{table} is empty", "row", refused=True)
            row = dict(zip(names, draw.choice(rows), strict=True))
            name = draw.choice(names)
            key = next((one for one in ("seq", "key", "name") if one in names and table != "unique_key"), None)
            value = other(draw, row[name], [] if table == "cell" else [r[names.index(name)] for r in rows])
            reach = {"message": "row", "unique_key": "row", "cell": "cell"}.get(table, "all")
            text = f"{table}.{name} of {row.get('id') or row.get(key or '')!r}: {_short(row[name])} -> {_short(value)}"
            where = " and ".join(f"{n} is ?" for n in ([key] if key else names))
            given = [row[n] for n in ([key] if key else names)]
            try:
                cast = "cast(? as text)" if isinstance(value, bytes) and isinstance(row[name], str) else "?"
                done = c.execute(f"update {table} set {name} = {cast} where {where}", (value, *given)).rowcount
            except (sqlite3.Error, OverflowError) as error:
                return Corruption(f"{text}: {error}", reach, refused=True)
            return Corruption(text, reach, _str(row.get("id")), refused=done != 1, renamed=name == "id")

    def close(self) -> None: ...


def _text(raw: bytes) -> Any:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 90 else f"{said[:80]}… ({len(said)})"


# -- PostgreSQL


class PostgresBytes:
    WEIGHTS: ClassVar = {"message": 14, "unique_key": 1, "queue": 1, "line": 2, "cell": 3}

    def __init__(self, url: str) -> None:
        self.url = f"{url}{'&' if '?' in url else '?'}schema={NAMESPACE}"
        self._c = psycopg.connect(url, autocommit=True)

    def clear(self) -> None:
        self._c.execute(f"drop schema if exists {NAMESPACE} cascade")
        self._c.execute("drop schema if exists kept cascade")

    def save(self) -> None:
        self._c.execute("create schema kept")
        for table in self.WEIGHTS:
            self._c.execute(f"create table kept.{table} as table {NAMESPACE}.{table}")

    def restore(self) -> None:
        with self._c.transaction():
            self._c.execute("set local session_replication_role = replica")  # no triggers
            for table in self.WEIGHTS:
                self._c.execute(f"delete from {NAMESPACE}.{table}")
                self._c.execute(f"insert into {NAMESPACE}.{table} table kept.{table}")

    def corrupt(self, draw: random.Random) -> Corruption:
        table = draw.choices([*self.WEIGHTS], [*self.WEIGHTS.values()])[0]
        kinds = dict(
            self._c.execute(
                "select column_name::text, data_type::text from information_schema.columns "
                "where table_schema = %s and table_name = %s",
                (NAMESPACE, table),
            ).fetchall()
        )
        order = "seq" if "seq" in kinds else "1"
        found = self._c.execute(f"select ctid::text, * from {NAMESPACE}.{table} order by {order}")
        columns = [one.name for one in found.description or ()]
        rows = [dict(zip(columns, row, strict=True)) for row in found.fetchall()]
        if not rows:
            return Corruption(f"{table} is empty", "row", refused=True)
        row, name = draw.choice(rows), draw.choice([*kinds])
        now = json.dumps(row[name]) if isinstance(row[name], dict | list) else row[name]
        now = str(now) if isinstance(now, UUID) else now
        value = other(draw, now, [] if table == "cell" else [each[name] for each in rows])
        reach = {"message": "row", "unique_key": "row", "cell": "cell"}.get(table, "all")
        who = row.get("id") or row.get("key") or row.get("name")
        text = f"{table}.{name} of {who!r}: {_short(row[name])} -> {_short(value)}"
        try:
            self._set(table, name, kinds[name], value, row["ctid"])
        except (psycopg.Error, ValueError, OverflowError) as error:
            return Corruption(f"{text}: {' '.join(str(error).split())}", reach, refused=True)
        return Corruption(text, reach, None if row.get("id") is None else str(row["id"]), renamed=name == "id")

    def _set(self, table: str, name: str, kind: str, value: Any, ctid: str) -> None:
        given: Any = value
        if kind == "bytea":
            given = None if value is None else value if isinstance(value, bytes) else str(value).encode()
        elif kind == "ARRAY":
            given = value if value is None or isinstance(value, list) else [_words(value)]
        elif value is not None:
            given = json.dumps(value) if isinstance(value, dict | list) else _words(value)
        cast = {"ARRAY": "::text[]", "bytea": ""}.get(kind, f"::text::{kind}")
        sql = f"update {NAMESPACE}.{table} set {name} = %s{cast} where ctid = %s::tid"
        with self._c.transaction():
            self._c.execute("set local session_replication_role = replica")  # no trigger mends it
            self._c.execute(sql, (given, ctid))

    def close(self) -> None:
        self._c.close()


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.decode("latin-1").replace("\0", "?") if isinstance(value, bytes) else str(value).replace("\0", "?")


# -- Redis


class RedisBytes:
    def __init__(self, url: str) -> None:
        self.url = f"{url}?namespace={NAMESPACE}"
        self._r = redis.Redis.from_url(url)
        self._root = b"{%s}:" % NAMESPACE.encode()
        self._kept: dict[bytes, bytes] = {}

    def _keys(self) -> list[bytes]:
        found: list[bytes] = self._r.keys(b"*")  # type: ignore[assignment]
        return sorted(key for key in found if key.startswith(self._root))

    def clear(self) -> None:
        if keys := self._keys():
            self._r.delete(*keys)

    def save(self) -> None:
        self._kept = {key: self._r.dump(key) for key in self._keys()}  # type: ignore[misc]

    def restore(self) -> None:
        with self._r.pipeline(transaction=False) as pipe:
            if keys := self._keys():
                pipe.delete(*keys)
            for key, value in self._kept.items():
                pipe.restore(key, 0, value)
            pipe.execute()

    def corrupt(self, draw: random.Random) -> Corruption:
        keys = [key[len(self._root) :] for key in self._keys()]
        heavy = {b"m": 10, b"s": 20, b"f": 3, b"c": 12}
        name = draw.choices(keys, [heavy.get(key, 1) for key in keys])[0]
        key = self._root + name
        kind = bytes(self._r.type(key)).decode()
        if draw.random() < 0.04:
            return self._whole(draw, key, kind)
        act: Callable[[random.Random, bytes, bytes], Corruption] = getattr(self, f"_{kind}")
        return act(draw, key, name)

    def _whole(self, draw: random.Random, key: bytes, kind: str) -> Corruption:
        self._r.delete(key)
        if draw.random() < 0.5:
            self._r.set(key, b"7") if kind != "string" else self._r.sadd(key, b"7")
            return Corruption(f"{key!r} ({kind}) has another type", "all")
        return Corruption(f"{key!r} ({kind}) is gone", "all")

    def _hash(self, draw: random.Random, key: bytes, name: bytes) -> Corruption:
        found: dict[bytes, bytes] = self._r.hgetall(key)  # type: ignore[assignment]
        fields = sorted((field for field in found if field), key=self._order())
        field = draw.choice(fields)
        about = name in (b"m", b"s", b"f", b"p", b"r", b"x", b"xw")
        reach = "row" if about or name == b"k" else "cell" if name == b"c" else "all"
        victim = _id_of(field[:16]) if about else _id_of(found[field][:16]) if name == b"k" else None
        way = draw.random()
        if way < 0.08:
            self._r.hdel(key, field)
            return Corruption(f"{name!r} without {field!r}", reach, victim, renamed=name == b"m")
        if way < 0.16:
            bogus = draw.randbytes(draw.choice([1, 5, 15, 16, 17, 22, 40]))
            self._r.hset(key, bogus, found[field])
            return Corruption(f"{name!r} has {bogus!r} too, as {field!r}", reach, victim)
        value = self._value(draw, found[field], name, [] if name == b"c" else [*found.values()])
        self._r.hset(key, field, value)
        return Corruption(f"{name!r} at {field!r}: {_short(found[field])} -> {_short(value)}", reach, victim)

    def _order(self) -> Callable[[bytes], tuple[bytes, bytes]]:
        """Ids by the order of putting, which does not change from run to run; other names by themselves."""
        numbers: dict[bytes, bytes] = {id: m[4:10] for id, m in self._r.hgetall(self._root + b"m").items() if id}  # type: ignore[union-attr]
        return lambda field: (numbers.get(field[:16], b""), field[16:] if field[:16] in numbers else field)

    def _value(self, draw: random.Random, now: bytes, name: bytes, pool: Sequence[bytes]) -> bytes:
        if name == b"s" and draw.random() < 0.5:
            return _other_state(draw, now)
        value = other(draw, now, pool)
        return value if isinstance(value, bytes) else b"" if value is None else str(value).encode()

    def _zset(self, draw: random.Random, key: bytes, name: bytes) -> Corruption:
        found: list[tuple[bytes, float]] = self._r.zrange(key, 0, -1, withscores=True)  # type: ignore[assignment]
        member, score = draw.choice(found)
        reach = "row" if len(member) == 22 else "all"
        way = draw.random()
        if way < 0.5:
            bogus = draw.choice(
                [b"x", draw.randbytes(draw.randrange(0, 30)), member[: draw.randrange(22)], member + b"x"]
            )
            at = draw.choice([0, 1, -1, score, score, "inf", "-inf"])
            self._r.zadd(key, {bogus: at})  # type: ignore[dict-item]
            return Corruption(f"{name!r} has {bogus!r} at {at}", "row", None if bogus == member else _id_of(bogus[6:]))
        if way < 0.8:
            at = draw.choice([0, -1, 1, score + 0.5, 2**53, 2.0**60, "inf", "-inf", score * 2])
            self._r.zadd(key, {member: at})
            return Corruption(f"{name!r}: {member!r} from {score} to {at}", reach, _id_of(member[6:]))
        self._r.zrem(key, member)
        return Corruption(f"{name!r} without {member!r}", reach, _id_of(member[6:]))

    def _set(self, draw: random.Random, key: bytes, name: bytes) -> Corruption:
        members = sorted(self._r.smembers(key))  # type: ignore[arg-type]
        member = draw.choice(members)
        victim = _id_of(member[6:]) if name.startswith(b"t:") else None
        if draw.random() < 0.7:
            bogus = draw.choice(
                [b"x", b"", b"\xff\xfe", draw.randbytes(draw.randrange(0, 30)), member[:-1], member + b"\0"]
            )
            self._r.sadd(key, bogus)
            return Corruption(f"{name!r} has {bogus!r}", "row" if name in (b"qs", b"fg") else "all", victim)
        self._r.srem(key, member)
        return Corruption(f"{name!r} without {member!r}", "row" if victim else "all", victim)

    def _string(self, draw: random.Random, key: bytes, name: bytes) -> Corruption:
        now = self._r.get(key)
        value = draw.choice([b"", b"x", b"1.5", b"-1", b"0", b"9223372036854775807", b"1e400", b"99999999999999999999"])
        self._r.set(key, value)
        return Corruption(f"{name!r}: {now!r} -> {value!r}", "all")

    def close(self) -> None:
        self._r.close()


def _id_of(raw: bytes) -> str | None:
    if len(raw) != 16:
        return None
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def _other_state(draw: random.Random, now: bytes) -> bytes:
    """With one number of its head at an extreme, or one part of its map another value."""
    places = ((0, 1), (1, 4), (5, 1), (6, 4), (10, 4), (14, 4), (18, 4), (22, 1), (23, 8), (31, 8), (39, 8))
    if draw.random() < 0.7 or len(now) < 48 or not now[5] & 128:
        at, size = draw.choice(places)
        value = draw.choice([0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**64 - 1]) % 256**size
        return now[:at] + value.to_bytes(size, "big") + now[at + size :]
    cold = msgspec.msgpack.decode(now[47:])
    cold[draw.choice([*cold, "g", "t", "rm", "pr", "b"])] = draw.choice([*EXTREMES[:11], *ODD, None, {}, [1]])
    return now[:47] + msgspec.msgpack.encode(cold)
