"""Docstrings, comments, help texts and the docs are written in plain English: a few phrases tell otherwise."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PHRASES = ("what is of", "shall", "is told of", "of which", "nobody", "whoever", "anew", "lest", "dear")
_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”]*”|'[^'\n]*'(?!\w)|`[^`\n]*`")
_HELP = {"help", "short_help", "epilog"}
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def found_in(text: str) -> list[str]:
    """The phrases in a text, also where a line ends within one, with the words around them. Quotations are left out."""
    plain = " ".join(_QUOTED.sub("", text).split())
    return [plain[max(0, found.start() - 40) : found.end() + 40] for found in _PHRASE.finditer(plain)]


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def help_texts(tree: ast.Module) -> Iterator[str]:
    """The texts that a command prints as help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in _HELP:
            texts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
            yield " ".join(each for each in texts if isinstance(each, str))


def comments(source: str) -> Iterator[str]:
    """Comments, those of successive lines as one."""
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] > last + 1 and lines:
                yield "\n".join(lines)
                lines = []
            lines.append(token.string.lstrip("# "))
            last = token.start[0]
    yield "\n".join(lines)


def prose_of(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    yield from docstrings(tree)
    yield from help_texts(tree)
    yield from comments(source)


def test_phrases_are_found_in_prose_and_not_in_quotations() -> None:
    source = '''"""A run that
nobody stops."""

WORDS = "shall"  # of which
option("--x", help="which " "shall be")
# first line, it is told
# of a thing
'''
    assert [found for text in prose_of(source) for found in found_in(text)] == [
        "A run that nobody stops.",
        "which shall be",
        "of which",
        "first line, it is told of a thing",
    ]
    assert found_in('It says "nobody", `shall` and endear.') == []


def test_code_speaks_plain_english() -> None:
    paths = sorted((ROOT / "src").rglob("*.py"))
    bad = {str(path.relative_to(ROOT)): found for path in paths if (found := _phrases_of(path))}
    assert bad == {}


def test_docs_speak_plain_english() -> None:
    assert PAGES
    bad = {page: found for page in PAGES if (found := found_in(_prose_of_page(page)))}
    assert bad == {}


def test_no_page_announces_what_is_there() -> None:
    announced = re.compile(r".{40}\b(?:is|are) (?:still )?to come\b|.{40}\bcoming soon\b", re.IGNORECASE)
    pages = [" ".join(_prose_of_page(page).split()) for page in PAGES]
    assert [found for page in pages for found in announced.findall(page)] == []


def _prose_of_page(page: str) -> str:
    return _FENCED.sub("", (ROOT / page).read_text())


def _phrases_of(path: Path) -> list[str]:
    return [found for text in prose_of(path.read_text()) for found in found_in(text)]
