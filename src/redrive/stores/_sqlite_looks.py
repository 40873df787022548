"""Filters of the SQLite store as SQL, and what they find as values."""

from __future__ import annotations

from typing import Any

from ..message import TREND_MS, FailureGroup, Lane, Where
from ._door import RESTED
from ._lifecycle import died_of
from ._meta import text
from ._sqlite_rows import read_faults

_RESTING = ("(rested_ms, seq) > (?, ?)", "rested_ms, seq")
_ANY = ("(coalesce(rested_ms, 0), seq) > (?, ?)", "coalesce(rested_ms, 0), seq")
# By lane: what lies beyond a cursor, and the order of a listing. A page of a million is read off an index, not sorted.
AFTER: dict[Lane | None, tuple[str, str]] = {
    Lane.READY: ("? <= 0 and seq > ?", "seq"),
    Lane.LEASED: _ANY,
    Lane.DEAD: _RESTING,
    Lane.QUARANTINE: _RESTING,
    Lane.DONE: _RESTING,
    None: _ANY,
}


def where_of(where: Where, lane: Lane | None) -> tuple[list[str], list[Any]]:
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
            # Two bounds seem so narrow to SQLite that it takes the index of the whole lane: it is told that one is not.
            clauses.append(clause)
            args.append(bound)
    return clauses, args


def trend_of(now: int | None) -> tuple[str, tuple[int, ...]]:
    """The columns that tell a group's trend, where the time is given, and their parameters."""
    if now is None:
        return "0 recent, 0 earlier", ()
    hour_ago = now - TREND_MS
    columns = "sum(rested_ms >= ?) recent, sum(rested_ms >= ? and rested_ms < ?) earlier"
    return columns, (hour_ago, hour_ago - TREND_MS, hour_ago)


def to_failure_group(fingerprint: str, task: str, error: str | None, faults: str | None, *numbers: Any) -> FailureGroup:
    known = None if error is None else fingerprint
    fault = died_of(read_faults(faults) if faults else (), known, error)
    return FailureGroup(fingerprint, task, error or "", fault.text if fault else "", *numbers)
