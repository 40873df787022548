"""Batches and workflows in the numbers that people have, on each engine: a part of them in each run, all in a soak."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Retention, Retry
from redrive.batch import BatchRef
from redrive.message import BatchCounts
from redrive.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow
ONCE = Retry(max_attempts=1)
PATIENCE_S = 240.0


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"size_{secrets.token_hex(6)}"
    if request.param == "postgres":
        return f"{request.getfixturevalue('postgres_server').url}?schema={name}"
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_server').url}?namespace={name}"
    return f"sqlite:///{tmp_path}/work.db"


def test_one_canaried_redrive_resumes_the_workflows_that_one_cause_stopped(url: str, soak: bool) -> None:
    """A → B → C; every B dies, of one of two causes. The redrive of one cause runs B and C of its workflows, no A."""
    count = 5_000 if soak else 400
    app = App(url)
    ran: Counter[tuple[str, int]] = Counter()
    down = {"timeout", "refused"}

    @app.task(name="a", retry=ONCE)
    async def first(n: int) -> int:
        ran["a", n] += 1
        return n

    @app.task(name="b", retry=ONCE)
    async def second(n: int) -> int:
        if n % 2 and "timeout" in down:
            raise TimeoutError("the CRM took too long")
        if not n % 2 and "refused" in down:
            raise ConnectionError("the CRM refused")
        ran["b", n] += 1
        return n

    @app.task(name="c", retry=ONCE)
    async def third(n: int) -> None:
        ran["c", n] += 1

    refs = list[BatchRef]()
    for n in range(count):
        w = app.workflow(name="order", key=str(n))
        w.step(third, w.step(second, w.step(first, n).result).result)
        refs.append(w.enqueue())
    app.run_worker(drain=True)
    assert {what for what, _ in ran} == {"a"} and app.store.counts().dead == count
    groups = {group.error: group for group in app.dlq.groups()}
    assert {group.count for group in groups.values()} == {count // 2} and len(groups) == 2
    down.discard("timeout")
    cause = groups["TimeoutError"].fingerprint
    plan = app.dlq.select(f"fingerprint:{cause}").plan(canary=5, slow_start=False, rate="5000/s")
    assert plan.total == count // 2
    plan.start(reason="the CRM answers")
    app.run_worker(drain=True)
    states = Counter(ref.state for ref in refs)
    assert states == {"done": count // 2, "partial": count // 2}
    odd = {n for n in range(count) if n % 2}
    assert {n for what, n in ran if what == "b"} == {n for what, n in ran if what == "c"} == odd
    assert set(ran.values()) == {1} and app.store.check() == []
    app.store.close()


def test_a_batch_of_which_three_die_ends_well_a_week_and_a_year_later(tmp_path: Path, soak: bool) -> None:
    members = 100_000 if soak else 5_000
    later_ms = 0
    app = App(store=SqliteStore(f"{tmp_path}/work.db", clock_ms=lambda: time.time_ns() // 1_000_000 + later_ms))
    bad, words = set(range(3)), list[str]()
    app.queue("default", retention=Retention(keep_done_for="1d"))

    @app.task(name="push", retry=ONCE)
    async def push(n: int) -> None:
        if n in bad:
            raise ValueError("no such record")

    @app.task(name="tell")
    def tell(word: str) -> None:
        words.append(word)

    callbacks: Any = {f"on_{word}": tell.draft(word) for word in ("success", "complete", "death")}
    ref = app.batch((push.draft(n) for n in range(members)), name="import", **callbacks).enqueue()
    app.run_worker(drain=True)
    ended = BatchCounts(done=members - 3, dead=3, opened=members, died=3)
    assert ref.counts == ended and sorted(words) == ["complete", "death"]
    for days in (7, 400):
        later_ms = days * 24 * 3600 * 1000
        app.run_worker(drain=True)  # a worker also retains and sweeps
        assert ref.counts == ended and ref.state == "partial" and len(words) == 2, days
    bad.clear()
    app.dlq.select(f"batch:{ref.id}").plan(canary=1, slow_start=False).start(reason="the records are there")
    app.run_worker(drain=True)
    assert ref.counts == BatchCounts(done=members, opened=members + 3, died=3)
    assert ref.state == "done" and words.count("success") == words.count("death") == 1
    assert words.count("complete") == 2, "its second episode ends with the redrive, not with the canary"
    assert app.store.check() == []
    app.store.close()


TASKS = """
import os
from redrive import App

app = App(os.environ["TASKS_URL"])


@app.task(name="left", queue="left")
async def left(n: int) -> None: ...


@app.task(name="right", queue="right")
async def right(n: int) -> None: ...


@app.task(name="joined", queue="joined")
async def joined(n: int) -> None:
    with open("joined", "a") as file:
        file.write(f"{n}\\n")
"""


def test_batches_of_two_whose_members_settle_together_have_one_callback_each(
    url: str, tmp_path: Path, soak: bool
) -> None:
    """Two processes work off one member of each batch, in the same order, so that often both ack the last one."""
    count = 10_000 if soak else 1_000
    (tmp_path / "pairs.py").write_text(TASKS)
    app = App(url)
    tasks = {name: app.task(name=name, queue=name)(_handler) for name in ("left", "right", "joined")}
    for side in ("left", "right"):
        app.store.configure(side, paused=True)
    for n in range(count):
        drafts = [tasks["left"].draft(n), tasks["right"].draft(n)]
        app.batch(drafts, name="pair", on_success=tasks["joined"].draft(n)).enqueue()
    env = os.environ | {"TASKS_URL": url}
    argv = [sys.executable, "-m", "redrive", "worker", "pairs:app", "--log", "off", "-q"]
    workers = [subprocess.Popen([*argv, side], cwd=tmp_path, env=env) for side in ("left", "right", "joined")]
    try:
        for side in ("left", "right"):
            app.store.configure(side, paused=False)
        until_s, path = time.monotonic() + PATIENCE_S, tmp_path / "joined"
        while time.monotonic() < until_s and not (path.exists() and len(path.read_text().split()) >= count):
            time.sleep(0.2)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(60)
    assert sorted(map(int, path.read_text().split())) == list(range(count))
    assert app.store.check() == []
    app.store.close()


async def _handler(n: int) -> None:
    raise AssertionError("only the workers run it")
