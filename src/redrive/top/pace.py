"""How long to wait before a screen reads again, so that the program takes at most a share of a core."""

from __future__ import annotations

import time

SHARE, STUDY_SHARE = 0.01, 0.005  # of a core; with what painting takes, all stays below two hundredths
LEAST_S, KEYS_MOST_S, MOST_S = 1.0, 5.0, 60.0  # between two reads of cheap figures
BILLED_S = 15.0  # where each call is billed: on SQS
STUDY_S, STUDY_MOST_S = 5.0, 120.0  # between two reads of what costs more
AGAIN_S = 2.0  # after an error


def read_wait_s(cost_s: float, spent_s: float = 0.0) -> float:
    """Seconds to wait after cheap figures that took so much processor time. `spent_s` is what the whole process took
    since the read before, with painting and keys: a key held down must not stop the figures for long.

    >>> read_wait_s(0.004), read_wait_s(0.02), read_wait_s(9.0), read_wait_s(0.004, 9.0)
    (1.0, 2.0, 60.0, 5.0)
    """
    return max(LEAST_S, min(cost_s / SHARE, MOST_S), min(spent_s / SHARE, KEYS_MOST_S))


def study_wait_s(cost_s: float) -> float:
    """The same after what costs more.

    >>> study_wait_s(0.004), study_wait_s(0.1), study_wait_s(9.0)
    (5.0, 20.0, 120.0)
    """
    return min(STUDY_MOST_S, max(STUDY_S, cost_s / STUDY_SHARE))


class Meter:
    """The processor time of the whole process between two readings."""

    def __init__(self) -> None:
        self._at_s: float | None = None

    def lap(self) -> float:
        """Seconds since the lap before; 0 for the first one, as a start says nothing of a second."""
        now_s = time.process_time()
        past_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        return past_s
