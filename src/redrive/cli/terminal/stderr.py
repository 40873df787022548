"""Write notes, blocks and failures to stderr, beside the data of a command."""

from __future__ import annotations

import click

from ...present.failure import Failure
from ...redact import many_lines, one_line, redact


def note(text: str) -> None:
    """Write one line to stderr, without secrets."""
    click.echo(one_line(redact(text)), err=True)


def block(text: str) -> None:
    """Write several lines to stderr, without secrets."""
    click.echo(many_lines(redact(text)), err=True)


def tell(failure: Failure) -> None:
    """Write the three lines of a failure to stderr, after its traceback if it has one."""
    if failure.traceback:
        block(failure.traceback)
    for word, text in (("error", failure.what), ("why", failure.why), ("next", failure.next)):
        click.echo(f"{word}: {one_line(redact(' '.join(text.split())))}", err=True)


def is_help(error: Exception) -> bool:
    """Return True if the error's text is the help of a group, which click 8.2 and later raise if a subcommand is
    missing."""
    return type(error).__name__ == "NoArgsIsHelpError"
