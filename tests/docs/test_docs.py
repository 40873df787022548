"""Every block of the README and the site runs, or says why not."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest
from tests.docs.pages import PROSE, ROOT, RUN, blocks, pages
from tests.docs.transcript import commands, matched, substituted

import redrive

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
# The first pages, in the order of a newcomer.
JOURNEY = ("README.md", "docs/tutorial.md", "docs/learn/first-failure.md", "docs/learn/first-redrive.md")
LEARNING = (*JOURNEY[1:], "docs/learn/import.md", "docs/learn/production.md")  # one story in one folder
NOT_RUN_MAX = 4  # raise it only with a reason in the page


def runs(page: str) -> bool:
    return any(block.language in RUN for block in blocks(page))


@pytest.mark.turns(5)
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if runs(page) and page not in JOURNEY])
def test_every_block_of_a_page_runs_and_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def run_page(page: str, folder: Path, python: Path = Path(sys.executable)) -> subprocess.CompletedProcess[str]:
    """Run the page's blocks in the folder with the programs beside this Python."""
    return subprocess.run(
        [python, "-m", "tests.docs.run_page", page],
        cwd=folder,
        env=_environment(folder, python),
        capture_output=True,
        text=True,
        timeout=280,
    )


def _environment(home: Path, python: Path) -> dict[str, str]:
    """As on a terminal 140 cells wide, but for colours; no setting of this machine."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("REDRIVE_", "PYTEST_"))}
    return plain | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *(p for p in [os.environ.get("PYTHONPATH")] if p)]),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "NO_COLOR": "1",
        "COLUMNS": "140",
        "REDRIVE_OUTPUT": "table",
        "REDRIVE_LOG": "text",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:hypothesispytest -p no:anyio -p no:xdist",  # a second each
    }


@pytest.mark.slow
def test_the_first_pages_run_in_an_empty_folder_from_the_built_wheel(tmp_path: Path) -> None:
    python = installed_wheel(tmp_path / "new")
    for page in JOURNEY:
        (folder := tmp_path / Path(page).stem).mkdir()
        done = run_page(page, folder, python)
        assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"


@pytest.mark.slow
def test_the_pages_for_learners_run_one_after_another_in_one_folder(tmp_path: Path) -> None:
    for page in LEARNING:
        done = run_page(page, tmp_path)
        assert done.returncode == 0, f"{page}: {done.stdout}{done.stderr}"


def installed_wheel(folder: Path) -> Path:
    """The Python of a new environment with the wheel of this tree, and with the dependencies of this one."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist", ROOT])
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    run([*pip, "--python", python, "install", "--no-deps", *(folder / "dist").glob("*.whl")])
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # whose own .pth files are not read
    where = run([python, "-c", "import redrive; print(redrive.__file__)"]).stdout
    assert where.startswith(str(site)), where
    return python


def test_every_block_names_a_language_that_is_run_or_prose() -> None:
    assert [b.place for b in BLOCKS if b.language not in (*RUN, *PROSE)] == []


def test_a_block_of_prose_holds_no_command_and_no_code() -> None:
    code = re.compile(r"^\s*(\$ |>>> |import |from \w+ import |redrive )", re.MULTILINE)
    assert [b.place for b in BLOCKS if b.language in PROSE and code.search(b.text)] == []


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = [f"{block.place}: {block.why_not}" for block in BLOCKS if block.why_not is not None]
    assert len(left_out) <= NOT_RUN_MAX, "\n".join(left_out)


def test_every_marker_stands_before_a_block() -> None:
    markers = sum((ROOT / page).read_text().count("<!-- not run:") for page in PAGES)
    assert markers == sum(block.why_not is not None for block in BLOCKS)


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(f"docs/{page}" for page in listed) == sorted(page for page in PAGES if page != "README.md")


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(path.read_text() for path in sorted((ROOT / "docs/reference").glob("*.md")))
    named = set(re.findall(r"^::: redrive(?:\.\w+)*\.(\w+)$", reference, re.MULTILINE))
    assert set(redrive.__all__) - {"__version__", "RedriveError"} <= named


