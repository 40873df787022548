"""Arguments to bytes and back: what arrives is what was sent, and what cannot be is refused where it was said."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import previous
from redrive.codec import Codec
from redrive.errors import ConfigError, EncodeError, Unreadable

if TYPE_CHECKING:
    import nowhere.sub as sub  # type: ignore[import-not-found]
    from nowhere import Missing  # a name that only type checkers know


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mark(enum.Enum):
    NONE = math.nan


@dataclass
class Line:
    sku: str
    price: Decimal
    note: str | None = None


class Order(msgspec.Struct):
    id: UUID
    lines: list[Line]
    at: datetime


class Point(NamedTuple):
    x: float
    y: float


class Shape(TypedDict):
    name: str
    corners: list[Point]


def call(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the handler returns when it is called with what became of these arguments on their way."""
    codec = Codec(handler, "shop.order")
    args, kwargs = codec.decode(codec.encode(args, kwargs))
    return handler(*args, **kwargs)


# -- there and back

ORDER = Order(
    UUID(int=7), [Line("a", Decimal("0.10")), Line("b", Decimal(5), "ü")], datetime(2026, 2, 3, 4, tzinfo=UTC)
)


@pytest.mark.parametrize(
    "annotation, value",
    [
        (int, -(2**63)),
        (int, 2**64 - 1),
        (int, 10**30),
        (float, 0.1),
        (str, "\0 ü 🎈 \u2028"),
        (bool, True),
        (bytes, b"\x00\xff"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        (datetime, datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001  naive in, naive out
        (date, date(2026, 2, 28)),
        (time, time(1, 2, 3)),
        (timedelta, timedelta(days=-1, seconds=1)),
        (Decimal, Decimal("123456789012345678901234567890.123456789")),
        (Decimal, Decimal("0.10")),
        (UUID, UUID(int=2**127 + 1)),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Line, Line("a", Decimal("9.99"))),
        (Order, ORDER),
        (Point, Point(1.5, -0.0)),
        (Shape, {"name": "s", "corners": [Point(0.0, 1.0)]}),
        (int | None, None),
        (int | None, 5),
        (Line | None, None),
        (Literal["a", "b"], "b"),
        (tuple[int, str], (1, "x")),
        (set[int], {1, 2}),
        (dict[str, list[Line]], {"k": [Line("a", Decimal(1))]}),
        (dict[int, str], {1: "x"}),
        (Sequence[date], [date(2026, 1, 1)]),
        (Any, {"nested": [1, None, {"x": "y"}]}),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_a_value_arrives_as_its_annotation_says(annotation: Any, value: Any) -> None:
    def handler(value: Any) -> Any:
        return value

    handler.__annotations__["value"] = annotation
    found = call(handler, value)
    assert found == value and type(found) is type(value)


@given(
    st.builds(
        Order,
        st.uuids(),
        st.lists(st.builds(Line, st.text(), st.decimals(allow_nan=False, allow_infinity=False), st.none() | st.text())),
        st.datetimes(timezones=st.just(UTC)),
    ),
    st.binary(),
    st.dictionaries(st.text(), st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)),
)
def test_any_order_arrives_as_it_was_sent(order: Order, blob: bytes, extra: dict[str, Any]) -> None:
    def handler(order: Order, blob: bytes, *, extra: dict[str, float | int | None]) -> Any:
        return order, blob, extra

    assert call(handler, order, blob, extra=extra) == (order, blob, extra)


def test_decimals_keep_their_digits_and_do_not_become_floats() -> None:
    def handler(price: Decimal) -> Decimal:
        return price

    assert str(call(handler, Decimal("1.100"))) == "1.100"
    assert Codec(handler, "t").encode((Decimal("1.100"),), {}) == b'{"price":"1.100"}'


def test_the_body_is_an_object_of_arguments_by_name() -> None:
    def handler(a: int, /, b: str, *, c: bool = False) -> None: ...

    assert msgspec.json.decode(Codec(handler, "t").encode((1, "x"), {"c": True})) == {"a": 1, "b": "x", "c": True}


def test_a_repeated_key_means_its_last_value() -> None:
    def handler(a: int) -> int:
        return a

    assert Codec(handler, "t").decode(b'{"a": 1, "a": 2}') == ((2,), {})


def test_without_annotations_arguments_arrive_as_plain_json() -> None:
    def handler(a, b=None):  # type: ignore[no-untyped-def]
        return a, b

    assert call(handler, Line("a", Decimal(1)), b=(1, 2)) == ({"sku": "a", "price": "1", "note": None}, [1, 2])


def only_checked(line: Line, other: Missing, when: datetime) -> None: ...
def of_a_module(other: sub.Missing) -> None: ...
def nowhere(other: list[Nowhere]) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def without(other: msgspec.Missing) -> None: ...  # type: ignore[name-defined]
def within(one: dict[str, list[Holder]]) -> None: ...


@dataclass
class Holder:
    held: Missing


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (only_checked, "the annotation 'Missing' of argument other names Missing, which only type checkers import; "
         "write `from nowhere import Missing` outside `if TYPE_CHECKING:`"),
        (of_a_module, "write `import nowhere.sub as sub` outside"),
        (nowhere, "'list[Nowhere]' of argument other names Nowhere, which is not known where the task is registered"),
        (without, "cannot be resolved: module 'msgspec' has no attribute 'Missing'"),
        (within, "an annotation in Holder, the type of argument one, names Missing, which only type checkers import; "
         "write `from nowhere import Missing`"),
    ],
)  # fmt: skip
def test_an_annotation_that_cannot_be_resolved_is_refused_with_what_to_import(
    handler: Callable[..., Any], says: str
) -> None:
    """It was read as plain JSON, so that the handler got a text or a dict where its type said something else."""
    with pytest.raises(ConfigError) as refused:
        Codec(handler, "t")
    assert str(refused.value).startswith("task 't': ") and says in str(refused.value)


