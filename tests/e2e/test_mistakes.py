"""Mistakes that newcomers make: three lines, the right exit code, and a third line that works when it is pasted.

They are listed in `tests/data/mistakes.toml`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.storefront import Shop, filled, shop  # noqa: F401

DATA = Path(__file__).parents[1] / "data"


class Mistake(NamedTuple):
    typed: str
    code: int
    error: str
    next: str


MISTAKES = [Mistake(**each) for each in tomllib.loads((DATA / "mistakes.toml").read_text())["mistakes"]]
WORKS_ON = ("worker ",)  # what would run for longer than a test


def test_there_are_fifty_mistakes_and_each_is_another() -> None:
    assert len({each.typed for each in MISTAKES}) == len(MISTAKES) >= 50


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.typed)
def test_a_mistake_gets_three_lines_and_a_next_command_that_works(shop: Shop, mistake: Mistake) -> None:
    said = shop.line(mistake.typed)
    error, why, next = said.three
    assert said.code == mistake.code, said.err
    assert error.startswith(shop.named(mistake.error)) and why
    assert next == f"{shop.program} {shop.named(mistake.next)}"
    assert "Traceback" not in said.err and len(said.err.splitlines()[-3:]) == 3
    if not mistake.next.startswith(WORKS_ON):
        then = shop.again(said)
        assert then.code == 0, then.err
