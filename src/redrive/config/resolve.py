"""Resolve settings: flag > `REDRIVE_…` variable > file > default, field by field.

The file is the nearest redrive.toml, or pyproject.toml with a `[tool.redrive]`, upwards from the working directory; in
one directory redrive.toml wins. A path in it is relative to its own directory, so a command has the same settings in
every directory below.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec import Struct

from ..errors import ConfigError, Refused
from ..errors import near_miss as near_miss
from ..urls import shown
from . import trust
from .file import CONFIG, SettingsFile, settings_file, table_of
from .values import SETTINGS, hidden_url

_SQLITE = "sqlite:///"
_NO_FLAGS: Mapping[str, Any] = MappingProxyType({})


# Names of variables that are not settings.
_OTHERS = [name.removeprefix("REDRIVE_") for name in (CONFIG, trust.VARIABLE, "REDRIVE_WEB_TOKEN")]
VARIABLES = {name: f"REDRIVE_{name.upper()}" for name in SETTINGS}


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a process. Durations are in seconds; None means that a setting is not set."""

    url: str = "sqlite:///redrive.db"
    app: str | None = None  # the app as MODULE:APP
    queues: dict[str, int | None] | None = None  # queues of a worker in order of preference, with their concurrency
    lease_s: float = 30.0
    grace_s: float = 30.0
    park_for_s: float = 300.0
    processes: int = 1
    concurrency: int | None = None
    prefetch: int | None = None
    burst: bool = False
    drain: bool = False
    scheduler: bool = False  # True if a worker also enqueues the ticks of schedules
    ingest: bool = False  # True if a worker takes the dead letters of its queues out of SQS
    name: str | None = None
    recycle_after: int | None = None  # messages that a child process runs before it is replaced
    recycle_memory: int | None = None  # bytes of peak resident memory from which on a child process is replaced
    suspect_processes: int | None = None  # the most child processes for suspects; None: two per processor
    state_dir: str | None = None  # the folder where workers keep identities if the store is not a file
    share: str = "none"  # group: the group may use new files; folders of an SQLite file follow that file
    metrics: str | None = None  # HOST:PORT at which a worker serves its metrics
    emf: bool = False  # True if a worker writes CloudWatch metrics to stdout
    blobs: str | None = None  # where large bodies are stored: file:///DIRECTORY, s3://BUCKET/PREFIX
    blob_threshold: int = 200_000  # bytes above which a body is stored as a blob
    blob_max: int = 512 * 1024 * 1024  # bytes above which a body is refused
    notify: str | None = None  # URL of the webhook to which alerts are posted
    notify_every_s: float = 600.0  # the least seconds between two alerts about the same subject
    telemetry: bool = True  # True if workers and schedulers report themselves in cells of the store
    runbook_url: str | None = None  # the address above the pages of runbooks, or a template with {page}
    environment: str | None = None  # the name of this environment, such as production, for the pages
    web_url: str | None = None  # the address of `redrive web`, for links to its pages
    trace_url: str | None = None  # this and the next ones are templates of links, see web/outside.py
    logs_url: str | None = None
    code_url: str | None = None
    code_root: str | None = None  # the prefix of paths that {file} leaves out
    otel: bool = False  # True if apps are instrumented by OpenTelemetry
    log: str = "auto"
    output: str = "auto"
    folder: str | None = None  # the directory of the settings file; None if there is no file

    def __repr__(self) -> str:
        return f"Settings(url={shown(self.url)!r}, app={self.app!r}, folder={self.folder!r})"


class Sourced(NamedTuple):
    """A setting as `redrive config show` prints it. `source` is a flag, a variable, a file or `default`."""

    name: str
    value: object
    source: str


def settings(flags: Mapping[str, Any] = _NO_FLAGS) -> Settings:
    """Return the current settings. `flags` are those of the command line, by setting; None: not given.

    Raises ConfigError for an invalid value or an unknown key in the file, with its place and the expected value;
    Refused for a file from the search that another user owns or may write.
    """
    return _resolve(tuple((n, v) for n, v in flags.items() if v is not None), _environment(), settings_file())


def is_shared() -> bool:
    """Return True if the setting `share` is `group`; False also if the settings cannot be read."""
    try:
        return settings().share == "group"
    except (ConfigError, Refused):
        return False


