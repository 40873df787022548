"""Find who acts and why: every change by a person names both."""

from __future__ import annotations

import os
import pwd
from functools import cache
from pathlib import Path

from ..errors import ConfigError

ACTOR_MAX, REASON_MAX = 200, 1000  # characters
_NO_LOGIN = 2**32 - 1  # of daemons


@cache
def _user_name(uid: int) -> str:
    """The name of a user id; its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user() -> str:
    """The acting user by the operating system, which no environment variable can change: user@host, or login/user@host
    where the login user became another one (sudo)."""
    uid = os.geteuid()
    login = _login()
    name = _user_name(uid) if login in (None, uid) else f"{_user_name(login or 0)}/{_user_name(uid)}"
    return f"{name}@{os.uname().nodename}"


def _login() -> int | None:
    """The user id of the login, which Linux keeps for all processes of it; None where unknown."""
    try:
        uid = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        return None
    return None if uid == _NO_LOGIN else uid


def signed(actor: str | None, reason: str | None, what: str, *, needed: bool = True) -> tuple[str, str]:
    """Actor (None: user@host) and reason of `what`, without white space around them.

    Raises ConfigError where the reason is missing, though it is `needed`, where it is blank, or one of them is too
    long.
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
