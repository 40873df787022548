"""Determine the actor and check the reason of a change: each change by a person has both."""

from __future__ import annotations

import getpass
import os
from functools import cache
from pathlib import Path

from ..errors import ConfigError
from ..system import POSIX, host

ACTOR_MAX, REASON_MAX = 200, 1000  # the most characters of an actor and of a reason
_NO_LOGIN = 2**32 - 1  # the login uid of a process without a login, such as a daemon


@cache
def _user_name(uid: int) -> str:
    """Return the name of the user with this id; the id as text if there is no name."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user() -> str:
    """Return the acting user as user@host, or login/user@host after sudo. The names come from the operating system, so
    that environment variables cannot forge them."""
    if not POSIX:
        return f"{getpass.getuser()}@{host()}"
    uid = os.geteuid()
    login = _login()
    name = _user_name(uid) if login in (None, uid) else f"{_user_name(login or 0)}/{_user_name(uid)}"
    return f"{name}@{host()}"


def _login() -> int | None:
    """Return the uid of the login to which this process belongs, as Linux keeps it; None if unknown."""
    try:
        uid = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        return None
    return None if uid == _NO_LOGIN else uid


def signed(actor: str | None, reason: str | None, what: str, *, needed: bool = True) -> tuple[str, str]:
    """Return the actor (default: user@host) and the reason of `what`, stripped.

    Raises ConfigError if a `needed` reason is missing, if it is blank, or if one of the texts is too long.
    """
    name = (actor or "").strip() or user()
    why = (reason or "").strip()
    if not why and (needed or reason):
        raise ConfigError(f"{what}: no reason is given; expected reason=, in words that explain it to who looks later")
    if len(name) > ACTOR_MAX or len(why) > REASON_MAX:
        raise ConfigError(
            f"{what}: actor of {len(name)} and reason of {len(why)} characters; "
            f"expected at most {ACTOR_MAX} and {REASON_MAX}"
        )
    return name, why
