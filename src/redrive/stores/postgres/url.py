"""Parse a `postgresql://` URL: redrive's options, and all other parameters for libpq."""

from __future__ import annotations

import re
from urllib.parse import unquote

from msgspec import Struct

from ...duration import seconds
from ...errors import ConfigError
from ...urls import UrlParts, shown, split

OPTIONS = ("schema", "timeout", "pool", "synchronous_commit", "prepare", "listen", "migrate", "fsync")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,50}")  # the server allows 63 bytes; the rest is for derived names
_CHOICES = {
    "synchronous_commit": ("on", "off", "local", "remote_write", "remote_apply"),
    "prepare": ("auto", "on", "off"),
    "migrate": ("on", "off"),
    "fsync": ("on", "off"),
}
POOL_MAX = 100


class PostgresUrl(Struct, frozen=True, kw_only=True):
    """The address of a store on PostgreSQL, and its options. `conninfo` is passed to libpq unchanged."""

    conninfo: str
    shown: str  # the URL for display, without the password
    place: str  # hosts and database, after which the directory of worker identities is named
    schema: str = "redrive"
    timeout_s: float = 10.0  # time limit of one call, after which the server counts as unreachable
    pool: int = 8  # most connections of one process, besides the one that listens
    synchronous_commit: str = ""  # empty: the server's setting, but never off
    prepare: str = "auto"  # on: prepare statements on the server; auto: unless through a pooler
    listen: str = ""  # URL of the server to listen on, or "off"; empty: the same server
    fsync: bool = True  # False: accept a server without fsync
    migrate: bool = True  # True: migrate the schema when the store opens

    def __repr__(self) -> str:
        return f"PostgresUrl({self.shown!r}, schema={self.schema!r})"


def parse(url: str) -> PostgresUrl:
    """Parse the URL. Raises ConfigError for a URL of another scheme, an unknown option or an invalid value."""
    scheme = url.partition("://")[0]
    if scheme not in ("postgresql", "postgres"):
        near = "; write postgresql:// (redrive chooses the driver)" if scheme.startswith("postgres") else ""
        raise ConfigError(f"store URL {shown(url)!r}: unknown scheme {scheme!r}, expected postgresql://{near}")
    parts = split(url)
    ours = {name: unquote(value) for name, value in parts.options() if name in OPTIONS}
    conninfo = _conninfo(parts)
    listen = ours.get("listen", "")
    _admit(url, ours)
    return PostgresUrl(
        conninfo=conninfo,
        shown=shown(conninfo),
        place=f"{parts.hosts}{parts.path}",
        schema=ours.get("schema", "redrive"),
        timeout_s=_timeout_s(url, ours.get("timeout", "10s")),
        pool=int(ours.get("pool", "8")),
        synchronous_commit=ours.get("synchronous_commit", ""),
        prepare=ours.get("prepare", "auto"),
        listen=listen if listen in ("", "off") else _conninfo(split(listen)),
        fsync=ours.get("fsync", "on") == "on",
        migrate=ours.get("migrate", "on") == "on",
    )


def _conninfo(parts: UrlParts) -> str:
    """Return the URL for libpq. Encodes user and password again, as libpq ends them at the first '@', not the last."""
    theirs = "&".join(f"{name}={value}" for name, value in parts.options() if name not in OPTIONS)
    return f"{parts.scheme}://{parts.userinfo}{parts.hosts}{parts.path}" + (f"?{theirs}" if theirs else "")


def _admit(url: str, ours: dict[str, str]) -> None:
    for name, known in _CHOICES.items():
        if ours.get(name, known[0]) not in known:
            raise ConfigError(f"store URL {shown(url)!r}: {name}={ours[name]!r}, expected one of {', '.join(known)}")
    if not _SCHEMA.fullmatch(ours.get("schema", "redrive")):
        raise ConfigError(
            f"store URL {shown(url)!r}: schema={ours['schema']!r}, expected lower-case letters, digits and _, at most "
            "51, beginning with a letter"
        )
    pool = ours.get("pool", "8")
    if not re.fullmatch("[0-9]{1,3}", pool) or not 1 <= int(pool) <= POOL_MAX:
        raise ConfigError(f"store URL {shown(url)!r}: pool={pool!r}, expected 1 to {POOL_MAX} connections")


def _timeout_s(url: str, text: str) -> float:
    try:
        timeout_s = seconds(float(text) if re.fullmatch(r"[0-9.]+", text) else text, "timeout")
    except ValueError as error:
        raise ConfigError(f"store URL {shown(url)!r}: {error}") from error
    if timeout_s < 0.1:
        raise ConfigError(f"store URL {shown(url)!r}: timeout={text!r}, expected 0.1 s or more")
    return timeout_s
