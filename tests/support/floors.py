"""Floors of PostgreSQL that are always kept."""

from __future__ import annotations

import pytest

from redrive.stores.postgres import floor


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A floor is kept from the first exchange on, raised with each, and never given up."""
    monkeypatch.setattr(floor, "WORTH_MS", -1.0)
    monkeypatch.setattr(floor, "FREE_MS", -1.0)
    monkeypatch.setattr(floor, "OPEN_EVERY_S", 0.0)
    monkeypatch.setattr(floor, "FRONT_EVERY_S", 0.0)
