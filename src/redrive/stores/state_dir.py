"""Find the directory for worker identities on this machine, for stores that are not a local file."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from ..config import settings

_OTHER = re.compile(r"[^A-Za-z0-9.]+")
_SHOWN = 40  # how many characters of the identity the folder's name shows


def state_dir(identity: str) -> Path | None:
    """The folder for workers of the store with this identity, such as `db.example.com:5432/app/redrive`; it need not
    exist yet.

    It is in REDRIVE_STATE_DIR, or else in $XDG_STATE_HOME/redrive, or else in ~/.local/state/redrive. None if this
    process cannot make that directory or write to it. Raises ConfigError for invalid settings.
    """
    root = _root()
    if root is None or not _writable(root):
        return None
    digest = hashlib.blake2b(identity.encode(errors="surrogateescape"), digest_size=6).hexdigest()
    return root / f"{_OTHER.sub('-', identity)[:_SHOWN].strip('-.')}-{digest}-workers"


def _root() -> Path | None:
    chosen = settings().state_dir
    if chosen is not None:
        return Path(chosen).expanduser().absolute()
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():  # the XDG standard ignores relative paths
        return named / "redrive"
    try:
        return Path.home() / ".local" / "state" / "redrive"
    except RuntimeError:  # a user without a home directory
        return None


def _writable(folder: Path) -> bool:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
