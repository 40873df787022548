"""How long to wait before a screen reads again, so that the program takes a small share of a core."""

from __future__ import annotations

import time

SHARE, STUDY_SHARE = 0.01, 0.005  # shares of a core for reads, and for studies; with painting, below 0.02 in all
LEAST_S, KEYS_MOST_S, MOST_S = 1.0, 5.0, 60.0  # seconds between two reads: least, most because of keys, most
BILLED_S = 15.0  # seconds between two reads if each call is billed (SQS)
STUDY_S, STUDY_MOST_S = 5.0, 120.0  # the least and the most seconds between two studies
AGAIN_S = 2.0  # seconds until the next call after an error


def read_wait_s(cost_s: float, spent_s: float = 0.0) -> float:
    """Return the seconds to wait after a read. `cost_s` is its processor time; `spent_s` is that of the whole process
    since the previous read, with painting and keys. A key held down delays the next read by KEYS_MOST_S at most.

    >>> read_wait_s(0.004), read_wait_s(0.02), read_wait_s(9.0), read_wait_s(0.004, 9.0)
    (1.0, 2.0, 60.0, 5.0)
    """
    return max(LEAST_S, min(cost_s / SHARE, MOST_S), min(spent_s / SHARE, KEYS_MOST_S))


def study_wait_s(cost_s: float) -> float:
    """Return the seconds to wait after a study that took `cost_s` of processor time.

    >>> study_wait_s(0.004), study_wait_s(0.1), study_wait_s(9.0)
    (5.0, 20.0, 120.0)
    """
    return min(STUDY_MOST_S, max(STUDY_S, cost_s / STUDY_SHARE))


class Meter:
    """Measures the processor time of the whole process."""

    def __init__(self) -> None:
        self._at_s: float | None = None

    def lap(self) -> float:
        """Return the processor seconds since the last call; 0 at first, as the start of a program is not typical."""
        now_s = time.process_time()
        past_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        return past_s
