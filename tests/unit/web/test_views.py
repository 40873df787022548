"""Saved views: made, listed on every page, and removed, by those who may; each change in the audit log."""

from __future__ import annotations

import json

import pytest
from tests.support.commands import Call
from tests.support.pages import Reader

from redrive import App
from redrive.errors import ConfigError
from redrive.triage.views import VIEWS_MAX, save_view, views
from redrive.web import Permission, User

ADDRESS = "messages?q=queue%3Acrm&sort=oldest"


def test_view_is_saved_listed_and_removed(app: App, pages: Reader) -> None:
    assert pages.json("/views")["views"] == []
    pages.do("save-view", name="The CRM's dead", address=ADDRESS)
    saved = pages.json("/views")["views"]
    assert [(each["name"], each["address"]) for each in saved] == [("The CRM's dead", ADDRESS)]
    assert saved[0]["by"] and saved[0]["at"]
    href = f'href="/{ADDRESS.replace("&", "&amp;")}">The CRM&#39;s dead</a>'
    assert href in pages.html("/views") and href in pages.html("/queues")
    pages.do("save-view", name="The CRM's dead", address="tasks")
    assert [each["address"] for each in pages.json("/views")["views"]] == ["tasks"]
    pages.do("remove-view", name="The CRM's dead")
    assert pages.json("/views")["views"] == []
    assert [entry.action for entry in app.audit] == ["remove view", "save view", "save view"]
    assert pages.do("remove-view", 404, name="The CRM's dead")["error"]


def test_form_saves_the_address_of_the_page_that_shows_it(app: App, pages: Reader) -> None:
    assert 'name="address" value="messages?q=queue%3Acrm"' in pages.html("/messages?q=queue%3Acrm")
    assert 'name="address" value=""' in pages.html("/")


@pytest.mark.parametrize(
    "address", ["//evil.example/", "https://evil.example", "javascript:alert(1)", "\\\\evil", "x" * 2001]
)
def test_address_of_another_site_is_refused(app: App, pages: Reader, address: str) -> None:
    assert pages.do("save-view", 422, name="evil", address=address)["error"]
    assert views(app.store) == []


@pytest.mark.parametrize("name", ["", "x" * 81, "a\nb"])
def test_name_that_cannot_be_shown_is_refused(pages: Reader, name: str) -> None:
    assert pages.do("save-view", 422, name=name, address="tasks")["error"]


def test_address_that_a_browser_would_read_as_another_site_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="expected one below the pages"):
        save_view(app.store, "evil", "\t/evil.example", actor="ann")


def test_no_more_than_the_most_are_kept(app: App, pages: Reader) -> None:
    for n in range(VIEWS_MAX):
        save_view(app.store, f"view {n}", "tasks", actor="ann")
    assert "100 saved views" in pages.do("save-view", 422, name="one more", address="tasks")["error"]
    pages.do("save-view", name="view 7", address="queues")
    assert len(views(app.store)) == VIEWS_MAX


def test_reader_without_the_permission_sees_views_and_changes_none(app: App) -> None:
    save_view(app.store, "mine", "tasks", actor="ann")
    viewer = Reader(app.dashboard(authorize=lambda request: User("bob", frozenset({Permission.VIEW}))))
    assert len(viewer.json("/views")["views"]) == 1
    assert "remove-view" not in viewer.html("/views") and "save-view" not in viewer.html("/tasks")
    viewer.do("save-view", 403, name="other", address="tasks")
    viewer.do("remove-view", 403, name="mine")
    assert [view.name for view in views(app.store)] == ["mine"]


def test_command_lists_the_views_as_the_page_does(
    app: App, pages: Reader, redrive: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_view(app.store, "The CRM's dead", ADDRESS, actor="ann")
    save_view(app.store, "All", "", actor="bob")
    page = pages.json("/views")
    assert page["command"].split()[:2] == ["redrive", "views"]
    assert json.loads(redrive("views", "-o", "json").out) == page["views"]
    monkeypatch.setenv("REDRIVE_WEB_URL", "https://ops.example.com/jobs/")
    found = {row["name"]: row["address"] for row in json.loads(redrive("views", "-o", "json").out)}
    assert found == {
        "All": "https://ops.example.com/jobs/",
        "The CRM's dead": f"https://ops.example.com/jobs/{ADDRESS}",
    }
