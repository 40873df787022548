"""What became of the members of a batch: a byte for each, in pages that are cells beside SQS. Pure.

Each member has an index in its batch, in a header that all copies of its message keep. Its byte has one of eight states
and the number of its life, so a duplicate of a message counts once, whatever the order in which its copies settle.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ...message import RESTING, BatchCounts, Lane, Message

MEMBER = "aws-batch-member"  # header with a member's index, and the lives of the messages whose place it took: "17+2"
PAGE = 4096  # members of a page: one write unit of DynamoDB, which is 1 KiB, holds it unless many are dead
LIVES = 32  # a byte holds a member's life modulo this number
_FORM = 1  # first byte of a page
_HEAD = struct.Struct(">BII")


class MemberState(IntEnum):
    """The states of a member. A VOID one is not waited for: perhaps its message was never sent."""

    VOID = 0
    OPEN = 1
    DONE = 2
    DEAD = 3
    QUARANTINE = 4
    CANCELLED = 5
    DISCARDED = 6
    DUPLICATE = 7


_RESTING = (MemberState.DEAD, MemberState.QUARANTINE)
_STATES = bytes(byte & 7 for byte in range(256))


class Member(NamedTuple):
    """A member's place in its batch. `base`: the number of lives that its place had before this message."""

    batch: str
    number: int
    base: int = 0


class MemberMove(NamedTuple):
    """What became of a member in this life. `forced`: a verdict of triage, which may also go back to the life before;
    otherwise what is there already counts, if it is of the same life or a later one."""

    member: Member
    state: MemberState
    life: int = 0
    forced: bool = False


def numbered(message: Message, index: int) -> Message:
    """Return the message as the member with this index."""
    return replace(message, headers={**message.headers, MEMBER: str(index)})


def headed(headers: Mapping[str, str] | None, member: Member, base: int) -> dict[str, str]:
    """Return the headers of a draft that takes the place of a member."""
    return {**(headers or {}), MEMBER: f"{member.number}+{base}"}


def member_of(message: Message) -> Member | None:
    """Return the place of a message in its batch; None if it has no batch, or no readable index."""
    index, _, base = message.headers.get(MEMBER, "").partition("+")
    if message.batch is None or not _is_number(index) or not _is_number(base or "0"):
        return None
    return Member(message.batch, int(index), int(base or "0"))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def move_of(
    message: Message, state: MemberState | None = None, *, lives: int = 0, forced: bool = False
) -> MemberMove | None:
    """Return the move of a member to this state (None: that of its lane), so many `lives` after that of the message;
    None for a message that is no member."""
    member = member_of(message)
    if member is None:
        return None
    return MemberMove(member, state or state_of(message), life_of(message, member) + lives, forced)


def life_of(message: Message, member: Member) -> int:
    return member.base + message.redrives


def state_of(message: Message) -> MemberState:
    """Return the state of a message that is stored."""
    if message.lane in RESTING:
        return MemberState.DEAD if message.lane is Lane.DEAD else MemberState.QUARANTINE
    if message.lane is Lane.DONE:
        return MemberState.CANCELLED if message.reason == "cancelled" else MemberState.DONE
    return MemberState.OPEN


class MemberPage(Struct):
    """The states of up to PAGE members, and how often members of the page were enqueued or redriven, and died."""

    states: bytearray
    opened: int = 0
    died: int = 0

    @classmethod
    def read(cls, value: bytes | None) -> MemberPage:
        """Decode a page; an empty one for None. Raises ValueError for a damaged one."""
        if value is None:
            return cls(bytearray())
        form, opened, died = _HEAD.unpack_from(value)
        if form != _FORM:
            raise ValueError(f"a page of members has form {form}, which this release does not know")
        return cls(bytearray(zlib.decompress(value[_HEAD.size :])), opened, died)

    def written(self) -> bytes:
        return _HEAD.pack(_FORM, self.opened, self.died) + zlib.compress(bytes(self.states))

    def counts(self) -> BatchCounts:
        states = self.states.translate(_STATES)
        fields = {state.name.lower(): states.count(state) for state in MemberState if state is not MemberState.VOID}
        return BatchCounts(**fields, opened=self.opened, died=self.died)

    @property
    def open(self) -> int:
        return self.states.translate(_STATES).count(MemberState.OPEN)

    def move(self, moves: Sequence[MemberMove]) -> bool:
        """Merge moves; returns True if the page is another now."""
        return sum(self._move(move) for move in moves) > 0

    def _move(self, move: MemberMove) -> bool:
        at, life = move.member.number % PAGE, move.life % LIVES
        if at >= len(self.states):
            self.states.extend(bytes(at + 1 - len(self.states)))
        was, lived, new = MemberState(self.states[at] & 7), self.states[at] >> 3, move.state
        later = (life - lived) % LIVES
        later = 0 if later >= LIVES // 2 else later
        if was in (MemberState.VOID, MemberState.DUPLICATE):
            if not move.forced and new is not MemberState.DUPLICATE:
                self.opened += 1
                self.died += new in _RESTING
        elif not _replaces(was, new, (life - lived) % LIVES, forced=move.forced):
            return False
        else:
            self.opened += later
            self.died += new in _RESTING and (was not in _RESTING or later > 0)
            life = lived if new is MemberState.DONE and not later else life
        self.states[at], before = new | life << 3, self.states[at]
        return self.states[at] != before


def _replaces(was: MemberState, new: MemberState, later: int, *, forced: bool) -> bool:
    """True if `new`, of a life that began `later` than the one known, replaces what is known of a member. More than
    half of LIVES: of an earlier life. Done is final, and wins over the rest."""
    if was is MemberState.DONE or new is MemberState.DUPLICATE:
        return False
    if forced or new is MemberState.DONE:
        return True
    if later == 0:
        return was is MemberState.OPEN or (was in (MemberState.CANCELLED, MemberState.DISCARDED) and new in _RESTING)
    return later < LIVES // 2
