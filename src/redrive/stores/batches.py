"""What a change of a message adds to the counts of its batch, for stores that keep whole messages."""

from __future__ import annotations

from msgspec.structs import replace

from ..message import BatchCounts, Discard, Lane, Message, Replace, Verdict

FIELDS = BatchCounts.__struct_fields__
STORED = ("open", "dead", "quarantine")  # the fields whose members are all stored, so that `check` can recount them
NOTHING = BatchCounts()


def state_of(message: Message) -> str:
    """Return the field of BatchCounts that counts a stored member in this state."""
    match message.lane:
        case Lane.DEAD | Lane.QUARANTINE:
            return message.lane.value
        case Lane.DONE:
            return "cancelled" if message.reason == "cancelled" else "done"
        case _:
            return "open"


def removed_as(state: str, verdict: Verdict | None = None) -> str | None:
    """Return the field that counts a member after its removal: an open one was acked, a dead one was discarded. None:
    a draft takes its place, which is counted itself."""
    if isinstance(verdict, Replace):
        return None
    if state == "open" or (isinstance(verdict, Discard) and verdict.waive):
        return "done"
    return "discarded" if state in (Lane.DEAD, Lane.QUARANTINE) else state


def moved(counts: BatchCounts, old: str | None, new: str | None) -> BatchCounts:
    """Return the counts after a member moved from one field to another; None: it was, or is, no member."""
    if old == new:
        return counts
    changes = {field: -1 for field in (old,) if field is not None}
    if new is not None:
        changes[new] = 1
        if new == "open":
            changes["opened"] = 1
        elif new in (Lane.DEAD, Lane.QUARANTINE) and old == "open":
            changes["died"] = 1
    return replace(counts, **{field: getattr(counts, field) + n for field, n in changes.items()})


def is_news(counts: BatchCounts) -> bool:
    """True if a changed batch with these counts needs a look: nothing is open, or a member died."""
    return counts.open == 0 or has_failed(counts)


def has_failed(counts: BatchCounts) -> bool:
    """True if a member is dead or in quarantine."""
    return counts.dead + counts.quarantine > 0


def miscounted(id: str, field: str, counted: int, stored: int) -> str:
    """Return what `check` says of a batch that counts another number of members in this field than are stored."""
    return f"batch {id}: {field} counts {counted}, but {stored} members are stored"
