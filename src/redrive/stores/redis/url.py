"""Parse a Redis URL: the server's address, credentials, and redrive's options."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, unquote_plus

from msgspec import Struct

from ...duration import seconds
from ...errors import ConfigError
from ...urls import option_shown, shown, split
from ..url import REDIS_SCHEMES

OURS = ("namespace", "timeout", "pool", "db")
# Options for TLS, named as in redis-py, so that URLs of other clients work here too.
TLS = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
DEFAULT_PORT = 6379
POOL_MAX = 100
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")  # no braces: it is the hash tag of all keys


class Address(Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisUrl(Struct, frozen=True, kw_only=True):
    """The address of a store on Redis, and its options. In a cluster `addresses` are the first nodes to contact."""

    shown: str  # the URL for display, without the password
    addresses: tuple[Address, ...] = ()
    path: str = ""  # path of a Unix socket, used instead of addresses
    cluster: bool = False
    tls: bool = False
    tls_options: dict[str, Any] = {}
    db: int = 0
    username: str | None = None
    password: str | None = None
    namespace: str = "redrive"
    timeout_s: float = 10.0  # how long the server may be silent before a call fails
    pool: int = 8  # most connections of one process, besides those of waiting threads

    def __repr__(self) -> str:
        return f"RedisUrl({self.shown!r}, namespace={self.namespace!r})"

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        """Parse the URL. Raises ConfigError for a URL of another scheme, an unknown option or an invalid value."""
        scheme, sep, _ = url.partition("://")
        if not sep or scheme not in REDIS_SCHEMES:
            unknown = f"unknown scheme {scheme!r}" if sep else "unknown scheme"
            raise _refused(url, f"{unknown}, expected one of {', '.join(REDIS_SCHEMES)}")
        parts = split(url)
        base, _, kind = scheme.partition("+")
        tls = base in ("rediss", "valkeys")
        options = _options(url, parts.options(), (*OURS, *TLS) if tls else OURS)
        authority, path = parts.hosts, parts.path[1:]
        where: dict[str, Any]
        if kind == "unix":
            if authority or not path:
                raise _refused(url, f"expected {scheme}:///path/of/the.sock")
            where = {"path": unquote(parts.path), "db": _db(url, options.get("db", "0"))}
        else:
            where = {"addresses": _addresses(url, authority), "db": _db(url, options.get("db") or path or "0")}
            if kind == "cluster" and where["db"]:
                raise _refused(url, "a cluster has the database 0 only; use ?namespace= to keep things apart")
            if kind != "cluster" and len(where["addresses"]) > 1:
                raise _refused(url, f"several addresses need {base}+cluster://")
        return cls(
            shown=shown(url.partition("?")[0]),
            cluster=kind == "cluster",
            tls=tls,
            tls_options=_tls_options(url, options),
            username=parts.user or None,
            password=parts.password,
            namespace=_namespace(url, options.get("namespace", "redrive")),
            timeout_s=_timeout_s(url, options.get("timeout", "10s")),
            pool=_pool(url, options.get("pool", "8")),
            **where,
        )


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(f"store URL {shown(url)!r}: {why}")


def _options(url: str, pairs: list[tuple[str, str]], known: tuple[str, ...]) -> dict[str, str]:
    options = {name: unquote_plus(value) for name, value in pairs}
    for name in sorted(options):
        if name not in known:
            tls = f"; {name} is for rediss://" if name in TLS else ""
            raise _refused(url, f"unknown option {option_shown(name)}{tls}; known: {', '.join(known)}")
    return options


def _addresses(url: str, authority: str) -> tuple[Address, ...]:
    addresses = []
    for one in authority.split(",") if authority else ["localhost"]:
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]*))(?::([0-9]{1,5}))?", one)
        if not match or not 0 < int(match[3] or DEFAULT_PORT) < 65536:
            raise _refused(url, f"{one!r} is not an address, expected HOST:PORT")
        addresses.append(Address(unquote(match[1] or match[2]) or "localhost", int(match[3] or DEFAULT_PORT)))
    return tuple(addresses)


def _db(url: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", text):
        raise _refused(url, f"database {text!r}, expected a number such as 0")
    return int(text)


def _namespace(url: str, text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise _refused(url, f"namespace={text!r}, expected 1 to 64 of letters, digits and _ . : -")
    return text


def _timeout_s(url: str, text: str) -> float:
    try:
        timeout_s = seconds(float(text) if re.fullmatch(r"[0-9.]+", text) else text, "timeout")
    except ValueError as error:
        raise _refused(url, str(error)) from error
    if timeout_s < 0.1:
        raise _refused(url, f"timeout={text!r}, expected 0.1 s or more")
    return timeout_s


def _pool(url: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= POOL_MAX:
        raise _refused(url, f"pool={text!r}, expected 1 to {POOL_MAX} connections")
    return int(text)


def _tls_options(url: str, options: dict[str, str]) -> dict[str, Any]:
    tls: dict[str, Any] = {name: options[name] for name in TLS if name in options}
    if tls.get("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
        raise _refused(url, f"ssl_cert_reqs={tls['ssl_cert_reqs']!r}, expected required, optional or none")
    if (check := tls.get("ssl_check_hostname")) is not None:
        if check.lower() not in ("true", "false"):
            raise _refused(url, f"ssl_check_hostname={check!r}, expected true or false")
        tls["ssl_check_hostname"] = check.lower() == "true"
    return tls
