"""One look at each exception of a failure: what it says by itself, and which it was raised from."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from .attributes import kind_of_class, read
from .classes import NONE, Known, known_of, telling
from .foreign import attributes_of, call, cause_of, get, is_exception, text_of
from .model import Kind

CAUSES_MAX = 8  # exceptions looked through from the outer one inwards
DEPTH_MAX = 4  # groups within groups
MEMBERS_MAX = 16  # of one exception group
_REMEMBERED_MAX = 256  # of one failure


class Seen(Struct, frozen=True):
    """What one exception says, without its causes."""

    exception: BaseException
    known: Known
    text: str
    telling: frozenset[str]  # names of attributes that it may have
    kind: Kind | None
    code: str  # HTTP status, SQLSTATE, errno or service code; part of the fingerprint, since texts quote or drop it
    retry_after_s: float | None


class Looks:
    """The looks at one failure. The verdict, the traceback and the fingerprint all need them; each is taken once."""

    __slots__ = ("_now", "_seen")

    def __init__(self, now: datetime | None) -> None:
        self._now = now
        self._seen: dict[int, Seen] = {}  # by identity, which holds while the exception is kept in here

    def at(self, exception: BaseException) -> Seen:
        """What the exception says by itself."""
        seen = self._seen.get(id(exception))
        if seen is None:
            seen = _look(exception, self._now)
            if len(self._seen) < _REMEMBERED_MAX:
                self._seen[id(exception)] = seen
        return seen

    def chain(self, exception: BaseException) -> list[Seen]:
        """The exception and what it was raised from, outermost first; a mere `__context__` need not be the reason."""
        chain = [self.at(exception)]
        inner = _inner(chain[0])
        while inner is not None and len(chain) < CAUSES_MAX and all(inner is not each.exception for each in chain):
            chain.append(self.at(inner))
            inner = _inner(chain[-1])
        return chain


def _look(exception: BaseException, now: datetime | None) -> Seen:
    known = known_of(exception)
    text = text_of(exception, known.name)
    attributes = attributes_of(exception)
    if known.plain and not known.os_error and not attributes:
        return Seen(exception, known, text, NONE, known.kind, "", None)
    names = telling(known, attributes)
    if not names:
        return Seen(exception, known, text, NONE, kind_of_class(known, text), "", None)
    reading = call(read, exception, known, text, names, now) or (known.kind, "", None)
    return Seen(exception, known, text, names, *reading)


def _inner(seen: Seen) -> BaseException | None:
    cause = cause_of(seen.exception)
    if cause is not None or seen.known.plain or "reason" not in seen.telling:
        return cause
    reason = get(seen.exception, "reason")  # urllib's URLError, urllib3's MaxRetryError
    return reason if is_exception(reason) else None
