"""Find and read the settings file: the one in `REDRIVE_CONFIG`, else the nearest one in this folder or above."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..system import BINARY, CLOEXEC, NONBLOCK
from . import trust

CONFIG = "REDRIVE_CONFIG"  # the file that this variable names may belong to any user, unlike one found by the search
OURS, PYPROJECT = "redrive.toml", "pyproject.toml"
_Stamp = tuple[int, ...]


class SettingsFile(NamedTuple):
    """A settings file. `here`: it is in the working directory."""

    path: Path
    stamp: _Stamp  # identifies the file and its contents for the cache
    here: bool


def settings_file() -> SettingsFile | None:
    """Return the file that `REDRIVE_CONFIG` names, else the nearest one with settings; None if there is none.

    Raises NotTrusted if another user owns or may write a file from the search; ConfigError if a named one is missing.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the working directory was deleted
        return None
    if named := os.environ.get(CONFIG):
        return _explicit(Path(named).expanduser().absolute(), here)
    for folder in (here, *here.parents):
        for name in (OURS, PYPROJECT):
            path = folder / name
            stamp = _stamp(path)
            if stamp is not None and (name == OURS or _document(path, stamp) is not None):
                _vet(path, stamp)
                return SettingsFile(path, stamp, folder == here)
    return None


def table_of(file: SettingsFile) -> Mapping[str, Any]:
    """Return the settings in the file as written. Raises ConfigError if the file cannot be read."""
    return _document(file.path, file.stamp) or {}


def _explicit(path: Path, here: Path) -> SettingsFile:
    stamp = _stamp(path)
    if stamp is None:
        raise ConfigError(f"{CONFIG} = {str(path)!r} is refused: there is no such file; expected a TOML file")
    return SettingsFile(path, stamp, path.parent == here)


def _vet(path: Path, stamp: _Stamp) -> None:
    why = trust.why_not(path)
    if why is None and _stamp(path) != stamp:
        why = "it was changed while it was checked"
    if why is not None:
        what = f"the settings in {path}, which choose the store and the code that runs as you, are not taken"
        raise trust.NotTrusted(what, why, path.parent)


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


@functools.lru_cache(maxsize=64)
def _document(path: Path, stamp: _Stamp) -> Mapping[str, Any] | None:
    """Return the settings in a file as written; None for a pyproject.toml without any. `stamp` identifies the file's
    contents."""
    import tomllib

    try:
        document = tomllib.loads(_read(path, stamp))
    except (OSError, ValueError) as error:
        if path.name == PYPROJECT:  # other tools report a broken pyproject.toml
            return None
        raise ConfigError(f'{path} cannot be read: {error}; expected TOML, such as lease = "30s"') from None
    table: Mapping[str, Any] | None = document
    if path.name == PYPROJECT:
        table = document.get("tool", {}).get("redrive")
    return table


def _read(path: Path, stamp: _Stamp) -> str:
    """Return the text of the file at `path`, which must be that of `stamp`. Does not block on a pipe. Raises OSError,
    ValueError."""
    with os.fdopen(os.open(path, os.O_RDONLY | BINARY | NONBLOCK | CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if (status.st_dev, status.st_ino) != stamp[:2]:
            raise ValueError("it was replaced while it was read")
        return file.read().decode()
