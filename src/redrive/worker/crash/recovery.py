"""Recover the leases of dead workers on this machine: messages that they had started count a crash, the others are
released uncounted."""

from __future__ import annotations

from ...fault import crash_fault
from ...message import Lane
from ...store import Store
from ..delivery_events import Reporter
from .ledger import CrashSlots, left_behind


def recover(store: Store, slots: CrashSlots | None, room: int, reporter: Reporter) -> None:
    """Recover the leases of the last holder of this identity, open slots for `room` messages, then recover the leases
    of all other identities in the store's directory whose holders are dead.

    If this worker is killed between a release and the emptying of the slots, the next one repeats the release, without
    effect. Raises StoreError.
    """
    if slots is None or store.state_dir is None:
        return
    _take_from(slots, store, reporter)
    slots.open(room)
    for other in left_behind(store.state_dir):
        if _take_from(other, store, reporter):
            other.settle()


def _take_from(slots: CrashSlots, store: Store, reporter: Reporter) -> bool:
    if not slots.same_boot:
        return False  # after a reboot the slots may be older than the leases, which then expire unrecovered
    crash = slots.crash()
    died = crash_fault(crash, store.now_ms())
    ids = [one.id for one in slots.started or ()]
    held = store.find(ids) if ids else []
    free, lapsed = store.reclaim(slots.last, slots.started, fault=died)
    if free or lapsed:
        what = f"{lapsed} started and {free} unstarted messages that {slots.last} held when it died"
        reporter.notice("took_back", f"{what} ({died.text})" if crash.cause else what)
    if lapsed:
        reporter.crashed([m for m in held if m and m.worker == slots.last and m.lane is Lane.LEASED], died)
    return True
