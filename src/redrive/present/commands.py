"""Format commands as people type them: the running one, corrected or completed, and the next one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click

CALLED = "redrive.called"  # key in a click context for the command's path, kept after its context is closed
AT = "redrive.at"  # the key in a click context for the flags that named app and store, which next commands repeat
TYPED_MAX = 1000  # the most characters of a command line that a failure repeats


def program() -> str:
    """Return the name of the program, as the user typed it."""
    context = click.get_current_context(silent=True)
    return (context.find_root().info_name if context is not None else None) or "redrive"


def command() -> str:
    """Return the running command, as the user typed it."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(CALLED, context.command_path)) if context is not None else program()


def onward(words: str) -> str:
    """Return the command with these words, and the running one's --app and --url unless `words` name the app."""
    at = _at()
    app = at.partition(" --app ")[2].partition(" ")[0]
    return f"{program()} {words}{at.replace(f' --app {app}', '') if app in words.split() else at}"


def again(words: str) -> str:
    """Return the running command with these words as its arguments, and the same --app and --url."""
    return f"{command()} {words}{_at()}"


def corrected(old: str, new: str, field: str = "") -> str:
    """Return the typed command line with `new` in place of `old`: a word, the value of an `--option=`, or of that field
    of a selector. Returns the command's help if `old` does not occur there exactly once."""
    words = _words()
    fixed = [_replaced(word, old, new, field) for word in words]
    if sum(a != b for a, b in zip(words, fixed, strict=True)) != 1 or len(shlex.join(fixed)) > TYPED_MAX:
        return f"{command()} --help"
    return f"{program()} {shlex.join(fixed)}"


def _replaced(word: str, old: str, new: str, field: str) -> str:
    flag, equals, value = word.partition("=")
    if word == old or (equals and value == old):
        return new if word == old else f"{flag}={new}"
    if field and f"{field}:" in word:
        return re.sub(rf"(?<![\w.-]){field}:{re.escape(old)}(?![\w.*-])", lambda _: f"{field}:{new}", word)
    return word


def completed(*more: str) -> str:
    """Return the typed command line with more words at its end; the command's help if that is very long."""
    words = list(_words())
    at = words.index("--") if "--" in words else len(words)  # before a `--`, as words after it are not options
    words[at:at] = more
    return f"{program()} {shlex.join(words)}" if len(shlex.join(words)) <= TYPED_MAX else f"{command()} --help"


def _words() -> Sequence[str]:
    context = click.get_current_context(silent=True)
    words: Sequence[str] = (context.find_root().obj if context is not None else None) or ()
    return words


def _at() -> str:
    context = click.get_current_context(silent=True)
    return str(context.meta.get(AT, "")) if context is not None else ""


def typed(*words: str) -> str:
    """Return words of a command quoted for a shell."""
    return shlex.join(words)


def as_module(file: str) -> str:
    """Return the module name of a file that a person typed: shop.py, ./shop.py or web/shop.py. Other names stay as they
    are."""
    return file.removesuffix(".py").removeprefix("./").replace("/", ".") if file.endswith(".py") else file
