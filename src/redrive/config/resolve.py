"""Settings: flag > `REDRIVE_…` variable > file > default, field by field.

The file is the nearest redrive.toml, or pyproject.toml with a `[tool.redrive]`, upwards from the working directory; in
one directory redrive.toml wins. A path in it is meant from where it lies: a command does the same in every directory
below.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from msgspec import Struct

from ..duration import seconds
from ..errors import ConfigError, Refused
from ..errors import near_miss as near_miss
from ..urls import shown
from . import trust
from .file import CONFIG, File, settings_file, table_of

LOGS = ("auto", "json", "text", "off")
LOOPBACK = "127.0.0.1"
OUTPUTS = ("auto", "table", "tsv", "json", "jsonl", "ids")
SHARES = ("none", "group")
_SQLITE = "sqlite:///"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_NO_FLAGS: Mapping[str, Any] = MappingProxyType({})


class Settings(Struct, frozen=True, kw_only=True):
    """What commands go by. Durations in seconds; None where nothing is chosen."""

    url: str = "sqlite:///redrive.db"
    app: str | None = None  # MODULE:APP
    queues: dict[str, int | None] | None = None  # to their concurrency, in order of preference
    lease_s: float = 30.0
    grace_s: float = 30.0
    park_for_s: float = 300.0
    processes: int = 1
    concurrency: int | None = None
    prefetch: int | None = None
    burst: bool = False
    drain: bool = False
    scheduler: bool = False  # a worker enqueues the app's schedules too
    ingest: bool = False  # a worker takes the dead letters of its queues out of SQS
    name: str | None = None
    recycle_after: int | None = None  # messages that a child process runs before it is replaced
    recycle_memory: int | None = None  # bytes of resident memory, at its peak, after which it is
    suspect_processes: int | None = None  # child processes that suspects share; None: two for each processor
    state_dir: str | None = None  # where workers keep identities, for a store that is not a file
    share: str = "none"  # group: what is made is for the group too; an SQLite file's folders follow the file
    metrics: str | None = None  # HOST:PORT
    emf: bool = False  # a worker writes CloudWatch metrics to stdout
    blobs: str | None = None  # where large bodies lie: file:///DIRECTORY, s3://BUCKET/PREFIX
    blob_threshold: int = 200_000  # bytes; a body over it goes there
    blob_max: int = 512 * 1024 * 1024  # bytes; a body over it is refused
    notify: str | None = None  # a webhook that alerts are posted to
    notify_every_s: float = 600.0  # how often the same alert is posted again, at most
    log: str = "auto"
    output: str = "auto"
    folder: str | None = None  # where the settings file lies

    def __repr__(self) -> str:
        return f"Settings(url={shown(self.url)!r}, app={self.app!r}, folder={self.folder!r})"


class Sourced(NamedTuple):
    """One setting as `redrive config show` tells it: `source` is flag, a variable, a file or default."""

    name: str
    value: object
    source: str


def settings(flags: Mapping[str, Any] = _NO_FLAGS) -> Settings:
    """The settings that hold here and now. `flags` are those of the command line, by setting; None means not given.

    Raises ConfigError for a value, or a key in the file, that cannot be meant; it names the place and what it takes.
    Raises Refused for a file that was found and that another user owns or may write.
    """
    return _settled(tuple((n, v) for n, v in flags.items() if v is not None), _environment(), settings_file())


def is_shared() -> bool:
    """Whether files that are made now are for the group too; not where the settings cannot be read."""
    try:
        return settings().share == "group"
    except (ConfigError, Refused):
        return False


def sources(flags: Mapping[str, Any] = _NO_FLAGS) -> list[Sourced]:
    """Every setting as it was written, and where; of what is a secret, only where it leads. Raises as `settings`
    does."""
    given = tuple((n, v) for n, v in flags.items() if v is not None)
    chosen = _chosen(given, _environment(), settings_file())
    return [_shown(chosen[name][1]) if name in chosen else _default(name) for name in _SETTINGS]


def unknown_variables() -> list[tuple[str, str]]:
    """Set variables that were probably meant as settings, each with that setting's: (REDRIVE_LEESE, REDRIVE_LEASE)."""
    odd = (v.removeprefix("REDRIVE_") for v in sorted(os.environ) if v.startswith("REDRIVE_"))
    names = [*(name.upper() for name in _SETTINGS), *_OTHERS]
    meant = ((name, near_miss(name, names, 0.75)) for name in odd if name not in names)
    return [(f"REDRIVE_{name}", f"REDRIVE_{near}") for name, near in meant if near]


