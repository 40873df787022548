"""Other users of the machine: forked children that give up being root. They have no entry in any list of users."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

T = TypeVar("T")
TEAM = 61_010  # a group that users may have in common

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user; CI runs as root")


class User(NamedTuple):
    uid: int
    groups: tuple[int, ...] = ()


ALICE, BOB = User(61_001), User(61_002)
ANNE, BEN = User(61_003, (TEAM,)), User(61_004, (TEAM,))


class Running(NamedTuple):
    """A child at its work."""

    pid: int
    reading: int

    def result(self) -> Any:
        """What the work returned; raises what it raised."""
        with os.fdopen(self.reading, "rb") as pipe:
            said = pipe.read()
        os.waitpid(self.pid, 0)
        assert said, "it ended without a word"
        ok, value = pickle.loads(said)
        if not ok:
            raise value
        return value


def begin(user: User, work: Callable[[], T], *, umask: int = 0o022) -> Running:
    """Let the work begin in a child of that user. What it imports must be imported here already: the user may not be
    able to read where this interpreter lies."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setgroups(user.groups)
            os.setresgid(user.uid, user.uid, user.uid)
            os.setresuid(user.uid, user.uid, user.uid)
            os.umask(umask)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(_said(work))
        finally:
            os._exit(0)
    os.close(writing)
    return Running(pid, reading)


def acting_as(user: User, work: Callable[[], T], *, umask: int = 0o022) -> T:
    """The result of the work, done by that user."""
    result: T = begin(user, work, umask=umask).result()
    return result


def _said(work: Callable[[], object]) -> bytes:
    try:
        return pickle.dumps((True, work()))
    except BaseException as error:
        with contextlib.suppress(Exception):
            return pickle.dumps((False, error))
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


@contextlib.contextmanager
def common_ground() -> Iterator[Path]:
    """A folder that every user may enter and list."""
    folder = Path(tempfile.mkdtemp(prefix="redrive-ground-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def home_of(user: User, ground: Path, *, mode: int = 0o755) -> Path:
    """A folder of that user's."""
    home = ground / f"home-{user.uid}"
    home.mkdir()
    os.chown(home, user.uid, user.uid)
    home.chmod(mode)
    return home


def team_folder(ground: Path) -> Path:
    """A folder that a group shares, as its administrator sets it up."""
    folder = ground / "team"
    folder.mkdir()
    os.chown(folder, 0, TEAM)
    folder.chmod(0o2770)
    return folder
