"""Which second a message comes back in: never more in one than the rate has room for, at any rate."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.aws.redriver.pace import (
    TENTHS,
    PaceSlots,
    Wish,
    as_text,
    current,
    decode,
    encode,
    merged,
    of_text,
    room,
    take,
)

NOW_S = 1_750_000_000
seconds = st.integers(NOW_S, NOW_S + 50)
known = st.dictionaries(st.integers(NOW_S * TENTHS, NOW_S * TENTHS + 500), st.integers(1, 300), max_size=20)


@given(per_s=st.floats(1e-3, 500), at_s=seconds, span_s=st.integers(1, 1000))
def test_any_seconds_together_have_room_for_the_rate_and_one_more_at_most(per_s: float, at_s: int, span_s: int) -> None:
    total = sum(room(per_s, second) for second in range(at_s, at_s + span_s))
    assert per_s * span_s - 1 - 1e-3 <= total <= per_s * span_s + 1 + 1e-3


@given(
    per_s=st.floats(0.05, 20),
    wishes=st.lists(st.tuples(seconds, st.integers(0, 10), st.integers(0, 40)), max_size=60),
    tenth=st.integers(0, TENTHS - 1),
    evenly=st.booleans(),
)
def test_no_second_is_given_too_often_and_each_wish_gets_what_it_may(
    per_s: float, wishes: list[tuple[int, int, int]], tenth: int, evenly: bool
) -> None:
    asked = [Wish(at_s - before, at_s, at_s + after) for at_s, before, after in wishes]
    taken, found = take({}, per_s, asked, tenth, evenly=evenly)
    given = Counter(second for second in found if second is not None)
    assert {second * TENTHS + tenth: count for second, count in given.items()} == taken
    assert all(count <= room(per_s, second) for second, count in given.items())
    for wish, second in zip(asked, found, strict=True):
        if second is None:
            assert all(given[s] >= room(per_s, s) for s in range(wish.first_s, wish.last_s + 1))
        else:
            assert wish.first_s <= second <= wish.last_s


def test_a_second_is_the_one_wished_for_or_the_next_with_room_and_an_earlier_one_only_then() -> None:
    wish = Wish(NOW_S, NOW_S + 2, NOW_S + 3)
    _, found = take({}, 2, [wish] * 9, evenly=False)
    assert [second and second - NOW_S for second in found] == [2, 2, 3, 3, 1, 1, 0, 0, None]


def test_a_tenth_of_a_second_is_given_its_share_and_more_only_where_there_is_no_other_second() -> None:
    wish = Wish(NOW_S, NOW_S, NOW_S + 2)
    taken, found = take({}, 25, [wish] * 12, 4)
    assert [second and second - NOW_S for second in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0]
    taken, found = take(taken, 25, [wish] * 9, 5)
    assert [second and second - NOW_S for second in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert taken == {
        (NOW_S + second) * TENTHS + tenth: count
        for tenth, counts in ((4, (6, 3, 3)), (5, (3, 3, 3))) for second, count in enumerate(counts)
    }  # fmt: skip


def test_what_is_past_is_forgotten_but_the_last_second() -> None:
    slots = {(NOW_S + n) * TENTHS + 9: 1 for n in (-2, -1, 0, 9)}
    assert [at // TENTHS - NOW_S for at in current(slots, NOW_S)] == [-1, 0, 9]


def test_two_that_know_of_the_same_seconds_know_the_higher_numbers() -> None:
    assert merged({1: 5, 2: 1}, {2: 3, 4: 1}) == {1: 5, 2: 3, 4: 1}


@given(slots=known)
def test_slots_are_kept_as_bytes_and_as_text(slots: PaceSlots) -> None:
    assert decode(encode(slots)) == slots == of_text(as_text(slots))


@pytest.mark.parametrize("value", [b"", b"\xc1", b"null", encode({1: 1})[:-1], b"\x92\x01\x01"])
def test_bytes_that_are_not_understood_are_no_slots(value: bytes) -> None:
    assert decode(value) == {}


@pytest.mark.parametrize("text", ["", "é", "AA=A", "not base64!", "////"])
def test_text_that_is_not_understood_is_no_slots(text: str) -> None:
    assert of_text(text) == {}


def test_a_quarter_of_an_hour_takes_few_kilobytes(seed: int) -> None:
    draws = random.Random(seed)
    slots = {NOW_S * TENTHS + n: draws.choice((1, 1, 2)) for n in range(900 * TENTHS) if draws.random() < 0.95}
    assert len(encode(slots)) < 2600
    assert len(encode({NOW_S * TENTHS + n: 1 for n in range(900 * TENTHS)})) < 100
