"""`redrive completion`: print the script that a shell loads to complete commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from ..present.failure import USAGE, Failure
from .terminal.stderr import note

_SHELLS = {
    "bash": 'eval "$(redrive completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(redrive completion zsh)"   # in ~/.zshrc',
    "fish": "redrive completion fish > ~/.config/fish/completions/redrive.fish",
}

_CLASSES: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", required=False, type=click.Choice(tuple(_SHELLS)))
def completion(shell: str | None) -> None:
    """Print the completion script of a shell (default: the one in $SHELL).

    \b
      bash   eval "$(redrive completion bash)"   # in ~/.bashrc
      zsh    eval "$(redrive completion zsh)"   # in ~/.zshrc
      fish   redrive completion fish > ~/.config/fish/completions/redrive.fish
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        known = ", ".join(_SHELLS)
        raise Failure(f"no completion for the shell '{name}'", f"known: {known}", "redrive completion bash", USAGE)
    root = click.get_current_context().find_root().command
    script = _CLASSES[name](root, {}, "redrive", "_REDRIVE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
    if sys.stdout.isatty():
        note(f"to load it: {_SHELLS[name]}")
