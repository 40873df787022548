"""Messages that an exception's class builds, or a helper, a constant, a chain or a group."""

from __future__ import annotations

from typing import Any, NoReturn

from . import family

NO_SEAT = "row %s of the hall is sold out"
NO_HALL = "hall {} is being cleaned"


class Locked(Exception):
    def __init__(self, user: str) -> None:
        super().__init__(f"the vault of {user} is sealed")


class OverLimit(Exception):
    def __init__(self, tenant: str, limit: int) -> None:
        self.tenant, self.limit = tenant, limit

    def __str__(self) -> str:
        return f"{self.tenant} may have {self.limit} projects and no more"


class Problem(Exception):
    template = "something is wrong with {subject}"

    def __init__(self, subject: str) -> None:
        super().__init__(self.template.format(subject=subject))


class NotShipped(Problem):
    template = "parcel {subject} was never handed over"


class NotPaid(Problem):
    template = "invoice of {subject} was never paid"


class Plain(Exception):
    pass


@family("class: built in its constructor")
def sealed(user: str) -> None:
    raise Locked(user)


@family("class: built when shown")
def projects(tenant: str) -> None:
    raise OverLimit(tenant, 10)


@family("class: template, not shipped")
def not_shipped(parcel: str) -> None:
    raise NotShipped(parcel)


@family("class: template, not paid")
def not_paid(customer: str) -> None:
    raise NotPaid(customer)


def fail(message: str) -> NoReturn:
    raise Plain(message)


@family("helper: told what to say")
def helped(region: str) -> None:
    fail(f"region {region} has no quota for this")


@family("helper: told another thing")
def helped_too(region: str) -> None:
    fail(f"region {region} is being drained")


@family("constant: with a percent sign")
def seats(row: str) -> None:
    raise Plain(NO_SEAT % row)


@family("constant: with braces")
def halls(hall: str) -> None:
    raise Plain(NO_HALL.format(hall))


@family("from a cause")
def synced(tenant: str) -> None:
    try:
        raise Locked(tenant)
    except Locked as error:
        raise Plain(f"the mirror of {tenant} was not refreshed") from error


@family("from a cause that it quotes")
def quoted(tenant: str) -> None:
    try:
        fail(f"bucket {tenant} is read-only")
    except Plain as error:
        raise Locked(tenant) from error


@family("in a group")
def grouped(tenant: str) -> None:
    errors: list[Exception] = []
    for name in (tenant, tenant + "-eu"):
        try:
            fail(f"pipeline {name} is broken")
        except Plain as error:
            errors.append(error)
    raise ExceptionGroup("two pipelines", errors)


@family("from the end of a long way")
def long_way(name: Any) -> None:
    def outer(depth: int) -> None:
        if depth:
            outer(depth - 1)
        raise Plain(f"nobody answers for {name} down there")

    outer(6)
