"""How many messages may run together with a suspect in one process. Pure.

The last run of a suspect was cut off by the end of its process: it may be what ended it, but most are bystanders, of a
deploy or of the OOM killer. So the first time it runs as if nothing had happened. A process that dies with it again
makes it one of those that may have done it: from then on it runs with half as many as it died with, then with fewer,
and in the end alone (group testing).

All that this needs is kept with the message: its crashes, and how many had been started in the process that died last.
So any worker goes on with it, after a kill, on another machine, or of an earlier version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...fault import Crash
from ...message import Message

ANY = 2**31
ALONE_FROM = 6  # crashes in company; a bystander is then four short of the bound for all crashes
CONTAINED = 2  # crashes of whole workers; from the next one on a child process is no shelter from the message


def company_of(message: Message, most: int, *, alone_from: int = ALONE_FROM) -> int:
    """How many may run in one process with it, itself among them; `most` is how many had been started at first where
    that is not known. It runs alone once it has had `alone_from` crashes in company."""
    if not message.suspect:
        return ANY
    crashes = message.crashes - message.crashes_alone
    if message.crashes_alone or crashes >= alone_from:
        return 1
    if crashes < 2:
        return ANY
    known = next((c.started_count for c in _crashes(message) if c.started_count and not c.alone), 0)
    size = known or most
    for died in range(crashes if known else 2, crashes + 1):
        size = _half(size) if died == 2 else smaller(size, alone_from - died)
    return size


def smaller(together: int, left: int) -> int:
    """The size of the next group, where `left` more may die before each runs alone: a half, or less where halves would
    not come down to one by then.

    >>> smaller(250, 3), smaller(63, 2), smaller(16, 1), smaller(4, 0)
    (63, 16, 4, 1)
    >>> smaller(10, 3), smaller(5, 2), smaller(3, 1)
    (5, 3, 2)
    """
    return min(_half(together), math.ceil(together ** (left / (left + 1)))) if left else 1


def _half(size: int) -> int:
    return max(1, (size + 1) // 2)


def escapes(message: Message) -> bool:
    """Whether it may bring down a worker from within a child process: workers died with it more often than chance would
    have it."""
    return message.crashes - sum(crash.child for crash in _crashes(message)) > CONTAINED


def _crashes(message: Message) -> Iterator[Crash]:
    """What is known of the crashes of its present life, the last one first."""
    return (f.crash for f in reversed(message.faults) if f.crash is not None and f.at_ms >= message.life_ms)
