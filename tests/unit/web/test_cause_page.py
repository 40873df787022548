"""The cause of a failure group: its deaths over time, the exceptions of its traceback, its samples, and the values that
narrow a plan."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.pages import Reader

from redrive import App, Draft, Retry
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock
from redrive.web import ALL, Permission, User
from redrive.web.read import cause

HOUR = 3_600_000
CHAINED = """Traceback (most recent call last):
  File "/srv/shop/crm.py", line 5, in call
    return inner(record)
           ^^^^^^^^^^^^^
  File "/usr/lib/python3/dist-packages/httpx/client.py", line 9, in send
    raise OSError("refused")
OSError: refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 12, in push
    call(record)
ValueError: no answer
for <b>1</b>
"""


def test_chained_exceptions_are_apart_the_last_one_first_with_own_frames_apart_from_libraries() -> None:
    last, first = cause.chain(CHAINED)
    assert (last["error"], last["how"]) == ("ValueError: no answer\nfor <b>1</b>", None)
    assert [(fold["own"], [each["function"] for each in fold["frames"]]) for fold in first["folds"]] == [
        (False, ["send"]), (True, ["call"]),
    ]  # fmt: skip
    assert (first["error"], first["how"]) == ("OSError: refused", "It was raised from")
    assert first["folds"][1]["frames"][0] == {
        "file": "/srv/shop/crm.py", "line": 5, "function": "call", "own": True, "source": "return inner(record)",
        "code": None,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "no traceback", "Traceback (most recent call last):\nKeyError: 1"])
def test_a_text_without_frames_has_no_exceptions(text: str) -> None:
    assert cause.chain(text) == []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
def store(tmp_path: Any, clock: ManualClock) -> Any:
    store = SqliteStore(tmp_path / "work.db", clock_ms=clock)
    yield store
    store.close()


@pytest.fixture
def fingerprint(app: App, clock: ManualClock) -> str:
    """A group of six that died over three hours, two of them of another tenant."""
    app.task(name="crm.push", queue="crm", retry=Retry(max_attempts=1))(lambda record, tenant: None)
    for n in range(6):
        tenant = "acme" if n % 3 else "um brella"
        die(
            app.store,
            Draft(task="crm.push", queue="crm", body=b'{"record":%d,"tenant":"%s"}' % (n, tenant.encode())),
            n,
        )
        clock.advance(HOUR / 2 / 1000)
    return "ab" * 8


def die(store: Any, draft: Draft, n: int) -> None:
    headers = {"region": "eu" if n else "us", "authorization": "Bearer abcdef123456"}
    store.put([Draft(task=draft.task, queue=draft.queue, body=draft.body, headers=headers)])
    (taken,) = store.exchange([], [ClaimRequest("crm", 1, 30_000, worker="vm/a")]).deliveries
    fault = Fault(
        Kind.PERMANENT, "ValueError", "no answer", "ab" * 8, attempt=1, traceback=CHAINED, worker="vm/a", release="7"
    )
    store.exchange([Settlement(taken.receipt, DeadLetter("permanent"), fault)], [])


def test_deaths_are_counted_by_time_since_the_first(fingerprint: str, pages: Reader) -> None:
    deaths = pages.json(f"/groups/{fingerprint}")["deaths"]
    assert sum(deaths["died"]) == 6 and len(deaths["times"]) == len(deaths["died"]) >= cause.BARS
    assert deaths["step_s"] == 300 and sorted(set(deaths["died"])) == [0, 1]
    html = pages.html(f"/groups/{fingerprint}")
    assert "When its dead messages died, by 5m" in html and html.count("<g><title>") == len(deaths["times"])


def test_a_group_too_large_to_be_counted_so_leads_to_its_task(
    fingerprint: str, pages: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cause, "DRAWN_MAX", 5)
    assert pages.json(f"/groups/{fingerprint}")["deaths"] is None
    assert 'is not drawn for so many; the page of <a href="/tasks/crm.push">' in pages.html(f"/groups/{fingerprint}")


def test_samples_are_walked_through_with_their_bodies(fingerprint: str, pages: Reader) -> None:
    seen = [pages.json(f"/groups/{fingerprint}?sample={n}") for n in (1, 2, 6, 99)]
    assert [each["body"]["record"] for each in seen] == [0, 1, 5, 5]
    assert seen[0]["sample"] == {"number": 1, "count": 6, "previous": None, "next": 2}
    assert seen[2]["sample"]["next"] is None
    html = pages.html(f"/groups/{fingerprint}?sample=2")
    assert f'rel="prev" href="/groups/{fingerprint}?sample=1"' in html and 'rel="next"' in html


def test_each_value_that_is_shared_leads_to_a_plan_of_just_its_messages(
    fingerprint: str, app: App, pages: Reader
) -> None:
    shown = pages.json(f"/groups/{fingerprint}")
    found = {
        each["q"]: each["count"]
        for name in ("shared", "shared_headers", "queues", "tasks", "reasons", "texts")
        for each in shown[name]
        if each["q"]
    }
    assert {q.partition(" ")[2] for q in found} >= {"args.tenant:acme", "header.region:eu", "queue:crm"}
    assert {q: app.dlq.select(q).count() for q in found} == found
    assert 'href="/plans?q=fingerprint%3Aabababababababab+args.tenant%3Aacme"' in pages.html(f"/groups/{fingerprint}")
    assert [each["text"] for each in shown["releases"]] == ["7"]


def test_secrets_in_bodies_and_headers_stay_hidden(fingerprint: str, app: App, pages: Reader) -> None:
    die(app.store, Draft(task="crm.push", queue="crm", body=b'{"password":"hunter22","tenant":"acme"}'), 7)
    html = pages.html(f"/groups/{fingerprint}?sample=7")
    assert "hunter22" not in html and "abcdef123456" not in html and "password" in html


def test_body_and_headers_need_their_permission(fingerprint: str, app: App) -> None:
    limited = Reader(app.dashboard(authorize=lambda request: User("ann", ALL - {Permission.VIEW_BODIES})))
    shown = limited.json(f"/groups/{fingerprint}")
    assert (shown["body"], shown["shared"], shown["shared_headers"]) == (None, None, None)
    assert "acme" not in limited.html(f"/groups/{fingerprint}")
