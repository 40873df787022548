"""Bodies as the first version of the format wrote them. They lie in stores: these bytes must be readable for ever.

A line here is never changed or taken away. Where the format grows, its new bytes are added.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field

from redrive.codec.codec import Codec


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Line:
    sku: str
    price: Decimal
    note: str | None = None


class Order(msgspec.Struct):
    id: UUID
    lines: list[Line]
    at: datetime


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


class Point(NamedTuple):
    x: float
    y: float


class Shape(TypedDict):
    name: str
    corners: list[Point]


class Buyer(BaseModel):
    name: str = Field(alias="fullName")
    born: date | None = None
    limits: dict[str, Decimal] = {}


EAST = timezone(timedelta(hours=5, minutes=30))
GOLDEN: list[tuple[Any, Any, bytes]] = [
    (None, None, b"null"),
    (bool, True, b"true"),
    (int, -(2**63), b"-9223372036854775808"),
    (int, 10**30, b"1000000000000000000000000000000"),
    (float, 0.1, b"0.1"),
    (float, 1e300, b"1e300"),
    (float, -0.0, b"-0.0"),
    (str, 'ü\0\u2028🎈"\\/', b'"\xc3\xbc\\u0000\xe2\x80\xa8\xf0\x9f\x8e\x88\\"\\\\/"'),
    (bytes, b"\x00\xff\xfe", b'"AP/+"'),
    (bytearray, bytearray(b"\xff"), b'"/w=="'),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), b'"2026-01-02T03:04:05.678901Z"'),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=EAST), b'"2026-01-02T03:04:05+05:30"'),
    (datetime, datetime(2026, 1, 2, 3, 4, 5), b'"2026-01-02T03:04:05"'),  # noqa: DTZ001  naive in, naive out
    (date, date(2026, 2, 28), b'"2026-02-28"'),
    (time, time(1, 2, 3), b'"01:02:03"'),
    (time, time(1, 2, 3, 4, tzinfo=UTC), b'"01:02:03.000004Z"'),
    (timedelta, timedelta(days=1, seconds=2, microseconds=3), b'"P1DT2.000003S"'),
    (timedelta, timedelta(days=-1, seconds=1), b'"-PT86399S"'),
    (Decimal, Decimal("1.100"), b'"1.100"'),
    (Decimal, Decimal("1E+30"), b'"1E+30"'),
    (UUID, UUID(int=2**127 + 1), b'"80000000-0000-0000-0000-000000000001"'),
    (Colour, Colour.RED, b'"red"'),
    (Word, Word.YES, b'"yes"'),
    (Level, Level.HIGH, b"3"),
    (Literal["a", 1], 1, b"1"),
    (PurePosixPath, PurePosixPath("a/b"), b'"a/b"'),
    (Line, Line("a", Decimal("9.90")), b'{"sku":"a","price":"9.90","note":null}'),
    (
        Order,
        Order(UUID(int=7), [Line("a", Decimal("0.10"), "n")], datetime(2026, 2, 3, 4, tzinfo=UTC)),
        b'{"id":"00000000-0000-0000-0000-000000000007","lines":[{"sku":"a","price":"0.10","note":"n"}],'
        b'"at":"2026-02-03T04:00:00Z"}',
    ),
    (Circle | Square, Square(2.0), b'{"type":"square","side":2.0}'),
    (Point, Point(1.5, 2.0), b"[1.5,2.0]"),
    (Shape, {"name": "s", "corners": [Point(0.0, 1.0)]}, b'{"name":"s","corners":[[0.0,1.0]]}'),
    (list[int] | None, [1, 2], b"[1,2]"),
    (tuple[int, str], (1, "x"), b'[1,"x"]'),
    (set[int], {5}, b"[5]"),
    (frozenset[str], frozenset({"x"}), b'["x"]'),
    (dict[int, str], {1: "x"}, b'{"1":"x"}'),
    (dict[date, bytes], {date(2026, 1, 1): b"\xff"}, b'{"2026-01-01":"/w=="}'),
    (dict[UUID, None], {UUID(int=1): None}, b'{"00000000-0000-0000-0000-000000000001":null}'),
    (dict[Colour, Level], {Colour.RED: Level.HIGH}, b'{"red":3}'),
    (
        Buyer,
        Buyer(fullName="Ada", born=date(1815, 12, 10), limits={"EUR": Decimal("10.50")}),
        b'{"name":"Ada","born":"1815-12-10","limits":{"EUR":"10.50"}}',
    ),
    (Buyer, Buyer(fullName="Ada"), b'{"fullName":"Ada","born":null,"limits":{}}'),  # as pydantic before 2.11 writes it
    (Any, {"nested": [1, None, {"x": 1.5}]}, b'{"nested":[1,null,{"x":1.5}]}'),
]
OLDER = {b'{"fullName":"Ada","born":null,"limits":{}}'}  # read still, but no longer written


def codec_of(annotation: Any) -> Codec:
    def handler(value: Any) -> None: ...

    handler.__annotations__ |= {"value": annotation, "return": annotation}
    return Codec(handler, "t")


@pytest.mark.parametrize("annotation, value, written", GOLDEN, ids=lambda v: repr(v)[:40])
def test_what_the_first_version_wrote_is_read_as_it_was_meant(annotation: Any, value: Any, written: bytes) -> None:
    (found,), named = codec_of(annotation).decode(b'{"value":' + written + b"}")
    assert repr(found) == repr(value) and not named
    assert repr(codec_of(annotation).decode_result(written)) == repr(value)


@pytest.mark.parametrize("annotation, value, written", GOLDEN, ids=lambda v: repr(v)[:40])
def test_the_same_bytes_are_written_still(annotation: Any, value: Any, written: bytes) -> None:
    """So that workers of the last release can read what this one puts."""
    if written not in OLDER:
        assert codec_of(annotation).encode((value,), {}) == b'{"value":' + written + b"}"


def test_whole_bodies_of_the_first_version_are_read() -> None:
    def handler(order: Order, /, count: int = 1, *, dry: bool = False, note: str | None = None) -> None: ...

    codec = Codec(handler, "t")
    order = Order(UUID(int=7), [], datetime(2026, 2, 3, 4, tzinfo=UTC))
    body = b'{"order":{"id":"00000000-0000-0000-0000-000000000007","lines":[],"at":"2026-02-03T04:00:00Z"}'
    assert codec.decode(body + b"}") == ((order,), {})
    assert codec.decode(body + b',"count":3,"dry":true,"note":null}') == (
        (order,),
        {"count": 3, "dry": True, "note": None},
    )
    spaced = b' {\n "dry" : true , "order":' + body.partition(b":")[2] + b',"dry":false}\r\n\t'
    assert codec.decode(spaced) == ((order,), {"dry": False})
