"""What history keeps of counts, whatever happens to the writes."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.counters import BANDS, OTHER, band
from redrive.errors import ConfigError, StoreError, StoreUnavailable, Unsupported
from redrive.history import History, Recorder, Tally, counts_of, read_history
from redrive.history.chunk import (
    FIVES,
    HOUR_MS,
    HOURS,
    MINUTE_MS,
    MINUTES,
    HistoryChunk,
    add_counts,
    read_chunk,
    write_chunk,
)
from redrive.history.histogram import BOUNDS_MS, Histogram, bucket_counts
from redrive.history.names import NAMES_MAX, OVERFLOW, read_names
from redrive.history.tally import ENQUEUED
from redrive.history.writer import SHARDS, HistoryWriter
from redrive.message import Cell, Swap
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

NAME = ("crm", "push")


@given(st.lists(st.floats(1, 86_400_000), min_size=1, max_size=300), st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 1.0]))
def test_a_percentile_is_within_a_tenth_of_the_exact_one(values_ms: list[float], share: float) -> None:
    exact = sorted(values_ms)[max(0, math.ceil(share * len(values_ms)) - 1)]
    found = Histogram(len(values_ms), round(sum(values_ms)), bucket_counts(values_ms)).percentile(share)
    assert found is not None and abs(found - exact) <= exact * 0.1


@given(st.lists(st.floats(0, 200_000_000), max_size=200))
def test_every_duration_is_in_the_bucket_whose_bounds_hold_it(values_ms: list[float]) -> None:
    found = bucket_counts(list(values_ms))
    assert sum(found.values()) == len(values_ms)
    for index, count in found.items():
        low = BOUNDS_MS[index - 1] if index else -1.0
        high = BOUNDS_MS[index] if index < len(BOUNDS_MS) else math.inf
        assert count == sum(low < value <= high for value in values_ms)


def test_percentiles_of_nothing_and_shares_outside_0_to_1() -> None:
    assert Histogram().percentile(0.95) is None and Histogram().mean_ms is None
    with pytest.raises(ValueError, match="expected a share from 0 to 1"):
        Histogram(1, 1, {0: 1}).percentile(95)


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.lists(st.integers(0, 2**40), max_size=60), max_size=8))
def test_a_chunk_reads_back_as_it_was_written(counts: dict[str, list[int]]) -> None:
    written = read_chunk(write_chunk(HistoryChunk(counts, [b"abc", b"def"])))
    assert (written.counts, written.nonces) == (counts, [b"abc", b"def"])


def test_a_damaged_chunk_is_an_empty_one() -> None:
    assert read_chunk(b"no zlib").counts == {}


@pytest.mark.parametrize(("rate", "failing"), [(1, 0.1), (100, 0.1), (100, 0.0), (20, 0.3)])
def test_a_day_of_an_active_queue_and_task_takes_at_most_32_kib(rate: float, failing: float) -> None:
    """Poisson arrivals with the waves of a day, `rate` a second; a share of them fails, some more than once."""
    rng, total = random.Random(1), 0
    day = HistoryChunk({}, [])
    for hour in range(24):
        chunks = {MINUTES: HistoryChunk({}, []), FIVES: HistoryChunk({}, [])}
        for minute in range(60):
            counts = _minute(rng, rate * 60 * (1 + 0.4 * math.sin((hour * 60 + minute) / 230)), failing)
            for kind, chunk in chunks.items():
                kept = {key: count for key, count in counts.items() if kind.holds(key)}
                add_counts(chunk, minute * MINUTE_MS // kind.slot_ms, kept)
            add_counts(day, hour, counts)
        for kind, chunk in chunks.items():
            chunk.nonces = [rng.randbytes(3) for _ in range(16)]
            total += len(write_chunk(chunk)) * (kind is MINUTES or hour >= 24 - FIVES.kept_ms // HOUR_MS)
    total += len(write_chunk(day))
    print(f"{rate} a second, {failing:.0%} failing: {total / 1024:.1f} KiB")
    assert total <= 32 * 1024


def _minute(rng: random.Random, mean: float, failing: float) -> dict[str, int]:
    started = max(0, round(rng.gauss(mean, math.sqrt(mean))))
    failed = round(started * failing * rng.uniform(0.9, 1.1))
    again = failed // 5
    counts = {ENQUEUED: max(0, round(rng.gauss(mean, math.sqrt(mean)))), "o0done": started - failed}
    if failed:
        counts |= {
            "o0retry": failed,
            "o1done": failed - again,
            "ftransient": failed + again,
        }
        counts |= {"o1retry": again, "o2done": again - again // 4}
        counts |= {"o4dead": again // 4, "dexhausted": again // 4}
    shapes = (("R", 4, 0.4, 1), ("W", 2, 0.4, 1), ("F", 4.5, 0.4, 1), ("A", 9, 0.6, failing), ("D", 8, 0.6, failing))
    for letter, mu, sigma, share in shapes:
        some = min(500, round(started * share))
        if not some:
            continue
        values = [math.exp(rng.gauss(mu, sigma)) for _ in range(some)]
        counts |= {f"{letter}{index}": round(n * started * share / some) for index, n in bucket_counts(values).items()}
        counts[f"{letter}+"] = round(sum(values))
    return counts


def test_bands_of_attempts() -> None:
    assert [BANDS[band(n)] for n in (0, 1, 2, 3, 4, 5, 6, 10, 11, 400)] == [
        "1", "1", "2", "3", "4-5", "4-5", "6-10", "6-10", "11+", "11+",
    ]  # fmt: skip


class Flaky:
    """Cells whose answers get lost: `after` a swap was written, or `before`."""

    def __init__(self, store: MemoryStore) -> None:
        self._cells = store.cells
        self.fails: list[str] = []

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return self._cells.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        how = self.fails.pop(0) if self.fails else ""
        if how == "before":
            raise StoreUnavailable("gone")
        found = self._cells.swap(swaps, durable=durable)
        if how == "after":
            raise StoreUnavailable("gone")
        return found


def make(clock: ManualClock | None = None) -> tuple[MemoryStore, Flaky]:
    store = MemoryStore(clock or ManualClock())
    flaky = Flaky(store)
    store.cells = flaky
    return store, flaky


def minutes(store: MemoryStore, count: int = 1) -> dict[int, dict[str, int]]:
    return {store.now_ms() // MINUTE_MS: {ENQUEUED: count}}


@given(st.lists(st.sampled_from(["", "before", "after"]), max_size=30), st.integers(1, 8))
def test_counts_are_added_once_whichever_answers_are_lost(fails: list[str], rounds: int) -> None:
    store, flaky = make()
    writers, told = [HistoryWriter(store), HistoryWriter(store)], 0
    writers[0].write({NAME: minutes(store)})  # so that what fails is a swap of these cells
    flaky.fails = list(fails)
    for number in range(rounds):
        try:
            told += 1
            writers[number % 2].write({NAME: minutes(store)})
        except StoreError:
            pass
    flaky.fails = []
    for writer in writers:
        writer.write({})
        assert not writer.pending and writer.dropped == 0
    assert [read_history(store, *name).total.enqueued for name in (NAME, (None, None))] == [told + 1] * 2


def test_a_write_of_which_nothing_can_be_known_any_more_is_dropped_and_not_counted_twice() -> None:
    store, flaky = make()
    writer, other = HistoryWriter(store), HistoryWriter(store)
    writer.write({NAME: minutes(store)})
    flaky.fails = ["after"]
    with pytest.raises(StoreError):
        writer.write({NAME: minutes(store)})
    for _ in range(40):  # the cell forgets the nonce of that write
        other.write({NAME: minutes(store)})
    writer.write({})
    assert read_history(store, *NAME).total.enqueued == 42
    assert writer.dropped > 0


def test_writers_that_meet_lose_nothing_and_spread_over_shards() -> None:
    store = MemoryStore(ManualClock())
    writers = [HistoryWriter(store) for _ in range(8)]

    def work(writer: HistoryWriter) -> None:
        for _ in range(25):
            writer.write({NAME: minutes(store)})
        while writer.pending:
            writer.write({})

    threads = [threading.Thread(target=work, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_history(store, *NAME).total.enqueued == 200
    assert SHARDS == 8


def test_beyond_a_thousand_names_the_rest_is_kept_together() -> None:
    store = MemoryStore(ManualClock())
    writer = HistoryWriter(store)
    writer.write({("q", f"t{n:04}"): minutes(store) for n in range(NAMES_MAX + 5)})
    assert len(read_names(store)) == NAMES_MAX
    assert read_history(store, *OVERFLOW).total.enqueued == 5
    assert read_history(store).total.enqueued == NAMES_MAX + 5


def test_a_task_that_the_app_does_not_know_is_kept_with_the_others_of_its_queue() -> None:
    recorder = Recorder({"push": None}, {})
    recorder.count_puts({("q", "push"): 1, ("q", "typo"): 1}, 0)
    assert set(recorder.take()) == {("q", "push"), ("q", OTHER)}


def test_an_app_without_tasks_cannot_tell_a_typing_error_and_keeps_names_as_they_are() -> None:
    recorder = Recorder({}, {})
    recorder.count_puts({("q", "push"): 2}, 0)
    assert set(recorder.take()) == set(recorder.put_in_all()) == {("q", "push")}


def history(store: MemoryStore, since: str, step: str | None = None) -> History:
    return read_history(store, *NAME, since=since, step=step)


def test_minutes_go_back_a_day_and_hours_35_days() -> None:
    clock = ManualClock(1_700_000_000_000 - 1_700_000_000_000 % (24 * HOUR_MS))
    store = MemoryStore(clock)
    writer = HistoryWriter(store)
    began_ms = store.now_ms()
    for _ in range(48):
        writer.write({NAME: {store.now_ms() // MINUTE_MS: {ENQUEUED: 1, "R5": 1}}})
        clock.advance(HOUR_MS / 1000)
    day = history(store, "24h", "10m")
    assert day.total.enqueued == 24 and len(day.points) == 24
    assert day.points[-1].at_ms == store.now_ms() - HOUR_MS
    assert history(store, "2h", "1m").total.enqueued == 2
    month = history(store, "35d")
    assert (month.step_ms, month.total.enqueued, month.total.run.count) == (24 * HOUR_MS, 48, 48)
    assert [point.at_ms for point in month.points] == [began_ms, began_ms + 24 * HOUR_MS]
    # Five minutes of histograms are kept for three hours; before that they come from the hours.
    kinds = dict.fromkeys((ENQUEUED, "R5"), 0)
    for _, key, count in counts_of(store, [NAME], store.now_ms() - 24 * HOUR_MS, store.now_ms()):
        kinds[key] += count
    assert kinds == {ENQUEUED: 24, "R5": 24}
    clock.advance(36 * 24 * 3600)
    assert history(store, "35d").total == Tally()
    assert HOURS.kept_ms == 35 * 24 * HOUR_MS


def test_a_history_with_an_end_and_the_one_after_it_meet() -> None:
    clock = ManualClock(1_700_000_000_000 - 1_700_000_000_000 % (24 * HOUR_MS))
    store = MemoryStore(clock)
    writer = HistoryWriter(store)
    for _ in range(48):
        writer.write({NAME: {store.now_ms() // MINUTE_MS: {ENQUEUED: 1, "R5": 1}}})
        clock.advance(HOUR_MS / 1000)
    now_ms = store.now_ms()
    for since_h, until_h, step in [(48, 24, "1h"), (6, 2, "5m"), (20, 1, "10m")]:
        end_ms = now_ms - until_h * HOUR_MS
        whole = read_history(store, *NAME, since=f"{since_h}h", step=step)
        early = read_history(store, *NAME, since=f"{since_h - until_h}h", step=step, until_ms=end_ms)
        late = read_history(store, *NAME, since=f"{until_h}h", step=step)
        assert (early.since_ms, early.until_ms) == (whole.since_ms, late.since_ms)
        assert early.points + late.points == whole.points and early.points and late.points


@pytest.mark.parametrize(
    ("since", "step", "why"),
    [
        ("36d", None, "up to 35d"),
        ("0s", None, "up to 35d"),
        ("1h", "90s", "whole minutes"),
        ("1h", "0s", "whole minutes"),
        ("25h", "5m", "minutes are kept for 24h"),
    ],
)
def test_a_history_that_is_not_kept_so_is_refused(since: str, step: str | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        history(MemoryStore(ManualClock()), since, step)


def test_without_cells_the_answer_says_what_to_name() -> None:
    store = MemoryStore(ManualClock())
    store.traits = type(store.traits)(name="memory", cells=False)
    with pytest.raises(Unsupported, match="not kept: name cells="):
        history(store, "1h")
