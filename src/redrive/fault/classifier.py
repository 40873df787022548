"""`classify`: turn an exception into a Fault.

The kind is decided by, in this order: a control exception of the handler; the task's own rules; the class and
attributes of the exception and its causes; the texts. An exception without evidence is `default`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from ..errors import Quarantine, Reject, RetryAfter, Snooze
from .fingerprints import fingerprint_of
from .inspection import DEPTH_MAX, MEMBERS_MAX, ExceptionFacts, Inspection, call, members_of
from .model import Fault, Kind
from .rules import Rule
from .text_patterns import kind_of_text
from .traceback import stack_of, traceback_text


def classify(exception: BaseException, rules: Sequence[Rule] = (), *, now: datetime | None = None) -> Fault:
    """Return the Fault for an exception. Raises only KeyboardInterrupt, whatever the exception's own code does.

    `rules` are tried in order on the exception and then on its causes, the first match wins: an exception class, a
    predicate (one that raises does not match), a compiled pattern, or a plain text, found in any case. A generic
    exception takes the kind of its nearest known `__cause__`, an exception group that of its gravest member. Kinds
    `crashed`, `interrupted`, `unreadable` and `unroutable` are given by the worker only: no exception alone proves
    them. A `CancelledError` is `default`, since only the worker knows whether it cancelled the run itself.

    `now` is needed for a Retry-After that is a date. Without it, the Date header of the response is used, or else the
    local clock.
    """
    try:
        return _fault(exception, rules, now)
    except KeyboardInterrupt:
        raise
    except BaseException:  # `get` and `text_of` do not catch some errors, such as MemoryError and RecursionError
        return Fault(Kind.DEFAULT, text="an exception that cannot be classified", fingerprint="0" * 16)


def _fault(exception: BaseException, rules: Sequence[Rule], now: datetime | None) -> Fault:
    inspection = Inspection(now)
    chain = inspection.chain(exception)
    seen, stack = chain[0], stack_of(exception)
    verdict = _classify(inspection, chain, rules)
    return Fault(
        verdict.kind or Kind.DEFAULT,
        seen.known.name,
        seen.text,
        fingerprint_of(inspection, chain, stack),
        seen.known.errors,
        traceback_text(inspection, seen, stack),
        verdict.retry_after_s,
        verdict.steer,
    )


class Classification(Struct, frozen=True):
    """The kind of an exception with its causes and members. `steer` names the handler's control exception, if any."""

    kind: Kind | None
    retry_after_s: float | None = None
    steer: str = ""


_UNKNOWN = Classification(None)
_GRAVITY = (
    Kind.PERMANENT, Kind.UNREADABLE, Kind.UNROUTABLE, Kind.CRASHED, Kind.QUOTA, Kind.THROTTLED, Kind.TIMEOUT,
    Kind.TRANSIENT, Kind.INTERRUPTED, Kind.DEFAULT,
)  # fmt: skip
_STEERS = ("quarantine", "reject", "retry_after", "snooze")  # control exceptions, the gravest first


def _classify(
    inspection: Inspection, chain: list[ExceptionFacts], rules: Sequence[Rule], depth: int = 0
) -> Classification:
    seen = chain[0]
    if seen.known.steer and (steered := _steer(seen.exception)):
        return steered
    members = _classify_members(inspection, seen, rules, depth) if seen.known.group else _UNKNOWN
    if members.steer:
        return members
    kind, asked_s = None, None
    for each in chain:
        kind = kind or _by_rules(each, rules) or each.kind or (members.kind if each is seen else None)
        asked_s = each.retry_after_s if asked_s is None else asked_s
    for each in chain:
        known = each.known
        if kind is None and not known.program_error and not _is_plain_number(each):
            kind = kind_of_text(each.text, of_os=known.plain and known.os_error)
    return Classification(kind, members.retry_after_s if asked_s is None else asked_s)


def _is_plain_number(seen: ExceptionFacts) -> bool:
    """True if the text is just a number that the exception was raised with: `NotReady(404)` names a thing whose id is
    404, while `NotReady("404")` repeats a server's response."""
    if not seen.text.isdigit():
        return False
    args = call(getattr, seen.exception, "args")
    return isinstance(args, tuple) and len(args) == 1 and isinstance(args[0], int)


def _steer(exception: BaseException) -> Classification | None:
    match exception:
        case RetryAfter():
            return Classification(Kind.THROTTLED, exception.delay_s, "retry_after")
        case Snooze():
            return Classification(Kind.TRANSIENT, exception.delay_s, "snooze")
        case Reject():
            return Classification(Kind.PERMANENT, steer="reject")
        case Quarantine():
            return Classification(Kind.PERMANENT, steer="quarantine")
        case _:
            return None


def _classify_members(
    inspection: Inspection, seen: ExceptionFacts, rules: Sequence[Rule], depth: int
) -> Classification:
    """Classify a group by its gravest member, which would fail again even if the others succeeded. The group counts as
    a control exception only if all members are."""
    if depth >= DEPTH_MAX:
        return _UNKNOWN
    members = members_of(seen.exception)[:MEMBERS_MAX]
    verdicts = [_classify(inspection, inspection.chain(member), rules, depth + 1) for member in members]
    asked_s = max((each.retry_after_s for each in verdicts if each.retry_after_s is not None), default=None)
    if all(each.steer for each in verdicts):
        gravest = min(verdicts, key=lambda each: _STEERS.index(each.steer))
        return Classification(gravest.kind, asked_s, gravest.steer)
    kinds = [each.kind for each in verdicts if each.kind is not None]
    return Classification(min(kinds, key=_GRAVITY.index, default=None), asked_s)


def _by_rules(seen: ExceptionFacts, rules: Sequence[Rule]) -> Kind | None:
    """Return the kind of the first rule that matches, or None. A rule that is invalid or raises does not match."""
    for rule in rules:
        kind: Kind | None = call(_match, rule, seen)
        if kind is not None:
            return kind
    return None


def _match(rule: Rule, seen: ExceptionFacts) -> Kind | None:
    matcher, kind = rule
    if isinstance(matcher, type):
        matches: object = issubclass(type(seen.exception), matcher)
    elif isinstance(matcher, str):
        matches = matcher.lower() in seen.text.lower()
    elif isinstance(matcher, re.Pattern):
        matches = matcher.search(seen.text) is not None
    else:
        matches = matcher(seen.exception)
    if matches and kind not in list(Kind):
        raise ValueError(f"{kind!r} is not a kind")  # also for words of newer versions, which only stored kinds may be
    return Kind(kind) if matches else None
