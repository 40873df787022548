"""Decide which files may choose the store and the code: those of this user, of root, and those named as trusted.

Settings choose the store and the code that is imported. So a settings file of another user is refused, as git refuses
the configuration of another user's repository (safe.directory): a file that another user owns, may write, or could
replace. With `sudo`, the user who called it counts as this user. `REDRIVE_TRUST` names exceptions: files and folders,
with all below them, separated by colons; `*` is everything.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import sys
from functools import lru_cache
from pathlib import Path

from ..errors import Refused
from ..files import user
from ..system import POSIX

VARIABLE = "REDRIVE_TRUST"


class NotTrusted(Refused):
    """A file is refused because another user owns it or may write it. `fix` is the variable that would allow it."""

    what: str
    why: str
    folder: Path

    def __init__(self, what: str, why: str, folder: Path) -> None:
        self.what, self.why, self.folder = what, why, folder
        self.fix: str = f"{VARIABLE}={shlex.quote(str(folder))}"
        super().__init__(
            f"{what}: {why}; let file and folder be yours alone, or set {self.fix} if you trust all who may write there"
        )

    def __reduce__(self) -> tuple[type[NotTrusted], tuple[object, ...]]:
        return NotTrusted, (self.what, self.why, self.folder)


def why_not(path: Path) -> str | None:
    """Return why the file at `path` is not trusted; None if it is. Raises OSError if the file cannot be examined.

    Without POSIX there are no owners to compare, and every file is trusted."""
    if not POSIX or is_named(path):
        return None
    status = path.lstat()
    why = _of_folder(path.parent)
    if why is None and stat.S_ISLNK(status.st_mode):
        why = _owner(status, "it is a link that")
        path = path.resolve()
        status = path.stat()
        why = why or _of_folder(path.parent)
    return why or _owner(status, "it") or _writers(path, status, "it")


def why_not_folder(path: Path) -> str | None:
    """Return why code must not be imported from the folder at `path`; None if it may be. A sticky bit does not help."""
    if not POSIX or is_named(path):
        return None
    status = path.stat()
    return _owner(status, "it") or _writers(path, status, "it")


def is_named(path: Path) -> bool:
    """Return True if REDRIVE_TRUST names the path, or a folder above it."""
    named = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    if not named:
        return False
    places = {path.absolute(), path.resolve()}
    return "*" in named or any(
        place.is_relative_to(known)
        for name in named
        for known in (Path(name).expanduser().absolute(), Path(name).expanduser().resolve())
        for place in places
    )


def python() -> list[str]:
    """Return the command that runs this Python again, for `-m`.

    It does not import modules from the working directory, unless redrive itself is imported from there.
    """
    with contextlib.suppress(FileNotFoundError):  # the working directory was deleted
        if Path(__file__).parents[1] == Path.cwd():
            return [sys.executable]
    return [sys.executable, "-P"]


def _of_folder(path: Path) -> str | None:
    """Return why other users could replace a file of this folder; None if they cannot, as in a sticky folder."""
    status = path.stat()
    why = _owner(status, f"its folder {path}")
    return why or (None if status.st_mode & stat.S_ISVTX else _writers(path, status, f"its folder {path}"))


def _owner(status: os.stat_result, what: str) -> str | None:
    if status.st_uid in _ours():
        return None
    return f"{what} belongs to {user(status.st_uid)}" + ("" if os.geteuid() else ", and you are root")


def _writers(path: Path, status: os.stat_result, what: str) -> str | None:
    mode = status.st_mode
    if not mode & (stat.S_IWGRP | stat.S_IWOTH) or os.statvfs(path).f_flag & os.ST_RDONLY:
        return None
    if not mode & stat.S_IWOTH and _is_alone(status.st_gid, _ours()):
        return None
    who = "everybody" if mode & stat.S_IWOTH else _group(status.st_gid)
    return f"{who} may write {'in ' if stat.S_ISDIR(mode) else ''}{what}"


def _ours() -> frozenset[int]:
    """Return the ids of the users that are trusted: root, the user of this process, and the caller of sudo."""
    me, by = os.geteuid(), os.environ.get("SUDO_UID", "")
    sudo = {int(by)} if me == 0 and by.isascii() and by.isdigit() else set()
    return frozenset({0, me} | sudo)


@lru_cache(maxsize=64)
def _is_alone(gid: int, ours: frozenset[int]) -> bool:
    """Return True if the group's only members are trusted users, as in the group that many systems create for each
    user.

    An unlisted group may have any members.
    """
    import grp
    import pwd

    try:
        names = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return False
    members = {one.pw_uid for one in pwd.getpwall() if one.pw_gid == gid or one.pw_name in names}
    known = {one.pw_name for one in pwd.getpwall()}
    return bool(members) and members <= ours and names <= known


def _group(gid: int) -> str:
    import grp

    try:
        return f"group {grp.getgrgid(gid).gr_name} ({gid})"
    except KeyError:
        return f"group {gid}"
