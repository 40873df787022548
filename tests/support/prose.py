"""The prose of a module, and phrases in it: docstrings, comments, and the help texts of commands."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_QUOTED = re.compile(r"\"[^\"\n]*\"|“[^”]*”|'[^'\n]*'(?!\w)|`[^`\n]*`")
_HELP = {"help", "short_help", "epilog"}


class Text(NamedTuple):
    """A text, the line that it begins in, and what it is: of a docstring, whose."""

    line: int
    kind: str
    text: str


def prose_of(source: str) -> Iterator[Text]:
    tree = ast.parse(source)
    yield from docstrings(tree)
    yield from help_texts(tree)
    yield from comments(source)


def docstrings(tree: ast.Module) -> Iterator[Text]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            kind = "module" if isinstance(node, ast.Module) else f"docstring of {node.name}"
            if text := ast.get_docstring(node):
                yield Text(node.body[0].lineno, kind, text)


def help_texts(tree: ast.Module) -> Iterator[Text]:
    """The texts that a command prints as help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in _HELP:
            texts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
            yield Text(node.value.lineno, "help", " ".join(each for each in texts if isinstance(each, str)))


def comments(source: str) -> Iterator[Text]:
    """Comments, those of successive lines as one."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] > last + 1 and lines:
                yield Text(first, "comment", "\n".join(lines))
                lines = []
            if not lines:
                first = token.start[0]
            lines.append(token.string.lstrip("# "))
            last = token.start[0]
    if lines:
        yield Text(first, "comment", "\n".join(lines))


def pattern_of(phrases: Iterable[str]) -> re.Pattern[str]:
    """Any of these, which are regular expressions, as whole words."""
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE)


def matches(pattern: re.Pattern[str], text: str) -> list[str]:
    """The phrases in a text, also where a line ends within one, with the words around them. Quotations are left out."""
    plain = " ".join(_QUOTED.sub("", text).split())
    return [plain[max(0, match.start() - 40) : match.end() + 40] for match in pattern.finditer(plain)]
