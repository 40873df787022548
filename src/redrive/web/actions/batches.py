"""Cancel batches."""

from __future__ import annotations

from ...present.batches import batch_record
from ..ask import Done, PageRequest, Problem
from ..read.batches import batch_of


def cancel(ask: PageRequest) -> Done:
    """End the waiting members of a batch, and ask the running ones to stop. If it has more than a hundred members, the
    user types how many: that number stays the same while they run."""
    ref = batch_of(ask, ask.needed("id", "the batch"))
    info = ref.info()
    if not info.may_be_cancelled:
        raise Problem("nothing was cancelled", "the batch is done or cancelled", "look at it again", 409)
    ask.confirm(info.counts.total if info.counts.open else 0)
    ended = ref.cancel(reason=ask.reason, actor=ask.actor)
    text = f"The batch is cancelled; {ended:,} {'member was' if ended == 1 else 'members were'} open."
    return Done(text, ("batches", ref.id), {**batch_record(ref.info()), "ended_now": ended})
