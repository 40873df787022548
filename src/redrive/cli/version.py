"""`redrive version`."""

from __future__ import annotations

import platform

import click

from .._version import __version__
from ..config import settings
from .opening import output_option
from .terminal.output import Output


@click.command()
@output_option
def version(output: str | None) -> None:
    """Print the version; with -o json also what it runs on."""
    out = Output(settings({"output": output}).output)
    if out.form in ("table", "tsv"):
        click.echo(f"redrive {__version__}")
        return
    out.record({"redrive": __version__, "python": platform.python_version(), "platform": platform.platform()})
