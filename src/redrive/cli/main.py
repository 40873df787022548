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
from ..present.commands import CALLED, corrected
from ..present.failure import BROKEN_PIPE, DONE, INTERRUPTED, USAGE, Failure, failure_of
from .terminal.examples import epilog
from .terminal.stderr import block, is_help, tell

# By section: the name of each command, and what it does. Its module has that name, here or in a folder.
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
        "top": "Watch queues, failures, runs and workers in a terminal, and repair them by keys.",
        "workers": "List workers and schedulers, alive or killed lately; drain one.",
        "history": "Show what happened, by time: outcomes, error rate and durations.",
        "watch": "Look at thresholds; tell what fires and what is resolved.",
        "alerts": "Mute alerts about a queue or a dependency for a while.",
        "upcoming": "Show what comes due in the next minutes, hour and day.",
        "slo": "Show the objectives of tasks and queues, and their error budgets.",
        "job": "Show, list and cancel messages.",
        "queue": "List, pause, resume and purge queues.",
        "group": "List groups, set their widths, resume blocked ones.",
        "flow": "Show breakers, budgets and limits of dependencies; hold breakers open or closed.",
        "dlq": "List, show, group, edit and retry dead messages; plan redrives and apply them.",
        "run": "Watch redrive runs; pause, resume, cancel and undo them.",
        "schedule": "List schedules, see their times, run, pause and resume them.",
        "audit": "List, verify and export the audit log.",
        "metrics": "Serve or print Prometheus metrics; print rules for alerts.",
    },
    "Plan and maintain": {
        "policy": "Preview the delays of a retry policy.",
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
    **dict.fromkeys(("schema", "slo", "status", "store", "top", "upcoming", "watch", "workers"), "admin"),
}


def _home(name: str) -> str:
    """The module of a command."""
    folder = _FOLDERS.get(name)
    return f"{folder}.{name}" if folder else name


class Subcommands(click.Group):
    """A group of commands. For an unknown one it suggests the nearest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise unknown_command(args[0], known, ctx.command_path)
        ctx.meta[CALLED] = f"{ctx.command_path} {args[0]}" if args else ctx.command_path
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        found = self.found(ctx, name)
        if found is not None:
            found.epilog = epilog(ctx, name)
        return found

    def found(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of this name."""
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        commands = [(name, found) for name in names if (found := self.get_command(ctx, name)) is not None]
        with formatter.section("Commands"):  # whole sentences, which click would cut at the width of a line
            formatter.write_dl([(name, found.get_short_help_str(limit=1000)) for name, found in commands])


class Commands(Subcommands):
    """The commands, imported one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_HELP)

    def found(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _HELP:
            return None
        found: click.Command = getattr(import_module(f".{_home(name)}", __package__), name)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        commands = [CompletionItem(name, help=help) for name, help in _HELP.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has closed the pipe
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # here, where the command is still known
            raise error if is_help(error) else failure_of(error) from error
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()), col_max=12)


def unknown_command(word: str, known: Sequence[str], path: str) -> Failure:
    """The failure for an unknown command; it suggests the nearest."""
    import difflib

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    why = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    next = corrected(word, near[0]) if near else f"{path} --help"
    if near and next.endswith(" --help"):  # it was not typed as one word: the command alone
        next = f"{path} {near[0]}"
    return Failure(f"there is no command '{word}'", why, next, USAGE)


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
    """Run the command line and exit."""
    code = run(sys.argv[1:] if args is None else args)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # nothing reads the rest; the interpreter must not complain about it as it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # show what the encoding lacks by its code
    if "_REDRIVE_COMPLETE" in os.environ:
        import_module(".terminal.completing", __package__).install()
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
