"""A customer database that blinks: every fifth order fails at its first try, and order 7 is told to come in an hour."""

from collections import Counter

asked: Counter[int] = Counter()
pushed: list[int] = []


class Busy(Exception):
    """Come again, not before `wait_s` are over."""

    def __init__(self, wait_s: int) -> None:
        self.wait_s = wait_s
        super().__init__(f"busy; come again in {wait_s} s")


def push(order: int) -> None:
    """Write an order into the database. Raises ConnectionError or Busy."""
    asked[order] += 1
    if order == 7:
        raise Busy(3600)
    if order % 5 == 0 and asked[order] == 1:
        raise ConnectionError(f"order {order}: connection reset by peer")
    pushed.append(order)
