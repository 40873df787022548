"""Decide who asks, and what they may do."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Iterable
from enum import StrEnum
from functools import cached_property
from hashlib import pbkdf2_hmac
from inspect import isawaitable
from ipaddress import ip_address
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from ..errors import ConfigError, near_miss
from .tries import WRONG_BY_PROXY_MAX, WRONG_MAX, LoginTries

SESSION = "redrive_session"
SESSION_S = 12 * 3600
TOKEN_MIN, DISTINCT_MIN = 16, 6  # characters; different ones
NAMED_MAX = 64  # characters of an address that a proxy names
_STRETCHED = 100_000  # rounds: who guesses tokens by their cookies pays them for each guess
# Headers that proxies add. The versions of HTTP that nginx speaks to a server unless it is told otherwise are another
# trace of one: a browser has spoken 1.1 for 25 years.
_FORWARDED = (
    "forwarded", "via", "x-forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
    "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip", "fly-client-ip",
)  # fmt: skip
_OLD = ("0.9", "1.0")


class Permission(StrEnum):
    """What a user may do. `view` is needed for every page; `view_bodies` shows bodies, headers and results."""

    VIEW = "view"
    VIEW_BODIES = "view_bodies"
    RETRY = "retry"
    REDRIVE = "redrive"
    EDIT = "edit"
    DISCARD = "discard"
    PAUSE = "pause"
    FLOW = "flow"
    APPROVE = "approve"
    ADMIN = "admin"


ALL = frozenset(Permission)


class User(Struct, frozen=True):
    """Who asks: the name that the audit log gets (empty: the process's own user), and the permissions."""

    name: str = ""
    permissions: frozenset[Permission] = ALL

    def may(self, permission: str) -> bool:
        """Whether the user has this permission."""
        return Permission(permission) in self.permissions

    def need(self, permission: str) -> None:
        """Raises Denied without this permission."""
        if not self.may(permission):
            name = self.name or "you"
            raise Denied(403, f"{name} may not do this", f"it needs the permission '{permission}'", "ask who grants it")


Authorize = Callable[[Request], Any]


class Denied(Exception):
    """Who asks is not known (401), or may not do this (403)."""

    def __init__(self, status: int, what: str, why: str, next: str) -> None:
        super().__init__(what)
        self.status, self.what, self.why, self.next = status, what, why, next


class Answered(Exception):
    """`authorize` answered the request itself, as by a redirect to the application's own login."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def user_of(answer: Any) -> User | None:
    """The user that `authorize` returned: a User, a name with all permissions, True for all permissions without a name,
    or (name, permissions). None and False mean that the request is refused. Raises Answered for a response, such as a
    redirect to the application's own login, and ConfigError for anything else."""
    if isinstance(answer, Response):
        raise Answered(answer)
    if answer is None or answer is False:
        return None
    if answer is True:
        return User()
    if isinstance(answer, User):
        return User(answer.name, as_permissions(answer.permissions))
    if isinstance(answer, str) and answer:
        return User(answer)
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], str):
        return User(answer[0], as_permissions(answer[1]))
    raise ConfigError(
        f"authorize returned a {type(answer).__name__}; expected a User, a name, (name, permissions), True, or None"
    )


def as_permissions(given: Iterable[str]) -> frozenset[Permission]:
    """Permissions by their names; `view` belongs to all. Raises ConfigError for an unknown one."""
    known = [str(permission) for permission in Permission]
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in known:
            near = near_miss(str(name), known)
            meant = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"there is no permission {name!r}{meant} Known: {', '.join(known)}")
    return frozenset(map(Permission, names)) | {Permission.VIEW}


