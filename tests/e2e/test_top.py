"""`redrive top` as a process of its own, in a real terminal (tmux), at two sizes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.tmux import PATIENCE_S, Terminal
from tests.support.top import Scene

from redrive.message import Draft

pytestmark = pytest.mark.slow
COMMAND = (sys.executable, "-m", "redrive", "top")
SIZES = [(80, 24), (200, 60)]


def environment() -> dict[str, str]:
    """Ours, without settings, and without the size of the terminal that the tests run in, which would count."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("REDRIVE_", "COLUMNS", "LINES"))}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.store.close()


def top(folder: Path, columns: int = 80, lines: int = 24, *words: str) -> Terminal:
    return Terminal(folder, [*COMMAND, "--url", "sqlite:///work.db", *words], columns, lines, environment())


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_every_screen_is_shown_at_this_size(scene: Scene, tmp_path: Path, columns: int, lines: int) -> None:
    scene.works()
    run = scene.planned()
    with top(tmp_path, columns, lines) as terminal:
        terminal.sees("need a person", "dead 4")
        for key, texts in {
            "2": ["[2 queues]", "crm", "mail"],
            "3": ["[3 groups]", "ValueError", "no such"],
            "4": ["[4 runs]", run[:20]],
            "5": ["[5 messages]", "[dead 4]", scene.dead[0][:20]],
            "6": ["[6 workers]", "worker-0"],
            "7": ["[7 flow]", "dependenc"],
            "?": ["UPPER CASE changes something"],
        }.items():
            terminal.press(key)
            shown = terminal.sees(*texts).splitlines()
            end_s = time.monotonic() + PATIENCE_S  # a capture may fall into the middle of a repaint
            while "?:help" not in shown[-1] or "sqlite:///work.db" not in shown[0]:
                assert time.monotonic() < end_s, "\n".join(shown)
                shown = terminal.sees(*texts).splitlines()
            assert len(shown) <= lines and max(map(len, shown)) <= columns


def test_it_works_from_the_failure_to_the_run_and_leaves_the_terminal_as_it_was(scene: Scene, tmp_path: Path) -> None:
    with top(tmp_path, 80, 24, "--actor", "ann") as terminal:
        terminal.sees("need a person")
        terminal.press("g")
        terminal.sees("[3 groups]", "dead messages in", "no such")
        terminal.press("p")
        terminal.sees("3 messages in", "nothing was moved")
        terminal.press("A")
        terminal.sees("apply the plan: move 3 messages?")
        terminal.type("crm is back")
        terminal.press("Enter")
        terminal.sees("started by ann: crm is back", "planned 3")
        terminal.press("q")
        terminal.ends()
        assert "redrive top" not in terminal.text
    (run,) = scene.app.dlq.runs()
    assert run.counts["planned"] == 3


def test_it_follows_the_store_and_the_size_of_the_terminal(scene: Scene, tmp_path: Path) -> None:
    with top(tmp_path) as terminal:
        terminal.sees("need a person")
        terminal.press("2")
        terminal.sees("crm")
        scene.store.put([Draft(task="t", queue="fresh", delay_ms=10**7)] * 7)
        terminal.sees("fresh")
        assert "done 10m" not in terminal.text
        terminal.resize(200, 60)
        terminal.sees("done 10m")
        assert max(map(len, terminal.text.splitlines())) > 100
        terminal.press("C-c")
        terminal.ends()


def test_without_a_terminal_it_says_so_and_what_to_run_instead(scene: Scene, tmp_path: Path) -> None:
    words = [*COMMAND, "--url", "sqlite:///work.db"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    assert done.returncode == 4 and "redrive top needs a terminal" in done.stderr
    assert "next: redrive status --url sqlite:///work.db" in done.stderr.replace("python -m redrive", "redrive")


def test_without_textual_it_says_what_to_install(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')\n")
    with Terminal(
        tmp_path, [*COMMAND, "--url", "sqlite:///work.db"], 120, 24, environment() | {"PYTHONPATH": str(tmp_path)}
    ) as terminal:
        terminal.ends()
        assert "an extra that is not installed" in terminal.text
        assert "-m pip install 'redrive[top]'" in terminal.text.replace("\n", "")
