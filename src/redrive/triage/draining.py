"""Ask one worker of the fleet to drain, as SIGTERM does, from any machine with access to the store.

The request is a field of the worker's own record, which the worker reads each time it renews it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..audit import Audit, signed
from ..errors import ConfigError, Refused, near_miss
from ..message import Swap
from ..presence import drain_swaps, read_workers

if TYPE_CHECKING:
    from ..store import Store


def drain_worker(store: Store, name: str, *, reason: str, actor: str | None = None) -> None:
    """Ask the worker of this name to drain. The request and its entry in the audit log are one commit.

    Raises ConfigError without a reason or for a name that no process has, Refused if that process is gone or is not a
    worker, StoreError; Unsupported if the store keeps no workers.
    """
    who, why = signed(actor, reason, f"drain of worker {name}")
    audit = Audit(store)
    entry = audit.entry("drain", who, why, about=f"worker/{name}", count=0)

    def write(swaps: list[Swap]) -> None:
        if not (asking := drain_swaps(store, name)):
            _refuse(store, name)
        store.put([], swaps=[*asking, *swaps])  # Conflict if the worker has renewed its record: `commit` tries again

    audit.commit(entry, write)


def _refuse(store: Store, name: str) -> None:
    """Raise Refused for a worker that is gone, or another kind of process; ConfigError for an unknown name."""
    workers = read_workers(store)
    kinds = {info.kind for info in workers if info.name == name and not info.gone}
    if kinds:
        raise Refused(f"{name} is a {kinds.pop()}, and only workers drain; stop its process instead")
    if any(info.name == name for info in workers):
        raise Refused(f"worker {name} is gone; it was killed, or cannot reach the store, and reads no request")
    known = [info.name for info in workers if info.kind == "worker" and not info.gone]
    near = near_miss(name, known)
    meant = f"did you mean {near!r}? " if near else ""
    raise ConfigError(f"there is no worker {name!r}; {meant}alive: {', '.join(known) or 'none'}")
