"""Parse the values of settings. An invalid value raises ValueError or TypeError with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..duration import seconds
from ..errors import near_miss

LOGS = ("auto", "json", "text", "off")
LOOPBACK = "127.0.0.1"
OUTPUTS = ("auto", "table", "tsv", "json", "jsonl", "ids")
SHARES = ("none", "group")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


# The fields that templates of links to traces and logs may have, and those of links to code.
ABOUT = ("trace_id", "span_id", "message_id", "task", "queue", "worker", "at")
CODE = ("file", "line")


class Setting(NamedTuple):
    """How a setting is parsed: its field of Settings, the parser, and the expected values for error texts."""

    field: str
    read: Callable[[Any], Any]
    expected: str
    default: str | None = None  # the default as people write it, if it differs from the field's


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("it is not text" if not isinstance(value, str) else "it is empty")
    return value


def _name(value: object) -> str:
    if set(_text(value)) & set("/\\\0") or str(value).startswith("."):
        raise ValueError("it becomes part of a file's name")
    return str(value)


def _url(value: object) -> str:
    if "://" not in _text(value):
        raise ValueError("it has no scheme")
    return str(value)


def _http(value: object) -> str:
    parts = urlsplit(_url(value).strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is no http or https URL" if parts.hostname else "it names no host")
    return str(value).strip()


def _template(fields: tuple[str, ...]) -> Callable[[object], str]:
    """Return a parser of link templates: http or https URLs that contain some of these fields."""

    def read(value: object) -> str:
        unknown = [name for name in re.findall(r"\{([^{}]*)\}", str(value)) if name not in fields]
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is no field; known: {', '.join(f'{{{name}}}' for name in fields)}")
        if re.search(r"\{", _http(value).partition("://")[2].partition("/")[0]):
            raise ValueError("a field names the host")
        return _http(value)

    return read


def _app(value: object) -> str:
    module, colon, name = _text(value).partition(":")
    if not (module and colon and name):
        raise ValueError("it is not MODULE:APP")
    return str(value)


def address(value: object) -> str:
    """Return HOST:PORT for `9464` or `0.0.0.0:9464`; the default host is loopback. Raises ValueError."""
    host, _, port = str(value).strip().rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"{port!r} is no port")
    return f"{host or LOOPBACK}:{int(port)}"


def _period(value: object) -> float:
    return seconds(value)  # type: ignore[arg-type]  # raises an error for what is not a duration


def _some_period(value: object) -> float:
    period = _period(value)
    if period <= 0:
        raise ValueError("it must be more than 0")
    return period


def _count(value: object, least: int) -> int:
    number = int(value) if isinstance(value, str) and value.strip().lstrip("-").isdecimal() else value
    if type(number) is not int or number < least:
        raise ValueError(f"it is not a whole number from {least} up")
    return number


def _positive(value: object) -> int:
    return _count(value, 1)


def _not_negative(value: object) -> int:
    return _count(value, 0)


def size(value: object) -> int:
    """Return a number of bytes from a number or a text with a unit: 200_000, "200KB", "512MiB". Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9_]+)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None:
        return _not_negative(value)
    if match[2].upper() not in _UNITS:
        raise ValueError(f"{match[2]!r} is no unit of size; known: {', '.join(_UNITS)}")
    return int(match[1]) * _UNITS[match[2].upper()]


def some_size(value: object) -> int:
    """Return a number of bytes as `size` does. Raises ValueError unless it is above 0."""
    return _positive(size(value))


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if _text(value).lower() not in (*_YES, *_NO):
        raise ValueError("it is neither true nor false")
    return _text(value).lower() in _YES


def _one_of(words: tuple[str, ...]) -> Callable[[object], str]:
    def choose(value: object) -> str:
        if value not in words:
            near = near_miss(str(value), words)
            raise ValueError("there is no such choice" + (f"; did you mean {near!r}?" if near else ""))
        return str(value)

    return choose


