"""Admission of grouped messages, as pure functions: which messages of a group get a place, and which wait.

Stores that keep whole messages use all of it, the others its limits and checks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError
from ..message import GroupOrder, Lane, Message, OnDead

GroupName = tuple[str, str]
PRIORITY_SHIFT = 56  # a turn is the joining number, with the priority (if it counts) in the bits above
WOKEN_MIN = 100  # least bound on how many messages join their groups in one exchange
PLACE = 0  # the turn of a message with a place; a parked message's turn is higher, any other's is None


class QueueSettings(Struct, frozen=True):
    """The settings of a queue, as set with `configure`."""

    paused: bool = False
    width: int = 1
    order: GroupOrder = GroupOrder.TURNS
    on_dead: OnDead = OnDead.SKIP

    @property
    def strict(self) -> bool:
        return self.order is GroupOrder.STRICT

    @property
    def block(self) -> bool:
        return self.strict and self.on_dead is OnDead.BLOCK


class GroupLine:
    """One group: the messages that have a place, and the parked messages in order."""

    __slots__ = ("parked", "taken")

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self.parked: list[tuple[int, int]] = []  # (turn, seq), sorted

    def add(self, seq: int, turn: int) -> None:
        if turn == PLACE:
            self.taken.add(seq)
        else:
            insort(self.parked, (turn, seq))

    def remove(self, seq: int, turn: int) -> None:
        if turn == PLACE:
            self.taken.discard(seq)
        else:
            del self.parked[bisect_left(self.parked, (turn, seq))]


def joined(
    message: Message, settings: QueueSettings, number: int, due_ms: int, now_ms: int
) -> tuple[Message, int | None]:
    """Return the message and its turn as it joins its group. `number` rises with every join. Strict groups order their
    messages by `number` only; other groups by priority first, and a message joins them only when it is due."""
    later = due_ms if due_ms > now_ms else None
    turn = None if later and not settings.strict else in_line(message, settings, number)
    return replace(message, due_ms=later), turn


def in_line(message: Message, settings: QueueSettings, turn: int) -> int:
    """The turn of a message that joined with the number `turn`, or was parked with it under another group order."""
    number = turn & ~(-1 << PRIORITY_SHIFT)
    return number if settings.strict else message.priority << PRIORITY_SHIFT | number


def settled(message: Message, settings: QueueSettings, now_ms: int) -> int | None:
    """Return the turn of a message that had a place, given its state after settlement: PLACE if it is due now, or if
    its group is strict and the message is neither done nor skipped; else None."""
    if message.lane is Lane.READY:
        return PLACE if settings.strict or (message.due_ms or 0) <= now_ms else None
    held = message.lane in (Lane.DEAD, Lane.QUARANTINE) and settings.block
    return PLACE if held else None


def admitted(message: Message, parked_ms: int, now_ms: int) -> Message:
    """Return the message as it gets a place: due now, so that groups take turns. The time since it was both due and
    parked is added to `held_ms`."""
    held_ms = message.held_ms + max(0, now_ms - max(parked_ms, message.due_ms or 0))
    return replace(message, due_ms=max(now_ms, message.due_ms or 0), held_ms=held_ms)


def setting_line(queue: str, group: str, name: str, value: object) -> str:
    """Return a line of `check` about a stored setting whose value no version of redrive writes."""
    of = f", group {group!r}" if group else ""
    return f"queue {queue!r}{of}: its {name} cannot be {value}; set it anew"


def refuse(queue: str, width: int, own_widths: bool, order: GroupOrder, on_dead: OnDead) -> None:
    """Raise ConfigError if these settings for a queue's groups contradict each other."""
    if order is GroupOrder.STRICT and (width != 1 or own_widths):
        raise ConfigError(f"queue {queue!r}: strict groups run one message at a time; expected group width 1")
    if on_dead is OnDead.BLOCK and order is not GroupOrder.STRICT:
        raise ConfigError(f"queue {queue!r}: on_dead='block' holds a line; it needs group_order='strict'")


def free_places(line: GroupLine, width: Callable[[], int]) -> Iterator[int]:
    """Yield the seqs of the parked messages to admit now, in order. The caller admits each before it takes the next."""
    while line.parked and len(line.taken) < width():
        yield line.parked[0][1]
