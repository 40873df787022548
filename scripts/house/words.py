"""Count words of the house's own language, in names, in prose and elsewhere."""

from __future__ import annotations

import ast
import io
import re
import token
import tokenize
from collections import Counter
from collections.abc import Iterator

from tree import PACKAGE, Tree

# What the plan for the language replaces, as each is written.
_LANGUAGE = """told found Told said tell named held shown Ask asks asked Where Hold Put Fate fate seam Changes Looks
    FirstRun Link Guard take_back vet"""
WORDS = _LANGUAGE.split()
RUN = "run, in worker"  # for an execution: elsewhere a run is of a redrive
PLACES = ("names", "prose", "strings", "SQL and Lua")
_WORD = re.compile(r"\w+")


def words(tree: Tree) -> dict[str, dict[str, int]]:
    """How often each word is an identifier, and how often it is in docstrings and comments, in other strings, and in
    SQL and Lua."""
    counts = {place: Counter[str]() for place in PLACES}
    for name, source in tree.sources.items():
        for place, text in _texts(source, docstring_lines(tree.nodes[name])):
            counts[place].update(each := _WORD.findall(text))
            if name.startswith(f"{PACKAGE}.worker."):
                counts[place][RUN] += each.count("run") + each.count("runs")
    for path in (tree.src / PACKAGE).rglob("*"):
        if path.suffix in (".sql", ".lua"):
            counts["SQL and Lua"].update(_WORD.findall(path.read_text()))
    return {word: {place: counts[place][word] for place in PLACES} for word in (*WORDS, RUN)}


def docstring_lines(nodes: list[ast.AST]) -> set[int]:
    """The lines in which docstrings begin."""
    return {
        node.body[0].lineno
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }


def _texts(source: str, docstrings: set[int]) -> Iterator[tuple[str, str]]:
    middle = getattr(token, "FSTRING_MIDDLE", None)  # from Python 3.12 on; before, an f-string is one string
    for each in tokenize.generate_tokens(io.StringIO(source).readline):
        if each.type == token.NAME:
            yield "names", each.string
        elif each.type == token.COMMENT:
            yield "prose", each.string
        elif each.type == token.STRING:
            yield ("prose" if each.start[0] in docstrings else "strings"), each.string
        elif each.type == middle:
            yield "strings", each.string
