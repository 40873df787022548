"""The first page: the needs, and an overview of the store."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Unsupported
from ...message import Counts, FailureGroup, Filter
from ...present.dependencies import dependency_row
from ...present.formats import timestamp
from ...present.groups import group_records
from ...present.queues import LANES
from ...present.runs import run_record
from ...present.status import NEEDS_SHOWN, need_record
from ...status import QueueStatus, Status
from ..ask import PageRequest, Record
from . import fields
from .groups import deaths_lines
from .tasks import first_command

SHOWN = 8  # the most rows of each table
RAIL = 12  # the most queues beside the page


def overview(ask: PageRequest) -> Record:
    """Return the needs, the counts by lane, the recent history, and the worst queues, groups and dependencies."""
    kept = ask.status()
    status = kept.value
    chosen, wanted = ask.text("queue"), fields.span(ask, "1h")
    failures = _failures(ask, status, chosen)
    tables = status.queues if not chosen else [each for each in status.queues if each.name == chosen]
    deaths = deaths_lines(ask, chosen) if failures else {}
    return {
        "at": timestamp(status.at_ms),
        "age_s": kept.age_s,
        "ok": status.ok,
        "needs": [
            need_record(need, ask.leads(need.next)) | {"place": list(need.place), "query": dict(need.query)}
            for need in status.needs[:NEEDS_SHOWN]
        ],
        "need_count": len(status.needs),
        "unread_batches": status.unread_batches,
        "queue": chosen,
        "counts": _sum(tables),
        "past": fields.past_and_before(ask, wanted, queue=chosen or None),
        "sinces": list(fields.SINCE),
        "rail": [
            {"queue": each.name, **{lane: getattr(each.counts, lane) for lane in LANES}, "held": bool(each.holds)}
            for each in status.queues[:RAIL]
        ],
        "queues": [
            fields.queue(ask, each.name, each.counts, paused=each.paused, holds=each.holds) for each in tables[:SHOWN]
        ],
        "queue_count": len(status.queues),
        "groups": [
            record | {"deaths": deaths.get(record["fingerprint"] or "", [])}
            for record in group_records(failures[:SHOWN], status.annotations, status.held, status.at_ms)
        ],
        "group_count": len(failures) if chosen else max(status.group_count, len(failures)),
        "holds": [fields.hold(ask, hold) for hold in status.holds[:SHOWN]],
        "dependencies": [
            dependency_row(control) for control in (ask.app.flow.list(waiting=False) if ask.store.traits.cells else ())
        ],
        "runs": [run_record(run) for run in ask.app.dlq.runs(SHOWN)] if ask.store.traits.cells else [],
        "worker_counts": {
            "alive": sum(worker.state != "gone" for worker in status.workers),
            "hung": sum(worker.state == "hung" for worker in status.workers),
            "gone": sum(worker.state == "gone" for worker in status.workers),
        },
        "first_command": None if any(queue.counts != Counts() for queue in status.queues) else first_command(ask),
        "objectives": fields.objectives(ask),
        "command": ask.command("status"),
    }  # fmt: skip


def _failures(ask: PageRequest, status: Status, queue: str) -> Sequence[FailureGroup]:
    """Return the failure groups of a queue, of all without one."""
    if not queue:
        return status.failures
    try:
        return ask.kept(f"groups/of/{queue}", lambda: ask.dlq.groups(where=Filter(queue=queue), trend=True)).value
    except Unsupported:
        return ()


def _sum(queues: Sequence[QueueStatus]) -> Record:
    total = {lane: sum(getattr(queue.counts, lane) for queue in queues) for lane in LANES}
    oldest = max((queue.counts.oldest_age_s for queue in queues), default=Counts().oldest_age_s)
    return total | {"oldest_age_s": oldest}
