"""Where workers of stores that are no file keep their identities, and what a worker does that has no place for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from redrive import App
from redrive.events import Event, Notice
from redrive.store import Traits
from redrive.stores.memory.store import MemoryStore
from redrive.stores.state_dir import state_dir


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("REDRIVE_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_setting_goes_before_the_standards_variable_before_home(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def root() -> Path | None:
        found = state_dir("db:5432/app/redrive")
        return found and found.parent

    assert root() == place / "home/.local/state/redrive"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # its standard: to be passed over
    assert root() == place / "home/.local/state/redrive"
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "xdg"))
    assert root() == place / "xdg/redrive"
    monkeypatch.setenv("REDRIVE_STATE_DIR", "~/state")
    assert root() == place / "home/state"
    monkeypatch.delenv("REDRIVE_STATE_DIR")
    (place / "redrive.toml").write_text('state_dir = "workers"\n')
    (place / "sub").mkdir()
    monkeypatch.chdir(place / "sub")
    assert root() == place / "workers"  # from where the file lies
    assert not (place / "workers").exists()  # nothing is made by asking


def test_each_store_has_a_folder_of_its_own_that_names_it() -> None:
    one, other = state_dir("db:5432/app/redrive"), state_dir("db:5432/app/redrive2")
    assert one is not None and other is not None and one != other and one == state_dir("db:5432/app/redrive")
    assert one.name.startswith("db-5432-app-redrive-") and one.name.endswith("-workers")
    long = state_dir("x" * 5000 + "/../../é\0")
    assert long is not None and len(long.name) < 100 and long.parent == one.parent


def test_where_nothing_can_be_written_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root, as whom tests may run, may write anywhere
    assert state_dir("x") is None


def test_a_file_in_the_way_gives_none(place: Path) -> None:
    (place / "home").write_text("not a directory")
    assert state_dir("x") is None


class Server(MemoryStore):
    """As a store that several machines share."""

    traits = Traits(name="server")

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.state_dir = folder


@pytest.mark.parametrize("blocked", [False, True])
def test_a_worker_without_a_place_works_and_says_so_once(place: Path, blocked: bool) -> None:
    folder = place / "blocked" / "workers" if blocked else None
    (place / "blocked").write_text("not a directory")
    app = App(store=Server(folder))
    heard: list[Event] = []
    app.subscribe(heard.extend)

    @app.task(name="t")
    def task() -> str | None:
        return None

    task.enqueue()
    names = []
    for _ in range(2):
        worker = app.worker(burst=True, name="w")
        names.append(worker.name)
    assert len(set(names)) == 2 and all(name.startswith(os.uname().nodename) for name in names)
    app.run_worker(burst=True)
    assert app.counts().ready == 0
    told = [event.text for event in heard if isinstance(event, Notice) and event.name == "no_identity"]
    assert len(told) == 1 and "REDRIVE_STATE_DIR" in told[0]
    assert not blocked or "Not a directory" in told[0]


def test_a_store_in_memory_needs_none(place: Path) -> None:
    app = App("memory://")
    heard: list[Event] = []
    app.subscribe(heard.extend)
    app.run_worker(burst=True)
    assert not [event for event in heard if isinstance(event, Notice) and event.name == "no_identity"]
