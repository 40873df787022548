"""Read the package of a source tree: its modules, and what they import, also by a string."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[2]
PACKAGE = "redrive"
_HOLE = "\0"


class Import(NamedTuple):
    """A statement or call in `module` that imports `targets`, modules of the package."""

    module: str
    line: int
    targets: frozenset[str]


class Tree:
    """The package under `src`."""

    def __init__(self, src: Path) -> None:
        self.src = src.resolve()
        self.paths: dict[str, Path] = {}  # of modules, by dotted name
        for path in sorted((self.src / PACKAGE).rglob("*.py")):
            parts = path.relative_to(self.src).with_suffix("").parts
            self.paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.sources = {name: path.read_text() for name, path in self.paths.items()}
        self.asts = {name: ast.parse(source) for name, source in self.sources.items()}
        self.nodes = {name: list(ast.walk(module)) for name, module in self.asts.items()}

    def is_package(self, name: str) -> bool:
        return self.paths[name].stem == "__init__"

    def package_of(self, name: str) -> str:
        """The package that relative imports of this module begin from."""
        return name if self.is_package(name) else name.rpartition(".")[0]

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of a module of the package: for types only and inside functions too."""
        return [one for name in self.paths for one in self._imports_of(name)]

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """The modules that each module imports."""
        graph: dict[str, set[str]] = {name: set() for name in self.paths}
        for each in self.imports:
            graph[each.module] |= each.targets - {each.module}
        return graph

    @cached_property
    def levels(self) -> dict[str, int]:
        """The layer of each part of the package, 0 at the top, as import-linter's contract of this tree has it."""
        path = self.src.parent / "pyproject.toml"
        project = tomllib.loads((path if path.exists() else HERE / "pyproject.toml").read_text())
        contracts = project["tool"]["importlinter"]["contracts"]
        [contract] = [c for c in contracts if c["type"] == "layers" and PACKAGE in c.get("containers", ())]
        return {part.strip(" ()"): at for at, line in enumerate(contract["layers"]) for part in re.split("[:|]", line)}

    def _imports_of(self, name: str) -> Iterator[Import]:
        for node in self.nodes[name]:
            named: set[str] = set()
            if isinstance(node, ast.Import):
                named = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = _absolute("." * node.level + (node.module or ""), self.package_of(name))
                named = {m if (m := f"{module}.{alias.name}") in self.paths else module for alias in node.names}
            elif isinstance(node, ast.Call) and _callee(node) in ("import_module", "__import__"):
                named = self._by_string(name, node)
            if targets := frozenset(named & self.paths.keys()):
                yield Import(name, node.lineno, targets)  # type: ignore[attr-defined]

    def _by_string(self, name: str, call: ast.Call) -> set[str]:
        """What `import_module(…)` may import. A variable in the string stands for any string constant of the module, as
        far as its colon, or several joined by dots: so a table of "module:function" names its modules."""
        pattern = self._pattern(name, call.args[0]) if call.args else ""
        if pattern.startswith("."):
            pattern = _absolute(pattern, self._pattern(name, call.args[1]) if len(call.args) > 1 else "")
        if not pattern.startswith(f"{PACKAGE}."):
            return set()
        constants = [node.value for node in self.nodes[name] if isinstance(node, ast.Constant)]
        words = {each.partition(":")[0] for each in constants if isinstance(each, str)}
        form = re.compile("(.+)".join(map(re.escape, pattern.split(_HOLE))))
        return {
            known
            for known in self.paths
            if (match := form.fullmatch(known))
            and all(part in words or words.issuperset(part.split(".")) for part in match.groups())
        }

    def _pattern(self, name: str, node: ast.expr) -> str:
        """The string that an expression makes, with a hole for what is not written there."""
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.JoinedStr(values=values):
                return "".join(self._pattern(name, value) for value in values)
            case ast.FormattedValue(value=value):
                return self._pattern(name, value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._pattern(name, left) + self._pattern(name, right)
            case ast.Name(id="__package__"):
                return self.package_of(name)
            case ast.Name(id="__name__"):
                return name
        return _HOLE


def _absolute(module: str, package: str) -> str:
    """The module that a name with leading dots is, seen from a package."""
    rest = module.lstrip(".")
    if not (level := len(module) - len(rest)):
        return module
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([rest] if rest else [])])


def _callee(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
