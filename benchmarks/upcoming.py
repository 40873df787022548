"""What it costs to tell what comes due where very many messages wait."""

from __future__ import annotations

import random
import time

from redrive import App
from redrive.message import ClaimRequest, Draft, RetryAt, Settlement
from redrive.status.upcoming import Upcoming
from redrive.store import Store
from redrive.stores.postgres.store import PostgresStore

from .dead import vacuum
from .harness import PUT_AT_ONCE, Options, Reading, fresh

QUEUE, DAY_MS, WAVE_MS, LEASE_MS = "default", 24 * 3_600_000, 600_000, 60_000
RETRIES = 0.3  # of all that waits: a wave that comes back within ten minutes, as after an outage


def upcoming(options: Options) -> list[Reading]:
    """`app.upcoming()` where `backlog` messages wait: a wave of retries in ten minutes, first runs over a day."""
    app = App(fresh(options, "upcoming").url)
    dues_ms = _fill(app.store, options.backlog)
    if isinstance(app.store, PostgresStore):  # as the server does by itself, a minute after so many came
        vacuum(app.store)
    app.upcoming(QUEUE)
    took_ms, wrong, exact_to_s = list[float](), list[float](), list[float]()
    for _ in range(max(5, options.rounds)):
        begun = time.perf_counter()
        found = app.upcoming(QUEUE)
        took_ms.append((time.perf_counter() - begun) * 1000)
        wrong.append(float(sum(abs(a - b) for a, b in zip(*_by_hour(found, dues_ms), strict=True))))
        exact_to_s.append(_exact_s(found))
        time.sleep(1.1)  # longer than a sample is reused
    app.store.close()
    return [
        Reading(f"upcoming, {options.backlog:,} waiting", "ms", took_ms, "≤ 50"),
        Reading("off from the true count, sum over 24 hours", "messages", wrong),
        Reading("counted one by one, that far ahead", "s", exact_to_s),
    ]


def _fill(store: Store, count: int) -> list[int]:
    """When each comes due."""
    draw, dues_ms, failed = random.Random(3), list[int](), int(count * RETRIES)
    first = [draw.randrange(WAVE_MS, DAY_MS) for _ in range(count - failed)]
    now_ms = store.now_ms()
    for at in range(0, len(first), PUT_AT_ONCE):
        some = [now_ms + ahead_ms for ahead_ms in first[at : at + PUT_AT_ONCE]]
        store.put([Draft(task="noop", queue=QUEUE, body=b"[1]", due_ms=due_ms) for due_ms in some])
        dues_ms += some
    now_ms = store.now_ms()
    for at in range(0, failed, PUT_AT_ONCE):
        store.put([Draft(task="noop", queue=QUEUE, body=b"[1]")] * min(PUT_AT_ONCE, failed - at))
        again = store.exchange([], [ClaimRequest(QUEUE, PUT_AT_ONCE, LEASE_MS)]).deliveries
        some = [now_ms + WAVE_MS // 2 + draw.randrange(WAVE_MS) for _ in again]
        settled = [Settlement(one.receipt, RetryAt(due_ms)) for one, due_ms in zip(again, some, strict=True)]
        store.exchange(settled, [])
        dues_ms += some
    return dues_ms


def _by_hour(found: Upcoming, dues_ms: list[int]) -> tuple[list[int], list[int]]:
    true = [0] * len(found.hours)
    for due_ms in dues_ms:
        at = (due_ms - found.at_ms - 1) // 3_600_000
        if 0 <= at < len(true):
            true[at] += 1
    return [wave.all for wave in found.hours], true


def _exact_s(found: Upcoming) -> float:
    """How far ahead no count is an estimate."""
    exact_s = 0.0
    for waves, step_s in ((found.tens, 10), (found.minutes, 60), (found.hours, 3600)):
        whole = next((n for n, wave in enumerate(waves) if not wave.exact), len(waves))
        exact_s = max(exact_s, float(whole * step_s))
    return exact_s
