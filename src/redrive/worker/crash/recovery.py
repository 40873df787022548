"""What a worker does with the leases that dead ones of its machine left: what those had started counts a crash, the
rest goes back free."""

from __future__ import annotations

from collections.abc import Callable

from ...events import Events
from ...fault import crash_fault
from ...message import Lane
from ...store import Store
from ..delivery_events import fate_of_crashed
from .ledger import Slots, left_behind


def take_back(store: Store, slots: Slots | None, room: int, events: Events, tell: Callable[[str, str], None]) -> None:
    """Take back what the last holder of this identity held, open the slots for `room` messages, and take back from all
    others here whose holders are dead.

    Killed between a release and the emptying of the slots, the next one does it again and finds nothing left to
    release. Raises StoreError.
    """
    if slots is None or store.state_dir is None:
        return
    _from(slots, store, slots.worker, events, tell)
    slots.open(room)
    for other in left_behind(store.state_dir):
        if _from(other, store, slots.worker, events, tell):
            other.settle()


def _from(slots: Slots, store: Store, me: str, events: Events, tell: Callable[[str, str], None]) -> bool:
    if not slots.same_boot:
        return False  # its slots may be older than its leases: those run out by themselves
    crash = slots.crash()
    died = crash_fault(crash, store.now_ms())
    held = store.find([one.id for one in slots.started or ()]) if events else []
    free, lapsed = store.release(slots.last, slots.started, fault=died)
    if free or lapsed:
        what = f"{lapsed} started and {free} unstarted messages that {slots.last} held when it died"
        tell("took_back", f"{what} ({died.text})" if crash.cause else what)
    if lapsed and events:
        crashed = [m for m in held if m is not None and m.worker == slots.last and m.lane is Lane.LEASED]
        events.emit([fate_of_crashed(m, died, me) for m in crashed])
    return True