def queue_sizes(value: object) -> dict[str, int | None]:
    """Return queues with their concurrency (None: the default) from `"crm:20,bulk"`, or a list of such texts. Raises
    ValueError."""
    texts = value if isinstance(value, list | tuple) else [value]
    sizes: dict[str, int | None] = {}
    for part in [part.strip() for text in texts for part in _text(text).split(",")]:
        name, colon, count = part.rpartition(":")
        if not part or (colon and not name):
            raise ValueError(f"{part!r} names no queue")
        if colon and not (count.isascii() and count.isdigit() and int(count) > 0):
            raise ValueError(f"concurrency {count!r} of queue {name!r} is not a whole number from 1 up")
        sizes[name if colon else part] = int(count) if colon else None
    return sizes


def hidden_url(url: str) -> str:
    """Return only the scheme and host of a URL that is a secret as a whole, such as a webhook's.

    >>> hidden_url("https://ann:pw@hooks.example.com:8443/services/T0/B0/x?key=1")
    'https://hooks.example.com:8443/***'
    """
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}/***" if rest else "***"


SETTINGS = {
    "url": Setting("url", _url, "a store URL such as 'sqlite:///work.db'"),
    "app": Setting("app", _app, "MODULE:APP, such as 'tasks:app'"),
    "queues": Setting("queues", queue_sizes, "queue names, with their concurrency where you like: 'crm:20,bulk'"),
    "lease": Setting("lease_s", _some_period, "a duration above 0 such as '30s'", "30s"),
    "grace": Setting("grace_s", _period, "a duration such as '30s'", "30s"),
    "park_for": Setting("park_for_s", _period, "a duration such as '5m'; 0 for none", "5m"),
    "processes": Setting("processes", _positive, "a whole number from 1 up"),
    "concurrency": Setting("concurrency", _positive, "a whole number from 1 up"),
    "prefetch": Setting("prefetch", _not_negative, "a whole number from 0 up"),
    "burst": Setting("burst", _switch, "true or false"),
    "drain": Setting("drain", _switch, "true or false"),
    "scheduler": Setting("scheduler", _switch, "true or false"),
    "ingest": Setting("ingest", _switch, "true or false"),
    "name": Setting("name", _name, "a short word for this worker that stays the same over its restarts"),
    "recycle_after": Setting("recycle_after", _positive, "a whole number of messages from 1 up"),
    "recycle_memory": Setting("recycle_memory", some_size, "bytes, or a size such as '512MiB'"),
    "suspect_processes": Setting("suspect_processes", _positive, "a whole number from 1 up"),
    "state_dir": Setting("state_dir", _text, "a directory on this machine such as '/var/lib/redrive'"),
    "share": Setting("share", _one_of(SHARES), f"one of {', '.join(SHARES)}"),
    "metrics": Setting("metrics", address, "a port, or HOST:PORT, such as 9464"),
    "emf": Setting("emf", _switch, "true or false"),
    "blobs": Setting("blobs", _url, "a place for large bodies such as 'file:///srv/blobs' or 's3://bucket/prefix'"),
    "notify": Setting("notify", _http, "an http or https URL such as 'https://alerts.example.com/hook'"),
    "notify_every": Setting("notify_every_s", _period, "a duration such as '10m'", "10m"),
    "runbook_url": Setting("runbook_url", _http, "an http or https URL such as 'https://docs.example.com/runbooks'"),
    "environment": Setting("environment", _name, "a short word such as 'production'"),
    "web_url": Setting("web_url", _http, "an http or https URL such as 'https://ops.example.com/jobs'"),
    "trace_url": Setting("trace_url", _template(ABOUT), "an http or https URL with {trace_id}, perhaps {span_id}"),
    "logs_url": Setting("logs_url", _template(ABOUT), "an http or https URL with {message_id}, {worker} or {at}"),
    "code_url": Setting("code_url", _template(CODE), "an http or https URL with {file} and {line}"),
    "code_root": Setting("code_root", _text, "a directory, as tracebacks name it, such as '/srv/app'"),
    "blob_threshold": Setting("blob_threshold", size, "bytes, or a size such as '200KB'", "200KB"),
    "blob_max": Setting("blob_max", size, "bytes, or a size such as '512MiB'", "512MiB"),
    "telemetry": Setting("telemetry", _switch, "true or false"),
    "otel": Setting("otel", _switch, "true or false"),
    "log": Setting("log", _one_of(LOGS), f"one of {', '.join(LOGS)}"),
    "output": Setting("output", _one_of(OUTPUTS), f"one of {', '.join(OUTPUTS)}"),
}
