"""`classify`: the one door from an exception to a Fault."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from .fingerprints import fingerprint_of
from .inspection import Looks
from .model import Fault, Kind
from .rules import Rule
from .stack import stack_of
from .traceback import story
from .verdict import judge


def classify(exception: BaseException, rules: Sequence[Rule] = (), *, now: datetime | None = None) -> Fault:
    """Return the Fault an exception amounts to. Never raises, whatever the exception does, but a KeyboardInterrupt.

    `rules` are tried in order on the exception and then on its causes, the first match wins: an exception class, a
    predicate (one that raises does not match), a compiled pattern, or a plain text, found in upper or lower case.
    A generic exception takes the kind of its nearest known `__cause__`, an exception group that of its gravest member.
    Kinds `crashed`, `interrupted`, `unreadable` and `unroutable` are the worker's to give: no exception alone proves
    them. A `CancelledError` is `default`, since only the worker knows whether it was it that cancelled.

    `now` is needed for a Retry-After that is a date: without it the response's own Date header is taken, and only where
    that is missing too the local clock is read, the one place here that does.
    """
    try:
        return _fault(exception, rules, now)
    except KeyboardInterrupt:
        raise
    except BaseException:  # what `get` and `text_of` let through, e.g. the end of memory or of the stack
        return Fault(Kind.DEFAULT, text="an exception that cannot be classified", fingerprint="0" * 16)


def _fault(exception: BaseException, rules: Sequence[Rule], now: datetime | None) -> Fault:
    looks = Looks(now)
    chain = looks.chain(exception)
    seen, stack = chain[0], stack_of(exception)
    verdict = judge(looks, chain, rules)
    return Fault(
        verdict.kind or Kind.DEFAULT,
        seen.known.name,
        seen.text,
        fingerprint_of(looks, chain, stack),
        seen.known.errors,
        story(looks, seen, stack),
        verdict.retry_after_s,
        verdict.steer,
    )
