"""Translate filters to SQL for the SQLite store, and decode the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...errors import StoreError, StoreUnavailable
from ...message import (
    BEFORE_MS,
    DAMAGED,
    PRIORITIES,
    TREND_MS,
    BatchCounts,
    Counts,
    DueCount,
    FailureGroup,
    Filter,
    Group,
    Ids,
    Lane,
    Message,
    Narrowing,
    Page,
)
from .. import validation
from ..batches import NOTHING
from ..counts import total
from ..lifecycle import died_of
from ..meta import text
from ..validation import RESTED, values_of
from .damage import UNREADABLE, damage_of, raw_of, read_each
from .file import SqliteFile
from .groups import to_group
from .rows import COLUMNS, Read, read_faults, read_rows, to_message

_RESTING = ("(rested_ms, seq) > (?, ?)", "rested_ms, seq")
_ANY = ("(coalesce(rested_ms, 0), seq) > (?, ?)", "coalesce(rested_ms, 0), seq")
# By lane: the condition for rows after a cursor, and an order in which an index has the rows, so that none are sorted.
AFTER: dict[Lane | None, tuple[str, str]] = {
    Lane.READY: ("? <= 0 and seq > ?", "seq"),
    Lane.LEASED: _ANY,
    Lane.DEAD: _RESTING,
    Lane.QUARANTINE: _RESTING,
    Lane.DONE: _RESTING,
    None: _ANY,
}


FEW = 2000  # up to this number of matches, all messages with a value are examined, and not read in order
MANY = 60_000  # beyond this number of matches, the matches of another field are not listed
NARROW = 20_000  # up to this number of waiting messages, those that are enough to read are listed and sorted
NEAR, NEAR_EACH = 5_000, 50  # how many rows of the table, at least and for each message, are read to find a page there
VALUES_MAX = 50  # most values of a field for which its index is read in order
LISTED_MAX = 4  # most values whose matches are listed from another field's index
_UNPLACED = "lane = 'ready' and due_ms is null and rested_ms is null"
_FIRST, _IN_ORDER = "seq > ? order by seq limit ?", "order by seq limit ?"
_FIELDS = ("fingerprint", "error", "batch", "task", "queue", "reason")  # fields with an index, the most selective first


def page_of(read: Read, lane: Lane | None, where: Filter, after: tuple[int, int], limit: int) -> tuple[str, list[Any]]:
    """Return the SQL and its parameters for the messages of a page.

    The index of the field with the fewest matches is read, and other fields with few matches are looked up in their
    own. So a rare value does not read many rows, and a frequent one is read in the order of rest.
    """
    later, order = AFTER[lane]
    clauses, args = where_of(where, lane)
    plain, bounds = f"where {' and '.join([*clauses, later])} order by {order} limit ?", [*args, *after, limit]
    fields = values_of(where, *_FIELDS) if lane in RESTED and where.ids is None else {}
    if not fields:
        return _waiting(read, where, after, limit) or (plain, bounds) if lane is Lane.READY else (plain, bounds)
    if [*fields] == ["fingerprint", "task"] and len(fields["fingerprint"]) == len(fields["task"]) == 1:
        return f"indexed by message_rest_group {plain}", bounds
    field, values = next(iter(fields.items()))
    listed: list[str] = []
    if len(fields) > 1 or len(values) > VALUES_MAX:
        counts = {field: read(*_on("count(*)", field, values, lane, MANY))[0][0] for field, values in fields.items()}
        field, *others = sorted(fields, key=lambda field: (counts[field], field))
        if counts[field] < FEW:
            return f"indexed by message_rest_{field} {plain}", bounds
        values = fields[field]
        listed = [other for other in others if counts[other] < MANY] if len(values) <= LISTED_MAX else []
    if len(values) == 1 and not listed:
        return f"indexed by message_rest_{field} {plain}", bounds
    if len(values) > VALUES_MAX:
        return plain, bounds
    clauses, args = where_of(replace(where, **dict.fromkeys([field, *listed])), lane)
    for other in listed:
        among, *of = _on("seq", other, fields[other], lane, -1)
        clauses, args = [*clauses, f"seq in ({among})"], [*args, *of]
    one = f"""select * from (select seq from message indexed by message_rest_{field}
        where {" and ".join([*clauses, later])} and {field} = ? order by {order} limit ?)"""
    parts = [part for value in values for part in (*args, *after, value, limit)]
    return f"where seq in ({' union all '.join([one] * len(values))}) order by {order} limit ?", [*parts, limit]


def _waiting(read: Read, where: Filter, after: tuple[int, int], limit: int) -> tuple[str, list[Any]] | None:
    """Return SQL and parameters for waiting messages of one queue, if they are few: then listing them from indexes is
    faster than skipping dead messages. None if reading the table is faster, or the filter has other fields."""
    narrowing = where.narrowing
    if where != Filter(queue=where.queue, narrowing=narrowing) or not isinstance(where.queue, str) or after[0] > 0:
        return None
    line = narrowing == Narrowing(parked=True)
    seen = f"lane = 'ready' and queue = ?{' and turn is not null and due_ms is null' if line else ''} and seq > ?"
    if line or narrowing is None:
        window = NARROW if line else max(NEAR, NEAR_EACH * limit)  # to list those in line reads the row of each
        until = "max(?, (select min(seq) from message)) + ?"
        near = f"select count(*) from (select 1 from message not indexed where {seen} and seq <= {until} limit ?)"
        if read(near, where.queue, after[1], after[1], window, limit)[0][0] == limit:
            return f"not indexed where {seen} {_IN_ORDER}", [where.queue, after[1], limit]
    if narrowing is not None:
        listed, args = _narrowed(where.queue, narrowing)
        if read(f"select count(*) from (select 1 from ({listed}) limit ?)", *args, NARROW)[0][0] == NARROW:
            return None
        return f"where seq in (select seq from ({listed}) where {_FIRST}) {_IN_ORDER}", [*args, after[1], limit, limit]
    counted = "select 1 from message indexed by message_due where due_ms is not null and queue = ? limit ?"
    if read(f"select count(*) from ({counted})", where.queue, MANY)[0][0] == MANY:
        return None
    listed = f"""select seq from message indexed by message_due
        where due_ms is not null and queue = ? and lane = 'ready'
        union select seq from message indexed by message_group where turn is not null and queue = ? and {_UNPLACED}
        union select seq from message indexed by message_wake
        where wake_ms is not null and turn is null and queue = ? and {_UNPLACED}"""
    which = f"where seq in (select seq from ({listed}) where {_FIRST}) {_IN_ORDER}"
    return which, [*[where.queue] * 3, after[1], limit, limit]


def _narrowed(queue: str, narrowing: Narrowing) -> tuple[str, list[Any]]:
    """Return SQL and parameters that list the seqs of the waiting messages that are enough to read."""
    low_ms, high_ms = narrowing.due_ms or (0, 0)
    parts: list[tuple[str, list[Any]]] = []
    if not narrowing.parked:
        due = "indexed by message_due where queue = ? and priority = ? and due_ms between ? and ? and lane = 'ready'"
        parts += [(due, [queue, priority, low_ms, high_ms]) for priority in PRIORITIES]
        wake = f"indexed by message_wake where queue = ? and wake_ms between ? and ? and turn is null and {_UNPLACED}"
        parts.append((wake, [queue, low_ms, high_ms]))
    if narrowing.parked is not False:
        line = f"indexed by message_group where turn is not null and queue = ? and {_UNPLACED}"
        args: list[Any] = [queue]
        if narrowing.group is not None:
            line, args = f"{line} and grp = ?", [*args, narrowing.group]
        if narrowing.due_ms is not None:
            line, args = f"{line} and wake_ms between ? and ?", [*args, low_ms, high_ms]
        parts.append((line, args))
    listed = " union all ".join(f"select seq from message {part}" for part, _ in parts)
    return listed, [arg for _, args in parts for arg in args]


def _on(what: str, field: str, values: tuple[str, ...], lane: Lane | None, limit: int) -> tuple[str, Any, Any, Any]:
    """SQL and parameters for up to `limit` messages of a lane with one of these values, from the field's index."""
    some = f"""select seq from message indexed by message_rest_{field} where rested_ms is not null
        and {field} in (select value from json_each(?)) and lane = ? limit ?"""
    return f"select {what} from ({some})", text(values), str(lane), limit


