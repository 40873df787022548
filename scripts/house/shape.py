"""Figures of the tree: sizes, circles, arrows against the layers, faces of packages, names."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tree import PACKAGE, Import, Tree

LONG = 400  # lines of a module
WIDE = 20  # modules in a folder
SURFACES = ("cli", "web", "top")
OPEN = (f"{PACKAGE}.present",)  # packages without a face: each module is one idea for those above, and hides nothing
_IRREGULAR = """begun broken brought chosen done drawn driven fallen found frozen given gone grown heard held hidden
    kept known laid led left lost made meant met paid said seen sent shown sought spent spoken stolen struck taken
    taught thought thrown told torn understood won woken worn wound written"""
_PARTICIPLES = frozenset(_IRREGULAR.split())
_VERBS = ("embed", "exceed", "feed", "need", "proceed", "seed", "succeed")  # that end as participles do

Lines = dict[str, list[str]]  # a figure, and what is behind it


def shape(tree: Tree) -> Lines:
    """Every figure, as the list that it counts."""
    beyond: list[str] = []
    within: list[str] = []
    for each in tree.imports:
        if pasts := sorted(target for target in each.targets if is_past_face(tree.package_of(each.module), target)):
            same = any(_part(target) == _part(each.module) for target in pasts)
            (within if same else beyond).append(f"{_at(tree, each)} {' '.join(pasts)}")
    module_groups, package_groups = circles(tree.graph), package_circles(tree.graph)
    return {
        "circles of modules": [" ".join(group) for group in module_groups],
        "modules in circles": [name for group in module_groups for name in group],
        "circles of packages": [" ".join(group) for group in package_groups],
        "packages in circles": [name for group in package_groups for name in group],
        "against the layers": [f"{one} -> {other}" for one, other in against(tree)],
        "modules without a layer": [
            n for n in tree.paths if _part(n)[:1] not in ("", "_") and _part(n) not in tree.levels
        ],
        "imports of other packages": [
            f"{_at(tree, each)} {target}"
            for each in tree.imports
            for target in sorted(each.targets)[:1]
            if _part(target) not in ("", _part(each.module)) and f"{PACKAGE}.{_part(target)}" in _packages(tree)
        ],
        "imports past a face": beyond,
        "imports past a face, inside a package": within,
        "imports between cli, web, top": _imports_between(tree, SURFACES),
        "imports between cli, web, top, demo": _imports_between(tree, (*SURFACES, "demo")),
        "names of several classes": _names_of_several_classes(tree),
        "participles as functions": [name for name in _functions(tree) if is_participle(name.split()[1])],
        "underscored modules": [n for n in tree.paths if re.search(r"\._[^.]*(?<!__)$", n) and n.count(".") > 1],
    }


def warnings(tree: Tree) -> list[str]:
    """What is long or wide: to look at, and no fault."""
    folders = Counter(str(path.parent.relative_to(tree.src)) for path in tree.paths.values() if path.stem != "__init__")
    lines = Counter(
        {str(path.relative_to(tree.src)): tree.sources[name].count("\n") for name, path in tree.paths.items()}
    )
    long = [f"{name} has {count} lines" for name, count in lines.most_common() if count > LONG]
    return long + [f"{name} has {count} modules" for name, count in folders.most_common() if count > WIDE]


def sizes(tree: Tree) -> dict[str, int]:
    """Files and lines in all, and the lines of each package of the first level, the largest first."""
    parts = Counter[str]()
    for name, source in tree.sources.items():
        parts[_part(name) if f"{PACKAGE}.{_part(name)}" in _packages(tree) else "(modules)"] += source.count("\n")
    other = [path for path in (tree.src / PACKAGE).rglob("*") if path.suffix in (".sql", ".lua")]
    return {
        "files": len(tree.paths),
        "lines": parts.total(),
        "functions": sum(1 for _ in _functions(tree)),
        "lines of SQL and Lua": sum(path.read_text().count("\n") for path in other),
        **{f"lines of {part}": count for part, count in parts.most_common()},
    }


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of nodes that lead to each other in a circle (Tarjan, 1972), largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                groups.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return sorted(groups, key=len, reverse=True)


def package_circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Circles of the parts of one package, each taken as a whole: its modules, and its packages with all they hold."""
    siblings = defaultdict[str, dict[str, set[str]]](lambda: defaultdict(set))
    for name, others in graph.items():
        for other in others:
            one, two = name.split("."), other.split(".")
            depth = _common(one, two)
            if depth < min(len(one), len(two)):  # neither is a package around the other
                parts = siblings[".".join(one[:depth])]
                parts[".".join(one[: depth + 1])].add(".".join(two[: depth + 1]))
                parts[".".join(two[: depth + 1])]  # has a place, also if it imports nothing
    return sorted((group for parts in siblings.values() for group in circles(parts)), key=len, reverse=True)


def is_past_face(package: str, target: str) -> bool:
    """Whether a module in `package` that imports `target` reaches into a package that it is not in: deeper than the
    `__init__` of the first such, or, of a package without a face, than its modules."""
    names = target.split(".")
    if ".".join(names[:-1]) in OPEN:
        return False
    return len(names) - _common(package.split("."), names) > 1


def against(tree: Tree) -> list[tuple[str, str]]:
    """Imports that point up the layers."""
    levels = tree.levels
    return [
        (name, other)
        for name, others in tree.graph.items()
        for other in sorted(others)
        if _part(name) in levels and _part(other) in levels and levels[_part(other)] < levels[_part(name)]
    ]


def is_participle(function: str) -> bool:
    """Whether a function's name is one word, and that a participle: `_told`, `named`."""
    word = function.strip("_")
    return word in _PARTICIPLES or (word.endswith("ed") and word.isalpha() and word not in _VERBS)


def _imports_between(tree: Tree, parts: Collection[str]) -> list[str]:
    return [
        f"{_at(tree, each)} {' '.join(sorted(each.targets))}"
        for each in tree.imports
        if _part(each.module) in parts and {*map(_part, each.targets)} & {*parts} - {_part(each.module)}
    ]


def _names_of_several_classes(tree: Tree) -> list[str]:
    """Names that are a class, or an alias of a type, in two modules or more."""
    homes = defaultdict[str, list[str]](list)
    for module, nodes in tree.nodes.items():
        classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        for name in classes | set(_aliases(tree.asts[module])):
            homes[name].append(module.removeprefix(f"{PACKAGE}."))
    several = sorted((name for name in homes if len(homes[name]) > 1), key=lambda name: (-len(homes[name]), name))
    return [f"{name} {' '.join(homes[name])}" for name in several]


def _aliases(source: ast.Module) -> Iterator[str]:
    for node in source.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                variable = isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")
                if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name) and not variable:
                    yield name


def _functions(tree: Tree) -> Iterator[str]:
    for module, nodes in tree.nodes.items():
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{_path(tree, module)}:{node.lineno} {node.name}"


def _common(one: list[str], two: list[str]) -> int:
    """How many names they begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _part(name: str) -> str:
    """The first level of a module: `web` of `redrive.web.read.group`."""
    return name.split(".")[1] if "." in name else ""


def _packages(tree: Tree) -> set[str]:
    return {name for name in tree.paths if tree.is_package(name)}


def _at(tree: Tree, one: Import) -> str:
    return f"{_path(tree, one.module)}:{one.line}"


def _path(tree: Tree, module: str) -> Path:
    return tree.paths[module].relative_to(tree.src / PACKAGE)
