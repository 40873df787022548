"""The first page: the needs, and an overview of the store."""

from __future__ import annotations

from ...message import Counts
from ...present.dependencies import dependency_row
from ...present.formats import timestamp
from ...present.groups import group_records
from ...present.queues import LANES
from ...present.runs import run_record
from ...present.status import NEEDS_SHOWN, need_record
from ...status import Status
from ..ask import PageRequest, Record
from . import fields
from .tasks import first_command

SHOWN = 8  # the most rows of each table


def overview(ask: PageRequest) -> Record:
    """Return the needs, the counts by lane, the recent history, and the worst queues, groups and dependencies."""
    kept = ask.status()
    status = kept.value
    back = fields.since(ask, "1h")
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
        "counts": _sum(status),
        "past": fields.past_and_before(ask, back=back),
        "sinces": list(fields.SINCE),
        "queues": [
            fields.queue(ask, each.name, each.counts, paused=each.paused, holds=each.holds)
            for each in status.queues[:SHOWN]
        ],
        "queue_count": len(status.queues),
        "groups": group_records(status.failures[:SHOWN], status.annotations, status.held, status.at_ms),
        "group_count": len(status.failures),
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


def _sum(status: Status) -> Record:
    total = {lane: sum(getattr(queue.counts, lane) for queue in status.queues) for lane in LANES}
    oldest = max((queue.counts.oldest_age_s for queue in status.queues), default=Counts().oldest_age_s)
    return total | {"oldest_age_s": oldest}
