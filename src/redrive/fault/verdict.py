"""The verdict on a failure: the kind that its exception, the causes and the members of groups amount to."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..errors import Quarantine, Reject, RetryAfter, Snooze
from .foreign import members_of
from .inspection import DEPTH_MAX, MEMBERS_MAX, Looks, Seen
from .model import Kind
from .rules import Rule, ruled
from .text_patterns import kind_of_text


class Verdict(Struct, frozen=True):
    """`steer` says that the handler decided itself, and how."""

    kind: Kind | None
    retry_after_s: float | None = None
    steer: str = ""


_SILENT = Verdict(None)
_GRAVITY = (
    Kind.PERMANENT, Kind.UNREADABLE, Kind.UNROUTABLE, Kind.CRASHED, Kind.QUOTA, Kind.THROTTLED, Kind.TIMEOUT,
    Kind.TRANSIENT, Kind.INTERRUPTED, Kind.DEFAULT,
)  # fmt: skip
_STEERS = ("quarantine", "reject", "retry_after", "snooze")  # gravest first


def judge(looks: Looks, chain: list[Seen], rules: Sequence[Rule], depth: int = 0) -> Verdict:
    """In order: what the handler steers, rules and well-known signs from the outer exception inwards, texts."""
    seen = chain[0]
    if seen.known.steer and (steered := _steered(seen.exception)):
        return steered
    within = _judge_members(looks, seen, rules, depth) if seen.known.group else _SILENT
    if within.steer:
        return within
    kind, asked_s = None, None
    for each in chain:
        kind = kind or ruled(each, rules) or each.kind or (within.kind if each is seen else None)
        asked_s = each.retry_after_s if asked_s is None else asked_s
    for each in chain:
        kind = kind or (None if each.known.program_error else kind_of_text(each.text))
    return Verdict(kind, within.retry_after_s if asked_s is None else asked_s)


def _steered(exception: BaseException) -> Verdict | None:
    match exception:
        case RetryAfter():
            return Verdict(Kind.THROTTLED, exception.delay_s, "retry_after")
        case Snooze():
            return Verdict(Kind.TRANSIENT, exception.delay_s, "snooze")
        case Reject():
            return Verdict(Kind.PERMANENT, steer="reject")
        case Quarantine():
            return Verdict(Kind.PERMANENT, steer="quarantine")
        case _:
            return None


def _judge_members(looks: Looks, seen: Seen, rules: Sequence[Rule], depth: int) -> Verdict:
    """The gravest member decides: it fails again whatever becomes of the others. A group steers if all members do."""
    if depth >= DEPTH_MAX:
        return _SILENT
    members = members_of(seen.exception)[:MEMBERS_MAX]
    verdicts = [judge(looks, looks.chain(member), rules, depth + 1) for member in members]
    asked_s = max((each.retry_after_s for each in verdicts if each.retry_after_s is not None), default=None)
    if all(each.steer for each in verdicts):
        gravest = min(verdicts, key=lambda each: _STEERS.index(each.steer))
        return Verdict(gravest.kind, asked_s, gravest.steer)
    kinds = [each.kind for each in verdicts if each.kind is not None]
    return Verdict(min(kinds, key=_GRAVITY.index, default=None), asked_s)
