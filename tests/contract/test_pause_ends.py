"""A queue paused for a time is resumed by a worker once the time is over, and by nobody before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.urls import url_of
from tests.support.workers import until

from redrive import App
from redrive.errors import ConfigError, Unsupported
from redrive.message import Swap, version_of
from redrive.status import read_status
from redrive.testing.sqs import SqsServer
from redrive.triage import pauses
from redrive.triage.pauses import PauseEnds


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App("memory://" if request.param == "memory" else url_of(request.param, request, tmp_path))
    with closing(app.store):
        yield app


class Notices(list[tuple[str, ...]]):
    def __call__(self, name: str, text: str, about: str = "", /, count: int = 0) -> None:
        self.append((name, text, about))


def test_a_worker_resumes_a_queue_at_the_end_of_its_pause(app: App) -> None:
    ran: list[int] = []

    @app.task(name="push", queue="crm")
    async def push(n: int) -> None:
        ran.append(n)

    pauses.pause(app.store, "crm", for_=0.3, actor="ann", reason="a short one")
    push.enqueue(1)
    before_s = time.monotonic()

    async def work() -> None:
        async with app.worker():
            await until(lambda: ran == [1], 20)

    asyncio.run(work())
    assert time.monotonic() - before_s >= 0.25
    assert app.store.paused() == frozenset()


def test_a_pause_goes_on_until_its_end_and_without_one(app: App) -> None:
    pauses.pause(app.store, "crm", for_="2h", actor="ann", reason="long")
    pauses.pause(app.store, "mail", actor="ann", reason="open")
    PauseEnds(app.store, "w", Notices()).look()
    assert app.store.paused() == {"crm", "mail"}
    holds = {hold.by: hold for hold in read_status(app.store, app).holds}
    assert holds["crm"].until_ms is not None
    assert "ends in" in holds["crm"].line(app.store.now_ms())
    assert holds["mail"].until_ms is None
    assert sorted(entry.text[:6] for entry in app.audit) == ["", "until "]


def test_the_end_of_an_earlier_pause_does_not_end_a_later_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    store, notices = app.store, Notices()
    pauses.pause(store, "crm", for_=0.001, actor="ann", reason="short")
    time.sleep(0.01)
    resume = store.configure

    def raced(queue: str, **options: object) -> None:
        monkeypatch.undo()
        pauses.pause(store, "crm", actor="bob", reason="longer")
        resume(queue, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "configure", raced)
    PauseEnds(store, "w", notices).look()
    assert store.paused() == {"crm"}
    assert notices == []
    assert pauses.paused_by(store, ["crm"])["crm"].actor == "bob"


def test_a_record_of_an_older_program_has_no_end(app: App) -> None:
    pauses.pause(app.store, "crm", actor="ann", reason="old")
    key = pauses.cell_of("crm")
    (cell,) = app.store.cells.read([key])
    app.store.put([], swaps=[Swap(key, version_of(cell), b'{"at_ms":1,"actor":"ann","reason":"old"}')])
    PauseEnds(app.store, "w", Notices()).look()
    assert app.store.paused() == {"crm"}


@pytest.mark.parametrize("for_", [0, "400d"])
def test_a_pause_of_no_time_or_of_more_than_a_year_is_refused(for_: object) -> None:
    store = App("memory://").store
    with pytest.raises(ConfigError, match=r"pause of queue 'crm' for .*expected a time above 0, a year at most"):
        pauses.pause(store, "crm", for_=for_, reason="why")  # type: ignore[arg-type]
    assert store.paused() == frozenset()


def test_without_cells_a_pause_has_no_end() -> None:
    with SqsServer() as sqs:
        store = App(f"sqs://eu-central-1/shop?create=true&endpoint={sqs.url}").store
        with closing(store), pytest.raises(Unsupported, match="cells"):
            pauses.pause(store, "crm", for_="1h", reason="why")