def sources(flags: Mapping[str, Any] = _NO_FLAGS) -> list[Sourced]:
    """Return each setting as written, with its source and without secrets. Raises as `settings` does."""
    given = tuple((n, v) for n, v in flags.items() if v is not None)
    chosen = _choose(given, _environment(), settings_file())
    return [_hide_secrets(chosen[name][1]) if name in chosen else _default(name) for name in SETTINGS]


def unknown_variables() -> list[tuple[str, str]]:
    """Return misspelled variables, each with the one that was probably meant: (REDRIVE_LEESE, REDRIVE_LEASE)."""
    odd = (v.removeprefix("REDRIVE_") for v in sorted(os.environ) if v.startswith("REDRIVE_"))
    names = [*(name.upper() for name in SETTINGS), *_OTHERS]
    meant = ((name, near_miss(name, names, 0.75)) for name in odd if name not in names)
    return [(f"REDRIVE_{name}", f"REDRIVE_{near}") for name, near in meant if near]


def _environment() -> tuple[tuple[str, str], ...]:
    """Return (setting, text) for each variable that is set. An empty variable counts as not set, as wrappers unset one
    so."""
    return tuple((name, text) for name, variable in VARIABLES.items() if (text := os.environ.get(variable)))


@functools.lru_cache(maxsize=64)  # cached, as each App() and each worker reads the settings
def _resolve(
    flags: tuple[tuple[str, Any], ...], environment: tuple[tuple[str, str], ...], file: SettingsFile | None
) -> Settings:
    chosen = _choose(flags, environment, file)
    fields = {SETTINGS[name].field: value for name, (value, _) in chosen.items()}
    return Settings(**fields, folder=None if file is None else str(file.path.parent))


def _choose(
    flags: tuple[tuple[str, Any], ...], environment: tuple[tuple[str, str], ...], file: SettingsFile | None
) -> dict[str, tuple[Any, Sourced]]:
    """Return, by name, each setting that a flag, a variable or the file sets: its value, its text, and the source."""
    written = {}
    if file is not None:
        for name, value in table_of(file).items():
            _check_name(name, file.path)
            written[name] = Sourced(name, _anchor(name, value, file), str(file.path))
    written |= {name: Sourced(name, text, VARIABLES[name]) for name, text in environment}
    written |= {name: Sourced(name, value, f"--{name.replace('_', '-')}") for name, value in flags}
    return {name: (_value(sourced), sourced) for name, sourced in written.items()}


def _check_name(key: str, path: Path) -> None:
    if key not in SETTINGS:
        near = near_miss(key, SETTINGS)
        meant = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"{path}: unknown key {key!r}; {meant}known: {', '.join(SETTINGS)}")


def _default(name: str) -> Sourced:
    setting = SETTINGS[name]
    return Sourced(name, setting.default or getattr(Settings(), setting.field), "default")


def _hide_secrets(written: Sourced) -> Sourced:
    """Return a setting, its secrets hidden: all of a webhook's URL but its host, and the passwords of other URLs."""
    if written.name == "notify":
        return written._replace(value=hidden_url(str(written.value)))
    return written._replace(value=shown(str(written.value))) if written.name in ("url", "blobs") else written


def _value(written: Sourced) -> Any:
    setting = SETTINGS[written.name]
    try:
        return setting.read(written.value)
    except (ValueError, TypeError) as error:
        why = str(error).rpartition(" is refused: ")[2].partition("; expected")[0]
        place = written.source if written.source.startswith(("--", "REDRIVE_")) else f"{written.source}: {written.name}"
        value = _hide_secrets(written).value
        raise ConfigError(f"{place} = {value!r} is refused: {why}; expected {setting.expected}") from None


def _anchor(name: str, value: Any, file: SettingsFile) -> Any:
    """Return the value of a setting in the file; a relative path in it is made relative to the file's directory."""
    if file.here or not isinstance(value, str):
        return value
    if name == "state_dir":
        return value if value.startswith("~") else str(file.path.parent / value)
    if name == "url" and value.startswith("sqs://"):  # its parameters `triage` and `cells` are URLs
        folder = quote(quote(str(file.path.parent)))  # quoted twice, for a URL within a URL
        return re.sub(rf"(?<=[?&])(?:triage|cells)={_SQLITE}(?!/)", lambda match: f"{match[0]}{folder}/", value)
    if name != "url" or not value.startswith(_SQLITE):
        return value
    path = value.removeprefix(_SQLITE)
    return value if path.startswith("/") else f"{_SQLITE}{file.path.parent}/{path}"