class Access:
    """Who may use a site: those whom `authorize` knows, those with the token, or (neither given) this machine."""

    def __init__(self, authorize: Authorize | None, token: str | None, clock: Callable[[], float] = time.time) -> None:
        if token is not None and len(token) < TOKEN_MIN:
            raise ConfigError(f"the token has {len(token)} characters; expected {TOKEN_MIN} or more, hard to guess")
        if token is not None and len(set(token)) < DISTINCT_MIN:
            raise ConfigError(f"the token has {len(set(token))} different characters; expected one that is random")
        self._authorize, self._token, self._clock = authorize, token, clock
        self.tries = LoginTries()

    @property
    def is_open(self) -> bool:
        """Whether anyone on this machine may do everything."""
        return self._authorize is None and self._token is None

    @property
    def takes_token(self) -> bool:
        """Whether a token opens a session."""
        return self._token is not None

    async def user(self, request: Request) -> User:
        """Who asks. Raises Denied and Answered."""
        if self._authorize is not None:
            answer = self._authorize(request)
            if isawaitable(answer):
                answer = await _awaited(answer)
            user = user_of(answer)
            if user is not None:
                return user
        if self._token is not None and (self._has_session(request) or self._gives_token(request)):
            return User()
        if self.is_open:
            return _of_this_machine(request)
        raise Denied(401, "you are not logged in", "these pages are for known users", "log in, then open them again")

    def session(self, request: Request, token: str) -> str | None:
        """The value of the session's cookie for this token; None if it is wrong. Raises Denied after many such."""
        return self._sealed(int(self._clock()) + SESSION_S) if self._is_right(request, token) else None

    def bears_token(self, request: Request) -> bool:
        """Whether the request itself, and not a cookie, carries the token: no other site can make a browser do that."""
        return self._token is not None and _same(_bearer(request) or "", self._token)

    def _gives_token(self, request: Request) -> bool:
        given = _bearer(request)
        return given is not None and self._is_right(request, given)

    def _is_right(self, request: Request, token: str) -> bool:
        clients = clients_of(request)
        if wait_s := max(self.tries.wait_s(*client) for client in clients):
            raise Denied(429, "too many wrong tokens came from here", "", f"try again in {wait_s} s")
        right = self._token is not None and _same(token, self._token)
        if not right:
            for client in clients:
                self.tries.wrong(*client)
        return right

    def _has_session(self, request: Request) -> bool:
        """Whether one of the cookies is a session that has not ended; another site on this host may have its own."""
        return any(self._is_session(given) for given in cookies(request, SESSION))

    def _is_session(self, given: str) -> bool:
        ends, _, _ = given.partition(".")
        if not (ends.isascii() and ends.isdigit() and len(ends) <= 12):
            return False
        return _same(given, self._sealed(int(ends))) and int(ends) > self._clock()

    def _sealed(self, ends: int) -> str:
        """What the cookie holds instead of the token: when the session ends, and a seal that needs the token."""
        return f"{ends}.{hmac.digest(self._seal, str(ends).encode(), 'sha256').hex()}"

    @cached_property
    def _seal(self) -> bytes:
        return pbkdf2_hmac("sha256", (self._token or "").encode(), b"redrive session", _STRETCHED)


def cookies(request: Request, name: str) -> list[str]:
    """All cookies of this name: a site at `/` and one at `/jobs` have one each, and the latter is sent both."""
    values = []
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            known, _, value = part.strip().partition("=")
            if known == name:
                values.append(value.strip('"'))
    return values


def client_of(request: Request) -> str:
    """The address that the request comes from, as the server says; empty for a socket without one."""
    if request.client is not None:
        return request.client.host
    return str(request.scope.get("wsgi_environ", {}).get("REMOTE_ADDR", ""))


def clients_of(request: Request) -> tuple[tuple[str, int], ...]:
    """Whose wrong tokens count together, and how many are taken of them within the time. A proxy on this machine says
    for whom it asks, and so may anybody else on it: all that come by it have a bound of their own."""
    client = client_of(request)
    named = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    if named and is_loopback(client):
        return (f"{client} for {named[:NAMED_MAX]}", WRONG_MAX), (f"by {client}", WRONG_BY_PROXY_MAX)
    return ((client, WRONG_MAX),)


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _bearer(request: Request) -> str | None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())


def _of_this_machine(request: Request) -> User:
    """Without a login only this machine is let in. A proxy on it would let in the world: its headers are refused."""
    forwarded = next((name for name in _FORWARDED if name in request.headers), None)
    if forwarded is None and request.scope.get("http_version") in _OLD:
        forwarded = f"HTTP/{request.scope['http_version']}"
    client = client_of(request)
    if forwarded is None and is_loopback(client):
        return User()
    why = f"the request came through a proxy ({forwarded})" if forwarded else f"it came from {client or 'a socket'}"
    raise Denied(403, "these pages are for this machine only", why, "give a token or authorize= to let others in")


def is_loopback(host: str) -> bool:
    """Whether an address or a host's name means this machine."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