def test_what_is_returned_may_be_known_to_type_checkers_only() -> None:
    def handler(line: Line) -> Missing:
        return line

    assert call(handler, Line("a", Decimal(1))) == Line("a", Decimal(1))


class Importer:
    def __call__(self, line: Line) -> Line:
        return line

    def method(self, line: Line) -> Line:
        return line


def _priced(line: Line, factor: Decimal) -> tuple[Line, Decimal]:
    return line, factor


@functools.wraps(_priced)
def _wrapped(*args: Any, **kwargs: Any) -> Any:
    return _priced(*args, **kwargs)


def test_annotations_are_found_on_callable_objects_methods_partials_and_wrappers() -> None:
    line = Line("a", Decimal(2))
    assert call(Importer(), line) == line
    assert call(Importer().method, line) == line
    assert call(_wrapped, line, Decimal(3)) == (line, Decimal(3))
    assert call(functools.partial(_priced, factor=Decimal(4)), line) == (line, Decimal(4))


# -- defaults


def test_defaults_apply_at_the_call_and_stay_out_of_the_body() -> None:
    sentinel = object()

    def handler(a: int = 1, b: list[int] = [], *, c: Any = sentinel, d: Colour = Colour.RED) -> Any:  # noqa: B006
        return a, b, c, d

    assert Codec(handler, "t").encode((), {}) == b"{}"
    a, b, c, d = call(handler)
    assert (a, b, d) == (1, [], Colour.RED) and c is sentinel
    assert call(handler, 5, d=Colour.RED, b=[2]) == (5, [2], sentinel, Colour.RED)


def test_a_mutable_default_is_the_handlers_own() -> None:
    def handler(seen: list[int] = []) -> list[int]:  # noqa: B006
        return seen

    assert call(handler) is handler.__defaults__[0]  # type: ignore[index]


@given(st.integers(0, 3), st.booleans())
def test_positional_only_arguments_stay_in_their_places(count: int, last: bool) -> None:
    def handler(a: int = 10, b: int = 20, c: int = 30, /, d: int = 40) -> Any:
        return a, b, c, d

    given_ = list(range(count))
    expected = (*given_, *(10, 20, 30)[count:], 4 if last else 40)
    assert call(handler, *given_, **({"d": 4} if last else {})) == expected


