"""Alerts on thresholds: processes that look at the same moment tell once between them, on every engine."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer
from tests.support.workers import PATIENCE_S

from redrive import App, Draft
from redrive.observe.alert import Alert
from redrive.thresholds import Watched, Watching, rule, watch
from redrive.triage.purge import purge

PROCESSES = 4


@pytest.fixture
def apps(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[list[App]]:
    url = f"sqlite:///{tmp_path}/work.db"
    if engine != "sqlite":
        server: PostgresServer | RedisServer = request.getfixturevalue(f"{engine}_server")
        own = "schema" if engine == "postgres" else "namespace"
        url = f"{server.url}?{own}=thresholds_{secrets.token_hex(4)}"
    with ExitStack() as closed:
        made = [App(url) for _ in range(PROCESSES)]
        for app in made:
            closed.enter_context(closing(app.store))
        yield made


@pytest.mark.turns(3)
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_of_processes_that_look_at_once_one_tells_and_another_goes_on_when_it_is_killed(
    apps: list[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.0)  # none waits for the others
    told: list[Alert] = []
    depth = rule("depth", above=1, for_=0)
    looking = [Watching(app, [Watched(depth, told.append, "page")]) for app in apps]

    def look() -> list[str | None]:
        told.clear()
        start = threading.Barrier(len(looking))

        def run(each: Watching) -> None:
            start.wait(PATIENCE_S)
            each.look()

        threads = [threading.Thread(target=run, args=(each,)) for each in looking]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        return [alert.state for alert in told]

    apps[0].store.put([Draft(task="push", queue="crm") for _ in range(2)])
    assert look() == ["firing"]
    del looking[0]  # killed
    assert look() == []
    apps[0].alerts.mute(queue="crm", for_="1h", reason="maintenance")
    assert look() == []
    purge(apps[0].store, "crm", actor="ann")
    assert look() == ["resolved"]
    assert look() == []
