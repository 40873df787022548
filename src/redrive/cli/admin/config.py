"""`redrive config`: show the settings and their sources."""

from __future__ import annotations

import click

from ...config import settings, sources, unknown_variables
from ...present.formats import setting_value
from ..opening import app_option, output_option, url_option
from ..subcommands import Subcommands
from ..terminal.output import Column, Output
from ..terminal.stderr import note


@click.group(cls=Subcommands)
def config() -> None:
    """Show the settings, and where each comes from."""


@config.command()
@app_option
@url_option
@output_option
def show(app: str | None, url: str | None, output: str | None) -> None:
    """Show every setting, its value and its source: a flag, a REDRIVE_… variable, a file, or the default."""
    flags = {"app": app, "url": url, "output": output}
    out = Output(settings(flags).output)
    rows = [{"name": s.name, "value": setting_value(s.value), "source": s.source} for s in sources(flags)]
    out.rows(rows, (Column("name"), Column("value"), Column("source")), id="name", limit=0)
    for variable, meant in unknown_variables():
        note(f"{variable} is set and is no setting; did you mean {meant}?")
