"""Who acts and why: every change that a person makes names both."""

from __future__ import annotations

import getpass
import os

from ..errors import ConfigError

ACTOR_MAX, REASON_MAX = 200, 1000  # characters


def user() -> str:
    """Who acts, unless it is said: user@host."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"


def signed(actor: str | None, reason: str | None, what: str, *, needed: bool = True) -> tuple[str, str]:
    """Actor (None: user@host) and reason of `what`, without white space around them.

    Raises ConfigError where the reason is missing, though it is `needed`, or one of them is too long.
    """
    name = (actor or "").strip() or user()
    why = (reason or "").strip()
    if not why and needed:
        raise ConfigError(f"{what}: no reason is given; expected reason=, in words that explain it to who looks later")
    if len(name) > ACTOR_MAX or len(why) > REASON_MAX:
        raise ConfigError(
            f"{what}: actor of {len(name)} and reason of {len(why)} characters; "
            f"expected at most {ACTOR_MAX} and {REASON_MAX}"
        )
    return name, why
