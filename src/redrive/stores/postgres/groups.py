"""Groups in the PostgreSQL store: messages with a place, parked ones, and those that wait until they are due to join.

Every change of a group's members first locks the group's row, all rows that it needs in one statement and in one order,
and ends with `admit`, in the same commit. So no commit leaves a message parked and a place free, no process has to
search for free places, and no two commits deadlock. A unique index on the number of each place protects them. Only a
change of a queue's settings is followed by `admit_step`, commit after commit, until all groups are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...message import ClaimRequest, GroupOrder, OnDead
from ..groups import WOKEN_MIN, refuse
from ..validation import WIDTH_MAX
from .floors import IndexReads
from .rows import ids, ints, numbers, texts
from .statements import AnyConnection, Cursor, Statements

GroupNames = set[tuple[str, str]]
STEP = 500  # most messages that one commit admits after a change of settings


class PostgresGroupRules(NamedTuple):
    """The settings that a queue has for its groups."""

    width: int
    strict: bool
    block: bool


def lock(
    st: Statements,
    c: AnyConnection,
    names: GroupNames,
    now: int | None,
    asks: Iterable[ClaimRequest] = (),
    reads: IndexReads | None = None,
) -> None:
    """Lock the rows of these groups, and of groups that a waiting message joins for one of these requests."""
    wanted = {ask.queue: max(ask.limit, WOKEN_MIN) for ask in asks if ask.limit > 0}
    st.do(c, "lock_queues", texts(sorted({queue for queue, _ in names} | wanted.keys())))
    since = numbers([reads.wake_ms(queue) for queue in wanted] if reads else [])
    st.do(c, "lock", *_listed(names), texts([*wanted]), ints([*wanted.values()]), now, since)


def _listed(names: Iterable[tuple[str, str]]) -> tuple[bytes, bytes]:
    pairs = [*names]
    return texts([queue for queue, _ in pairs]), texts([name for _, name in pairs])


def admit(st: Statements, c: AnyConnection, names: GroupNames, now: int | None, most: int = WIDTH_MAX) -> Cursor | None:
    """Give free places of these locked groups to parked messages, in order, at most `most` places per group."""
    return st.do(c, "admit", *_listed(names), now, None, most) if names else None


def wake(st: Statements, c: AnyConnection, ask: ClaimRequest, now: int | None, reads: IndexReads) -> None:
    """Let messages of the queue that are due by now join their groups, and fill the free places there."""
    st.do(c, "wake", ask.queue, max(ask.limit, WOKEN_MIN), now, reads.wake_ms(ask.queue))
    st.do(c, "admit", *_listed(()), now, ask.queue, WIDTH_MAX)


def regroup(st: Statements, c: AnyConnection, settled: Sequence[str], now: int | None) -> None:
    """Keep, free or give the places of these grouped messages, whose ids are given, after their settlement."""
    if settled:
        st.do(c, "regroup", ids(settled), now)


# -- settings


def rules(st: Statements, c: AnyConnection, queue: str) -> PostgresGroupRules:
    width, order, on_dead, _ = st.rows(c, "group_settings", queue)[0]
    strict = order == GroupOrder.STRICT
    return PostgresGroupRules(width, strict, strict and on_dead == OnDead.BLOCK)


def configure(
    st: Statements,
    c: AnyConnection,
    queue: str,
    paused: bool | None,
    width: int | None,
    order: str | None,
    on_dead: str | None,
    now: int | None,
) -> None:
    """Change the settings of a queue's groups. `admit_step` then admits messages by them; until then a place may be
    free while messages are parked. A row records that, so that a sweep can continue if this process stops."""
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
        st.do(c, "begin_admitting", queue)


def configure_group(
    st: Statements, c: AnyConnection, queue: str, group: str | None, width: int | None, resume: bool, now: int | None
) -> None:
    """Configure a group, or all groups of the queue (None), as `configure` does; one group is admitted to at once."""
    st.do(c, "lock_queue", queue)
    if width is not None:
        st.do(c, "set_group_width", queue, group or "", width or None)
    if resume:
        st.do(c, "resume", queue, group or "")
    _check(st, c, queue)
    if group is None:
        if width is not None:
            st.do(c, "begin_admitting", queue)
    else:
        lock(st, c, {(queue, group)}, now)
        admit(st, c, {(queue, group)}, now)


def admit_step(st: Statements, c: AnyConnection, queue: str, now: int | None) -> bool:
    """Admit some hundred messages to groups of a queue whose settings changed; True if it must be called again.

    Each step is a commit, and locks no other group: 25,000 groups in one commit blocked settlements in groups for
    seconds. A row of the queue records how far it is, for continuation after a crash.
    """
    st.do(c, "lock_queues", texts([queue]))
    rows = st.rows(c, "admitting", queue)
    if not rows:
        return False
    ((after, width),) = rows
    names = [row[0] for row in st.rows(c, "parked_groups", queue, after, max(1, STEP // width))]
    if not names:
        st.do(c, "admitted_to", queue, None)
        return False
    step = {(queue, name) for name in names}
    lock(st, c, step, now)
    admitted = admit(st, c, step, now, STEP)
    if admitted is None or admitted.rowcount < STEP:  # otherwise a group may have more free places
        st.do(c, "admitted_to", queue, names[-1])
    return True


def _check(st: Statements, c: AnyConnection, queue: str) -> None:
    """Raise ConfigError, which undoes the caller's commit, if the settings of the queue contradict each other."""
    width, order, on_dead, own = st.rows(c, "group_settings", queue)[0]
    refuse(queue, width, bool(own), GroupOrder(order), OnDead(on_dead))
