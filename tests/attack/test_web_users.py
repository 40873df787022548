"""Each user of the web pages is one by exactly that name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.sites import Browser, stocked

from redrive import App
from redrive.flow.gates import Gates


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    yield app
    app.store.close()


def test_a_page_that_many_watch_says_to_each_what_that_one_may_do(app: App) -> None:
    stocked(app)
    run = app.dlq.select("lane:dead").plan(gates=Gates(approval="bob")).start(reason="r")
    site = app.dashboard(authorize=lambda request: request.headers["x-user"], hosts=["127.0.0.1"])
    for name, sees in (("bob", True), ("eve", False), ("bob", True)):
        live_page = Browser(site, x_user=name).get(f"/runs/{run.id}", headers={"x-redrive-live": "1"})
        assert live_page.status_code == 200 and ("approve-run" in live_page.text) is sees, name


def test_a_login_named_like_the_processs_user_stays_a_name_of_its_own(app: App) -> None:
    from redrive.audit.actor import user

    app.store.configure("crm")
    site = app.dashboard(authorize=lambda request: request.headers["x-user"], hosts=["127.0.0.1"])
    assert Browser(site, x_user=user()).post("/do/pause-queue", {"queue": "crm", "reason": "r"}).status_code == 303
    [entry] = app.dlq.audit()
    assert entry.claimed == repr(user()) and entry.who != user()


@pytest.mark.parametrize("name", ["bob ", " bob", "Bob", "bob@elsewhere", "'bob'"])
def test_only_the_one_with_exactly_that_name_approves(app: App, name: str) -> None:
    stocked(app)
    run = app.dlq.select("lane:dead").plan(gates=Gates(approval="bob")).start(reason="r")

    def authorize(request: Any) -> str:
        return name if request.headers["x-user"] == "other" else "bob"

    site = app.dashboard(authorize=authorize, hosts=["127.0.0.1"])
    form = {"id": run.id, "reason": "r"}
    assert Browser(site, x_user="other").post("/do/approve-run", form).status_code == 409
    assert Browser(site, x_user="bob").post("/do/approve-run", form).status_code == 303
