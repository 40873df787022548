"""The places of the crash tests."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.support.crash.children import ENGINES


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
