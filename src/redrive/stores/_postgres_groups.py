"""Groups in the PostgreSQL store: who of a group has a place, who is parked for one, who waits for its time.

Whoever changes who is in a group first locks the group's row, all rows that it needs in one statement and in one order,
and ends with `admit`, in the same commit. So no commit leaves a message parked and a place free, nobody has to look for
one, and nobody waits for somebody who waits for him. Each place has a number, and an index lets nobody have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..message import Ask, GroupOrder, OnDead
from ._groups import WOKEN_MIN, refuse
from ._postgres_changes import Connection, Cursor, Statements
from ._postgres_floors import NO_PARTS, Parts, wake_ms
from ._postgres_rows import ids, ints, numbers, texts

Names = set[tuple[str, str]]  # (queue, group)


class Rules(NamedTuple):
    """How a queue's groups are served."""

    width: int
    strict: bool
    block: bool


def lock(
    st: Statements,
    c: Connection,
    names: Names,
    asks: Iterable[Ask],
    now: int | None,
    parts: Mapping[str, Parts] = NO_PARTS,
) -> None:
    """Lock these groups, and those in which somebody waits to be woken for one of these asks."""
    wanted = {ask.queue: max(ask.limit, WOKEN_MIN) for ask in asks if ask.limit > 0}
    st.do(c, "lock_queues", texts(sorted({queue for queue, _ in names} | wanted.keys())))
    since = numbers([wake_ms(parts, queue) for queue in wanted])
    st.do(c, "lock", *_listed(names), texts([*wanted]), ints([*wanted.values()]), now, since)


def _listed(names: Iterable[tuple[str, str]]) -> tuple[bytes, bytes]:
    pairs = [*names]
    return texts([queue for queue, _ in pairs]), texts([name for _, name in pairs])


def admit(st: Statements, c: Connection, names: Names, now: int | None) -> Cursor | None:
    """Give the free places of these groups, which are locked, to those who are parked, in their order."""
    return st.do(c, "admit", *_listed(names), now, None) if names else None


def wake(st: Statements, c: Connection, ask: Ask, now: int | None, parts: Mapping[str, Parts]) -> None:
    """Let those whose wait is over join their lines, and give the places that are free there."""
    st.do(c, "wake", ask.queue, max(ask.limit, WOKEN_MIN), now, wake_ms(parts, ask.queue))
    st.do(c, "admit", *_listed(()), now, ask.queue)


def regroup(st: Statements, c: Connection, settled: Sequence[str], now: int | None) -> None:
    """After a settlement: who of these keeps its place."""
    if settled:
        st.do(c, "regroup", ids(settled), now)


# -- settings


def rules(st: Statements, c: Connection, queue: str) -> Rules:
    width, order, on_dead, _ = st.rows(c, "group_settings", queue)[0]
    strict = order == GroupOrder.STRICT
    return Rules(width, strict, strict and on_dead == OnDead.BLOCK)


def configure(
    st: Statements,
    c: Connection,
    queue: str,
    paused: bool | None,
    width: int | None,
    order: str | None,
    on_dead: str | None,
    now: int | None,
) -> None:
    st.do(c, "lock_queue", queue)
    was_strict = rules(st, c, queue).strict
    st.do(c, "configure", queue, paused, width, order, on_dead)
    set_now = rules(st, c, queue)
    if set_now.strict != was_strict:
        if was_strict:
            st.do(c, "unpark_waiting", queue, now)
            st.do(c, "give_way", queue, now)
        st.do(c, "reorder", queue, set_now.strict)
    _check(st, c, queue)
    if not set_now.block:
        st.do(c, "unblock", queue)
    if (width, order, on_dead) != (None, None, None):
        _admit_all(st, c, queue, now)


def configure_group(
    st: Statements, c: Connection, queue: str, group: str | None, width: int | None, resume: bool, now: int | None
) -> None:
    st.do(c, "lock_queue", queue)
    if width is not None:
        st.do(c, "set_group_width", queue, group or "", width or None)
    if resume:
        st.do(c, "resume", queue, group or "")
    _check(st, c, queue)
    _admit_all(st, c, queue, now)


def _check(st: Statements, c: Connection, queue: str) -> None:
    """Raises ConfigError where the settings contradict each other; the caller's commit is undone."""
    width, order, on_dead, own = st.rows(c, "group_settings", queue)[0]
    refuse(queue, width, bool(own), GroupOrder(order), OnDead(on_dead))


def _admit_all(st: Statements, c: Connection, queue: str, now: int | None) -> None:
    admit(st, c, {(queue, row[0]) for row in st.rows(c, "parked_groups", queue)}, now)
