"""Write a list of each surface that users build on, one line for each thing, into docs/reference/surfaces.

usage: surfaces.py [--check | --since TAG]

--check writes nothing and prints what differs from the lists; --since prints what differs from those of a release.
Either exits with 1 if something does. docs/reference/stability.md says what may change when.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/reference/surfaces"
_DOCUMENTED = re.compile(r"^::: (redrive[\w.]*)", re.M)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|<(?:function|class|object) ([\w.]+)[^>]*>")

_QUOTED = re.compile(r"(: |-> )'([^']*)'")  # an annotation, as `from __future__ import annotations` keeps it


def python() -> Iterator[str]:
    """The names in `redrive` and those that the reference documents, with their parameters, fields and members."""
    import redrive

    names = {f"redrive.{name}" for name in redrive.__all__}
    for page in (ROOT / "docs/reference").glob("*.md"):
        names |= set(_DOCUMENTED.findall(page.read_text()))
    for name in sorted(names):
        yield from sorted(set(_described(name, _of(name))))


def _of(name: str) -> Any:
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            value: Any = import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            value = getattr(value, part)
        return value
    raise LookupError(name)


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        for each in getattr(value, "__all__", ()):
            yield from _described(f"{name}.{each}", getattr(value, each))
    elif inspect.isclass(value):
        yield f"{name}({', '.join(base.__name__ for base in value.__bases__)})"
        yield from _members(name, value)
    elif callable(value) and not isinstance(value, msgspec.Struct):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _members(name: str, of: type) -> Iterator[str]:
    if issubclass(of, enum.Enum):
        yield from (f"{name}.{each.name} = {each.value!r}" for each in of)
    elif issubclass(of, msgspec.Struct):
        for field in msgspec.structs.fields(of):
            yield f"{name}.{field.name}: {_field(of, field)}"
    elif not issubclass(of, BaseException) and "__init__" in vars(of):
        yield f"{name}.__init__{_signature(of.__init__)}"
    for each, member in inspect.getmembers_static(of):
        if each.startswith(("_", "test_")) or issubclass(of, enum.Enum):
            continue
        member = getattr(member, "__func__", member)  # of a classmethod or a staticmethod
        if isinstance(member, property):
            yield f"{name}.{each} (property)"
        elif inspect.isfunction(member) and member.__module__.startswith("redrive"):
            yield f"{name}.{each}{_signature(member)}"


def _field(of: type, field: Any) -> str:
    kind = next(
        (
            vars(base)["__annotations__"][field.name]
            for base in of.__mro__
            if field.name in vars(base).get("__annotations__", {})
        ),
        "?",
    )
    given = field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
    return f"{kind}{' = …' if given else ''}"


def _signature(function: Callable[..., Any]) -> str:
    try:
        text = _ADDRESS.sub(lambda found: found[1] or "", str(inspect.signature(function)))
        return _QUOTED.sub(r"\1\2", text)
    except ValueError:
        return "(…)"


def commands() -> Iterator[str]:
    """Each command with its options and arguments; hidden ones are left out."""
    from redrive.program.main import cli

    yield from _commands("redrive", cli)


def _commands(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for parameter in command.get_params(context):
        if not getattr(parameter, "hidden", False):
            kind = "|".join(parameter.type.choices) if isinstance(parameter.type, click.Choice) else parameter.type.name
            many = " many" if parameter.multiple or parameter.nargs == -1 else ""
            option = isinstance(parameter, click.Option)
            said = "/".join([*parameter.opts, *parameter.secondary_opts]) if option else parameter.name
            kind = "flag" if getattr(parameter, "is_flag", False) else kind
            yield f"{path} {said}: {kind}{many}{' required' if parameter.required else ''}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            if each is not None and not each.hidden:
                yield from _commands(f"{path} {name}", each)
    else:
        yield path


def http() -> Iterator[str]:
    """Each address of the pages with its permission, and each action."""
    from redrive.web.table import ACTIONS, PAGES

    yield from sorted(f"GET {page.path} ({page.permission})" for page in PAGES)
    yield from sorted(f"POST /do/{action.name} ({action.permission})" for action in ACTIONS)


def settings() -> Iterator[str]:
    from redrive.config import VARIABLES, Settings

    yield from sorted(f"{field.name}: {_field(Settings, field)}" for field in msgspec.structs.fields(Settings))
    yield from sorted(str(name) for name in VARIABLES)


def metrics() -> Iterator[str]:
    """Each metric as its module's table has it, and the fields of events."""
    from redrive import events
    from redrive.observe import prometheus

    yield from sorted(re.findall(r"^\| (`redrive_.*?) \|[^|]*\|$", prometheus.__doc__ or "", re.M))
    for name in ("DeliveryEvent", "Notice"):
        of = getattr(events, name)
        yield from sorted(f"{name}.{field.name}: {_field(of, field)}" for field in msgspec.structs.fields(of))


def stored() -> Iterator[str]:
    """The tables and indexes of SQLite and PostgreSQL, and the versions of all schemas."""
    from redrive.stores.postgres.schema import sql
    from redrive.stores.sqlite.schema import MIGRATIONS, ddl

    yield f"sqlite: schema versions {', '.join(map(str, MIGRATIONS))}"
    for engine, text in (("sqlite", ddl()), ("postgres", sql("postgresql://localhost/app"))):
        kinds = r"create (?:unlogged )?(?:table|unique index|index|trigger|function|or replace function)"
        yield from sorted({f"{engine}: {' '.join(found.split())}" for found in re.findall(rf"{kinds}[^(;]*", text)})


SURFACES: dict[str, Callable[[], Iterator[str]]] = {
    "python": python, "commands": commands, "http": http, "settings": settings, "metrics": metrics, "stored": stored,
}  # fmt: skip


def released(tag: str, name: str) -> list[str]:
    path = (FOLDER / f"{name}.txt").relative_to(ROOT)
    done = subprocess.run(["git", "show", f"{tag}:{path}"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(arguments: list[str]) -> int:
    changed = False
    for name, lines in SURFACES.items():
        file, now = FOLDER / f"{name}.txt", list(dict.fromkeys(lines()))
        if not arguments:
            file.write_text("".join(f"{line}\n" for line in now))
            continue
        was = released(arguments[1], name) if arguments[0] == "--since" else file.read_text().splitlines()
        for line in difflib.unified_diff(was, now, lineterm="", n=0):
            if line[:1] in "+-" and line[:3] not in ("+++", "---"):
                print(f"{name}: {line}")
                changed = True
    return int(changed)


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    sys.exit(main(sys.argv[1:]))