def runnable_in(source: str) -> set[str]:
    """The functions that a module defines, or imports to run them here."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("page", ["docs/promises.md", "docs/why/threat-model.md"])
def test_every_promise_names_tests_that_there_are(page: str) -> None:
    text = (ROOT / page).read_text()
    rules = (ROOT / "src/redrive/testing/contract").glob("*.py")
    contract = {name for path in rules for name in runnable_in(path.read_text())}
    named = re.findall(r"`(?:(tests/[\w/]+\.py)?(?:::(\w+))?|(test_\w+))`", text)
    assert len(named) > 20
    file = ""
    for another, test, in_contract in named:
        file = another or file
        if another or test:
            source = (ROOT / file).read_text()
            assert test in runnable_in(source) if test else source, (file, test)
        elif in_contract:
            assert in_contract in contract, in_contract


def test_every_line_of_the_threat_model_names_its_test() -> None:
    text = (ROOT / "docs/why/threat-model.md").read_text()
    model = text.partition("## What is left to you")[0]
    lines = re.findall(r"^\| (?!who |---).*|^- \*\*(?:.|\n  )*", model, re.MULTILINE)
    assert len(lines) == 16
    assert [line for line in lines if "tests/" not in line and "`test_" not in line] == []


# -- the runner itself: it must be able to fail

BAD_PAGES = {
    "code that raises": "```python\nassert 1 + 1 == 3\n```",
    "other output than shown": "```python\nprint(1 + 1)\n```\n\n```output\n3\n```",
    "a file that cannot be imported": '```python title="tasks.py"\nimport no_such_module\n```',
    "a command that prints something else": "```console\n$ echo one\ntwo\n```",
    "a command that fails": "```console\n$ redrive dlq lst\n```",
    "an extra that is not there": "```console\n$ pip install 'redrive[httpx]'\n```",
    "a broken table": "```toml\nlease = 30s\n```",
    "a block that is not closed": "```python\nprint(1)\n",
}


@pytest.mark.parametrize("page", BAD_PAGES.values(), ids=BAD_PAGES)
def test_a_page_fails_with(page: str, tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_text(page)
    done = run_page(str(tmp_path / "bad.md"), tmp_path)
    assert done.returncode == 1
    assert "bad.md:" in done.stdout + done.stderr


def test_a_marked_block_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- not run: it would fail -->\n\n```python\nassert False\n```\n")
    assert run_page(str(tmp_path / "page.md"), tmp_path).returncode == 0


def test_a_page_that_shows_something_else_does_not_match() -> None:
    assert matched(("pushed 42",), "pushed 43\n", {}) is None
    assert matched(("pushed 42",), "pushed 42\nand more\n", {}) is None
    assert matched(("pushed 42", "…"), "pushed 42\nand more\n", {}) == {}
    assert matched(("pushed … in 1s",), "pushed 42 in 1s\n", {}) == {}


def test_a_sample_id_stands_for_one_real_id() -> None:
    sample, real, other = (f"019b{n}000-0000-7000-8000-000000000000" for n in "abc")
    known = matched((f"id  {sample}", f"again {sample}"), f"id    {real}\nagain {real}\n", {})
    assert known == {sample: real}
    assert matched((sample, sample), f"{real}\n{other}\n", {}) is None
    assert matched((sample,), f"{other}\n", {sample: real}) is None
    assert substituted(f"redrive job show {sample}", {sample: real}) == f"redrive job show {real}"


def test_commands_are_told_from_what_they_print() -> None:
    first, second = commands(
        "$ redrive enqueue x \\\n>   --delay 5m\n0198\n$ redrive worker a:b\nrunning\n^C\nstopped\n"
    )
    assert first == ("redrive enqueue x \\\n  --delay 5m", ("0198",), None)
    assert second == ("redrive worker a:b", ("running", "stopped"), 1)
    with pytest.raises(ValueError, match="starts with a command"):
        commands("just output\n")
