"""The types that an annotation may name, each with a strategy for its values, and the codec of a handler of one."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
from hypothesis import strategies as st

from redrive.codec.codec import Codec


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Level(enum.IntEnum):
    LOW = -1
    HIGH = 2**40


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Number(enum.Enum):
    ONE = 1
    TWO = 2


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: Literal["EUR", "USD"] = "EUR"


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Slotted:
    at: datetime | None
    tags: frozenset[str]


class Event(msgspec.Struct, frozen=True):
    id: UUID
    at: datetime
    cost: Money | None = None


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


class Short(msgspec.Struct, array_like=True, rename="camel"):
    first_name: str
    age: int


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Row(TypedDict):
    id: int
    note: NotRequired[str]


def minutes(offset: int) -> timezone:
    return timezone(timedelta(minutes=offset))


text = st.text(max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False)
zones = st.just(UTC) | st.integers(-1439, 1439).map(minutes)
naive = st.datetimes()
aware = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones)  # noqa: DTZ001  bounds are naive
money = st.builds(Money, decimals, st.sampled_from(["EUR", "USD"]))
trees = st.recursive(
    st.builds(Tree, st.integers()),
    lambda inner: st.builds(Tree, st.integers(), st.lists(inner, max_size=3)),
    max_leaves=8,
)
events = st.builds(Event, st.uuids(), aware, st.none() | money)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)

EVERY: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "none": (None, st.none()),
    "bool": (bool, st.booleans()),
    "int": (int, st.integers()),
    "float": (float, floats),
    "str": (str, text),
    "bytes": (bytes, st.binary()),
    "bytearray": (bytearray, st.binary().map(bytearray)),
    "naive datetime": (datetime, naive),
    "aware datetime": (datetime, aware),
    "date": (date, st.dates()),
    "time": (time, st.times(timezones=st.none() | zones)),
    "timedelta": (timedelta, st.timedeltas()),
    "decimal": (Decimal, decimals),
    "uuid": (UUID, st.uuids()),
    "path": (Path, text.filter(lambda t: "\0" not in t).map(Path)),
    "posix path": (PurePosixPath, text.map(PurePosixPath)),
    "enum of text": (Colour, st.sampled_from(Colour)),
    "enum of numbers": (Number, st.sampled_from(Number)),
    "StrEnum": (Word, st.sampled_from(Word)),
    "IntEnum": (Level, st.sampled_from(Level)),
    "IntFlag": (Rights, st.sampled_from([Rights.READ, Rights.WRITE, Rights.READ | Rights.WRITE, Rights(0)])),
    "Literal": (Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    "dataclass": (Money, money),
    "recursive dataclass": (Tree, trees),
    "slotted dataclass": (Slotted, st.builds(Slotted, at=st.none() | aware, tags=st.frozensets(text, max_size=3))),
    "Struct": (Event, events),
    "array Struct": (Short, st.builds(Short, text, st.integers())),
    "tagged Structs": (Circle | Square, st.builds(Circle, floats) | st.builds(Square, floats)),
    "NamedTuple": (Point, st.builds(Point, floats, floats)),
    "TypedDict": (Row, st.fixed_dictionaries({"id": st.integers()}, optional={"note": text})),
    "list": (list[Money], st.lists(money, max_size=4)),
    "set": (set[date], st.sets(st.dates(), max_size=4)),
    "frozenset": (frozenset[UUID], st.frozensets(st.uuids(), max_size=4)),
    "set of dataclasses": (set[Money], st.sets(money, max_size=4)),
    "tuple": (tuple[int, str, bytes], st.tuples(st.integers(), text, st.binary())),
    "long tuple": (tuple[Decimal, ...], st.lists(decimals, max_size=4).map(tuple)),
    "Sequence": (Sequence[timedelta], st.lists(st.timedeltas(), max_size=4)),
    "Mapping": (Mapping[str, Event], st.dictionaries(text, events, max_size=3)),
    "dict by int": (dict[int, bytes], st.dictionaries(st.integers(), st.binary(), max_size=3)),
    "dict by float": (dict[float, int], st.dictionaries(floats, st.integers(), max_size=3)),
    "dict by date": (dict[date, Money], st.dictionaries(st.dates(), money, max_size=3)),
    "dict by datetime": (dict[datetime, None], st.dictionaries(aware, st.none(), max_size=3)),
    "dict by UUID": (dict[UUID, Decimal], st.dictionaries(st.uuids(), decimals, max_size=3)),
    "dict by enum": (dict[Colour, Level], st.dictionaries(st.sampled_from(Colour), st.sampled_from(Level))),
    "optional": (Event | None, st.none() | events),
    "union": (int | str | list[int] | None, st.none() | st.integers() | text | st.lists(st.integers(), max_size=3)),
    "plain": (Any, plain),
    "bare dict": (dict, st.dictionaries(text, plain, max_size=3)),
}


def codec_of(annotation: Any) -> Codec:
    def handler(value: Any) -> None: ...

    handler.__annotations__ |= {"value": annotation, "return": annotation}
    return Codec(handler, "t")
