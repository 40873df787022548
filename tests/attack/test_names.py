"""A name that somebody chose for a queue, a task, a key or a correlation stays one name, wherever a selector, a link or
a command is made of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from tests.support.pages import Reader

from redrive import App, Draft
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.select.terms import exactly

NAMES = (
    "z or task:*", "two words", 'a"quote', "it's", "back\\slash", "queue:crm", "(a,b)", "-x", "or", "not", "*", "a*",
    "lane:(dead,quarantine)", "$(id)", "; rm -rf /", "a/b", "../x", "%2e", "?q=1&x=2", "#end", "é ü 中", "--json",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """In each of these queues, of a task and with a correlation of that name, a dead message; and one elsewhere."""
    store = SqliteStore(tmp_path / "work.db")
    for name in (*NAMES, "plain"):
        store.put([Draft(task=name, queue=name, correlation_id=name, body=b"{}")])
        [delivery] = store.exchange([], [ClaimRequest(name, 1, 30_000, worker="w")]).deliveries
        store.exchange([Settlement(delivery.receipt, DeadLetter("rejected", "no"))], [])
    yield store
    store.close()


@pytest.fixture
def app(store: SqliteStore) -> App:
    app = App(store=store)
    for name in NAMES:
        app.task(name=name, queue=name)(lambda: None)
    return app


@pytest.fixture
def pages(app: App) -> Reader:
    return Reader(app.dashboard())


def links(html: str, part: str) -> list[str]:
    """The selectors in links of a page whose text or query has this part."""
    found = []
    for href in re.findall(r'href="([^"]*)"', html):
        query = parse_qs(urlsplit(unescape(href)).query)
        found += [q for q in query.get("q", []) if part in q]
    return found


@pytest.mark.parametrize("field", ["queue", "task", "correlation"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_selects_its_own_messages_and_no_others(app: App, name: str, field: str) -> None:
    chosen = list(app.dlq.select(str(exactly(field, name))))
    assert [message.queue for message in chosen] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_links_of_pages_select_what_their_page_is_about(app: App, pages: Reader, name: str) -> None:
    queue = pages.get(f"/queues/{quote(name, safe='')}")
    assert queue.status_code == 200
    selectors = links(queue.text, "queue:")
    assert selectors and all([m.queue for m in app.dlq.select(selector)] == [name] for selector in selectors)
    [message] = app.dlq.select(str(exactly("queue", name)))
    one = pages.get(f"/messages/{message.id}")
    [selector] = links(one.text, "correlation:")
    assert [message.queue for message in app.dlq.select(selector)] == [name]


def test_links_of_policies_select_the_dead_of_one_task(app: App, pages: Reader) -> None:
    selectors = links(pages.html("/policies"), "task:")
    chosen = [[message.task for message in app.dlq.select(selector)] for selector in selectors]
    assert len(chosen) >= 20 and all(len(tasks) == 1 and tasks[0] in NAMES for tasks in chosen)  # of the first page


def commands(record: Any) -> Iterator[str]:
    """All commands in a record, however deep."""
    if isinstance(record, dict):
        for key, value in record.items():
            if key in ("command", "next") and isinstance(value, str):
                yield value
            else:
                yield from commands(value)
    elif isinstance(record, list):
        for value in record:
            yield from commands(value)


@pytest.mark.parametrize("name", NAMES)
def test_commands_hold_a_name_as_one_word(pages: Reader, name: str) -> None:
    for path in (
        f"/queues/{quote(name, safe='')}",
        "/",
        "/queues",
        f"/messages?q={quote(str(exactly('queue', name)))}",
    ):
        for command in commands(pages.json(path)):
            words = shlex.split(command)
            assert words[0] == "redrive" or "redrive" in words[0]
            if name in command:
                assert name in words or any(str(exactly(field, name)) in words for field in ("queue", "task")), command
