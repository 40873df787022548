"""Mergeable histograms of durations: the same buckets everywhere, so that counts add up.

The buckets grow by a fifth, from 1 ms to 1 day. The estimate for a bucket from `a` to `b` is `2ab / (a + b)`, whose
relative error is at most `(b - a) / (b + a)`: a tenth. This is DDSketch with a fixed range (Masson, Rim and Lee,
"DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from msgspec import Struct

GROWTH = 1.2
LEAST_MS, MOST_MS = 1.0, 86_400_000.0
#: The upper bounds of all buckets but the last, which counts durations above a day.
BOUNDS_MS = tuple(LEAST_MS * GROWTH**n for n in range(math.ceil(math.log(MOST_MS / LEAST_MS, GROWTH)) + 1))


def bucket_counts(values_ms: list[float]) -> dict[int, int]:
    """Return how many of the values are in each bucket, by its index. Sorts the list."""
    values_ms.sort()
    counts: dict[int, int] = {}
    at, end = 0, len(values_ms)
    while at < end:
        index = bisect_left(BOUNDS_MS, values_ms[at])
        beyond = end if index >= len(BOUNDS_MS) else bisect_right(values_ms, BOUNDS_MS[index], at)
        counts[index] = beyond - at
        at = beyond
    return counts


class Histogram(Struct, frozen=True):
    """Durations: how many, their sum in ms, and how many are in each bucket, by the bucket's index."""

    count: int = 0
    sum_ms: int = 0
    buckets: Mapping[int, int] = {}

    @property
    def mean_ms(self) -> float | None:
        return self.sum_ms / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """Return the duration in ms that this share of the values does not exceed, accurate to a tenth; None without
        values. Below 1 ms it is 1, above a day it is a day. Raises ValueError for a share outside 0 to 1."""
        if not 0 <= share <= 1:
            raise ValueError(f"percentile({share!r}): expected a share from 0 to 1, such as 0.95")
        wanted, seen = max(1, math.ceil(share * self.count)), 0
        for index in sorted(self.buckets):
            seen += self.buckets[index]
            if seen >= wanted:
                return estimate_ms(index)
        return None

    def within(self, bound_ms: float) -> int:
        """Return how many values are at most `bound_ms`; all values in the bound's own bucket count."""
        last = bisect_left(BOUNDS_MS, bound_ms)
        return sum(count for index, count in self.buckets.items() if index <= last)


def estimate_ms(index: int) -> float:
    """Return the duration in ms that stands for a bucket's values."""
    if index <= 0:
        return LEAST_MS
    if index >= len(BOUNDS_MS):
        return MOST_MS
    low, high = BOUNDS_MS[index - 1], BOUNDS_MS[index]
    return 2 * low * high / (low + high)