def grouped_by_index(where: Filter) -> bool:
    """True if the index of failure groups alone can answer the filter."""
    known = Filter(fingerprint=where.fingerprint, task=where.task, since_ms=where.since_ms, until_ms=where.until_ms)
    return where == known and not isinstance(where.fingerprint, tuple) and where.fingerprint != ""


def where_of(where: Filter, lane: Lane | None) -> tuple[list[str], list[Any]]:
    clauses: list[str] = ["1"]
    args: list[Any] = []
    if lane is Lane.LEASED:
        clauses.append("due_ms is not null")
    elif lane is Lane.READY:
        clauses.append("rested_ms is null")
    elif lane is not None:
        clauses.append("rested_ms is not null")
    wanted = {
        "lane": lane,
        "queue": where.queue,
        "task": where.task,
        "reason": where.reason,
        "fingerprint": where.fingerprint,
        "error": where.error,
        "run": where.run,
        "batch": where.batch,
    }
    for column, value in wanted.items():
        if isinstance(value, tuple):
            clauses.append(f"{column} in (select value from json_each(?))")
            args.append(text(value))
        elif value is not None:
            clauses.append(f"{column} = ?")
            args.append(str(value))
    if where.redrives is not None:
        clauses.append("redrives = ?")
        args.append(where.redrives)
    if where.ids is not None:
        clauses.append("id in (select value from json_each(?))")
        args.append(text(list(where.ids)))
    at = "rested_ms" if lane in RESTED else "coalesce(rested_ms, enqueued_ms)"
    for bound, clause in ((where.since_ms, f"{at} >= ?"), (where.until_ms, f"likely({at} < ?)")):
        if bound is not None:
            # SQLite takes two bounds for so selective that it uses the index of the whole lane; `likely` says that one
            # is not.
            clauses.append(clause)
            args.append(bound)
    return clauses, args


