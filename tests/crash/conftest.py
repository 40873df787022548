"""The places of the crash tests, and the rows that they write for docs/reliability.md."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from .children import ENGINES


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for journals and a store of its own, of each kind in turn."""
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))  # where workers of a server's store keep theirs
    name = f"crash_{secrets.token_hex(6)}"
    if request.param == "postgres":
        (tmp_path / "url").write_text(f"{request.getfixturevalue('postgres_server').url}?schema={name}")
    elif request.param == "redis":
        (tmp_path / "url").write_text(f"{request.getfixturevalue('redis_server').url}?namespace={name}")
    return tmp_path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """With TEST_MATRIX=FILE each test of a fault adds a row to that file; scripts/reliability makes the page of it."""
    report = yield
    path, marker = os.environ.get("TEST_MATRIX"), item.get_closest_marker("fault")
    if path and marker and (report.when == "call" or not report.passed):
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        row = {
            "fault": marker.args[0],
            "store": marker.kwargs.get("store") or parameters.get("place") or parameters.get("server") or "sqlite",
            "test": item.nodeid.partition("[")[0],
            "outcome": report.outcome,
            "figures": dict(item.user_properties),
            "seed": int(os.environ["TEST_SEED"]),
            "soak": os.environ.get("TEST_SOAK") == "1",
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")
    return report
