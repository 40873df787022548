"""Confirm what concerns many messages: a person types their number."""

from __future__ import annotations

CONFIRM_ABOVE = 100  # above this number of messages, a person must type the number to confirm


def needs_number(count: int) -> bool:
    return count > CONFIRM_ABOVE


def is_number(typed: str, count: int) -> bool:
    """Return True if a person typed this number; commas and spaces within it are allowed.

    >>> is_number("1,200", 1200), is_number("12", 1200)
    (True, False)
    """
    return typed.replace(",", "").replace(" ", "") == str(count)
