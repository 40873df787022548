"""Determine the engine of a store URL, and read SQLite's URLs."""

from __future__ import annotations

from urllib.parse import unquote

from ..errors import ConfigError
from ..urls import option_shown, shown, split

POSTGRES_SCHEMES = ("postgresql", "postgres")
REDIS_SCHEMES = (
    "redis", "rediss", "redis+unix", "redis+cluster", "rediss+cluster",
    "valkey", "valkeys", "valkey+unix", "valkey+cluster", "valkeys+cluster",
)  # fmt: skip
_SCHEMES = "memory://, sqlite:///PATH, postgresql://HOST/DATABASE, redis://HOST:PORT, sqs://REGION/PREFIX"


def engine_of(url: str) -> str:
    """Return the engine named by the URL's scheme: memory, sqlite, postgres, redis or sqs. Raises ConfigError."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in ("memory", "sqlite", "sqs"):
        return scheme
    if scheme in POSTGRES_SCHEMES:
        return "postgres"
    if scheme in REDIS_SCHEMES:
        return "redis"
    what = f"unknown scheme {scheme!r}" if scheme and not set(scheme) & set("@:/") else "it has no scheme"
    if scheme.partition("+")[0] in POSTGRES_SCHEMES:
        what += ", write postgresql:// (redrive chooses the driver)"
    raise ConfigError(f"store URL {shown(url)!r}: {what}; known: {_SCHEMES}")


REDIS_GROUPS_BY = ("task", "fingerprint")  # Redis's value of the trait `groups_by`


def sqlite_path(url: str) -> str:
    """Return the path in a `sqlite:///…` URL. Raises ConfigError if there is none."""
    parts = split(url)
    path = unquote(parts.path)[1:]
    if parts.hosts or parts.user is not None or not path:
        raise ConfigError(
            f"store URL {shown(url)!r}: expected sqlite:///relative/path.db or sqlite:////absolute/path.db"
        )
    return path


def sqlite_synchronous(url: str) -> str:
    """Return the option `synchronous` of a `sqlite:///…` URL. Raises ConfigError for any other option."""
    options = {name: unquote(value) for name, value in split(url).options()}
    synchronous = options.pop("synchronous", "full")
    if options:
        unknown = option_shown(sorted(options)[0])
        raise ConfigError(f"store URL {shown(url)!r}: unknown option {unknown}; known: synchronous")
    return synchronous
