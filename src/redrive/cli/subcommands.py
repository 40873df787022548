"""Groups of commands that suggest the nearest name for an unknown one, and end their help with examples."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..present.commands import CALLED, corrected
from ..present.failure import USAGE, Failure
from .terminal.examples import epilog


class Subcommands(click.Group):
    """A group of commands that suggests the nearest name for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            raise unknown_command(args[0], known, ctx.command_path)
        ctx.meta[CALLED] = f"{ctx.command_path} {args[0]}" if args else ctx.command_path
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command = self.command_of(ctx, name)
        if command is not None:
            command.epilog = epilog(ctx, name)
        return command

    def command_of(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        commands = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
        with formatter.section("Commands"):  # click would cut sentences at the width of a line
            formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in commands])


def unknown_command(word: str, known: Sequence[str], path: str) -> Failure:
    """Return the failure that reports an unknown command, with the nearest known name."""
    import difflib

    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    why = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
    next = corrected(word, near[0]) if near else f"{path} --help"
    if near and next.endswith(" --help"):  # the user did not type the word by itself, so suggest the command alone
        next = f"{path} {near[0]}"
    return Failure(f"there is no command '{word}'", why, next, USAGE)
