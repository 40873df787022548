"""Statements are those of statements.sql, with words in braces and what stands for each priority spelled out."""

from __future__ import annotations

import pytest

from redrive.stores.sqlite.schema import statements

BY_LANE = ("claimable", "claimable_but", "due", "due_but", "next_due", "next_due_but")


@pytest.mark.parametrize("name", [*BY_LANE, "retries_due", "retries_due_but"])
def test_what_stands_for_each_priority_is_there_once_for_each_of_them(name: str) -> None:
    sql = statements()[name]
    times = 2 if name == "next_due_but" else 1
    assert [sql.count(f"priority = {priority}") for priority in range(5)] == [times] * 4 + [0]
    assert "-- each priority" not in sql and "{" not in sql


@pytest.mark.parametrize("name", BY_LANE)
def test_the_second_of_two_names_leaves_alone_lanes_of_newer_versions(name: str) -> None:
    plain, by_lane = statements()[name], statements()[f"{name}_by_lane"]
    assert "typeof(lane)" not in plain and by_lane.count("typeof(lane)") == plain.count("priority = ")
