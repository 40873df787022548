"""Cells on DynamoDB under contention by processes, as tests/contract/test_cells_processes.py has it of databases."""

from __future__ import annotations

from uuid import uuid4

import pytest
from tests.support.aws.places import REGION, Ministack
from tests.support.cell_races import (  # noqa: F401
    test_a_cell_that_expires_is_taken_by_one_alone,
    test_a_swap_that_is_not_durable_outlives_its_process_all_the_same,
    test_no_increment_is_lost,
    test_swaps_of_one_commit_are_all_or_nothing,
)

pytestmark = pytest.mark.soak


@pytest.fixture
def url(ministack: Ministack) -> str:
    return f"dynamodb://cells-{uuid4().hex}?region={REGION}&endpoint={ministack.url}&create=true"


@pytest.fixture(scope="session")
def soak() -> bool:
    """The smaller amount: a call of ministack takes milliseconds, and contending ones are made in vain."""
    return False
