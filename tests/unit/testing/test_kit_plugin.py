"""The pytest plugin, as a stranger meets it: a project of their own, no conftest, `python -m pytest`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import redrive

ROOT = Path(__file__).parents[3]
TASKS = """
from redrive import App

app = App("sqlite:///production.db")


@app.task(name="crm.push")
async def push(record_id: int) -> str:
    return f"pushed {record_id}"
"""
TEST = """
from tasks import push


def test_push(rd):
    push.enqueue(42)
    rd.fail_next(push, times=2)
    assert rd.drain().done == 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A stranger's folder, and what installing redrive puts on Python's path: the package and its entry points."""
    site = tmp_path / "site" / "redrive-0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: redrive\nVersion: 0\n")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [f"{name} = {target}" for name, target in groups["pytest11"].items()]
    (site / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tasks.py").write_text(TASKS)
    (folder / "pytest.ini").write_text("[pytest]\nredrive_app = tasks:app\nfilterwarnings = error\n")
    (folder / "test_tasks.py").write_text(TEST)
    return folder


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = [str(project.parent / "site"), str(Path(redrive.__file__).parents[1])]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "REDRIVE_"))}
    command = [sys.executable, *(arguments or ("-m", "pytest", "-p", "no:cacheprovider"))]
    return subprocess.run(
        command, cwd=project, env=kept | {"PYTHONPATH": os.pathsep.join(places)}, capture_output=True, text=True
    )


def test_a_project_without_conftest_has_the_fixture_and_its_app_bound(project: Path) -> None:
    done = run(project)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert not (project / "production.db").exists()


def test_the_fixture_is_listed_with_what_it_is_for(project: Path) -> None:
    done = run(project, "-m", "pytest", "--fixtures", "-p", "no:cacheprovider")
    assert "rd -- " in done.stdout and "a store of this test's own" in done.stdout, done.stdout


def test_tests_in_parallel_have_a_store_each(project: Path) -> None:
    same = TEST.replace("test_push", "test_push_%d")
    (project / "test_tasks.py").write_text("\n".join(same % n for n in range(6)))
    done = run(project, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout + done.stderr


def test_a_failed_test_is_shown_with_what_ran(project: Path) -> None:
    (project / "test_tasks.py").write_text(TEST.replace("done == 1", "done == 2"))
    done = run(project)
    assert "- redrive -" in done.stdout and "attempt 3  crm.push(record_id=42)  done" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("tasks:ap", "module 'tasks' has no attribute 'ap'; expected MODULE:APP"),
        ("task:app", "No module named 'task'; expected MODULE:APP"),
        ("tasks:push", "names a Task; expected a redrive.App"),
        ("tasks", "expected MODULE:APP"),
    ],
)
def test_a_setting_that_names_no_app_says_what_it_should_be(project: Path, spec: str, said: str) -> None:
    (project / "pytest.ini").write_text(f"[pytest]\nredrive_app = {spec}\n")
    done = run(project)
    assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr


def test_a_run_that_does_not_use_the_fixture_imports_nothing_for_it(project: Path) -> None:
    (project / "test_tasks.py").write_text(
        "import sys\n\n\ndef test_nothing():\n"
        "    assert 'redrive.testing.plugin' in sys.modules\n"
        "    found = {name for name in sys.modules if name.startswith('redrive')}\n"
        "    allowed = {'redrive', 'redrive._version', 'redrive.testing', 'redrive.testing.plugin'}\n"
        "    assert found <= allowed and 'msgspec' not in sys.modules, found\n"
    )
    done = run(project, "-m", "pytest", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_of_the_docs_page_pass_as_a_project(project: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    files = dict(re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    assert {"tasks.py", "pyproject.toml", "test_push.py", "test_trouble.py", "test_signup.py"} <= files.keys()
    for old in ("pytest.ini", "test_tasks.py"):
        (project / old).unlink()
    for name, text in files.items():
        (project / name).write_text(text)
    done = run(project, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error")
    tests = sum(text.count("def test_") for text in files.values())
    assert done.returncode == 0 and f"{tests} passed" in done.stdout, done.stdout + done.stderr
    assert not (project / "work.db").exists()
