"""Count the outcomes of deliveries, for the history of the store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from ...counters import DEFERRAL_MS, DELIVERIES, FIRST_TRY, RETRY_DELAY_MS, TIME_TO_DONE_MS, band, counts_of
from ...events import DeliveryEvent
from ...history import Flusher, MinuteSeries
from ...history.done import CHUNK
from ...history.recorder import ATTEMPTS
from ...history.tally import DEFERRALS, DEFERRALS_MS, LETTERS, OUTCOME
from ...message import Delivery, Settled
from ..settlement import Outcome, first_due_ms

_LAST = ATTEMPTS - 1  # the index of the counter for this attempt and all later ones
_CRASHED_S = 1.0  # seconds without claims after which a crash is written
_NOTHING_WRITTEN = (Settled.STALE.value, Settled.CANCELLED.value)
_RESTS = ("dead", "quarantined")


class Counted:
    """Counts the deliveries of one worker. The store thread calls it, once for each batch."""

    def __init__(self, flusher: Flusher, worker: str) -> None:
        self._flusher, self._recorder = flusher, flusher.recorder
        self._log = None if flusher.done is None else flusher.done.log(worker)

    def settled(self, outcomes: Sequence[Outcome], events: Sequence[DeliveryEvent | None], now_ms: int) -> None:
        """Count settled deliveries, given the event of each. It may be None for a plain outcome."""
        recorder, log, clock_ms = self._recorder, self._log, now_ms - time.monotonic() * 1000
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
                    if log is not None:
                        begun = len(log.ids), now_ms, (queue, task)
                        if log.begun and log.begun[-1][0] == begun[0]:  # of the last, nothing was done
                            log.begun[-1] = begun
                        else:
                            log.begun.append(begun)
                        note_id, note_ran = log.ids.append, log.ran.append
                due_ms = delivery.due_ms or message.life_ms
                if started_s:
                    run((o.run_s or 0.0) * 1000)
                    wait(clock_ms + started_s * 1000 - due_ms)
                if log is not None and (event is None or event.outcome == "done"):
                    note_id(message.id)
                    note_ran((o.run_s or 0.0) * 1000)
                if event is not None and not (o.plain and event.outcome == "done"):
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
            if log is not None and len(log.ids) >= CHUNK:
                log.close()
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
        if self._log is not None:
            self._log.closed = True
        self._flusher.finish()

    def _count(self, series: MinuteSeries, delivery: Delivery | None, fate: DeliveryEvent) -> bool:
        """Count a delivery in this series; return True if the delivery crashed."""
        for (counter, label), value in counts_of(fate):
            if counter == DELIVERIES:
                series.count(f"{OUTCOME}{band(fate.attempt)}{label}")
            elif counter == TIME_TO_DONE_MS and delivery is not None:
                took_ms = fate.at_ms - first_due_ms(delivery)
                (series.first if label == FIRST_TRY[1] else series.after).append(took_ms)
                if series.judges and not fate.redrives:
                    series.judge(took_ms)
            elif counter == RETRY_DELAY_MS:
                series.delay.append(value)
            elif counter == DEFERRAL_MS:
                series.count(DEFERRALS + label)
                series.count(DEFERRALS_MS + label, int(value))
            elif counter in LETTERS:
                series.count(LETTERS[counter] + label)
        if fate.outcome in _RESTS and series.judges and not fate.redrives:
            series.judge(None)
        return bool(fate.causes) or fate.outcome == "crashed"
