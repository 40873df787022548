"""Workers and schedulers: who is alive, what they run, and how they are."""

from __future__ import annotations

from heapq import nsmallest

from ...errors import Unsupported
from ...presence import GONE_MS, RENEW_S, WorkerInfo
from ...present.workers import worker_record
from ..ask import PageRequest, Record
from . import fields

RUNNING_MAX = 200  # messages of the page, of all workers together


def workers(ask: PageRequest) -> Record:
    """The living processes, those that are gone, and the messages that the living ones run."""
    infos: tuple[WorkerInfo, ...] = ()
    missing = None
    try:
        infos = ask.app.workers()
    except Unsupported as error:
        missing = str(error)
    rows = [_row(info) for info in infos]
    alive = [row for row in rows if not row["gone"]]
    running = ({**held, "worker": row["name"]} for row in alive for held in row["messages"])
    return {
        "missing": missing,
        "workers": alive,
        "gone": [row for row in rows if row["gone"]],
        "running": nsmallest(RUNNING_MAX, running, key=_longest_first),
        "running_count": sum(row["held"] for row in alive),
        "renewed_every_s": RENEW_S,
        "gone_after_s": GONE_MS // 1000,
        "command": fields.command(ask, "workers", "-v"),
    }


def _row(info: WorkerInfo) -> Record:
    """A process as the command line shows it, and whether it can be asked to drain."""
    drains = info.kind == "worker" and not (info.gone or info.draining or info.drain_asked)
    return {**worker_record(info), "drains": drains}


def _longest_first(held: Record) -> tuple[bool, str]:
    """What runs longest first, then what waits to start."""
    return held["since"] is None, held["since"] or ""
