"""The script that measures the structure measures it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with a circle through a function and one through types, and an arrow up."""
    package = tmp_path_factory.mktemp("tree") / "redrive"
    files = {
        "__init__.py": "",
        "errors.py": "def late():\n    from .worker import loop\n",
        "worker/__init__.py": "from .loop import Loop\n",
        "worker/loop.py": "from ..errors import late\n\nif TYPE_CHECKING:\n    from .run import Run\n",
        "worker/run.py": "from .loop import Loop\n",
        "worker/alone.py": "import redrive.errors\n",
    }
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return package.parent


def script(*arguments: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "house"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def test_circles_are_found_through_types_and_functions(tree: Path) -> None:
    found = json.loads(script("--src", str(tree), "--shape", "--json"))
    assert found["circles"] == ["redrive.errors redrive.worker.loop redrive.worker.run"]
    assert found["against"] == ["redrive.errors -> redrive.worker.loop"]
    assert (found["files"], found["modules in circles"]) == (6, 3)


@pytest.mark.slow
def test_what_a_message_enters_is_counted_on_every_thread() -> None:
    found = json.loads(script("--json"))
    assert "stores/sqlite.py" in str(found["enqueue"]).replace("stores/sqlite/store.py", "stores/sqlite.py")
    assert "decide.py" in found["failure"]
    assert 5 <= found["enqueue: files"] < found["plan to done: files"]
    assert 5 <= found["claim to settle: files"] < found["claim to settle, one failure: files"]


def test_the_tree_can_be_walked() -> None:
    """No import circle, no long module, no crowded folder, no underscore that means nothing."""
    found = json.loads(script("--shape", "--json"))
    limits = ("circles", "modules over 400 lines", "folders over 20 modules", "underscored modules")
    assert {limit: found[limit] for limit in limits} == {limit: [] for limit in limits}
