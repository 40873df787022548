"""`redrive`: all commands by name. The module of a command is imported when it is called, which keeps help fast."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from .._version import __version__
from ..cli.subcommands import Subcommands
from ..cli.terminal.examples import epilog
from ..cli.terminal.stderr import block, is_help, tell
from ..present.failure import BROKEN_PIPE, DONE, INTERRUPTED, USAGE, failure_of

# By section: the name and description of each command. Its module, here or in `cli`, has the name of the command.
COMMANDS: dict[str, dict[str, str]] = {
    "Start": {
        "init": "Write a small app that runs, and its settings.",
        "demo": "Deliver 329 real webhooks to an endpoint that misbehaves; prove that none is lost.",
        "deliver": "Deliver each line of a file as a durable HTTP POST.",
    },
    "Work": {
        "worker": "Run the messages of an app's queues.",
        "scheduler": "Enqueue an app's schedules, each tick once.",
        "enqueue": "Put a message on a queue.",
        "celery": "Move what Celery's producers send to an app's queues.",
    },
    "Inspect and repair": {
        "status": "Show what is going on, and what needs a person.",
        "web": "Show the fleet, dead letters and redrives as web pages.",
        "views": "List the saved views of the web pages.",
        "top": "Watch queues, failures, runs and workers in a terminal, and repair them by keys.",
        "workers": "List workers and schedulers, alive or killed lately; drain one.",
        "history": "Show what happened, by time: outcomes, error rate and durations.",
        "watch": "Look at thresholds; tell what fires and what is resolved.",
        "alerts": "Mute alerts about a queue or a dependency for a while.",
        "upcoming": "Show what comes due in the next minutes, hour and day.",
        "slo": "Show the objectives of tasks and queues, and their error budgets.",
        "job": "Show, list, run and cancel messages.",
        "queue": "List, show, pause, resume and purge queues.",
        "task": "List tasks; pause and resume single ones.",
        "batch": "List and show batches of messages that are waited for together; cancel one.",
        "workflow": "Show the steps of a workflow, with the members of each.",
        "group": "List groups, set their widths, resume blocked ones.",
        "flow": "Show breakers, budgets and limits of dependencies; hold breakers open or closed.",
        "dlq": "List, show, group, edit and retry dead messages; plan redrives and apply them.",
        "run": "Watch redrive runs; pause, resume, cancel and undo them.",
        "schedule": "List schedules, see their times, run, pause and resume them.",
        "audit": "List, verify and export the audit log.",
        "metrics": "Serve or print Prometheus metrics; print rules for alerts.",
    },
    "Plan and maintain": {
        "policy": "Preview the delays of a retry policy; check an app's policies.",
        "simulate": "Simulate load, outages and a past time on a virtual clock, with other policies.",
        "forecast": "Show how near the forecasts of redrives were.",
        "cost": "Estimate what SQS bills for a month's messages.",
        "schema": "Export the JSON Schema of each task's arguments.",
        "aws": "Write the infrastructure of a deployment on AWS, and the zip of its Lambdas.",
        "keys": "Create a key; list the keys that stored data still needs.",
        "doctor": "Check the set-up for damage, risks and slowness.",
        "store": "Check, describe and upgrade the store.",
        "config": "Show the settings, and where each comes from.",
        "completion": "Print the completion script of a shell.",
        "version": "Print the version.",
    },
}
_HELP = {name: help for section in COMMANDS.values() for name, help in section.items()}
_FOLDERS = {
    "run": "dlq",
    "cost": "aws",
    **dict.fromkeys(("alerts", "audit", "config", "doctor", "history", "init", "keys", "metrics"), "admin"),
    **dict.fromkeys(("schema", "slo", "status", "store", "upcoming", "views", "watch", "workers"), "admin"),
}


def _home(name: str) -> str:
    """Return the name of the module that has a command."""
    if name in ("demo", "top", "web"):  # these commands also import packages beside `cli`
        return f"redrive.program.{name}"
    folder = _FOLDERS.get(name)
    return f"redrive.cli.{folder}.{name}" if folder else f"redrive.cli.{name}"


class Commands(Subcommands):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_HELP)

    def command_of(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _HELP:
            return None
        command: click.Command = getattr(import_module(_home(name)), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        commands = [CompletionItem(name, help=help) for name, help in _HELP.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader closed the pipe
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # caught here, where the context of the command still exists
            raise error if is_help(error) else failure_of(error) from error
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()), col_max=12)


@click.command(
    cls=Commands,
    epilog=epilog(click.Context(click.Command("redrive"))),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, message="redrive %(version)s")
def cli() -> None:
    """Durable background work that handles failures.

    Name the store by --app MODULE:APP or --url URL, by REDRIVE_APP or REDRIVE_URL, or in redrive.toml.
    Exit codes: 0 done, 1 failed, 2 usage, 3 store unreachable, 4 refused, 5 partial, 124 timed out, 130 interrupted.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, by default that of this process, and exit."""
    code = run(sys.argv[1:] if args is None else args)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe: prevent the interpreter's message at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run the command line with these arguments; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # characters that the encoding lacks are printed as escapes
    if "_REDRIVE_COMPLETE" in os.environ:
        import_module("redrive.cli.completing").install()
    try:
        result = cli.main(list(args), standalone_mode=False, obj=tuple(args))
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        if is_help(error):
            block(str(error))
            return USAGE
        failure = failure_of(error)
        tell(failure)
        return failure.exit_code
    return result if isinstance(result, int) else DONE
