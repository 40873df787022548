"""The reference of the HTTP API, made of the table of pages and actions and the docstrings of what they call."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from redrive.web.table import ACTIONS, PAGES, SitePage

_READS = ("text", "needed", "number", "duration_ms", "lasting", "checked", "all")  # of an Ask: what an action takes


def pages() -> Iterator[str]:
    """Every page: its address, its permission, and what it returns."""
    yield "| `GET` | returns | permission |\n|---|---|---|"
    for page in PAGES:
        yield f"| `{shown(page)}` | {first(page.read)} | `{page.permission}` |"


def actions() -> Iterator[str]:
    """Every action: its address, the fields that it names, its permission, and what it does."""
    yield "| `POST` | does | fields | permission |\n|---|---|---|---|"
    for action in ACTIONS:
        fields = ", ".join(f"`{name}`" for name in fields_of(action.act)) or "–"
        yield f"| `/do/{action.name}` | {first(action.act)} | {fields} | `{action.permission}` |"


def shown(page: SitePage) -> str:
    return re.sub(r":path\}", "}", page.path)


def first(function: Callable[..., Any]) -> str:
    """The first sentence of a docstring."""
    told = " ".join((inspect.getdoc(function) or "").split())
    return re.split(r"(?<=\.) (?=[A-Z])", told)[0].replace("|", "\\|")


def fields_of(function: Callable[..., Any], seen: frozenset[str] = frozenset()) -> list[str]:
    """The fields that a function reads of its Ask, itself or through functions of its module that it calls."""
    module = inspect.getmodule(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "reason" and _is_ask(node.value):
            found["reason"] = None
        if not isinstance(node, ast.Call):
            continue
        of = node.func
        if isinstance(of, ast.Attribute) and _is_ask(of.value):
            if of.attr == "confirm":
                found["count"] = None
            elif of.attr in _READS and node.args and isinstance(node.args[0], ast.Constant):
                found[str(node.args[0].value)] = None
        elif isinstance(of, ast.Name) and of.id not in seen and any(_is_ask(each) for each in node.args):
            called = getattr(module, of.id, None)
            if inspect.isfunction(called):
                found |= dict.fromkeys(fields_of(called, seen | {of.id, function.__name__}))
    return list(found)


def _is_ask(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "ask"
