"""When a dead message is driven back by itself: the waits, the bound, and what cannot be meant."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import App, AutoRedrive, Gates
from redrive.errors import ConfigError
from redrive.flow.auto_redrive import Wait, due_ms, next_step
from redrive.message import Isolate, Lane, Message, Redrive
from redrive.policy import YEAR_S

DIED_MS = 1_750_000_000_000
YEAR_MS = int(YEAR_S * 1000)


def dead(redrives: int = 0, rested_ms: int = DIED_MS, id: str = "m") -> Message:
    return Message(id, "t", "q", b"{}", "m", lane=Lane.DEAD, redrives=redrives, rested_ms=rested_ms)


def test_the_nth_redrive_waits_base_times_factor_to_the_n_minus_1_up_to_the_cap() -> None:
    auto = AutoRedrive(base="10s", factor=3, cap="2m", max_redrives=9, jitter=0)
    waits = [next_step(dead(n), auto, DIED_MS) for n in range(5)]
    assert waits == [Wait(DIED_MS + s * 1000) for s in (10, 30, 90, 120, 120)]


def test_a_message_goes_when_its_wait_is_over_and_no_millisecond_earlier() -> None:
    auto = AutoRedrive(attempts=3, jitter=0)
    assert next_step(dead(), auto, DIED_MS + 59_999) == Wait(DIED_MS + 60_000)
    assert next_step(dead(), auto, DIED_MS + 60_000) == Redrive(attempts=3)


def test_a_wait_may_last_a_year() -> None:
    auto = AutoRedrive(base="365d", cap=None, jitter=0)
    assert next_step(dead(4), auto, DIED_MS + YEAR_MS - 1) == Wait(DIED_MS + YEAR_MS)
    assert next_step(dead(4), auto, DIED_MS + YEAR_MS) == Redrive()


def test_one_that_died_after_its_last_redrive_is_poison_at_once_and_the_reason_says_so() -> None:
    auto = AutoRedrive(max_redrives=5)
    assert isinstance(next_step(dead(4), auto, DIED_MS), Wait)
    assert next_step(dead(5), auto, DIED_MS) == Isolate("poison: dead again after 5 redrives")
    assert next_step(dead(7), auto, DIED_MS) == Isolate("poison: dead again after 7 redrives")
    assert next_step(dead(1), AutoRedrive(max_redrives=1), DIED_MS) == Isolate("poison: dead again after 1 redrive")


def test_waits_are_spread_over_their_jitter_evenly_also_at_the_cap() -> None:
    auto = AutoRedrive(base="60s", cap="60s")
    assert (auto.rate, auto.jitter) == (10.0, 0.2)
    waits_s = sorted((due_ms(dead(id=f"m{n}"), auto) - DIED_MS) / 1000 for n in range(1000))
    assert 48 <= waits_s[0] < 48.5 and 71.5 < waits_s[-1] <= 72
    tenths = Counter(int((wait_s - 48) / 2.4) for wait_s in waits_s)
    assert len(tenths) == 10 and min(tenths.values()) > 60 and max(tenths.values()) < 140


def test_a_message_has_one_draw_for_each_death() -> None:
    auto = AutoRedrive(base="60s", factor=1)
    waits = [due_ms(dead(n), auto) for n in range(4)]
    assert waits == [due_ms(dead(n), auto) for n in range(4)] and len({*waits}) == 4


@pytest.mark.parametrize("rate, per_s", [("20/s", 20.0), ("600/m", 10.0), ("5/2s", 2.5), (3, 3.0), (0.5, 0.5)])
def test_a_rate_is_a_text_or_a_number_a_second(rate: str | float, per_s: float) -> None:
    assert AutoRedrive(rate=rate).rate == per_s


@given(
    redrives=st.integers(0, 10**6),
    base_s=st.floats(0, YEAR_S),
    factor=st.floats(1, 1e300),
    most=st.integers(1, 1000),
    jitter=st.floats(0, 1),
    now_ms=st.integers(DIED_MS - YEAR_MS, DIED_MS + 2 * YEAR_MS),
)
def test_every_dead_message_waits_a_year_and_its_jitter_at_most_goes_or_is_given_up(
    redrives: int, base_s: float, factor: float, most: int, jitter: float, now_ms: int
) -> None:
    auto = AutoRedrive(base_s, factor, None, most, jitter=jitter)
    match next_step(dead(redrives), auto, now_ms):
        case Wait(until_ms):
            assert redrives < most and now_ms < until_ms <= DIED_MS + YEAR_MS * (1 + jitter) + 1
            assert isinstance(next_step(dead(redrives), auto, until_ms), Redrive)
        case Redrive():
            assert redrives < most and now_ms >= DIED_MS + int(base_s * 1000 * (1 - jitter))
        case Isolate():
            assert redrives >= most


@pytest.mark.parametrize(
    "options, says",
    [
        ({"base": "366d"}, "from 0 to 3.1536e+07"),
        ({"cap": "2y"}, "known units"),
        ({"base": -1}, "not negative"),
        ({"base": "1h", "cap": "15m"}, "cap 15m is below its base 1h"),
        ({"factor": 0.5}, "from 1 to"),
        ({"max_redrives": 0}, "from 1 to 1000"),
        ({"max_redrives": 2.5}, "whole number"),
        ({"batch": 0}, "from 1 to"),
        ({"batch": 1000, "concurrency": 11}, "11,000 messages at once"),
        ({"attempts": 0}, "attempts 0"),
        ({"gates": "22:00-06:00"}, "expected Gates"),
        ({"rate": "fast"}, "auto-redrive rate 'fast' is refused: expected a number per unit of time"),
        ({"rate": 0}, "auto-redrive rate 0 is refused: expected more than 0 a second"),
        ({"rate": float("nan")}, "auto-redrive rate nan is refused"),
        ({"rate": True}, "auto-redrive rate True is refused"),
        ({"jitter": 1.5}, "auto-redrive jitter 1.5 is refused: expected a number from 0 to 1"),
        ({"jitter": "20%"}, "auto-redrive jitter '20%' is refused"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        AutoRedrive(**options)
    assert says in str(error.value)


def test_an_auto_redrive_is_a_value_that_can_be_stored() -> None:
    auto = AutoRedrive("5s", 3, None, gates=Gates(health="crm-up", window="22:00-06:00"))
    assert msgspec.json.decode(msgspec.json.encode(auto), type=AutoRedrive) == auto
    assert pickle.loads(pickle.dumps(auto)) == auto and hash(auto) == hash(pickle.loads(pickle.dumps(auto)))
    with pytest.raises(AttributeError):
        auto.base = 1  # type: ignore[misc]


def test_a_queue_takes_it_and_nothing_else() -> None:
    app = App("memory://")
    assert app.queue("crm", auto_redrive=AutoRedrive(batch=3)).auto_redrive == AutoRedrive(batch=3)
    with pytest.raises(ConfigError, match="queue 'crm': auto_redrive='5m'; expected an AutoRedrive"):
        app.queue("crm", auto_redrive="5m")  # type: ignore[arg-type]
