"""`redrive top`: watch a store in a terminal, and repair what is in it."""

from __future__ import annotations

import sys

import click

from ..cli.opening import OpenedStore, at_store
from ..cli.selecting import actor_option
from ..cli.terminal.output import Output
from ..present.commands import onward
from ..present.failure import REFUSED, Failure


@click.command()
@actor_option
@at_store()
def top(opened: OpenedStore, out: Output, actor: str | None) -> None:
    """Watch queues, failures, runs, messages, workers and breakers, and repair them, by keys.

    Press ? for help. Lower-case keys are safe; upper-case ones change something, and ask for a reason, which the
    audit log keeps. It needs a terminal of 80×24 or more. With --url alone, tasks and rules are unknown.

    \b
      redrive top --app tasks:app
    """
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # textual draws on stderr
        why = "standard input, output or error is none"
        raise Failure("redrive top needs a terminal", why, onward("status"), REFUSED)
    from ..top import Model, Top

    Top(Model(opened.store, opened.app, opened.url, actor=actor)).run(mouse=False)
