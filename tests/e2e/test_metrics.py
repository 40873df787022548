"""`redrive metrics` and `redrive worker --metrics`, as processes, scraped over HTTP."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.command_line import COMMAND, Call, dead, environment, failed, good
from tests.support.command_line import home as home
from tests.support.command_line import redrive as redrive

from redrive import App, Draft
from redrive.worker.crash.ledger import all_beats

PATIENCE_S = 60.0


class Server:
    """A running `redrive` that serves metrics."""

    def __init__(self, home: Path, *words: str, **extra: str) -> None:
        self.errors = home / "stderr"
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen([*COMMAND, *words], cwd=home, env=environment(**extra), stderr=stderr)
        self.url = self._url()

    def _url(self) -> str:
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s and self.process.poll() is None:
            if found := re.search(r"metrics at (http://\S+)\n", self.errors.read_text()):
                return found[1]
            time.sleep(0.02)
        raise AssertionError(self.errors.read_text())

    def scrape(self) -> str:
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            return str(answer.read().decode())

    def sum(self, name: str, **labels: str) -> float:
        return total(self.scrape(), name, **labels)

    def until(self, least: float, name: str, **labels: str) -> list[float]:
        """Scrape until a sum is reached; all that was seen on the way."""
        seen: list[float] = []
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            seen.append(self.sum(name, **labels))
            if seen[-1] >= least:
                return seen
            time.sleep(0.05)
        raise AssertionError(f"{seen[-1:]} of {least}: {self.errors.read_text()[-2000:]}")


def total(text: str, name: str, **labels: str) -> float:
    samples = [s for f in text_string_to_metric_families(text) for s in f.samples]  # type: ignore[no-untyped-call]
    return float(sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items()))


@contextmanager
def serving(home: Path, *words: str, **extra: str) -> Iterator[Server]:
    server = Server(home, *words, **extra)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(60)


def put(home: Path, count: int, task: str = "ok", queue: str = "crm") -> None:
    store = App(f"sqlite:///{home}/work.db").store
    store.put([Draft(task=task, queue=queue, body=b'{"number": 1}' if task == "ok" else b"{}") for _ in range(count)])
    store.close()


# -- metrics


def test_print_shows_one_scrape_of_the_store(home: Path, redrive: Call) -> None:
    dead(home, 3)
    put(home, 2)
    text = good(redrive("metrics", "print", "--url", "sqlite:///work.db"))
    assert total(text, "redrive_store_up") == 1
    assert total(text, "redrive_queue_messages", queue="bulk", lane="dead") == 3
    assert total(text, "redrive_queue_messages", queue="crm", lane="ready") == 2
    assert "redrive_deliveries" not in text  # nobody named a place where workers count


def test_serve_answers_until_it_is_told_to_end(home: Path) -> None:
    dead(home, 3)
    with serving(home, "metrics", "serve", "--port", "0", "--url", "sqlite:///work.db") as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.sum("redrive_queue_messages", queue="bulk", lane="dead") == 3
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def test_serve_takes_its_settings_from_variables(home: Path) -> None:
    dead(home)
    extra = {"REDRIVE_METRICS_PORT": "0", "REDRIVE_METRICS_HOST": "localhost", "REDRIVE_URL": "sqlite:///work.db"}
    with serving(home, "metrics", "serve", **extra) as server:
        assert server.url.startswith("http://localhost:")
        assert server.sum("redrive_store_up") == 1


def test_a_taken_port_is_a_failure_that_names_it(home: Path, redrive: Call) -> None:
    dead(home)
    with serving(home, "metrics", "serve", "--port", "0", "--url", "sqlite:///work.db") as server:
        port = server.url.split(":")[2].partition("/")[0]
        what, why, _ = failed(redrive("metrics", "serve", "--port", port, "--url", "sqlite:///work.db"), 1)
        assert port in what and "in use" in why
        what, _, _ = failed(redrive("worker", "tasks:app", "--burst", "--metrics", port), 1)
        assert port in what


def test_a_store_that_is_not_there_is_told_at_the_start(redrive: Call) -> None:
    failed(redrive("metrics", "print", "--url", "sqlite:///nowhere.db"), 3)


@pytest.mark.parametrize("text", ["x", "70000", "host:", "-1"])
def test_what_is_no_port_is_refused(redrive: Call, text: str) -> None:
    what, why, _ = failed(redrive("worker", "tasks:app", "--burst", REDRIVE_METRICS=text), 2)
    assert "REDRIVE_METRICS" in what and "no port" in what and "HOST:PORT" in why


def test_a_missing_extra_names_its_install_command(home: Path) -> None:
    dead(home)
    without = (
        "import sys; sys.modules['prometheus_client'] = None; from redrive.program.main import main; main(sys.argv[1:])"
    )
    words = ["metrics", "print", "--url", "sqlite:///work.db"]
    done = subprocess.run([sys.executable, "-c", without, *words], cwd=home, env=environment(), capture_output=True)
    assert done.returncode == 1 and b"pip install 'redrive[prometheus]'" in done.stderr


# -- worker --metrics


def test_a_worker_s_processes_are_served_as_one_and_no_counter_falls_when_one_is_killed(
    home: Path, redrive: Call
) -> None:
    put(home, 40)
    words = ["worker", "tasks:app", "-q", "crm", "--metrics", "0", "--processes", "2", "--log", "off"]
    done = {"queue": "crm", "task": "ok", "outcome": "done"}
    with serving(home, *words) as server:
        server.until(40, "redrive_deliveries_total", **done)
        killed = all_beats(home / "work.db-workers")[0].pid
        os.kill(killed, signal.SIGKILL)
        put(home, 40)
        seen = server.until(80, "redrive_deliveries_total", **done)
        assert seen == sorted(seen) and seen[0] >= 40 and seen[-1] == 80
        assert server.sum("redrive_done_total", task="ok", attempt="1") == 80
        assert server.sum("redrive_store_up") == 1
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        directory = re.search(r"workers count in (\S+)", server.errors.read_text())
        assert directory is not None
    text = good(redrive("metrics", "print", "--app", "tasks:app", "--dir", directory[1]))
    assert total(text, "redrive_deliveries_total", **done) == 80


def test_a_worker_of_a_store_in_memory_serves_its_own(home: Path) -> None:
    (home / "own.py").write_text(
        "from redrive import App\n"
        "app = App('memory://')\n"
        "@app.task(name='t')\n"
        "def t(): ...\n"
        "t.enqueue()\n"
        "t.using(delay='1h').enqueue()\n"
    )
    with serving(home, "worker", "own:app", "--metrics", "127.0.0.1:0", "--log", "off") as server:
        server.until(1, "redrive_deliveries_total", task="t", outcome="done")
        assert server.sum("redrive_queue_messages", lane="scheduled") == 1


def test_what_handlers_count_themselves_is_served_too_where_prometheus_client_shares(home: Path) -> None:
    shared = home / "shared"
    shared.mkdir()
    (home / "counts.py").write_text(
        "from prometheus_client import Counter\n"
        "from redrive import App\n"
        "app = App('sqlite:///work.db')\n"
        "pages = Counter('pages', 'Pages read')\n"
        "@app.task(name='t', queue='crm')\n"
        "def t(): pages.inc(3)\n"
    )
    put(home, 2, "t")
    words = ["worker", "counts:app", "--metrics", "0", "--log", "off"]
    with serving(home, *words, PROMETHEUS_MULTIPROC_DIR=str(shared)) as server:
        server.until(2, "redrive_deliveries_total", task="t", outcome="done")
        assert server.sum("pages_total") == 6
