"""What visitors send and what a store holds is bounded where it is read: names, fields, bodies, lists of queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.sites import JSON, Browser

from redrive import App, Draft
from redrive.errors import ConfigError
from redrive.message import Counts, DeadLetter
from redrive.status.reasons import QUEUES_READ
from redrive.store import Store
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage import pauses, purge

LONG = "q" * (2 << 20)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    yield app
    app.store.close()


@pytest.mark.parametrize("field", ["queue", "reason", "group"])
def test_a_field_without_a_bound_is_refused(app: App, field: str) -> None:
    app.store.configure("crm")
    browser = Browser(app.dashboard())
    form = {"queue": "crm", "group": "g", "width": "1", "reason": "r", field: "q" * 5_000}
    for action in ("pause-queue", "resume-queue", "set-width", "resume-group", "purge-queue"):
        refused = (404, 413, 422) if field == "queue" else (413, 422, 303)
        assert browser.post(f"/do/{action}", form).status_code in refused
    assert browser.post("/do/pause-queue", {"queue": LONG}).status_code == 413
    assert not any(len(name) > 300 for name in (*app.store.queues(), *app.store.paused()))


def test_names_that_no_message_can_have_are_refused_at_every_door(app: App) -> None:
    store, name = app.store, "q" * 256
    doors: list[Any] = [
        lambda: pauses.pause(store, name),
        lambda: pauses.resume(store, name),
        lambda: pauses.set_width(store, name, "g", 2),
        lambda: pauses.set_width(store, "q", name, 2),
        lambda: pauses.resume_group(store, name, "g"),
        lambda: purge.purge(store, name, actor="ann", reason="r") if not purge.admit(store, name) else None,
        lambda: app.flow.open(name, reason="r"),
        lambda: app.flow.open("d", key="k" * 2000, reason="r"),
        lambda: app.dlq.note(name, "n"),
        lambda: app.alerts.mute(queue=name, for_="1h", reason="r"),
        lambda: store.configure("a\0b", paused=True),
        lambda: store.configure("\ud800", paused=True),
        lambda: store.configure("", paused=True),
    ]
    for door in doors:
        with pytest.raises(ConfigError):
            door()
    assert store.queues() == [] and store.paused() == frozenset()


def test_an_entry_of_the_audit_log_is_bounded(app: App) -> None:
    audit = app.dlq.audit()
    audit.keep(audit.entry("export", "ann", "r", "t" * 100_000, about=LONG))
    [entry] = audit
    assert len(entry.about) == len(entry.text) == 4000
    (cell,) = app.store.cells.read(["audit/log"])
    assert cell is not None and len(cell.value) < 20_000


def test_a_name_of_any_length_that_is_stored_does_not_hang_the_pages(app: App, tmp_path: Path) -> None:
    store = app.store
    assert isinstance(store, SqliteStore)
    store._writer.run(lambda c: c.execute("insert into queue(name, paused) values (?, 1)", (LONG[: 1 << 18],)))
    browser = Browser(app.dashboard())
    for path in ("/", "/queues"):
        assert browser.get(path).status_code == 200


# -- pages whose cost is bounded


def test_the_page_of_a_large_message_looks_through_no_large_part_for_secrets(app: App) -> None:
    large = json.dumps({"text": "x" * (4 << 20)}).encode()
    (put,) = app.store.put([Draft(task="t", body=large)])
    browser = Browser(app.dashboard())
    page = browser.get(f"/messages/{put.id}")
    assert page.status_code == 200 and len(page.content) < 50_000 and "the body has 4,194,316 bytes" in page.text
    assert browser.json(f"/messages/{put.id}")["body"] is None
    (taken,) = app.store.exchange([], [_ask("default")]).deliveries
    app.store.exchange([_settlement(taken.receipt)], [])
    assert "pages edit" in browser.get(f"/messages/{put.id}/edit").text


def _ask(queue: str) -> Any:
    from redrive.message import ClaimRequest

    return ClaimRequest(queue, 1, 30_000)


def _settlement(receipt: Any) -> Any:
    from redrive.message import Settlement

    return Settlement(receipt, DeadLetter("permanent"))


class Counted(SqliteStore):
    """Counts the looks at messages."""

    peeks = 0

    def peek(self, *args: Any, **named: Any) -> Any:
        type(self).peeks += 1
        return super().peek(*args, **named)


def test_what_status_reads_and_pages_show_does_not_grow_with_the_queues(
    tmp_path: Path, soak: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    from redrive.program.main import run as redrive

    count = 50_000 if soak else 3_000
    Counted.peeks = 0
    store = Counted(tmp_path / "work.db")
    for first in range(0, count, 1000):
        drafts = [Draft(task="t", queue=f"tenant-{n:06}", body=b"{}") for n in range(first, first + 1000)]
        store.put(drafts)
    store._writer.run(lambda c: c.execute("update message set due_ms = due_ms - 60000"))  # no worker runs them
    app = App(store=store)
    status = app.status()
    assert Counted.peeks <= QUEUES_READ + 10 and status.unread == count - QUEUES_READ
    assert len(status.queues) == count and sum(queue.counts.ready for queue in status.queues) == count
    assert len(status.needs) <= 110
    assert any("no worker runs" in need.text and "more queues" in need.text for need in status.needs)
    browser = Browser(app.dashboard())
    for path in ("/", "/queues", f"/queues?page={count // 100}"):
        page = browser.get(path)
        assert page.status_code == 200 and len(page.content) <= 300_000, path
        assert len(browser.get(path, headers=JSON).content) <= 300_000
    assert f"{count // 100} of {count // 100}" in page.text
    capsys.readouterr()
    url = f"sqlite:///{tmp_path / 'work.db'}"
    for form in ("table", "json"):
        redrive(["status", "-o", form, "--url", url])
        assert len(capsys.readouterr().out) <= 300_000
    redrive(["queue", "list", "-o", "json", "--url", url])
    assert len(json.loads(capsys.readouterr().out)) == count
    store.close()


def test_a_queue_whose_messages_are_not_read_says_that_it_is_paused(tmp_path: Path, store_of: Any) -> None:
    store: Store = store_of(QUEUES_READ + 50)
    pauses.pause(store, "tenant-000001", reason="for a test")
    app = App(store=store)
    status = app.status()
    [paused] = [queue for queue in status.queues if queue.name == "tenant-000001"]
    assert [hold.kind for hold in paused.holds] == ["pause"] and paused.counts != Counts()


@pytest.fixture
def store_of(tmp_path: Path) -> Iterator[Any]:
    made: list[SqliteStore] = []

    def make(queues: int) -> SqliteStore:
        made.append(SqliteStore(tmp_path / "work.db"))
        made[0].put([Draft(task="t", queue=f"tenant-{n:06}") for n in range(queues)])
        return made[0]

    yield make
    for store in made:
        store.close()