def test_a_body_may_leave_out_a_positional_only_default_before_another() -> None:
    def handler(a: int = 1, b: int = 2, c: int = 3, /) -> Any:
        return a, b, c

    args, kwargs = Codec(handler, "t").decode(b'{"b": 20}')
    assert handler(*args, **kwargs) == (1, 20, 3)


def test_an_explicit_none_is_not_the_default() -> None:
    def handler(limit: int | None = 5) -> int | None:
        return limit

    assert call(handler, None) is None and call(handler) == 5


# -- wrong calls


def order(id: int, /, sku: str, *, dry: bool = False) -> None: ...


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((), {}),
        ((1,), {}),
        ((1, "x", True), {}),
        ((1, "x"), {"sku": "y"}),
        ((1, "x"), {"colour": 1}),
        ((), {"id": 1, "sku": "x"}),
    ],
    ids=str,
)
def test_a_wrong_call_is_a_type_error_with_the_task_and_its_signature(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError, match=r"'shop.order'.*\(id: .*dry: .*=.*False\)") as caught:
        Codec(order, "shop.order").encode(args, kwargs)
    assert not isinstance(caught.value, EncodeError)
    with pytest.raises(TypeError):
        order(*args, **kwargs)


@pytest.mark.parametrize(
    "args", [("1", "x"), (1, 2), (None, "x"), (1.5, "x"), ([1], "x"), (1, Line("a", Decimal(1)))], ids=str
)
def test_an_argument_of_the_wrong_type_is_a_type_error_at_the_call(args: Any) -> None:
    with pytest.raises(TypeError, match=r"'shop.order'.*Expected .*\(id: .*\)"):
        Codec(order, "shop.order").encode(args, {})


@pytest.mark.parametrize(
    "bad", [lambda *a: None, lambda **a: None, lambda x, *a, y=1: None], ids=["args", "kwargs", "both"]
)
def test_arguments_without_a_name_are_refused_when_the_task_is_declared(bad: Callable[..., None]) -> None:
    with pytest.raises(ConfigError, match=r"'t'.*parameter \*a"):
        Codec(bad, "t")


def test_annotations_that_json_cannot_tell_apart_are_refused_when_the_task_is_declared() -> None:
    def handler(what: Line | Order) -> None: ...

    with pytest.raises(ConfigError, match=r"'t'.*annotations"):
        Codec(handler, "t")


# -- what cannot be written


def plain(a: Any) -> Any:
    return a


@dataclass
class Reading:
    value: Any


class Box(msgspec.Struct):
    value: Any


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize(
    "hide",
    [
        lambda v: v,
        lambda v: [[[v]]],
        lambda v: {"k": (1, {"x": v})},
        lambda v: {v},
        lambda v: frozenset([v]),
        lambda v: Reading(v),
        lambda v: Box([Reading(Point(v, 0.0))]),
        lambda v: [None, "null", v],
    ],
    ids=["bare", "list", "dict", "set", "frozenset", "dataclass", "struct", "beside-null"],
)
def test_nan_and_infinity_are_refused_at_any_depth(value: float, hide: Callable[[float], Any]) -> None:
    with pytest.raises(EncodeError, match=r"'t'.*(nan|inf)"):
        Codec(plain, "t").encode((hide(value),), {})


def test_nan_is_refused_as_an_enums_value_and_for_a_float() -> None:
    def handler(a: float | Mark) -> None: ...

    for value in (Mark.NONE, math.nan):
        with pytest.raises(EncodeError, match="nan"):
            Codec(plain, "t").encode((value,), {})
    handler.__annotations__["a"] = float
    with pytest.raises(EncodeError, match="nan"):
        Codec(handler, "t").encode((math.nan,), {})


def test_nan_is_refused_beside_what_a_step_awaits() -> None:
    def handler(page: Any, rate: Any) -> None: ...

    codec = Codec(handler, "t")
    for value in (math.nan, [None, -math.inf]):
        with pytest.raises(EncodeError, match=r"'t': an argument .*(nan|inf)"):
            codec.encode_step((previous, value), {})
    assert codec.encode_step((previous, [None]), {}) == (b'{"rate":[null]}', {"page": previous})


