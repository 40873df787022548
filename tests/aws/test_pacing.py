"""The books that seconds are written down in, and the seconds that messages ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from redrive.aws.redriver.pace import TENTHS, TRIES, Known, Pace, Shared, Wish
from redrive.aws.redriver.steps import STATE, MoveStep, Raw, entry_of, next_step
from redrive.flow.auto_redrive import AutoRedrive
from redrive.message import Cell, Isolate, Swap
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock

NOW_S = 1_750_000_000
NOW_MS = NOW_S * 1000
WISH = Wish(NOW_S, NOW_S, NOW_S + 9)


class Between:
    """Cells where something happens between the read of one and its swap."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self.cells, self.happens = MemoryStore(ManualClock()).cells, happens

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        found = self.cells.read(keys)
        self.happens()
        return found

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        return self.cells.swap(swaps, durable=durable)


def raw(n: int = 0, **more: Any) -> Raw:
    return {"MessageId": f"m{n}", "ReceiptHandle": "r", "Body": "{}", "Attributes": {}, **more}


def test_a_second_that_another_took_meanwhile_is_not_given_twice() -> None:
    others: list[int | None] = []

    def another() -> None:
        if not others:
            others.extend(Shared(cells.cells, "https://sqs/1/dlq").take(10, [WISH] * 10, NOW_MS))

    cells = Between(another)
    found = Shared(cells, "https://sqs/1/dlq").take(10, [WISH] * 10, NOW_MS)
    assert others == [NOW_S + n for n in range(10)], "each in a second of its own"
    assert found == [NOW_S] * 9 + [NOW_S + 1], "of which this tenth is taken, and the second is full after nine more"


def test_one_that_others_are_always_faster_than_gives_nothing() -> None:
    looks = 0

    def another() -> None:
        nonlocal looks
        looks += 1
        cell = cells.cells.read(["redriver/pace/dlq"])[0]
        cells.cells.swap([Swap("redriver/pace/dlq", cell.version if cell else 0, b"", 60_000)])

    cells = Between(another)
    assert Shared(cells, "https://sqs/1/dlq").take(10, [WISH], NOW_MS) == [None] and looks == TRIES


def test_each_dead_letter_queue_has_a_rate_of_its_own() -> None:
    cells = MemoryStore(ManualClock()).cells
    for name in ("orders-dlq", "mails-dlq", "orders-dlq.fifo"):
        assert Shared(cells, f"https://sqs/1/{name}").take(1, [WISH], NOW_MS) == [NOW_S]
    assert Shared(cells, "https://sqs/1/mails-dlq").take(1, [WISH], NOW_MS) == [NOW_S + 1]


def test_what_was_known_before_counts() -> None:
    known = Known()
    known.learn({NOW_S * TENTHS: 9, (NOW_S + 1) * TENTHS + 7: 10})
    assert known.take(10, [WISH] * 3, NOW_MS + 450) == [NOW_S, NOW_S + 2, NOW_S + 3]
    assert known.lasts_s(NOW_S) == 3 and known.lasts_s(NOW_S + 3) == 0
    assert known.to_come(NOW_S + 4) == {(NOW_S + 3) * TENTHS + 4: 1} and known.to_come(NOW_S + 60) == {}


def test_poison_asks_for_no_second() -> None:
    pace = Pace(AutoRedrive(rate="1/d"), Known())
    steps = [(raw(n), Isolate("poison")) for n in range(5)]
    assert pace.placed(steps, NOW_MS) == steps


@pytest.mark.parametrize("cap_s", [3600, 86_400])
def test_a_wait_longer_than_sqs_delays_comes_at_a_second_with_room_and_is_waited_out_in_the_queue(cap_s: int) -> None:
    auto = AutoRedrive(base=cap_s, cap=cap_s)
    pace = Pace(auto, Known())
    steps = [(message, next_step(message, NOW_MS, auto)) for message in (own(n) for n in range(300))]
    placed = [(message, step) for message, step in pace.placed(steps, NOW_MS) if isinstance(step, MoveStep)]
    assert len(placed) == 300
    entries = [entry_of(message, step, "q", NOW_MS, auto) for message, step in placed]
    came = Counter(entry["DelaySeconds"] for entry in entries)
    assert max(came.values()) <= 10 and min(came) >= 780 and max(came) <= 900
    due_s = [(int(text.partition('"due_ms":')[2].partition(",")[0].rstrip("}")) - NOW_MS) / 1000
             for text in (entry["MessageAttributes"][STATE]["StringValue"] for entry in entries)]  # fmt: skip
    assert 0.8 * cap_s <= min(due_s) < 0.85 * cap_s and 1.15 * cap_s < max(due_s) <= 1.2 * cap_s + 1


def own(n: int) -> Raw:
    return raw(n, MessageAttributes={STATE: {"DataType": "String", "StringValue": "{}"}})
