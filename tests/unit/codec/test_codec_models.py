"""Pydantic models travel by their own rules, wherever an annotation may name them, and fail as everything else does."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, field_validator

from redrive.codec.codec import Codec
from redrive.errors import ConfigError, EncodeError, Unreadable

T = TypeVar("T")


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Item(BaseModel):
    sku: str = Field(min_length=1)
    price: Decimal = Decimal("1.10")
    tags: set[str] = set()


class Order(BaseModel):
    id: UUID
    items: list[Item] = []
    at: datetime | None = None
    size: Size = Size.SMALL
    wait: timedelta = timedelta(0)
    parent: Order | None = None
    number: int = 0


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    day: date
    price: Decimal
    names: tuple[str, ...] = ()


class Aliased(BaseModel):
    both: int = Field(alias="theBoth")
    read: int = Field(validation_alias="theRead")
    written: int = Field(serialization_alias="theWritten")


class Numbers(RootModel[list[int]]): ...


class Box(BaseModel, Generic[T]):
    value: T


class Bytes(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes


@dataclass
class Line:
    item: Item
    by_size: dict[Size, list[Item | None]]


class Pair(NamedTuple):
    left: Item
    right: Order | None


class Parcel(TypedDict):
    items: list[Item]


class Shipment(msgspec.Struct):
    lines: list[Line]
    owner: Owner | None = None


def handler_of(annotation: Any) -> Callable[..., Any]:
    def handler(value: Any) -> Any:
        return value

    handler.__annotations__["value"] = annotation
    return handler


def there_and_back(annotation: Any, value: Any) -> Any:
    codec = Codec(handler_of(annotation), "t")
    return codec.decode(codec.encode((value,), {}))[0][0]


ITEM = Item(sku="a", price=Decimal("0.10"), tags={"x", "y"})
ORDER = Order(
    id=UUID(int=7), items=[ITEM], at=datetime(2026, 1, 2, tzinfo=UTC), size=Size.LARGE, wait=timedelta(days=1)
)


@pytest.mark.parametrize(
    "annotation, value",
    [
        (Item, ITEM),
        (Order, Order(id=UUID(int=1), parent=ORDER)),
        (Order | None, None),
        (Order | None, ORDER),
        (list[Item], [ITEM, Item(sku="b")]),
        (dict[str, Item], {"k": ITEM}),
        (dict[UUID, list[Order]], {UUID(int=1): [ORDER]}),
        (tuple[Item, int], (ITEM, 1)),
        (Line, Line(ITEM, {Size.SMALL: [ITEM, None]})),
        (Pair, Pair(ITEM, ORDER)),
        (Parcel, {"items": [ITEM]}),
        (Shipment, Shipment([Line(ITEM, {})], Owner(pet=Dog(good=False)))),
        (Owner, Owner(pet=Cat(lives=7))),
        (Strict, Strict(day=date(2026, 1, 1), price=Decimal("1.100"), names=("x",))),
        (set[Strict], {Strict(day=date(2026, 1, 1), price=Decimal(1))}),
        (Aliased, Aliased.model_validate({"theBoth": 1, "theRead": 2, "written": 3})),
        (Numbers, Numbers([1, 2**70])),
        (Box[Item], Box[Item](value=ITEM)),
        (Box[Box[datetime]], Box[Box[datetime]](value=Box[datetime](value=datetime(2026, 1, 1, tzinfo=UTC)))),
        (Bytes, Bytes(raw=b"\x00\xff")),
        (Path, Path("/tmp/ü x")),
        (list[PurePosixPath], [PurePosixPath("a/b")]),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_a_model_arrives_as_it_was_sent_wherever_it_stands(annotation: Any, value: Any) -> None:
    found = there_and_back(annotation, value)
    assert found == value and type(found) is type(value)


items = st.builds(
    Item,
    sku=st.text(min_size=1),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    tags=st.sets(st.text(), max_size=3),
)
orders = st.recursive(
    st.none(),
    lambda parents: st.builds(
        Order,
        id=st.uuids(),
        items=st.lists(items, max_size=3),
        at=st.none() | st.datetimes(timezones=st.none() | st.just(UTC)),
        size=st.sampled_from(Size),
        wait=st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
        parent=parents,
        number=st.integers(-(2**80), 2**80),
    ),
    max_leaves=3,
)


@given(orders, st.dictionaries(st.text(), items, max_size=3))
def test_any_order_arrives_as_it_was_sent_digit_by_digit(order: Order | None, more: dict[str, Item]) -> None:
    def handler(order: Order | None, *, more: dict[str, Item]) -> None: ...

    codec = Codec(handler, "t")
    args, kwargs = codec.decode(codec.encode((order,), {"more": more}))
    assert (args, kwargs) == ((), {"order": order, "more": more})
    assert [str(i.price) for i in kwargs["more"].values()] == [str(i.price) for i in more.values()]


def test_a_model_for_an_argument_without_annotation_arrives_as_plain_json() -> None:
    assert there_and_back(Any, Numbers([1])) == [1]
    assert there_and_back(Any, {"k": Cat()}) == {"k": {"kind": "cat", "lives": 9}}


def test_a_model_is_read_by_its_aliases_too() -> None:
    codec = Codec(handler_of(Aliased), "t")
    assert codec.decode(b'{"value":{"theBoth":1,"theRead":2,"written":3}}') == codec.decode(
        b'{"value":{"both":1,"read":2,"written":3}}'
    )


def test_a_default_may_be_a_model() -> None:
    def handler(item: Item = ITEM, *, other: Item | None = None) -> Any:
        return item, other

    codec = Codec(handler, "t")
    assert codec.decode(codec.encode((), {"other": ITEM})) == ((), {"other": ITEM})


def test_results_and_lifted_bodies_hold_models() -> None:
    def handler(item: Item) -> list[Item]: ...

    codec = Codec(handler, "t", version=2)
    codec.upcast(1, lambda body: {"item": Item(sku=body["sku"])})
    assert codec.decode(b'{"sku":"a"}', 1) == ((Item(sku="a"),), {})
    assert codec.decode_result(codec.encode_result([ITEM])) == [ITEM]


# -- what does not fit


@pytest.mark.parametrize(
    "value, what",
    [
        ({"sku": ""}, r"Item: sku: .*at least 1 character.*\$\.value"),
        ({"sku": 5}, "sku: .*valid string"),
        ({}, "sku: Field required"),
        ({"sku": "a", "price": "many"}, "price: .*valid decimal"),
        (5, "Item: value: "),
        (None, "Item: value: "),
        ([ITEM], "Item: value: "),
    ],
    ids=lambda part: re.sub(r"\{[^}]*\}|0x[0-9a-f]+", "…", str(part)),  # the order of a set and addresses change
)
def test_what_a_model_refuses_is_a_type_error_at_the_enqueue_and_unreadable_in_the_store(value: Any, what: str) -> None:
    codec = Codec(handler_of(Item), "shop.pack")
    with pytest.raises(TypeError, match=f"'shop.pack': .*{what}.*it takes") as caught:
        codec.encode((value,), {})
    assert not isinstance(caught.value, EncodeError) and "\n" not in str(caught.value)
    with pytest.raises(Unreadable, match=what) as unread:
        codec.decode(msgspec.json.encode({"value": value}, enc_hook=dict))
    assert "http" not in str(unread.value) and "\n" not in str(unread.value)


class Odd(BaseModel):
    how: str

    @field_validator("how")
    @classmethod
    def _fail(cls, how: str) -> str:
        raise {"key": KeyError("k"), "deep": RecursionError(), "odd": ZeroDivisionError("\ud800")}[how]


@pytest.mark.parametrize("how", ["key", "deep", "odd", "other"])
def test_a_validator_that_fails_in_its_own_way_is_unreadable(how: str) -> None:
    with pytest.raises(Unreadable, match="Odd: ") as caught:
        Codec(handler_of(Odd), "t").decode(b'{"value":{"how":"%s"}}' % how.encode())
    str(caught.value).encode()


class Reading(BaseModel):
    value: Any = None
    more: dict[str, Any] = {}


class Loose(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float


class Account(BaseModel):
    password: SecretStr | None = None
    inner: list[Account] = []


@pytest.mark.parametrize(
    "value, what",
    [
        (Reading(value=math.nan), "nan"),
        (Reading(more={"x": [{"y": (-math.inf,)}]}), "-inf"),
        ([{"k": Line(ITEM, {}), "r": Reading(value=math.inf)}], "inf"),
        (Loose(value=math.nan), "cannot be written"),
        pytest.param(Reading(value=object()), "object", id="object"),
        (Reading(value=b"\xff"), "utf-8"),
        (Account(password=SecretStr("x")), "Account holds a SecretStr"),
        (Account(inner=[Account(password=SecretStr("x"))]), "SecretStr"),
        (Item, "ModelMetaclass"),
        (Path("\udcff"), "surrogate"),
    ],
    ids=lambda v: repr(v)[:40],
)
def test_what_a_model_cannot_write_or_would_change_is_an_encode_error(value: Any, what: str) -> None:
    with pytest.raises(EncodeError, match=f"'t'.*{what}"):
        Codec(handler_of(Any), "t").encode((value,), {})


def test_asterisks_that_hide_no_secret_are_text() -> None:
    value = Reading(value="**********", more={"x": None})
    assert there_and_back(Reading, value) == value
    assert there_and_back(Account, Account(password=SecretStr(""))).password == SecretStr("")


def test_models_nested_too_deep_are_an_encode_error_and_unreadable() -> None:
    node: dict[str, Any] = {"id": str(UUID(int=1))}
    for _ in range(5_000):
        node = {"id": str(UUID(int=1)), "parent": node}
    deep: Any = None
    for _ in range(5_000):
        deep = Order.model_construct(id=UUID(int=1), parent=deep)
    codec = Codec(handler_of(Order), "t")
    with pytest.raises(EncodeError):
        codec.encode((deep,), {})
    body = b'{"value":' + b'{"parent":' * 50_000 + b"}" * 50_000 + b"}"
    with pytest.raises(Unreadable):
        codec.decode(body)


def test_models_that_json_cannot_tell_apart_are_refused_when_the_task_is_declared() -> None:
    for annotation in (Cat | Dog, Cat | dict[str, int], list[Cat | str]):
        with pytest.raises(ConfigError, match=r"'t'.*annotations"):
            Codec(handler_of(annotation), "t")


@pydantic.dataclasses.dataclass
class Validated:
    n: int = Field(gt=0)


@dataclass
class Holder:
    inside: dict[str, list[Validated | None]]
    again: Holder | None = None


@pytest.mark.parametrize(
    "annotation", [Validated, Validated | None, list[Validated], Holder, Annotated[Holder, "x"]], ids=str
)
def test_a_pydantic_dataclass_is_refused_as_its_validation_would_not_run(annotation: Any) -> None:
    with pytest.raises(ConfigError, match=r"Validated is a pydantic dataclass.*BaseModel"):
        Codec(handler_of(annotation), "t")


def test_a_pydantic_dataclass_inside_a_model_is_the_models_own() -> None:
    class Whole(BaseModel):
        inside: Validated

    assert there_and_back(Whole, Whole(inside=Validated(n=1))) == Whole(inside=Validated(n=1))
    with pytest.raises(Unreadable, match="greater than 0"):
        Codec(handler_of(Whole), "t").decode(b'{"value":{"inside":{"n":0}}}')


@given(st.binary(max_size=100))
def test_no_bytes_make_a_model_fail_otherwise(body: bytes) -> None:
    for annotation in (Order, Numbers, Path):
        for whole in (body, b'{"value":' + body + b"}"):
            try:
                Codec(handler_of(annotation), "t").decode(whole)
            except Unreadable as error:
                str(error).encode()


def test_pydantic_is_not_imported_by_redrive() -> None:
    code = "import sys, redrive, redrive.codec.codec, redrive.app; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert pydantic.VERSION.startswith("2.")