def test_none_and_the_word_null_are_no_nan() -> None:
    assert call(plain, [None, "null", {"null": None}]) == [None, "null", {"null": None}]


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "value",
    [object(), 1j, lambda: None, _cycle(), _deep(), "\ud800", {"k": "\udfff"}, {(1, 2): 3}, [open]],
    ids=["object", "complex", "function", "cycle", "deep", "surrogate", "nested-surrogate", "tuple-key", "builtin"],
)
def test_what_json_cannot_hold_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError, match="'t'"):
        Codec(plain, "t").encode((value,), {})


# -- what cannot be read


def strict(a: int, when: datetime, line: Line | None = None) -> None: ...


GOOD = b'{"a": 1, "when": "2026-01-01T00:00:00Z"}'


def test_the_good_body_is_read() -> None:
    assert Codec(strict, "t").decode(GOOD) == ((), {"a": 1, "when": datetime(2026, 1, 1, tzinfo=UTC)})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b'"text"',
        b"{",
        GOOD + b"x",
        GOOD + GOOD,
        b"\xef\xbb\xbf" + GOOD,
        b'{"a": 1}',
        b'{"a": "1", "when": "2026-01-01T00:00:00Z"}',
        b'{"a": true, "when": "2026-01-01T00:00:00Z"}',
        b'{"a": 1.5, "when": "2026-01-01T00:00:00Z"}',
        b'{"a": 1, "when": "yesterday"}',
        b'{"a": 1, "when": "2026-01-01T00:00:00Z", "unknown": 1}',
        b'{"a": 1, "when": "2026-01-01T00:00:00Z", "line": {"sku": "a"}}',
        b'{"a": 1, "when": "2026-01-01T00:00:00Z", "line": {"sku": "a", "price": "many"}}',
        b'{"a": NaN, "when": "2026-01-01T00:00:00Z"}',
        b'{"a": -Infinity, "when": "2026-01-01T00:00:00Z"}',
        b'{"a": ' + b"9" * 5_000 + b', "when": "2026-01-01T00:00:00Z"}',
        b'{"a": 1, "when": "\\ud800"}',
        b'{"a": 1, "wh\xffen": ""}',
        b"\x80\x04\x95",
        b'{"a":' * 100_000,
        b'{"line":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        GOOD.decode().encode("utf-16"),
    ],
    ids=lambda b: repr(b[:40]),
)
def test_a_body_that_does_not_fit_is_unreadable_and_says_what_was_expected(body: bytes) -> None:
    with pytest.raises(Unreadable, match=r"does not fit t\(a: ") as caught:
        Codec(strict, "t").decode(body)
    assert len(str(caught.value)) < 500
    str(caught.value).encode()


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_decoder(body: bytes) -> None:
    for handler in (strict, plain):
        try:
            Codec(handler, "t").decode(body)
        except Unreadable as error:
            str(error).encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["a", "when", "line", "x"]), json_values))
def test_json_of_any_shape_is_read_or_unreadable(fields: dict[str, Any]) -> None:
    try:
        args, kwargs = Codec(strict, "t").decode(msgspec.json.encode(fields))
    except Unreadable:
        return
    strict(*args, **kwargs)
    assert type(kwargs["a"]) is int and type(kwargs["when"]) is datetime


@dataclass
class Checked:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise KeyError(self.n)


def test_a_dataclass_that_refuses_with_an_odd_error_is_unreadable() -> None:
    def handler(checked: Checked) -> None: ...

    with pytest.raises(Unreadable, match="-1"):
        Codec(handler, "t").decode(b'{"checked": {"n": -1}}')


class Odd(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Odd:
        raise ZeroDivisionError("odd")


def test_an_enum_that_fails_on_unknown_values_is_unreadable() -> None:
    def handler(odd: Odd) -> None: ...

    with pytest.raises(Unreadable):
        Codec(handler, "t").decode(b'{"odd": "b"}')


def test_a_leading_context_is_no_argument_of_the_body() -> None:
    def handler(ctx: Any, a: int) -> None: ...

    codec = Codec(handler, "t", skip_first=True)
    assert codec.encode((1,), {}) == b'{"a":1}'
    assert codec.decode(b'{"a":1}') == ((1,), {})
    with pytest.raises(TypeError):
        codec.encode((None, 1), {})
