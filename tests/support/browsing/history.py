"""Thirty-five days of history for a store: what a shop's tasks did, with nights, a weekend and an outage."""

from __future__ import annotations

import math
from random import Random
from unittest.mock import patch

from redrive.history.chunk import HOURS
from redrive.history.histogram import bucket_counts
from redrive.history.recorder import Minutes, SeriesName
from redrive.history.writer import HistoryWriter
from redrive.store import Store

DAY, DAYS = 1440, 35  # minutes of a day; days
OUTAGE = (95, 55)  # minutes ago in which most runs of the first task fail: from, until
RATES = {  # by queue and task: runs a minute at noon, run time in ms, share that fails
    ("crm", "crm.push"): (60.0, 180.0, 0.004),
    ("billing", "billing.charge"): (18.0, 420.0, 0.01),
    ("mail", "mail.send"): (45.0, 90.0, 0.002),
    ("media", "image.resize"): (9.0, 1800.0, 0.006),
    ("data", "data.take_in"): (3.0, 900.0, 0.02),
    ("reports", "report.build"): (0.6, 5200.0, 0.01),
}


def write_history(store: Store, seed: int = 7) -> None:
    """Add the history to the store: by the minute for the last day, by the hour before, alike for a seed."""
    random, now = Random(seed), store.now_ms() // 60_000
    last_day: dict[SeriesName, Minutes] = {}
    before: dict[SeriesName, Minutes] = {}
    for name, (rate, took_ms, failing) in RATES.items():
        for part, span, times in ((last_day, 1, range(DAY)), (before, 60, range(DAY + 60, DAYS * DAY, 60))):
            minutes = part[name] = {}
            for ago in times:
                minute = now - ago
                share = failing if name[0] != "crm" or not OUTAGE[1] <= ago <= OUTAGE[0] else 0.85
                minutes[minute] = _counts(random, rate * span * _daylight(minute), took_ms, share)
    writer = HistoryWriter(store)
    writer.write(last_day)
    with patch("redrive.history.writer.KINDS", (HOURS,)):  # finer ones are not kept that long, and many
        writer.write(before)


def _daylight(minute: int) -> float:
    """How busy the shop is: most at 14:00 UTC, least at night, half at the weekend."""
    hour, weekday = minute / 60 % 24, (minute // DAY + 3) % 7
    return (0.35 + 0.65 * max(0.0, math.sin((hour - 6) / 16 * math.pi))) * (0.55 if weekday >= 5 else 1.0)


def _counts(random: Random, expected: float, took_ms: float, failing: float) -> dict[str, int]:
    runs = max(0, round(random.gauss(expected, math.sqrt(expected))))
    failed = sum(random.random() < failing for _ in range(min(runs, 200))) * max(1, runs // 200)
    dead = failed // 12
    counts = {
        "e": runs,
        "o0done": runs - failed,
        "o0retry": failed - dead,
        "o4dead": dead,
        "a": runs,
        "g": runs - failed,
    }
    counts |= {"dexhausted": dead, "ftransient": failed}
    for letter, mean in (("R", took_ms), ("W", took_ms / 4 * (1 + 8 * failing))):
        values = [random.lognormvariate(math.log(mean), 0.5) for _ in range(min(runs, 16))]
        counts |= {f"{letter}{index}": count for index, count in bucket_counts(values).items()}
        counts[f"{letter}+"] = round(sum(values))
    return {key: count for key, count in counts.items() if count}
