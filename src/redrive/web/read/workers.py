"""Workers and schedulers: their state, load and messages; and one of them."""

from __future__ import annotations

from heapq import nsmallest

from ...errors import Unsupported
from ...presence import GONE_MS, RENEW_S, WorkerInfo
from ...present.workers import worker_record
from ..ask import PageRequest, Problem, Record

ROWS = 100  # the most processes on a page
RUNNING_MAX = 200  # the most messages that the page lists, over all workers


def workers(ask: PageRequest) -> Record:
    """Return the living processes, those that are gone, and the running messages."""
    infos: tuple[WorkerInfo, ...] = ()
    missing = None
    try:
        infos = ask.app.workers()
    except Unsupported as error:
        missing = str(error)
    number = ask.number("page", 1, least=1)
    rows = [_row(info) for info in infos]
    alive = [row for row in rows if not row["gone"]]
    running = ({**held, "worker": row["name"]} for row in alive for held in row["messages"])
    return {
        "missing": missing,
        "workers": alive[(number - 1) * ROWS : number * ROWS],
        "worker_count": len(alive),
        "number": number,
        "pages": max(1, -(-len(alive) // ROWS)),
        "gone": [row for row in rows if row["gone"]],
        "running": nsmallest(RUNNING_MAX, running, key=_longest_first),
        "running_count": sum(row["held"] for row in alive),
        "renewed_every_s": RENEW_S,
        "gone_after_s": GONE_MS // 1000,
        "command": ask.command("workers", "-v"),
    }


def worker(ask: PageRequest) -> Record:
    """Return one process by its name: the living one, or else the latest that is gone."""
    name = ask.path["worker"]
    try:
        infos = [info for info in ask.app.workers() if info.name == name]
    except Unsupported as error:
        raise Problem(f"there is no worker {name!r}", f"workers are {error}", "", 501) from None
    if not infos:
        why = "it ended by itself, or was killed more than five minutes ago"
        raise Problem(f"no worker {name!r} reports", why, "look at all workers", 404)
    info = max(infos, key=lambda each: (not each.gone, each.seen_ms))
    about = {"gone_after_s": GONE_MS // 1000, "command": ask.command("workers", "-v")}
    return _row(info) | about


def _row(info: WorkerInfo) -> Record:
    """Return a process as in the command line's JSON, with `drains`: True if it can be drained."""
    drains = info.kind == "worker" and not (info.gone or info.draining or info.drain_asked)
    return {**worker_record(info), "drains": drains}


def _longest_first(held: Record) -> tuple[bool, str]:
    """Return a sort key by which messages that run longest are first, and those that have not begun last."""
    return held["since"] is None, held["since"] or ""
