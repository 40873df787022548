"""The extras of the package: each does something, and every hint names one that there is."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from redrive.present import failure

ROOT = Path(__file__).parents[3]
DECLARED: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
USERS = sorted(DECLARED.keys() - {"all", "dev", "docs"})

_MODULES = {"opentelemetry_api": "opentelemetry"}  # a distribution that is called otherwise than its module


@cache  # parsing all of the package takes seconds, more than a test may beside others
def imported() -> set[str]:
    """The top-level modules that the package imports anywhere."""
    found = set[str]()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


def modules(extra: str) -> set[str]:
    """The top-level modules of what an extra brings: mostly as the distribution is called."""
    named = (re.split(r"[^A-Za-z0-9_-]", wanted)[0].replace("-", "_") for wanted in DECLARED[extra])
    return {_MODULES.get(name, name) for name in named}


@pytest.mark.turns(3)
@pytest.mark.parametrize("extra", USERS)
def test_an_extra_brings_what_the_package_imports(extra: str) -> None:
    assert modules(extra) & imported()


def test_all_is_all_of_them_and_hints_name_no_other() -> None:
    assert DECLARED["all"] == [f"redrive[{','.join(sorted(USERS, key=[*DECLARED].index))}]"]
    assert {*failure._EXTRAS.values()} <= {*USERS}
