"""The migration guides: the app of the other queue, run by that queue, has the effects that its port has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks
from tests.support.servers import RedisServer

BIN = Path(sys.executable).parent
WITHIN_S = 60


class Guide:
    """The files of a guide, written to a folder, with Redis in the place that it names."""

    def __init__(self, page: str, folder: Path, redis: RedisServer) -> None:
        self.folder = folder
        for block in blocks(f"docs/migrate/{page}.md"):
            if block.file is not None:
                text = re.sub(r"cache\.example\.com(:6379)?", f"127.0.0.1:{redis.port}", block.text)
                (folder / block.file).write_text(text)

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": f"{self.folder}:{ROOT}"}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(argv, cwd=self.folder, env=env, stdout=log, stderr=log)

    def effects(self, expected: set[str], argv: list[str], *before: str) -> set[str]:
        """Run the worker until it had these effects, and return those that it had."""
        did, ends = self.folder / "did.txt", time.monotonic() + WITHIN_S
        for each in (did, *self.folder.glob("calls-*")):
            each.unlink(missing_ok=True)
        for program in before:
            assert self.start(sys.executable, "-c", program).wait(WITHIN_S) == 0, self.log
        worker = self.start(*argv)
        try:
            while not did.exists() or not expected <= set(did.read_text().splitlines()):
                assert time.monotonic() < ends and worker.poll() is None, (did.exists() and did.read_text(), self.log)
                time.sleep(0.05)
        finally:
            worker.terminate()
            worker.wait(WITHIN_S)
        return set(did.read_text().splitlines())

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.mark.slow
def test_the_celery_app_and_its_port_have_the_same_effects(tmp_path: Path) -> None:
    expected = {
        "charge 1 at attempt 3", "ship 1", "refund 1 failed", "remind 1", "invoice 1 over 90", "push 1",
        "stock is counted",
    }  # fmt: skip
    with RedisServer() as redis:
        guide = Guide("celery", tmp_path, redis)
        quick = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        worker = ["celery", "-A", "shop_celery", "worker", "-B", "-P", "solo", *quick]
        celery = guide.effects(expected, worker, "import shop_celery; shop_celery.place(1)")
        port = guide.effects(expected, ["redrive", "worker", "shop:app", "--scheduler"], "import shop; shop.place(1)")
    assert celery == port == expected


SHOP = {"charge 1", "refund 1 failed", "remind 1", "invoice 1 over 90"}


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "module", "worker"),
    [
        ("rq", "shop_rq", ["rq", "worker", "shop", "--with-scheduler", "-u", "{url}", "-w", "rq.worker.SimpleWorker"]),
        ("dramatiq", "shop_dramatiq", ["dramatiq", "shop_dramatiq", "--processes", "1", "--threads", "2"]),
    ],
    ids=["rq", "dramatiq"],
)
def test_an_app_of_another_queue_and_its_port_have_the_same_effects(
    page: str, module: str, worker: list[str], tmp_path: Path
) -> None:
    with RedisServer() as redis:
        guide = Guide(page, tmp_path, redis)
        old = guide.effects(SHOP, [each.format(url=redis.url) for each in worker], f"import {module} as s; s.place(1)")
    assert old == SHOP
    assert guide.effects(SHOP, ["redrive", "worker", "shop:app"], "import shop; shop.place(1)") == SHOP


@pytest.mark.slow
def test_dramatiqs_messages_are_handed_over_by_its_own_actors(tmp_path: Path) -> None:
    with RedisServer() as redis:
        guide = Guide("dramatiq", tmp_path, redis)
        bridge = guide.start("dramatiq", "bridge", "--processes", "1", "--threads", "1")
        try:
            sends = "import shop_dramatiq as s; s.charge.send(1); s.remind.send_with_options(args=(1,), delay=100)"
            expected = {"charge 1", "remind 1"}
            assert guide.effects(expected, ["redrive", "worker", "shop:app"], sends) == expected
        finally:
            bridge.terminate()
            bridge.wait(WITHIN_S)


@pytest.mark.slow
def test_a_worker_of_bullmq_and_its_port_have_the_same_effects_and_its_jobs_are_handed_over(tmp_path: Path) -> None:
    expected = {"charge 1", "refund 1 failed", "remind 1"}
    run = "import asyncio, {0} as m; asyncio.run(m.{1})"
    port = ["redrive", "worker", "shop:app"]
    with RedisServer() as redis:
        guide = Guide("bullmq", tmp_path, redis)
        place = run.format("shop_bullmq", "place(1)")
        worker = [sys.executable, "-c", run.format("shop_bullmq", "work()")]
        assert guide.effects(expected, worker, place) == expected
        bridge = guide.start(sys.executable, "-c", run.format("bridge", "work()"))
        try:
            assert guide.effects(expected, port, place) == expected
        finally:
            bridge.terminate()
            bridge.wait(WITHIN_S)
