"""Compute how many messages may run together with a suspect in one process. Pure.

A suspect's process ended while it ran. It may be the cause, but most suspects are bystanders of a deploy or of the OOM
killer, so after the first crash it runs as before. If its process dies again, it runs with half as many as it died
with, then with fewer, and in the end alone (group testing).

Everything needed is kept with the message: its crashes, and how many had been started in the process that died last. So
any worker can continue, after a kill or on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...fault import Crash
from ...message import Message

ANY = 2**31
ALONE_FROM = 6  # crashes in company before a message runs alone; an innocent one then has four left
CONTAINED = 2  # crashes of whole workers above which a message is not run in a child process any more


def company_of(message: Message, most: int, *, alone_from: int = ALONE_FROM) -> int:
    """Return how many messages may run in one process with this one, itself included: 1 after `alone_from` crashes in
    company. `most` replaces the size of the last group if that is unknown."""
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
    """Return the size of the group after one of `together`, if `left` more groups may die before each message runs
    alone: half, or less if halving would not reach one by then.

    >>> smaller(250, 3), smaller(63, 2), smaller(16, 1), smaller(4, 0)
    (63, 16, 4, 1)
    >>> smaller(10, 3), smaller(5, 2), smaller(3, 1)
    (5, 3, 2)
    """
    return min(_half(together), math.ceil(together ** (left / (left + 1)))) if left else 1


def _half(size: int) -> int:
    return max(1, (size + 1) // 2)


def escapes(message: Message) -> bool:
    """Return True if the message may kill a worker even from a child: more than CONTAINED workers died with it."""
    return message.crashes - sum(crash.child for crash in _crashes(message)) > CONTAINED


def _crashes(message: Message) -> Iterator[Crash]:
    """Yield the crashes recorded in the message's faults of its present life, the last one first."""
    return (f.crash for f in reversed(message.faults) if f.crash is not None and f.at_ms >= message.life_ms)
