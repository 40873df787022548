"""`admit` and `decide` against a plain statement of what they must answer, on messages that lie near every bound."""

from __future__ import annotations

import pytest
from tests.support.fate_cases import CASES, first_wrong, wrong_admission, wrong_decision

pytestmark = pytest.mark.slow


def test_admit_answers_as_its_table_says(seed: int, soak: bool) -> None:
    assert first_wrong(wrong_admission, seed, CASES * (100 if soak else 1)) is None


def test_decide_answers_as_its_table_says(seed: int, soak: bool) -> None:
    assert first_wrong(wrong_decision, seed, CASES * (100 if soak else 1)) is None
