"""`redrive schema`: export the JSON Schema of the bodies of each task, for other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ...config import settings
from ...enqueue import Task
from ...files import output
from ...present.commands import program
from ...present.failure import USAGE, Failure
from ...present.schemas import schema_of, schema_text
from ...redact import one_line
from ..opening import app_option, load_app
from ..subcommands import Subcommands
from ..terminal.nothing import unknown

_UNSAFE = re.compile(r'[\x00-\x1f%/\\:*?"<>|]')  # characters that some operating system forbids in the name of a file


@click.group(cls=Subcommands)
def schema() -> None:
    """Export the JSON Schema of each task's arguments."""


@schema.command()
@app_option
@click.option("--task", "names", multiple=True, metavar="NAME", help="only this task; may be given many times")
@click.option(
    "-d",
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="write a file NAME.json for each task there, and print their paths",
)
def export(app: str | None, names: Sequence[str], directory: Path | None) -> None:
    """Print the JSON Schema (2020-12) of the bodies of each task: an object of schemas by task name.

    `title` is the name of the task, `version` the version of its bodies. Keep the schemas under version control, and a
    review shows changes that old messages do not fit.
    """
    chosen = settings({"app": app})
    if chosen.app is None:
        next = f"{program()} schema export --app tasks:app"
        raise Failure("which app is meant?", "only an app knows its tasks; name it with --app MODULE:APP", next, USAGE)
    tasks = _chosen(load_app(chosen.app, chosen.folder).tasks, names, chosen.app)
    schemas = {name: schema_of(task) for name, task in sorted(tasks.items())}
    if directory is None:
        click.echo(schema_text(schemas))
        return
    for name, one in schemas.items():
        click.echo(one_line(str(_write(directory, name, one))))


def _chosen(tasks: Mapping[str, Task[Any, Any]], names: Sequence[str], app: str) -> Mapping[str, Task[Any, Any]]:
    for name in names:
        if name not in tasks:
            raise unknown("task", name, sorted(tasks), app, look="schema export")
    return {name: tasks[name] for name in names} if names else tasks


def _write(directory: Path, name: str, schema: Any) -> Path:
    path = directory / f"{_UNSAFE.sub(lambda match: quote(match[0], safe=''), name)}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with output(path, public=True) as out:
            out.write(schema_text(schema).encode() + b"\n")
    except OSError as error:
        raise Failure(f"{path} cannot be written", str(error), f"{program()} schema export -d DIR") from error
    return path
