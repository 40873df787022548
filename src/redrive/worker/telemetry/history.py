"""Count the outcomes of deliveries, for the history of the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from ...events import DeliveryEvent
from ...history import Flusher, MinuteSeries
from ...history.recorder import ATTEMPTS
from ...history.tally import band, crash_key, dead_key, deferral_keys, fault_key, outcome_key, verdict_key
from ...message import Delivery, Settled
from ..settlement import Outcome, first_due_ms

_LAST = ATTEMPTS - 1  # the index of the counter for this attempt and all later ones
_CRASHED_S = 1.0  # seconds without claims after which a crash is written
_NOTHING_WRITTEN = (Settled.STALE.value, Settled.CANCELLED.value)
_RESTS = ("dead", "quarantined")


class Counted:
    """Counts the deliveries of one worker. The store thread calls it, once for each batch."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher, self._recorder = flusher, flusher.recorder

    def settled(self, outcomes: Sequence[Outcome], events: Sequence[DeliveryEvent | None], now_ms: int) -> None:
        """Count settled deliveries, given the event of each. It may be None for a plain outcome."""
        recorder, clock_ms = self._recorder, now_ms - time.monotonic() * 1000
        queue = task = None
        crashed = False
        with recorder.lock:
            recorder.turn(now_ms)
            for o, event in zip(outcomes, events, strict=True):  # this runs once per message, so it is kept lean
                delivery, started_s = o.delivery, o.started_s
                message = delivery.message
                if message.task != task or message.queue != queue:  # most batches have one task
                    queue, task = message.queue, message.task
                    series = recorder.of(queue, task)
                    done, judges = series.done, series.judges
                    run, wait, first = series.run.append, series.wait.append, series.first.append
                due_ms = delivery.due_ms or message.life_ms
                if started_s:
                    run((o.run_s or 0.0) * 1000)
                    wait(clock_ms + started_s * 1000 - due_ms)
                if event is not None:
                    if (drafts := o.settlement.follow_ups) and event.outcome not in _NOTHING_WRITTEN:
                        recorder.add_enqueued(Counter((draft.queue, draft.task) for draft in drafts))
                    crashed |= self._count(series, delivery, event)
                    continue
                attempt = message.attempt
                done[attempt if attempt < _LAST else _LAST] += 1
                if attempt <= 1:
                    took_ms = now_ms - due_ms + message.held_ms
                    first(took_ms)
                else:
                    took_ms = now_ms - first_due_ms(delivery)
                    series.after.append(took_ms)
                if judges:
                    series.judge(took_ms)
            recorder.bound()
        self._written(crashed)

    def count_unsettled(self, fates: Sequence[DeliveryEvent], now_ms: int) -> None:
        """Count deliveries without a settlement: crashes, lost leases, damaged messages."""
        crashed = False
        with self._recorder.lock:
            self._recorder.turn(now_ms)
            for fate in fates:
                crashed |= self._count(self._recorder.of(fate.queue, fate.task), None, fate)
        self._written(crashed)

    def _written(self, crashed: bool) -> None:
        """Let the flusher write the counts with its next turn; at once if one `crashed`, as the next crash may come
        soon and would lose the counts."""
        self._flusher.counted()
        if crashed:
            self._flusher.finish(_CRASHED_S)

    def finish(self) -> None:
        """Write the counts at the end of the worker, if the store answers in time."""
        self._flusher.finish()

    def _count(self, series: MinuteSeries, delivery: Delivery | None, fate: DeliveryEvent) -> bool:
        """Count a delivery in this series; return True if the delivery crashed."""
        outcome = fate.outcome
        series.count(outcome_key(outcome, band(fate.attempt)))
        if fate.fault is not None:
            series.count(fault_key(fate.fault))
        if outcome == "done" and delivery is not None:
            took, took_ms = series.first, fate.at_ms - first_due_ms(delivery)
            if fate.attempt > 1 or fate.crashes:
                took = series.after
            took.append(took_ms)
            if series.judges and not fate.redrives:
                series.judge(took_ms)
        elif outcome == "retry":
            series.delay.append(fate.delay_ms or 0)
        elif outcome == "held" and fate.deferral is not None:
            often, long = deferral_keys(fate.deferral)
            series.count(often)
            series.count(long, fate.delay_ms or 0)
        elif outcome in _RESTS:
            series.count(dead_key(fate.reason or ""))
            if series.judges and not fate.redrives:
                series.judge(None)
        if fate.verdict is not None:
            series.count(verdict_key(fate.verdict))
        return _count_causes(series, fate) or outcome == "crashed"


def _count_causes(series: MinuteSeries, fate: DeliveryEvent) -> bool:
    """Count the causes of a message's crashes at the end of its life, as causes may become known until then. Returns
    True if there were any."""
    for cause in fate.causes:
        series.count(crash_key(cause or "unknown"))
    return bool(fate.causes)
