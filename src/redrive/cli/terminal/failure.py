"""Failures of commands: three lines on stderr (what, why, next command) and an exit code; never a traceback."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence

import click

from ...redact import clip, many_lines, one_line, redact

DONE, FAILED, USAGE, UNREACHABLE, REFUSED, PARTIAL = 0, 1, 2, 3, 4, 5
TIMED_OUT, INTERRUPTED, BROKEN_PIPE = 124, 130, 141
CALLED = "redrive.called"  # in a click context: the command's path, also once its own context is gone
AT = "redrive.at"  # there: the flags that named app and store, for the commands that lead on
FIELDS_BESIDE = {"PRESET": "--task"}  # by an argument: the option for what else people give there
RENAMED = {"--why": "--reason", "--note": "--reason"}  # options of older versions
REASON = "CRM-77: why you do it"  # in a command line that lacks one
TYPED_MAX = 1000  # characters of a command line that a failure repeats
_EXTRAS = {
    "httpx": "http",
    "psycopg": "postgres",
    "redis": "redis",
    "boto3": "aws",
    "prometheus_client": "prometheus",
    "starlette": "web",
    "jinja2": "web",
    "uvicorn": "web",
    "textual": "top",
}


class Failure(click.ClickException):
    """A failure with its three lines. Any command may raise it."""

    def __init__(self, what: str, why: str, next: str, code: int = FAILED) -> None:
        super().__init__(what)
        self.what, self.why, self.next = what, why, next
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance too


def program() -> str:
    """The name of the program, as the user typed it."""
    context = click.get_current_context(silent=True)
    return (context.find_root().info_name if context is not None else None) or "redrive"


def command() -> str:
    """The running command, as the user typed it."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(CALLED, context.command_path)) if context is not None else program()


def onward(words: str) -> str:
    """A next command with the --app and --url of this one, ready to be pasted. The words may name the app already."""
    at = _at()
    app = at.partition(" --app ")[2].partition(" ")[0]
    return f"{program()} {words}{at.replace(f' --app {app}', '') if app in words.split() else at}"


def again(words: str) -> str:
    """The running command with other words, and the same --app and --url."""
    return f"{command()} {words}{_at()}"


def corrected(old: str, new: str, field: str = "") -> str:
    """The command line as the user typed it, with `new` in place of `old`: a word, the value of an `--option=`, or of
    that field of a selector. The command's help where `old` is there twice, or in another form."""
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
    """The command line as the user typed it, with more words; the command's help where it is very long."""
    words = list(_words())
    at = words.index("--") if "--" in words else len(words)  # behind it, options are none
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
    """Words of a command, quoted for a shell."""
    return shlex.join(words)


def as_module(file: str) -> str:
    """The name by which Python imports a file, as people type it: shop.py, ./shop.py or web/shop.py."""
    return file.removesuffix(".py").removeprefix("./").replace("/", ".") if file.endswith(".py") else file


def note(text: str) -> None:
    """Write a line to stderr, beside the data."""
    click.echo(one_line(redact(text)), err=True)


def block(text: str) -> None:
    """Write several lines to stderr, beside the data."""
    click.echo(many_lines(redact(text)), err=True)


def tell(failure: Failure) -> None:
    """Write the three lines."""
    for word, text in (("error", failure.what), ("why", failure.why), ("next", failure.next)):
        click.echo(f"{word}: {one_line(redact(' '.join(text.split())))}", err=True)


def is_help(error: Exception) -> bool:
    """Whether its text is the help of a group, which click 8.2 and later raise if a subcommand is missing."""
    return type(error).__name__ == "NoArgsIsHelpError"


