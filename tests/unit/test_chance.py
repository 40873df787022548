"""A program's own random numbers are as if redrive were not there."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import redrive
from redrive.history.flusher import Flusher

OF_THEIR_OWN = ("chance.py", "program/demo.py", "demo/", "simulate/", "testing/")  # seeds of their own, or the system's


def test_only_chance_draws_from_a_generator_of_python() -> None:
    root, found = Path(redrive.__file__).parent, []
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_bytes())):
            of_random = isinstance(node, ast.ImportFrom) and node.module == "random" and not node.level
            imported = isinstance(node, ast.Import) and any(alias.name == "random" for alias in node.names)
            if (of_random or imported) and not name.startswith(OF_THEIR_OWN):
                found.append(name)
    assert found == []


def test_a_seeded_program_gets_the_same_numbers_whatever_redrive_does(tmp_path: Path) -> None:
    app = redrive.App(f"sqlite:///{tmp_path / 'work.db'}")
    fails = app.task(name="fails", retry=redrive.Retry(max_attempts=1))(lambda: 1 / 0)
    before = random.getstate()
    for _ in range(3):
        fails.enqueue()
    app.run_worker(burst=True)
    assert isinstance(app.flusher, Flusher)
    app.flusher.flush()
    app.dlq.note("fa" * 8, "looked at")
    assert [*app.audit] and app.store.counts("default").dead == 3
    assert random.getstate() == before
    app.store.close()
