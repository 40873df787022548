"""A real Prometheus scrapes a real worker under load, and every panel of the dashboard has data."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import COMMAND
from tests.support.servers import free_ports, program

from redrive.observe.dashboard import ROWS, dashboard
from redrive.observe.rules import Thresholds, prometheus_rules

PATIENCE_S = 60.0
QUERIES = [(panel.title, expr) for _, row in ROWS for panel in row for expr, _ in panel.queries]
APP = """
import asyncio
from redrive import SLO, App, Backoff, Reject, Retry, context

app = App("sqlite:///work.db")
app.dependency("crm")
retry = Retry(max_attempts=3, backoff=Backoff.fixed("300ms"))


@app.task(name="push", queue="crm", dependency="crm", retry=retry, slo=SLO("99% within 30s"))
async def push(n: int) -> None:
    await asyncio.sleep(0.002)
    if n % 17 == 0:
        raise Reject("no such record")
    if n % 5 == 0 and context().attempt == 1:
        raise ConnectionError("no answer")


@app.task(name="later", queue="crm")
async def later() -> None: ...


@app.periodic(every="1s")
@app.task(name="feed", queue="crm")
async def feed() -> None:
    await app.aenqueue_many([push.draft(n) for n in range(200)])
    await later.using(delay="5m").aenqueue()
    await app.batch([later.using(delay="5m").draft()], name="nightly").aenqueue()
"""


@pytest.mark.slow
def test_a_prometheus_that_scrapes_a_worker_has_data_for_every_panel(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(APP)
    (tmp_path / "redrive.rules.yml").write_text(prometheus_rules(Thresholds()))
    metrics, web = _ports()
    with _worker(tmp_path, metrics), _prometheus(tmp_path, metrics, web):
        wanting = dict.fromkeys(QUERIES)
        until_s = time.monotonic() + PATIENCE_S
        while wanting and time.monotonic() < until_s:
            time.sleep(1)
            wanting = {of: None for of in wanting if not _values(web, of[1])}
        assert not wanting, f"no data for {sorted(wanting)}"
        groups = _get(web, "rules")["groups"]
        broken = [rule["name"] for group in groups for rule in group["rules"] if rule.get("lastError")]
        assert len(groups) == 2 and not broken


def test_the_dashboard_asks_for_its_data_source_and_gives_each_panel_a_place_of_its_own() -> None:
    found = dashboard()
    assert found["templating"]["list"][0]["type"] == "datasource"
    graphs = [panel for panel in found["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in graphs} == {"$datasource"}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
    assert len(set(places)) == len(places) and len({panel["id"] for panel in found["panels"]}) == len(places)


def _ports() -> tuple[int, int]:
    ports = free_ports()
    return next(ports), next(ports)


@contextmanager
def _worker(place: Path, port: int) -> Iterator[None]:
    argv = [*COMMAND, "worker", "tasks:app", "--scheduler", "--metrics", f"127.0.0.1:{port}", "--log", "off"]
    log = place / "worker.log"
    with log.open("wb") as out, subprocess.Popen(argv, cwd=place, stderr=out, env=os.environ) as process:
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def _prometheus(place: Path, target: int, port: int) -> Iterator[None]:
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["redrive.rules.yml"],
        "scrape_configs": [{"job_name": "redrive", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    (place / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    argv = [
        program("prometheus", "prometheus", "prometheus"), f"--config.file={place}/prometheus.yml",
        f"--storage.tsdb.path={place}/data", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(argv, cwd=place) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _values(port: int, expr: str) -> list[Any]:
    """The samples of a panel's query that are numbers, with the variables as Grafana fills them in for All."""
    filled = expr.replace("$queue", ".*").replace("$task", ".*").replace("$__rate_interval", "15s")
    try:
        found = _get(port, f"query?query={urllib.parse.quote(filled)}")["result"]
    except OSError:
        return []  # it is not up yet
    return [sample for sample in found if sample["value"][1] != "NaN"]


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)["data"]