def trend_of(now: int | None) -> tuple[str, tuple[int, ...]]:
    """Return the columns for a failure group's trend at the time `now`, and parameters; zeros if `now` is None."""
    if now is None:
        return "0 recent, 0 earlier", ()
    lately = now - TREND_MS
    columns = "sum(rested_ms >= ?) recent, sum(rested_ms >= ? and rested_ms < ?) earlier"
    return columns, (lately, lately - BEFORE_MS, lately)


def to_failure_group(fingerprint: str, task: str, error: str | None, faults: str | None, *numbers: Any) -> FailureGroup:
    known = None if error is None else fingerprint
    try:
        fault = died_of(read_faults(faults) if faults else (), known, error)
    except ValueError:  # this row is damaged, while the others of the group are readable
        fault = None
    times = [ms if isinstance(ms, int) else 0 for ms in numbers[1:3]]  # a damaged row may have any value
    figures: tuple[Any, ...] = (numbers[0], *times, *numbers[3:])
    return FailureGroup(fingerprint, task, error or "", fault.text if fault else "", *figures)


LEASE_MOST_MS = 3_600_000  # a lease that ends later counts as a message that becomes due


class SqliteQueries(SqliteFile):
    """The queries of the SQLite store."""

    def _messages(self, where: str, *args: Any) -> list[tuple[int, Message]]:
        sql = f"select json_group_array(json_array({COLUMNS})) from (select * from message {where})"
        try:
            messages = [(row[0], to_message(row)) for row in read_rows(self._read(sql, *args)[0][0])]
        except StoreUnavailable:
            raise
        except (StoreError, *UNREADABLE):
            seqs = [row[0] for row in self._read(f"select seq from message {where}", *args)]
            messages = [*read_each(self._read, seqs)]
        aside = [seq for seq, message in messages if message.reason == DAMAGED and message.damage is None]
        return self._with_damage(messages, aside) if aside else messages

    def _with_damage(self, rows: list[tuple[int, Message]], aside: Sequence[int]) -> list[tuple[int, Message]]:
        """Return the messages; those in `aside`, quarantined as damaged, with their original rows."""
        kept = dict(self._read(self._sql["kept_before"], text(list(aside))))
        return [
            (seq, replace(message, damage=damage_of(kept[seq])) if seq in kept else message) for seq, message in rows
        ]

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        messages = {m.id: m for _, m in self._messages("where id in (select value from json_each(?))", text(list(ids)))}
        return [messages.get(id) for id in ids]

    def ids_from(self, first: str, last: str, *, limit: int) -> Ids:
        rows = self._read("select id from message where id between ? and ? order by id limit ?", first, last, limit)
        return Ids(tuple(row[0] for row in rows if isinstance(row[0], str)))

    def counts(self, queue: str | None = None) -> Counts:
        if queue is None:
            return total(self.counts_by_queue().values())
        now = self.now_ms()
        ready, scheduled, leased, *dues, parked = self._read(self._sql["counts"], now, queue)[0]
        resting = dict(self._read(self._sql["resting_counts"], queue))
        age_s = (now - min(due for due in (*dues, now) if due is not None)) / 1000
        return Counts(
            ready,
            scheduled,
            leased,
            resting.get("dead", 0),
            resting.get("quarantine", 0),
            resting.get("done", 0),
            age_s,
            parked,
        )

    def due_counts(self, queue: str, bounds_ms: Sequence[int]) -> list[DueCount]:
        leases_ms = self.now_ms() + LEASE_MOST_MS
        (counts,) = self._read(self._sql["due_counts"], queue, text(list(bounds_ms)), leases_ms)[0]
        return [DueCount(every, retries) for every, retries in msgspec.json.decode(counts)]

    def counts_by_queue(self) -> dict[str, Counts]:
        rows = self._read(self._sql["counts_by_queue"], self.now_ms())
        return {queue: Counts(*numbers) for queue, *numbers in rows if isinstance(queue, str)}

    def queues(self) -> list[str]:
        return sorted(row[0] for row in self._read(self._sql["queues"]) if isinstance(row[0], str))

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        since, after = validation.read_cursor(cursor)
        where, (since, after) = validation.begin(where, lane, (since, after))
        which, args = page_of(self._read, lane, where, (since, after), limit)
        rows = self._messages(which, *args)
        more = f"{rows[-1][1].rested_ms or 0}.{rows[-1][0]}" if len(rows) == limit and rows else None
        if more is not None and rows[-1][1].rested_ms is None and "rested_ms" in raw_of(rows[-1][1]):
            more = None  # null sorts after all values, so a cursor could not continue from this row
        return Page([message for _, message in rows], more)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        clauses, args = where_of(where, Lane.DEAD)
        trend_sql, since = trend_of(self.now_ms() if trend else None)
        name = "all_failure_groups" if grouped_by_index(where) else "failure_groups"
        sql = self._sql[name].replace("{trend}", trend_sql).replace("{where}", " and ".join(clauses))
        return [to_failure_group(*row) for row in self._read(sql, *since, *args)]

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        rows = self._read(self._sql["batch_counts"], text(list(ids)))
        counts = {id: BatchCounts(*numbers) for id, *numbers in rows}
        return [counts.get(id, NOTHING) for id in ids]

    def batch_ids(self, *, after: str = "", limit: int = 100, failed: bool = False) -> list[str]:
        return [id for (id,) in self._read(self._sql["failed_batches" if failed else "batch_ids"], after, limit)]

    def changed_batches(self, *, after: str = "", limit: int = 100) -> list[str]:
        return [id for (id,) in self._read(self._sql["changed_batches"], after, limit)]

    def groups(self, queue: str) -> list[Group]:
        width = self._read(self._sql["group_settings"], queue)[0][0]
        return [to_group(queue, row) for row in self._read(self._sql["groups"], queue, width)]

    def paused(self) -> frozenset[str]:
        # SQLite continues in the file that it has open, though it was removed or replaced: report that here.
        try:
            file = self.path.stat()
        except OSError as error:
            raise StoreUnavailable(f"{self.path} is gone: {error.strerror}; put it back") from error
        inode = file.st_dev, file.st_ino
        if self._inode is None:
            self._inode = inode
        elif inode != self._inode:
            raise StoreUnavailable(f"{self.path} was replaced by another file; restart to open that")
        return frozenset(row[0] for row in self._read("select name from queue where paused"))
