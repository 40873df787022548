"""Parse store URLs by RFC 3986, and show them without their secrets.

Anything that may be part of a password is never shown, whether the URL can be parsed or not.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from .errors import ConfigError
from .redact import HIDDEN, redact, telling

ENCODED = "/ as %2F, ? as %3F, # as %23, @ as %40, : as %3A, % as %25, a space as %20"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]*\]|(?:[\w.-]|%[0-9A-Fa-f]{2})*)(?::\d{1,5})?")
_OPTION = re.compile(r"[A-Za-z_][\w.-]{0,60}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NESTED_MAX = 4  # the most levels of nested URLs that are shown


class UrlParts(NamedTuple):
    """The parts of a URL: `user` and `password` decoded, `hosts`, `path` and `query` as written."""

    scheme: str
    user: str | None
    password: str | None
    hosts: str
    path: str
    query: str

    @property
    def userinfo(self) -> str:
        """The user and password with the '@' after them, percent-encoded so that every parser reads them alike; empty
        without a user."""
        if self.user is None:
            return ""
        return quote(self.user, safe="") + ("" if self.password is None else ":" + quote(self.password, safe="")) + "@"

    def options(self) -> list[tuple[str, str]]:
        """Return the pairs of name and value in the query, as written."""
        pairs = (pair.partition("=") for pair in self.query.split("&") if pair)
        return [(name, value) for name, _, value in pairs]


def split(url: str, what: str = "store URL") -> UrlParts:
    """Return the parts of a URL. Raises ConfigError, without the password, if the URL is ambiguous or invalid."""
    parts = _read(url)
    if isinstance(parts, UrlParts):
        return parts
    raise ConfigError(f"{what} {shown(url)!r}: {parts}")


def _read(url: str) -> UrlParts | str:
    """Return the parts of a URL, or a text that says why it is invalid."""
    scheme, sep, rest = url.partition("://")
    if not sep or not _SCHEME.fullmatch(scheme):
        return "it has no scheme"
    if "#" in rest:
        return "a '#' must be written %23" + (f"; in a password write {ENCODED}" if "@" in rest else "")
    path, _, query = rest.partition("?")
    if rest.startswith("/"):  # the path of a file may contain spaces
        path = path.replace(" ", "")
    if any(c.isspace() or not c.isprintable() for c in path + query):
        return f"it holds a space or a sign that cannot be seen; in a password write {ENCODED}"
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    if (at and ("@" in path or _loose(query))) or (not at and _hides_user(authority, path, query)):
        return f"its user or password holds a sign that ends them; write {ENCODED}"
    if _PERCENT.search(userinfo):
        return f"it cannot be read: a '%' of its user or password is no escape; write {ENCODED}"
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        return f"its address is not HOST:PORT, expected HOST:PORT; a password goes before an '@', with {ENCODED}"
    return UrlParts(
        scheme,
        unquote(user) if at else None,
        unquote(password) if colon else None,
        hosts,
        slash + path,
        query,
    )


def _loose(query: str) -> bool:
    """Return True if the query has an '@' outside of options whose value is a URL, such as
    `listen=postgresql://app@server`: that '@' may end a password that contains a raw '?'."""
    pairs = (pair.partition("=") for pair in query.split("&") if "@" in pair)
    return any(not (_OPTION.fullmatch(name) and _URL.match(value)) for name, _, value in pairs)


def _hides_user(authority: str, path: str, query: str) -> bool:
    """Return True if the authority may have ended too early, at a raw '/' or '?' in a password: there is a later '@'
    that belongs neither to a file's path nor to an option."""
    if "@" not in path + query or (not authority and "@" not in query):
        return False
    if authority and "@" in path:
        return True
    return any("@" in pair and not _OPTION.fullmatch(pair.partition("=")[0]) for pair in query.split("&"))


def shown(url: str) -> str:
    """Return the URL without passwords: its own, those of its options, and those of URLs in its query.

    A URL that cannot be parsed and may hold a password is cut down to its scheme.

    >>> shown("postgresql://ann:hunter2@db/x?sslpassword=a&schema=b")
    'postgresql://ann:***@db/x?sslpassword=***&schema=b'
    >>> shown("postgresql://ann:hun/ter2@db/x"), shown("mysql://db/x#y")
    ('postgresql://***', 'mysql://db/x#***')
    """
    return _without_secrets(url, 0)


def _without_secrets(url: str, depth: int) -> str:
    before, sharp, after = url.partition("#")
    parts = _read(before)
    if not isinstance(parts, UrlParts) or (sharp and "@" in url):
        return _scheme_only(url)
    user = "" if parts.user is None else quote(parts.user, safe="") + ("" if parts.password is None else f":{HIDDEN}")
    query = "&".join(_option(pair, depth) for pair in parts.query.split("&")) if parts.query else ""
    rest = redact(f"{parts.scheme}://{user}{'@' if parts.user is not None else ''}{parts.hosts}{parts.path}")
    more = f"#{HIDDEN if parts.hosts else redact(after)}" if sharp else ""
    return f"{rest}{'?' if query else ''}{query}{more}"


def _scheme_only(url: str) -> str:
    """Return an invalid URL for display: redacted if it cannot contain a password, otherwise only its scheme."""
    scheme, sep, rest = url.partition("://")
    if not sep or not _SCHEME.fullmatch(scheme):
        word, colon, rest = url.partition(":")
        return redact(url) if "@" not in url and not (colon and rest) else f"{word}:{HIDDEN}" if colon else HIDDEN
    return f"{scheme}://{HIDDEN}" if set(unquote(rest)) & set("@:") else redact(url)


def _option(pair: str, depth: int) -> str:
    name, sign, value = pair.partition("=")
    if not _OPTION.fullmatch(name):
        return HIDDEN if set(unquote(pair)) & set("@:") else redact(pair)
    if telling(name) and value:
        return f"{name}={HIDDEN}"
    plain = unquote(value)
    if "://" not in plain:
        return f"{name}{sign}{redact(value)}"
    hidden = _without_secrets(plain, depth + 1) if depth < _NESTED_MAX else HIDDEN
    return f"{name}={value if hidden == plain else quote(hidden, safe='/:@*,')}"


def option_shown(name: str) -> str:
    """Return the name of an option for an error text; a name that may be the rest of a password is not shown."""
    return repr(name) if _OPTION.fullmatch(name) else "that is none"
