"""The keys of the counts in the history, and the form in which people read the counts.

A count has a short key, as it is stored in every minute: a letter for what it counts, then the rest. `Tally` is the
form that people read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..counters import BANDS, CRASHES, DEAD, FAILED, FAULTS, QUARANTINED, REDRIVEN
from .histogram import Histogram

# Keys. A bucket of a histogram has the histogram's letter and the bucket's index; the sum has the letter and `+`.
ENQUEUED = "e"
# Numbers of good and of all messages, for the objective of the task and for that of the queue.
GOOD, ALL, QUEUE_GOOD, QUEUE_ALL = "g", "a", "gq", "aq"
RUN, WAIT, FIRST, AFTER, DELAY = "R", "W", "F", "A", "D"
HISTOGRAMS = (RUN, WAIT, FIRST, AFTER, DELAY)

# The first letter of the keys of these counters; the rest is the label.
LETTERS = {DEAD: "d", QUARANTINED: "d", FAULTS: "f", CRASHES: "c", REDRIVEN: "v"}
OUTCOME = "o"  # then the band of the attempt and the outcome
DEFERRALS, DEFERRALS_MS = "h", "H"  # their number and their length, by cause

TallyCounts = dict[str, int]


def is_histogram(key: str) -> bool:
    """Return True if the key is that of a histogram's bucket or sum."""
    return key[0] in HISTOGRAMS


class Tally(Struct, frozen=True, kw_only=True):
    """The counts of a span of time.

    `enqueued` is as producers report it: one that was killed loses the count of its last ten seconds. `outcomes` are
    deliveries by outcome (done, retry, dead, quarantined, cancelled, crashed, held, snoozed, released, lost, stale);
    `by_attempt` has the same by the number of the attempt: 1, 2, 3, 4-5, 6-10, 11+. `dead` are deaths and quarantines
    by reason, `faults` failed runs by kind, `deferrals` by cause how often and how many ms flow control put messages
    off, `crashes` by cause, and `redriven` by redrive outcome.

    `run` is how long handlers ran, `wait` how long after it was due a message started, `first_try` and `after_retries`
    the time from when a message was first due to its success, `retry_delay` how long retries were delayed.
    `slo_good` of `slo_all` messages met the objective of their task.
    """

    enqueued: int = 0
    outcomes: Mapping[str, int] = {}
    by_attempt: Mapping[str, Mapping[str, int]] = {}
    dead: Mapping[str, int] = {}
    faults: Mapping[str, int] = {}
    deferrals: Mapping[str, tuple[int, int]] = {}
    crashes: Mapping[str, int] = {}
    redriven: Mapping[str, int] = {}
    slo_good: int = 0
    slo_all: int = 0
    run: Histogram = Histogram()
    wait: Histogram = Histogram()
    first_try: Histogram = Histogram()
    after_retries: Histogram = Histogram()
    retry_delay: Histogram = Histogram()

    @property
    def done(self) -> int:
        """The number of messages that succeeded."""
        return self.outcomes.get("done", 0)

    @property
    def failed(self) -> int:
        """The number of failed runs, whether the message was retried or died."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILED)

    @property
    def error_rate(self) -> float | None:
        """The share of ended runs that failed; None if none ended."""
        ended = self.done + self.failed
        return self.failed / ended if ended else None


def add(into: TallyCounts, more: Mapping[str, int]) -> None:
    for key, count in more.items():
        into[key] = into.get(key, 0) + count


def tally_of(counts: Mapping[str, int]) -> Tally:
    """Return stored counts as a Tally. Keys of newer versions are ignored."""
    named: dict[str, dict[str, int]] = {letter: {} for letter in "odfhHcv"}
    buckets: dict[str, dict[int, int]] = {letter: {} for letter in HISTOGRAMS}
    sums = dict.fromkeys(HISTOGRAMS, 0)
    for key, count in counts.items():
        letter, rest = key[0], key[1:]
        if letter in buckets:
            if rest == "+":
                sums[letter] = count
            else:
                buckets[letter][int(rest)] = count
        elif letter in named:
            named[letter][rest] = count
    outcomes, by_attempt = _outcomes(named["o"])
    held = {why: (count, named["H"].get(why, 0)) for why, count in _in_order(named["h"])}
    made = {letter: Histogram(sum(of.values()), sums[letter], of) for letter, of in buckets.items()}
    return Tally(
        enqueued=counts.get(ENQUEUED, 0), outcomes=outcomes, by_attempt=by_attempt, dead=dict(_in_order(named["d"])),
        faults=dict(_in_order(named["f"])), deferrals=held, crashes=dict(_in_order(named["c"])),
        redriven=dict(_in_order(named["v"])), slo_good=counts.get(GOOD, 0), slo_all=counts.get(ALL, 0), run=made[RUN],
        wait=made[WAIT], first_try=made[FIRST], after_retries=made[AFTER], retry_delay=made[DELAY],
    )  # fmt: skip


def _outcomes(counts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    total: dict[str, int] = {}
    by_attempt: dict[str, dict[str, int]] = {}
    for key, count in _in_order(counts):
        outcome = key[1:]
        total[outcome] = total.get(outcome, 0) + count
        by_attempt.setdefault(outcome, {})[BANDS[int(key[0])]] = count
    return total, by_attempt


def _in_order(counts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    return sorted(counts.items())
