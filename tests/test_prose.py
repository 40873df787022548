"""Docstrings, comments, help texts and the docs are written in plain English: a few phrases tell otherwise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import pages
from tests.support.prose import matches, pattern_of, prose_of

ROOT = Path(__file__).resolve().parent.parent
PHRASES = ("what is of", "shall", "is told of", "of which", "nobody", "whoever", "anew", "lest", "dear")
_PHRASE = pattern_of(PHRASES)
PAGES = pages()
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def test_phrases_are_found_in_prose_and_not_in_quotations() -> None:
    source = '''"""A run that
nobody stops."""

WORDS = "shall"  # of which
option("--x", help="which " "shall be")
# first line, it is told
# of a thing
'''
    assert [match for text in prose_of(source) for match in matches(_PHRASE, text.text)] == [
        "A run that nobody stops.",
        "which shall be",
        "of which",
        "first line, it is told of a thing",
    ]
    assert [text.line for text in prose_of(source)] == [1, 5, 4, 6]
    assert matches(_PHRASE, 'It says "nobody", `shall` and endear.') == []


def test_code_speaks_plain_english() -> None:
    paths = sorted((ROOT / "src").rglob("*.py"))
    bad = {str(path.relative_to(ROOT)): phrases for path in paths if (phrases := _phrases_of(path))}
    assert bad == {}


def test_docs_speak_plain_english() -> None:
    assert PAGES
    bad = {page: phrases for page in PAGES if (phrases := matches(_PHRASE, _prose_of_page(page)))}
    assert bad == {}


def test_no_page_announces_what_is_there() -> None:
    announced = re.compile(r".{40}\b(?:is|are) (?:still )?to come\b|.{40}\bcoming soon\b", re.IGNORECASE)
    pages = [" ".join(_prose_of_page(page).split()) for page in PAGES]
    assert [phrase for page in pages for phrase in announced.findall(page)] == []


SOURCE = '''"""The module."""


def _private():
    """Whether it is no match."""  # noqa: X1


# -- a head


class Public:  # a look
    x = 1

    y = "stands"  # fmt: skip
'''


def test_texts_are_drawn_by_a_seed_with_their_places(tmp_path: Path) -> None:
    package = tmp_path / "src" / "redrive"
    for path in (package / "one.py", package / "testing" / "contract" / "two.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE)
    lines = prose("--root", str(tmp_path), "--seed", "3")
    assert lines[0] == "seed 3: 2 of 2 texts"
    assert {(lines[at][3:], lines[at + 1].strip()) for at in (2, 5)} == {
        ("src/redrive/one.py:5 docstring of _private", "Whether it is no match."),
        ("src/redrive/one.py:11 comment", "a look"),
    }
    assert prose("--root", str(tmp_path), "--seed", "3") == lines
    assert prose("--root", str(tmp_path), "--tests")[0].endswith(": 4 of 4 texts")


def test_each_phrase_to_avoid_is_counted_and_listed(tmp_path: Path) -> None:
    package = tmp_path / "src" / "redrive"
    package.mkdir(parents=True)
    (package / "one.py").write_text(SOURCE)
    counts = dict(line.rsplit(maxsplit=1) for line in prose("--root", str(tmp_path)) if line[-1:].isdigit())
    assert (counts["is no X"], counts["look"], counts["stand"]) == ("1", "1", "0")
    assert counts["What, Whether or How begins it"] == "1"
    assert prose("--root", str(tmp_path), "--where", "look") == ["src/redrive/one.py:11 a look"]


def prose(*arguments: str) -> list[str]:
    command = [sys.executable, str(ROOT / "scripts" / "prose"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout.splitlines()


def _prose_of_page(page: str) -> str:
    return _FENCED.sub("", (ROOT / page).read_text())


def _phrases_of(path: Path) -> list[str]:
    return [phrase for text in prose_of(path.read_text()) for phrase in matches(_PHRASE, text.text)]