def failure_of(error: Exception) -> Failure:
    """The three lines for any exception that ended a command."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        what, _, why = error.format_message().partition("\n")
        return Failure(what, why or "the command could not go on", f"{program()} --help", error.exit_code)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _EXTRAS:
        name = (error.name or "").partition(".")[0]
        install = f"{sys.executable} -m pip install 'redrive[{_EXTRAS[name]}]'"
        return Failure(f"this command needs {name}", "it comes with an extra that is not installed", install)
    return _ours(error) or _unexpected(error)


def _usage(error: click.UsageError) -> Failure:
    path = error.ctx.command_path if error.ctx is not None else command()
    usage = error.ctx.get_usage().partition(" ")[2] if error.ctx is not None else f"{path} [OPTIONS]"
    what, _, why = error.format_message().rstrip(".").partition("; expected ")
    what = what.replace("is not a valid integer range", "is not a whole number")  # click names its type there
    what = re.sub(r"is not in the range (.*)", lambda found: _range(found[1]), what)
    what, help = what[:1].lower() + what[1:], f"{path} --help"
    match error:
        case click.NoSuchOption(option_name=name, possibilities=some):
            near = RENAMED.get(name) or _nearest(name, some or ())
            meant = f"did you mean {near}?" if near else f"expected: {usage}"
            return Failure(f"there is no option {name}", meant, corrected(name, near) if near else help, USAGE)
        case click.MissingParameter(param=click.Option(opts=[*_, "--reason"])):
            return Failure("--reason is missing", "the audit log has to say why", completed("--reason", REASON), USAGE)
        case click.BadParameter(param=click.Parameter(type=click.Choice(choices=words)) as param):
            return _not_one_of(what, param, [str(word) for word in words], help)
        case click.BadParameter(param=click.Option(help=str(meaning)) as option) if not why:
            return Failure(what, f"{option.opts[-1]}: {meaning}", help, USAGE)
    return Failure(what, f"expected: {why or usage}", _with_unit(what) or help, USAGE)


def _range(described: str) -> str:
    """A range of numbers in words; click describes it as x>=1 or 0<=x<=3."""
    low, _, high = described.partition("x")
    low, high = low.rstrip("<="), high.lstrip("<=")
    if high.startswith(">="):
        return f"is refused: it must be {high[2:]} or more"
    return f"is refused: it must be {low} to {high}" if low else f"is refused: it must be {high} or less"


def _with_unit(what: str) -> str | None:
    """The command line with seconds, where a duration has no unit."""
    found = re.search("'([0-9.]+)' is refused: text needs a unit", what)
    return corrected(found[1], f"{found[1]}s") if found else None


def _not_one_of(what: str, param: click.Parameter, words: Sequence[str], help: str) -> Failure:
    name = param.opts[-1] if isinstance(param, click.Option) else (param.name or "").upper()
    found = re.search("'([^']*)' is not one of", what)  # click quotes the value there
    given = found[1] if found else ""
    near = _nearest(given, words)
    why = (f"did you mean '{near}'? " if near else "") + f"expected: {', '.join(words)}"
    if not near and isinstance(param, click.Argument) and (option := FIELDS_BESIDE.get(name)):
        why, help = f"{why}; {option} takes one of the app", corrected(given, f"{option}={given}")
    what = f"{name} cannot be '{given}'" if found else what
    return Failure(what, why, corrected(given, near) if near and given else help, USAGE)


def _nearest(word: str, known: Sequence[str]) -> str | None:
    from ...errors import near_miss

    return near_miss(word, known, 0.5)


def _ours(error: Exception) -> Failure | None:
    """By what the caller can do about it."""
    from ...config import NotTrusted
    from ...errors import (
        ConfigError,
        EnqueueError,
        ReadOnly,
        RedriveError,
        Refused,
        SchemaError,
        StoreError,
        StoreFull,
        StoreUnavailable,
        Unsupported,
    )

    help, settings = f"{command()} --help", f"{program()} config show"
    what, _, why = str(error).replace(": expected", "; expected", 1).partition("; ")
    match error:
        case ConfigError() if why.startswith("pip install "):
            return Failure(what, "it comes with an extra that is not installed", f"{sys.executable} -m {why}", USAGE)
        case ConfigError():
            return Failure(what, why or "a setting or declaration is wrong", _mend(what) or settings, USAGE)
        case SchemaError():
            return Failure(what, why or "its schema is of another version", _mend_schema(str(error)), REFUSED)
        case NotTrusted():
            return Failure(what, why, f"{error.fix} {command()}", REFUSED)
        case Refused():
            return Failure(what, why or "a safety check says no", settings, REFUSED)
        case ReadOnly():
            return Failure(what, why or "nothing was changed", f"run {command()} as a user who may write", REFUSED)
        case Unsupported():
            return Failure(what, why or "this store does not do that", help, REFUSED)
        case StoreFull():
            return Failure("the store is full; nothing was written", what, f"{program()} doctor", UNREACHABLE)
        case StoreUnavailable():
            return Failure("the store cannot be reached or written now", what, settings, UNREACHABLE)
        case StoreError():
            next = f"{program()} store sql" if "store sql" in why else settings
            return Failure(what, why or "the store cannot be used now", next, UNREACHABLE)
        case EnqueueError():
            return Failure(what, why or "nothing was written", help, FAILED)
        case RedriveError():
            return Failure(what, why or type(error).__name__, help, FAILED)
        case TimeoutError():
            return Failure(what or "timed out", why or "it took longer than was allowed", help, TIMED_OUT)
        case _:
            return None


def _mend_schema(text: str) -> str:
    if "upgrade redrive" in text:  # the schema is the newer one
        return f"{sys.executable} -m pip install --upgrade redrive"
    return f"{program()} store {'sql' if 'store upgrade' not in text and 'store sql' in text else 'upgrade'}"


def _mend(what: str) -> str | None:
    """Where a rejected setting is defined: `config` begins its messages with that."""
    if what.startswith("--app = ") and "MODULE:APP" in what:
        given = what.partition("'")[2].partition("'")[0]
        return corrected(given, f"{as_module(given)}:app")
    if what.startswith("--"):
        return _with_unit(what) or f"{command()} --help"
    place = what.partition(" = ")[0].partition(": ")[0]
    if place.startswith("REDRIVE_"):
        return f"unset {place}"
    return f"edit {place}" if place.endswith(".toml") else None


def _unexpected(error: Exception) -> Failure:
    if os.environ.get("REDRIVE_TRACEBACK"):
        block("".join(traceback.format_exception(error)).rstrip())
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"at {place[0].filename}:{place[0].lineno}" if place else "at an unknown place"
    what = f"unexpected {type(error).__name__}: {clip(str(error), 20_000, 500) or 'no text'}"
    return Failure(what, f"a mistake in redrive or in the app, {where}", f"REDRIVE_TRACEBACK=1 {completed()}")
