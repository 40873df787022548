"""Old bodies are lifted step by step, results travel by the return annotation, and nothing but Unreadable comes out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from redrive.codec.codec import Codec
from redrive.errors import ConfigError, EncodeError, Unreadable

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]  # a name that only type checkers know


@dataclass
class Price:
    amount: Decimal
    currency: str = "EUR"


def pay(order: UUID, price: Price, *, note: str | None = None) -> Price:
    return price


ORDER = UUID(int=7)
V1 = b'{"order_id":"00000000-0000-0000-0000-000000000007","amount":"9.90"}'  # amount alone
V2 = b'{"order":"00000000-0000-0000-0000-000000000007","amount":"9.90","currency":"USD"}'  # renamed, with a currency


def first(body: dict[str, Any]) -> dict[str, Any]:
    body["order"] = body.pop("order_id")
    return body | {"currency": "EUR"}


def second(body: dict[str, Any]) -> dict[str, Any]:
    return {"order": body["order"], "price": {"amount": body["amount"], "currency": body["currency"]}}


def codec(handler: Callable[..., Any] = pay, version: int = 3, **steps: Callable[..., Any]) -> Codec:
    made = Codec(handler, "shop.pay", version=version)
    for name, step in (steps or {"v1": first, "v2": second}).items():
        made.upcast(int(name[1:]), step)
    return made


# -- lifting


def test_an_old_body_goes_through_every_step_from_its_version_on() -> None:
    assert codec().decode(V1, 1) == ((), {"order": ORDER, "price": Price(Decimal("9.90"))})
    assert codec().decode(V2, 2) == ((), {"order": ORDER, "price": Price(Decimal("9.90"), "USD")})


def test_the_tasks_own_version_and_none_go_through_no_step() -> None:
    def never(body: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("called")

    made = codec(v1=never, v2=never)
    body = made.encode((ORDER, Price(Decimal(1))), {})
    expected = ((), {"order": ORDER, "price": Price(Decimal(1))})
    assert made.decode(body, 3) == made.decode(body) == made.decode(body, None) == expected


def test_a_step_sees_plain_json_with_the_last_of_repeated_keys() -> None:
    seen: list[Any] = []

    def look(body: dict[str, Any]) -> dict[str, Any]:
        seen.append(body)
        return {"when": body["when"]}

    def handler(when: datetime) -> None: ...

    made = codec(handler, 2, v1=look)
    assert made.decode(b'{"when":"1999","when":"2026-01-01T00:00:00Z","x":[1.5,{"y":null}]}', 1)[0] == (
        datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert seen == [{"when": "2026-01-01T00:00:00Z", "x": [1.5, {"y": None}]}]


def test_a_step_may_leave_a_default_out_and_give_typed_values() -> None:
    def typed(body: dict[str, Any]) -> dict[str, Any]:
        return {"order": UUID(int=7), "price": Price(Decimal("1.10"))}

    assert codec(version=2, v1=typed).decode(b"{}", 1) == ((), {"order": ORDER, "price": Price(Decimal("1.10"))})


def test_large_whole_numbers_and_decimals_survive_the_steps_exactly() -> None:
    def handler(n: int, x: Decimal) -> None: ...

    body = b'{"n":123456789012345678901234567890,"x":0.10000000000000000001}'
    made = codec(handler, 2, v1=lambda body: body)
    assert made.decode(b'{"n":123456789012345678901234567890,"x":"0.10000000000000000001"}', 1)[0] == (
        123456789012345678901234567890,
        Decimal("0.10000000000000000001"),
    )
    assert made.decode(body, 2)[0][0] == made.decode(body, 1)[0][0]


# -- steps that fail


@pytest.mark.parametrize("version, missing", [(1, 1), (2, 2), (0, 0), (-5, -5)])
def test_a_missing_step_is_unreadable_and_named(version: int, missing: int) -> None:
    made = Codec(pay, "shop.pay", version=3)
    with pytest.raises(
        Unreadable, match=rf"shop.pay from version {missing} to {missing + 1}.*@task.upcast\({missing}\)"
    ):
        made.decode(V1, version)


def test_a_missing_second_step_is_named_though_the_first_is_there() -> None:
    with pytest.raises(Unreadable, match=r"from version 2 to 3.*@task.upcast\(2\)"):
        codec(v1=first).decode(V1, 1)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


@pytest.mark.parametrize(
    "error", [KeyError("id"), ValueError("\ud800"), RecursionError(), Mute(), ValueError("x" * 10**6)]
)
def test_a_step_that_raises_is_unreadable_and_named(error: Exception) -> None:
    def broken(body: dict[str, Any]) -> dict[str, Any]:
        raise error

    name = type(error).__name__
    with pytest.raises(Unreadable, match=rf"from version 1 to 2: @task.upcast\(1\) raised {name}") as caught:
        codec(v1=broken, v2=second).decode(V1, 1)
    assert len(str(caught.value)) < 500
    str(caught.value).encode()


@pytest.mark.parametrize("given", [None, [], "text", 5, ORDER])
def test_a_step_that_returns_no_dict_is_unreadable_and_named(given: Any) -> None:
    with pytest.raises(Unreadable, match=rf"@task.upcast\(1\) returned {type(given).__name__}, expected a dict"):
        codec(v1=lambda body: given, v2=second).decode(V1, 1)


@pytest.mark.parametrize(
    "given", [{}, {"order": "x"}, {"order": 1, "price": {}}, {"order": math.nan}, {"order": object()}, {1: 2}, {"a": 1}]
)
def test_a_lifted_body_that_does_not_fit_is_unreadable_and_says_from_where(given: Any) -> None:
    with pytest.raises(Unreadable, match=r"body of version 1, lifted to 2, does not fit shop\.pay\(order: "):
        codec(version=2, v1=lambda body: given).decode(b"{}", 1)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b'{"a":', b"\xff", b'{"a":' * 100_000, b"[" * 100_000], ids=lambda b: repr(b[:9])
)
def test_an_old_body_that_is_no_json_object_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable, match="version 1"):
        codec().decode(body, 1)


def test_a_version_from_the_future_is_unreadable_and_says_which() -> None:
    with pytest.raises(Unreadable, match=r"version 4 is newer than shop.pay, which takes 3"):
        codec().decode(b"{}", 4)


# -- declaring


@pytest.mark.parametrize("version", [0, -1, 3, 4, "1", 1.5, None])
def test_a_step_that_could_never_run_is_refused(version: Any) -> None:
    with pytest.raises(ConfigError, match=r"'shop.pay': @task.upcast\(.*expected from 1 to 2"):
        Codec(pay, "shop.pay", version=3).upcast(version, first)


def test_a_step_is_refused_twice_and_where_it_would_be_awaited() -> None:
    async def slow(body: dict[str, Any]) -> dict[str, Any]:
        return body

    made = Codec(pay, "shop.pay", version=3)
    made.upcast(1, first)
    with pytest.raises(ConfigError, match="given twice"):
        made.upcast(1, first)
    for no_step in (slow, {}):
        with pytest.raises(ConfigError, match="plain function"):
            made.upcast(2, no_step)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="version=1"):
        Codec(pay, "shop.pay").upcast(1, first)
    with pytest.raises(ConfigError, match="version=0"):
        Codec(pay, "shop.pay", version=0)


# -- results


@pytest.mark.parametrize("value", [Price(Decimal("1.10")), Price(Decimal("-0"), "ü")])
def test_a_result_comes_back_as_the_return_annotation_says(value: Price) -> None:
    written = Codec(pay, "t").encode_result(value)
    assert Codec(pay, "t").decode_result(written) == value


def test_results_of_coroutines_and_none_come_back() -> None:
    async def when() -> datetime | None: ...
    def nothing() -> None: ...

    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert Codec(when, "t").decode_result(Codec(when, "t").encode_result(now)) == now
    assert Codec(nothing, "t").decode_result(Codec(nothing, "t").encode_result(None)) is None


def test_a_result_without_a_usable_annotation_is_plain_json() -> None:
    def bare():  # type: ignore[no-untyped-def]
        ...

    def unknown() -> Missing: ...
    def ambiguous() -> Price | dict[str, int]: ...

    for handler in (bare, unknown, ambiguous):
        made = Codec(handler, "t")
        assert made.decode_result(made.encode_result(Price(Decimal(1)))) == {"amount": "1", "currency": "EUR"}


@pytest.mark.parametrize(
    "value", [object(), math.nan, [math.inf], "\ud800", 10**5_000, lambda: None], ids=lambda v: type(v).__name__
)
def test_a_result_that_json_cannot_hold_is_an_encode_error(value: Any) -> None:
    with pytest.raises(EncodeError, match="'t': its result cannot be written"):
        Codec(pay, "t").encode_result(value)


@pytest.mark.parametrize("written", [b"", b"{", b"5", b'{"amount":"x"}', b"[" * 100_000])
def test_a_stored_result_that_does_not_fit_is_unreadable(written: bytes) -> None:
    with pytest.raises(Unreadable, match="what t returns"):
        Codec(pay, "t").decode_result(written)
