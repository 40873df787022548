"""The name under which a worker claims, and its crash ledger."""

from __future__ import annotations

import os
import secrets
from typing import NamedTuple

from ..store import Store
from ..system import host
from .crash.ledger import CrashSlots, hold


class Identity(NamedTuple):
    """A worker's name and ledger. `slots` is None if the ledger is not needed, or cannot be stored (`complaint` says
    why)."""

    name: str
    slots: CrashSlots | None = None
    complaint: str | None = None


def identity(store: Store, name: str | None) -> Identity:
    """Lock an identity in the store's directory, or return one without a ledger. Raises Refused as `hold` does."""
    why = "there is no directory for it"
    if store.state_dir is not None:
        try:
            slots = hold(store.state_dir, name or "worker")
            return Identity(slots.worker, slots)
        except OSError as error:
            why = str(error)
    if not (store.traits.shared and store.traits.durable):
        return Identity(name or f"local/{os.getpid()}")
    complaint = (
        f"this worker keeps no record of what it starts: {why}; should it be killed, its leases run out and all that "
        "it held counts a crash, and should it hang, its parent does not see it; set REDRIVE_STATE_DIR to a directory"
    )
    # No worker recovers leases under this name, so it only has to be unique.
    return Identity(f"{host()}.{secrets.token_hex(5)}/{name or 'worker'}", None, complaint)
