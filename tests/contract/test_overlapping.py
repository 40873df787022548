"""Two people who apply overlapping plans at once: no message is driven twice, and each is told of what had changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.namespaces import redis_url
from tests.support.schemas import schema  # noqa: F401

from redrive import App
from redrive.message import ClaimRequest, DeadLetter, Lane, Settlement

ROOT = Path(__file__).parents[2]
ALL, PLANS = 400, {"args.n:<300": 300, "args.n:>=100": 300}


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.soak) for name in ("postgres", "redis"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/work.db"
    if request.param == "redis":
        return redis_url(tmp_path, request.getfixturevalue("redis_server"))
    found: str = request.getfixturevalue("schema")
    return found


@pytest.mark.slow
def test_no_message_is_driven_twice_and_each_run_lists_what_the_other_moved_as_changed(
    url: str, tmp_path: Path
) -> None:
    records, app = tmp_path / "ran", App(url)

    @app.task(name="push", keep_result="1h")
    def push(n: int) -> None: ...

    bury(app, ALL)
    with ExitStack() as ending:
        people = [ending.enter_context(person(url, selector, records)) for selector in PLANS]
        assert [said(each) for each in people] == list(PLANS.values())
        for each in people:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        counts = [said(each) for each in people]
    assert [count["state"] for count in counts] == ["done", "done"]
    assert sum(count["moved"] for count in counts) == ALL == sum(count["done"] for count in counts)
    assert sum(count["changed"] for count in counts) == sum(PLANS.values()) - ALL
    assert all(count["moved"] + count["changed"] == count["planned"] for count in counts)
    assert Counter(records.read_text().split()) == Counter(map(str, range(ALL)))
    kept = app.store.peek(Lane.DONE, limit=2 * ALL).messages
    assert [message.redrives for message in kept] == [1] * ALL
    app.store.close()


def bury(app: App, count: int) -> None:
    app.enqueue_many([app.tasks["push"].draft(n) for n in range(count)])
    found = app.store.exchange([], [ClaimRequest("default", count, 60_000)]).deliveries
    app.store.exchange([Settlement(d.receipt, DeadLetter("exhausted")) for d in found], [])


def person(url: str, selector: str, records: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.support.overlaps", url, selector, str(records)]
    return subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> Any:
    """The next line it prints."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())