def queue_sizes(value: object) -> dict[str, int | None]:
    """`"crm:20,bulk"`, or a list of such, as names and their concurrency. Raises ValueError."""
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


# -- what each setting takes


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


def _webhook(value: object) -> str:
    parts = urlsplit(_url(value).strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is no http or https URL" if parts.hostname else "it names no host")
    return str(value).strip()


def hidden_url(url: str) -> str:
    """A URL to show that is a secret as a whole, as webhooks are: its scheme and host.

    >>> hidden_url("https://ann:pw@hooks.example.com:8443/services/T0/B0/x?key=1")
    'https://hooks.example.com:8443/***'
    """
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}/***" if rest else "***"


def _app(value: object) -> str:
    module, colon, name = _text(value).partition(":")
    if not (module and colon and name):
        raise ValueError("it is not MODULE:APP")
    return str(value)


def address(value: object) -> str:
    """`9464` or `0.0.0.0:9464` as HOST:PORT, on loopback where no host is named. Raises ValueError."""
    host, _, port = str(value).strip().rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError(f"{port!r} is no port")
    return f"{host or LOOPBACK}:{int(port)}"


def _period(value: object) -> float:
    return seconds(value)  # type: ignore[arg-type]  # it refuses what is none


def _some_period(value: object) -> float:
    found = _period(value)
    if found <= 0:
        raise ValueError("it must be more than 0")
    return found


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
    """Bytes, as a number or with a unit: 200_000, "200KB", "512MiB". Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9_]+)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None:
        return _not_negative(value)
    if match[2].upper() not in _UNITS:
        raise ValueError(f"{match[2]!r} is no unit of size; known: {', '.join(_UNITS)}")
    return int(match[1]) * _UNITS[match[2].upper()]


def some_size(value: object) -> int:
    """As `size`, and more than 0."""
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


class _Setting(NamedTuple):
    field: str
    read: Callable[[Any], Any]
    expected: str
    default: str | None = None  # as one would write it, where that is not the field's own


_SETTINGS = {
    "url": _Setting("url", _url, "a store URL such as 'sqlite:///work.db'"),
    "app": _Setting("app", _app, "MODULE:APP, such as 'tasks:app'"),
    "queues": _Setting("queues", queue_sizes, "queue names, with their concurrency where you like: 'crm:20,bulk'"),
    "lease": _Setting("lease_s", _some_period, "a duration above 0 such as '30s'", "30s"),
    "grace": _Setting("grace_s", _period, "a duration such as '30s'", "30s"),
    "park_for": _Setting("park_for_s", _period, "a duration such as '5m'; 0 for none", "5m"),
    "processes": _Setting("processes", _positive, "a whole number from 1 up"),
    "concurrency": _Setting("concurrency", _positive, "a whole number from 1 up"),
    "prefetch": _Setting("prefetch", _not_negative, "a whole number from 0 up"),
    "burst": _Setting("burst", _switch, "true or false"),
    "drain": _Setting("drain", _switch, "true or false"),
    "scheduler": _Setting("scheduler", _switch, "true or false"),
    "ingest": _Setting("ingest", _switch, "true or false"),
    "name": _Setting("name", _name, "a short word for this worker that stays the same over its restarts"),
    "recycle_after": _Setting("recycle_after", _positive, "a whole number of messages from 1 up"),
    "recycle_memory": _Setting("recycle_memory", some_size, "bytes, or a size such as '512MiB'"),
    "suspect_processes": _Setting("suspect_processes", _positive, "a whole number from 1 up"),
    "state_dir": _Setting("state_dir", _text, "a directory on this machine such as '/var/lib/redrive'"),
    "share": _Setting("share", _one_of(SHARES), f"one of {', '.join(SHARES)}"),
    "metrics": _Setting("metrics", address, "a port, or HOST:PORT, such as 9464"),
    "emf": _Setting("emf", _switch, "true or false"),
    "blobs": _Setting("blobs", _url, "a place for large bodies such as 'file:///srv/blobs' or 's3://bucket/prefix'"),
    "notify": _Setting("notify", _webhook, "an http or https URL such as 'https://alerts.example.com/hook'"),
    "notify_every": _Setting("notify_every_s", _period, "a duration such as '10m'", "10m"),
    "blob_threshold": _Setting("blob_threshold", size, "bytes, or a size such as '200KB'", "200KB"),
    "blob_max": _Setting("blob_max", size, "bytes, or a size such as '512MiB'", "512MiB"),
    "log": _Setting("log", _one_of(LOGS), f"one of {', '.join(LOGS)}"),
    "output": _Setting("output", _one_of(OUTPUTS), f"one of {', '.join(OUTPUTS)}"),
}
_OTHERS = [name.removeprefix("REDRIVE_") for name in (CONFIG, trust.VARIABLE)]  # variables that are no settings
_VARIABLES = {name: f"REDRIVE_{name.upper()}" for name in _SETTINGS}

# -- resolving


def _environment() -> tuple[tuple[str, str], ...]:
    """Set variables by setting. An empty one counts as not set: that is how a wrapper takes one away."""
    return tuple((name, text) for name, variable in _VARIABLES.items() if (text := os.environ.get(variable)))


@functools.lru_cache(maxsize=64)  # an app asks with every worker it makes, and its App() at import
def _settled(
    flags: tuple[tuple[str, Any], ...], environment: tuple[tuple[str, str], ...], file: File | None
) -> Settings:
    chosen = _chosen(flags, environment, file)
    fields = {_SETTINGS[name].field: value for name, (value, _) in chosen.items()}
    return Settings(**fields, folder=None if file is None else str(file.path.parent))


def _chosen(
    flags: tuple[tuple[str, Any], ...], environment: tuple[tuple[str, str], ...], file: File | None
) -> dict[str, tuple[Any, Sourced]]:
    """Each setting that is given anywhere: its value, and how it was written where."""
    written = {}
    if file is not None:
        for name, value in table_of(file).items():
            _known(name, file.path)
            written[name] = Sourced(name, _anchored(name, value, file), str(file.path))
    written |= {name: Sourced(name, text, _VARIABLES[name]) for name, text in environment}
    written |= {name: Sourced(name, value, f"--{name.replace('_', '-')}") for name, value in flags}
    return {name: (_value(sourced), sourced) for name, sourced in written.items()}


def _known(key: str, path: Path) -> None:
    if key not in _SETTINGS:
        near = near_miss(key, _SETTINGS)
        meant = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"{path}: unknown key {key!r}; {meant}known: {', '.join(_SETTINGS)}")


def _default(name: str) -> Sourced:
    setting = _SETTINGS[name]
    return Sourced(name, setting.default or getattr(Settings(), setting.field), "default")


def _shown(written: Sourced) -> Sourced:
    """As it may be seen: a webhook is a secret as a whole, other URLs may hold a password."""
    if written.name == "notify":
        return written._replace(value=hidden_url(str(written.value)))
    return written._replace(value=shown(str(written.value))) if written.name in ("url", "blobs") else written


def _value(written: Sourced) -> Any:
    setting = _SETTINGS[written.name]
    try:
        return setting.read(written.value)
    except (ValueError, TypeError) as error:
        why = str(error).rpartition(" is refused: ")[2].partition("; expected")[0]
        place = written.source if written.source.startswith(("--", "REDRIVE_")) else f"{written.source}: {written.name}"
        value = _shown(written).value
        raise ConfigError(f"{place} = {value!r} is refused: {why}; expected {setting.expected}") from None


def _anchored(name: str, value: Any, file: File) -> Any:
    """A relative path in a file is meant from where the file lies."""
    if file.here or not isinstance(value, str):
        return value
    if name == "state_dir":
        return value if value.startswith("~") else str(file.path.parent / value)
    if name == "url" and value.startswith("sqs://"):  # its triage and cells are URLs too
        folder = quote(quote(str(file.path.parent)))  # a URL within a URL
        return re.sub(rf"(?<=[?&])(?:triage|cells)={_SQLITE}(?!/)", lambda found: f"{found[0]}{folder}/", value)
    if name != "url" or not value.startswith(_SQLITE):
        return value
    path = value.removeprefix(_SQLITE)
    return value if path.startswith("/") else f"{_SQLITE}{file.path.parent}/{path}"
