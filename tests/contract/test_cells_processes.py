"""Cells under contention by processes: no update is lost, swaps of one commit are all or nothing, a cell that expires
is taken by one alone. For every store that several processes may share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cell_races import (  # noqa: F401
    PATIENCE_S,
    in_processes,
    test_a_cell_that_expires_is_taken_by_one_alone,
    test_a_swap_that_is_not_durable_outlives_its_process_all_the_same,
    test_no_increment_is_lost,
    test_swaps_of_one_commit_are_all_or_nothing,
)
from tests.support.namespaces import redis_url
from tests.support.schemas import schema  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return redis_url(tmp_path, request.getfixturevalue("redis_server"))
    if request.param == "postgres":
        return str(request.getfixturevalue("schema"))
    return f"sqlite:///{tmp_path / 'work.db'}?synchronous=normal"
