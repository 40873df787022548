"""Messages that a handler builds where it raises: each way that Python has of filling a text.

PYTEST_DONT_REWRITE, since an assertion here is one of a program.
"""

# ruff: noqa: UP031, UP032 - each way that Python has
from __future__ import annotations

import asyncio
from typing import Any

from . import family


class Refused(Exception):
    pass


class Limits:
    def __init__(self, tenant: str) -> None:
        self.tenant = tenant

    def check(self) -> None:
        raise Refused(f"tenant {self.tenant} is over its limit")


@family("tenant over its limit")
def over_limit(value: str) -> None:
    Limits(value).check()


@family("user is locked")
def sign_in(user: str) -> None:
    raise Refused(f"user {user} is locked")


@family("sku unknown")
def price(sku: str) -> None:
    raise LookupError("sku %s unknown" % sku)


@family("cannot render the name")
def render(name: str) -> None:
    raise ValueError(f"cannot render the name {name!r}")


@family("a column of the upload")
def upload(column: str) -> None:
    raise ValueError(f"column {column!r} is not one of ours")


@family("a field of the form")
def form(field: str) -> None:
    raise Refused("field '%s' must not be empty" % (field,))


@family("a parameter of the report")
def report(parameter: str) -> None:
    raise Refused("the report has no parameter named '{}'".format(parameter))


@family("no stock in a warehouse")
def reserve(warehouse: str) -> None:
    raise Refused("warehouse {where} has nothing left of {what}".format(where=warehouse, what="this"))


@family("currency not traded")
def convert(currency: str) -> None:
    message = f"no rate from {currency} to EUR today"
    raise Refused(message)


@family("plan without seats")
def seat(plan: str) -> None:
    raise Refused("plan " + plan + " has no seats left")


@family("message over many lines")
def ship(carrier: str) -> None:
    raise Refused(f"carrier {carrier} does not go to the islands of {carrier}, ask for another")


@family("an assertion")
def balance(account: str) -> None:
    assert account == "", f"account {account} does not balance"


@family("asynchronous")
def notified(channel: str) -> None:
    async def notify() -> None:
        await asyncio.sleep(0)
        raise Refused(f"channel {channel} is archived")

    asyncio.run(notify())


@family("in a loop")
def folder(label: str) -> None:
    for each in ("inbox", label):
        if each != "inbox":
            raise Refused(f"label {each} cannot be moved to the inbox")


@family("in a lambda's caller")
def mapped(city: str) -> None:
    def at(name: str) -> str:
        raise Refused(f"no depot in {name}")

    list(map(at, [city]))


@family("a mapping of names")
def invoice(customer: str) -> None:
    raise Refused("customer %(customer)s has no address" % {"customer": customer})


@family("value at the end")
def theme(name: str) -> None:
    raise Refused(f"no such theme: {name}")


@family("value at the beginning")
def domain(name: str) -> None:
    raise Refused(f"{name} is not a domain of yours")


@family("two values side by side")
def route(city: str) -> None:
    raise Refused(f"no lane between {city} and {city[::-1]} on Sundays")


@family("a value in brackets")
def flag(name: str) -> None:
    raise Refused(f"flag [{name}] cannot be read")


@family("a long value")
def comment(text: str) -> None:
    raise Refused(f"the comment {text * 3!r} has a word that we do not print")


@family("a number or a word")
def shelf(place: Any) -> None:
    raise Refused(f"shelf {place} is full")


@family("a prefix of the value")
def cache(key: str) -> None:
    raise Refused(f"cache key user:{key} is stale")


@family("with a format")
def padded(code: str) -> None:
    raise Refused(f"voucher {code:>12} was used before")


@family("a nested call in it")
def upper(name: str) -> None:
    raise Refused(f"group {name.upper()} has no owner ({len(name)} members)")


@family("conditional expression")
def gate(name: str) -> None:
    raise Refused(f"gate {name} is closed" if name else "no gate")


# Two bugs in one function, alike in their words


@family("login: locked by an admin")
def locked_by_admin(user: str) -> None:
    login(user, 1)


@family("login: locked after failures")
def locked_after_failures(user: str) -> None:
    login(user, 2)


@family("login: the profile is locked")
def profile_locked(_: str) -> None:
    login("", 3)


@family("login: no such user")
def no_such_user(user: str) -> None:
    login(user, 4)


def login(user: str, case: int) -> None:
    if case == 1:
        raise Refused(f"user {user} is locked by an admin")
    if case == 2:
        raise Refused(f"user {user} is locked after five failures")
    if case == 3:
        raise Refused("user profile is locked")
    raise Refused(f"user {user} does not exist")


# One line, but what fills it says what went wrong: these are different bugs


def pay(why: str) -> None:
    raise Refused(f"the payment failed: {why}")


@family("payment: declined")
def declined(_: str) -> None:
    pay("card declined")


@family("payment: no funds")
def no_funds(_: str) -> None:
    pay("insufficient funds")


@family("payment: expired")
def expired(_: str) -> None:
    pay("the card has expired and was not replaced by its bank")


def call(status: int) -> None:
    raise Refused(f"the partner answered {status}")


@family("partner: 404")
def partner_404(_: str) -> None:
    call(404)


@family("partner: 500")
def partner_500(_: str) -> None:
    call(500)


def step(kind: str) -> None:
    raise Refused(f"cannot {kind} the order")


@family("order: cannot cancel")
def cannot_cancel(_: str) -> None:
    step("cancel")


@family("order: cannot refund")
def cannot_refund(_: str) -> None:
    step("refund")
