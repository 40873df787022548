"""Measure how the code is built: sizes, circles, faces, names, words, and what one message enters on each engine.

    python scripts/house                     this checkout
    python scripts/house --src DIR/src       another checkout, such as a `git worktree` of an earlier commit
    python scripts/house --before DIR/src    both, side by side
    python scripts/house --shape             without the walks, which take half a minute
    python scripts/house --engine redis      the walks on this engine; may be repeated (default: all)
    python scripts/house --list FIGURE       what is behind a figure: "imports past a face", or "redis: enqueue"
    python scripts/house --json              as JSON, with what is behind each figure

Imports are counted as the code names them: those for types only, those inside functions, and those by a string, such
as `import_module(".store", __package__)` and the names of a table that such a call reads. The layers are those of the
tree's own pyproject.toml.

A **face** is a package's `__init__`. An import goes past it where its target is deeper within a package that the
importing module is not in. `present` has no face: it is a module for each noun. A **circle of packages** is one of the
parts of one package, each taken with all it holds.

A **walk** counts the files and functions that one message enters, by a profiler hook on every thread (`walk.py`):
an enqueue in a process without a worker; a message from before its claim until it is settled and reported, and one that
fails once and is retried; a redrive of ten dead messages, from its plan until the run is done and its outcomes are
recorded; one GET of a failure group's page by a new site. Comprehensions count as functions, up to Python 3.11.

Left out is what belongs to no message: how a worker waits and is woken, and what it does by the clock. Each walk is
repeated, and only what every round entered is counted. A redrive counts what it adds to a worker: calls inside
`triage` and inside what records the outcome of a redriven message, and what these calls enter in turn; not the
delivery of the redriven messages.

A **word** is counted as an identifier, in docstrings and comments, in other strings, and in SQL and Lua: four numbers.

Long modules and wide folders are warnings. A module is as long as its idea. The ceilings of the other figures are in
`[tool.house]` of pyproject.toml, which tests/test_house.py holds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from shape import Lines, shape, sizes, warnings
from tree import HERE, Tree
from words import words

ENGINES = ("sqlite", "postgres", "redis")


class House(NamedTuple):
    """What was measured of one tree. `behind` has the list that each counted figure is the length of."""

    sizes: dict[str, int]
    behind: Lines
    words: dict[str, dict[str, int]]
    walks: dict[str, dict[str, list[tuple[str, str]]]]
    warnings: list[str]


def measure(src: Path, engines: list[str]) -> House:
    tree = Tree(src)
    entered = {}
    if engines:
        from walks import walks  # servers for tests, and a driver for each

        entered = walks(tree.src, engines)
    return House(sizes(tree), shape(tree), words(tree), entered, warnings(tree))


def rows(house: House) -> dict[str, str]:
    """Every figure by its name, as it is printed."""
    walks = {
        f"{engine}: {name}": f"{len({file for file, _ in entered})} / {len(entered)}"
        for engine, each in house.walks.items()
        for name, entered in each.items()
    }
    spoken = {f"word {word}": " + ".join(map(str, counts.values())) for word, counts in house.words.items()}
    counted = {name: f"{len(lines):,}" for name, lines in house.behind.items()}
    return {name: f"{size:,}" for name, size in house.sizes.items()} | counted | walks | spoken


def table(houses: list[House]) -> str:
    columns = [rows(house) for house in houses]
    names = list(dict.fromkeys(name for column in reversed(columns) for name in column))
    cells = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, values, widths[1:])]).rstrip() for name, *values in cells
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=HERE / "src")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--shape", action="store_true")
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--list", metavar="FIGURE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    engines = [] if given.shape else given.engine or list(ENGINES)
    houses = [measure(src, engines) for src in (given.before, given.src) if src is not None]
    last = houses[-1]
    if given.json:
        texts: list[Any] = [house._asdict() for house in houses]
        print(json.dumps(texts if given.before else texts[0], indent=1))
    elif given.list:
        engine, _, walk = given.list.partition(": ")
        entered = [" ".join(each) for each in last.walks.get(engine, {}).get(walk, ())]
        print("\n".join(last.behind.get(given.list, entered)))
    else:
        print(table(houses))
        print("\n".join(f"warning: {each}" for each in last.warnings))


if __name__ == "__main__":
    main()
