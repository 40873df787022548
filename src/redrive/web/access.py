"""Authenticate requests, and decide their permissions."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from hashlib import pbkdf2_hmac
from inspect import isawaitable
from ipaddress import ip_address
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import ConfigError
from ..present.permissions import Denied, User, as_permissions
from .tries import WRONG_BY_PROXY_MAX, WRONG_MAX, LoginTries

SESSION = "redrive_session"
SESSION_S = 12 * 3600
TOKEN_MIN, DISTINCT_MIN = 16, 6  # the least number of characters, and of different characters, in a token
NAMED_MAX = 64  # how many characters of a client's address are used, if a proxy names it
_STRETCHED = 100_000  # rounds of the key derivation, which slow down guessing the token from a cookie
# Headers that proxies add. An old version of HTTP is a sign of a proxy, too: nginx uses one to its servers by default,
# while browsers have used 1.1 for 25 years.
_FORWARDED = (
    "forwarded", "via", "x-forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
    "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip", "fly-client-ip",
)  # fmt: skip
_OLD = ("0.9", "1.0")


Authorize = Callable[[Request], Any]


class Answered(Exception):
    """Raised if `authorize` answered the request itself, as by a redirect to the application's own login."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def user_of(answer: Any) -> User | None:
    """Return the user for an answer of `authorize`: a User, a name with all permissions, True for all permissions
    without a name, or (name, permissions); None for None and False. Raises Answered for a response, such as a redirect
    to the application's login, and ConfigError for anything else."""
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


class Access:
    """Decides who may use a site: users of `authorize`, holders of the token, or, without either, this machine."""

    tries: LoginTries

    def __init__(self, authorize: Authorize | None, token: str | None, clock: Callable[[], float] = time.time) -> None:
        if token is not None and len(token) < TOKEN_MIN:
            raise ConfigError(f"the token has {len(token)} characters; expected {TOKEN_MIN} or more, hard to guess")
        if token is not None and len(set(token)) < DISTINCT_MIN:
            raise ConfigError(f"the token has {len(set(token))} different characters; expected one that is random")
        self._authorize, self._token, self._clock = authorize, token, clock
        self.tries = LoginTries()

    @property
    def is_open(self) -> bool:
        """True if anyone on this machine has all permissions."""
        return self._authorize is None and self._token is None

    @property
    def takes_token(self) -> bool:
        return self._token is not None

    async def user(self, request: Request) -> User:
        """Return the user who sent a request. Raises Denied, or Answered if `authorize` returned a response."""
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
        """Return the session cookie's value if this token is the site's; None if it is wrong. Raises Denied after too
        many tries."""
        return self._sealed(int(self._clock()) + SESSION_S) if self._is_right(request, token) else None

    def bears_token(self, request: Request) -> bool:
        """Return True if the request has the site's token in its Authorization header. Other sites cannot make a
        browser send that header, unlike a cookie."""
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
        """Return True if one of the request's cookies is a valid session; other sites on this host may have set more of
        the same name."""
        return any(self._is_session(given) for given in cookies(request, SESSION))

    def _is_session(self, given: str) -> bool:
        ends, _, _ = given.partition(".")
        if not (ends.isascii() and ends.isdigit() and len(ends) <= 12):
            return False
        return _same(given, self._sealed(int(ends))) and int(ends) > self._clock()

    def _sealed(self, ends: int) -> str:
        """Return the value of the cookie of a session until `ends`: that time, and a seal made with the token."""
        return f"{ends}.{hmac.digest(self._seal, str(ends).encode(), 'sha256').hex()}"

    @cached_property
    def _seal(self) -> bytes:
        return pbkdf2_hmac("sha256", (self._token or "").encode(), b"redrive session", _STRETCHED)


def cookies(request: Request, name: str) -> list[str]:
    """Return the values of all cookies of this name: for sites at `/` and `/jobs`, a browser sends both sites' cookies
    to the latter."""
    values = []
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            known, _, value = part.strip().partition("=")
            if known == name:
                values.append(value.strip('"'))
    return values


def client_of(request: Request) -> str:
    """Return the client's address, as the server reports it; empty for a socket without an address."""
    if request.client is not None:
        return request.client.host
    return str(request.scope.get("wsgi_environ", {}).get("REMOTE_ADDR", ""))


def clients_of(request: Request) -> tuple[tuple[str, int], ...]:
    """Return the keys under which this client's wrong tokens are counted, each with its limit. Any program on this
    machine can pretend to be a proxy with many clients, so the clients of one proxy together have a limit, too."""
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
    """Return a user with all permissions for a request from this machine. Raises Denied if a proxy forwarded it."""
    forwarded = next((name for name in _FORWARDED if name in request.headers), None)
    if forwarded is None and request.scope.get("http_version") in _OLD:
        forwarded = f"HTTP/{request.scope['http_version']}"
    client = client_of(request)
    if forwarded is None and is_loopback(client):
        return User()
    why = f"the request came through a proxy ({forwarded})" if forwarded else f"it came from {client or 'a socket'}"
    raise Denied(403, "these pages are for this machine only", why, "give a token or authorize= to let others in")


def is_loopback(host: str) -> bool:
    """Return True if an address or a host's name is that of this machine's loopback."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
