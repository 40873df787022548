"""The page of the system: the store, the doctor, versions, settings without secrets, and permissions."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.support.pages import Reader

from redrive import App
from redrive._version import __version__
from redrive.cli.terminal.warnings import tell_warnings
from redrive.message import Counts
from redrive.presence import GONE_MS, ProcessCell, WorkerInfo
from redrive.read_model import ReadModel
from redrive.stores.sqlite.store import SqliteStore
from redrive.web import ALL, Site, User

SECRET = "hunter2-in-a-url"


def test_the_store_is_described_as_by_the_command_line(store: SqliteStore, pages: Reader) -> None:
    found, info = pages.json("/system"), store.info()
    assert found["engine"] == {**info, "size_bytes": found["engine"]["size_bytes"]}
    assert found["traits"]["name"] == "sqlite" and found["version"] == __version__
    text = pages.text("/system")
    assert str(info["engine"]) in text and f"Schema {info['schema']}" in text and str(store.path) in text


def test_the_doctors_findings_are_shown(
    store: SqliteStore, app: App, pages: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pages.json("/system")["doctor"]["ok"] is True
    app.periodic("@hourly")(app.task(name="nightly")(lambda: None))
    monkeypatch.setattr(store, "doctor", lambda: ["the disk is nearly full"])
    found = Reader(app.dashboard()).json("/system")["doctor"]
    assert found["ok"] is False and found["findings"][0] == "the disk is nearly full"
    assert "schedule nightly has no scheduler" in found["findings"][-1]


def test_damage_is_looked_for_only_when_that_is_asked_for(
    store: SqliteStore, pages: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(store, "check", lambda: looked.append(1) or ["message x cannot be read"])
    assert pages.json("/system")["damage"] is None and not looked
    assert pages.json("/system?check=1")["damage"]["problems"] == ["message x cannot be read"]
    assert "message x cannot be read" in pages.text("/system?check=1") and len(looked) == 1


def test_versions_of_workers_stand_side_by_side_and_others_are_marked(store: SqliteStore, pages: Reader) -> None:
    now_ms = store.now_ms()
    for name, version, seen_ms in (
        ("a", __version__, now_ms),
        ("b", "0.0.1", now_ms),
        ("c", "0.0.2", now_ms - GONE_MS),
    ):
        ProcessCell(store).write(WorkerInfo(name=name, version=version, seen_ms=seen_ms, clock_ahead_ms=3))
    found = pages.json("/system")["versions"]
    assert [(each["version"], each["same"], [w["name"] for w in each["workers"]]) for each in found] == [
        (__version__, True, ["a"]),
        ("0.0.1", False, ["b"]),
    ]
    assert pages.text("/system").count("differs") == 1


def test_settings_have_their_sources_and_no_secrets(
    app: App, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_URL", f"postgresql://bob:{SECRET}@db.example/app")
    monkeypatch.setenv("REDRIVE_NOTIFY", f"https://hooks.example/{SECRET}")
    monkeypatch.setenv("REDRIVE_LEASE", "45s")
    pages = Reader(Site(ReadModel(store=store), url="sqlite:///here.db"))
    rows = {row["name"]: row for row in pages.json("/system")["settings"]}
    assert rows["lease"] == {"name": "lease", "value": "45s", "source": "REDRIVE_LEASE"}
    assert rows["grace"]["source"] == "default"
    assert rows["url"]["value"] == "sqlite:///here.db", "the store of these pages"
    for text in (pages.html("/system"), json.dumps(pages.json("/system"))):
        assert SECRET not in text
    assert "hooks.example" in pages.html("/system")


def test_settings_are_for_administrators_and_permissions_are_told_to_each(app: App) -> None:
    pages = Reader(app.dashboard(authorize=lambda request: User("bob", frozenset(["view", "retry"]))))
    found = pages.json("/system")
    assert found["settings"] is None and found["user"] == "bob"
    granted = {each["permission"] for each in found["permissions"] if each["granted"]}
    assert granted == {"view", "retry"} and len(found["permissions"]) == len(ALL)
    assert "those with the permission admin" in pages.text("/system")


def test_without_an_app_it_shows_the_store(bare: Reader) -> None:
    assert bare.json("/system")["url"] == "sqlite:///work.db" and "work.db" in bare.text("/system")
    assert bare.json("/system")["command"] == "redrive doctor --url sqlite:///work.db"


class _Broken(SqliteStore):
    """A store that finds a mistake of ours."""

    def counts_by_queue(self) -> dict[str, Counts]:
        raise RuntimeError("counted twice, token=hunter2")


def test_the_traceback_of_a_page_that_failed_is_printed_where_the_pages_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_warnings()
    store = _Broken(tmp_path / "broken.db")
    try:
        Reader(App(store=store).dashboard()).html("/queues", 500)
    finally:
        store.close()
        logging.getLogger("redrive").handlers.clear()
    told = capsys.readouterr().err
    assert "error: GET /queues failed" in told and "Traceback (most recent call last)" in told
    assert "in counts_by_queue" in told and "RuntimeError: counted twice, token=***" in told
