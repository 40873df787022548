"""Shared by the tests of what an app does on any store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Call, Said
from tests.support.workers import store_in

from redrive import App
from redrive.program.main import run


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each of the embedded stores, on the wall clock."""
    made = App(store=store_in(tmp_path, request.param))
    yield made
    made.store.close()


@pytest.fixture
def redrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `redrive WORDS` in a folder of its own, on the store `work.db` there, without an app."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDRIVE_URL", "sqlite:///work.db")

    def call(*words: str) -> Said:
        code = run(words)
        told = capsys.readouterr()
        return Said(code, told.out, told.err)

    return call
