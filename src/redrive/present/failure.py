"""Failures of commands: three lines on stderr (what, why, next command) and an exit code; never a traceback."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence

import click

from .._version import PUBLISHED
from ..redact import clip
from .commands import as_module, command, completed, corrected, program

DONE, FAILED, USAGE, UNREACHABLE, REFUSED, PARTIAL = 0, 1, 2, 3, 4, 5
TIMED_OUT, INTERRUPTED, BROKEN_PIPE = 124, 130, 141
FIELDS_BESIDE = {"PRESET": "--task"}  # by argument: the option for what people give instead of the argument's own value
REASON = "CRM-77: why you do it"  # the placeholder for a reason in a suggested command line
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
    "matplotlib": "plot",
}


class Failure(click.ClickException):
    """A failure with its three lines. Any command may raise it."""

    what: str
    why: str
    next: str

    def __init__(self, what: str, why: str, next: str, code: int = FAILED) -> None:
        super().__init__(what)
        self.what, self.why, self.next = what, why, next
        self.traceback = ""  # the traceback of an unexpected error, if REDRIVE_TRACEBACK is set
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance too


def failure_of(error: Exception) -> Failure:
    """Return the failure that reports an exception which ended a command."""
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
    what = what.replace("is not a valid integer range", "is not a whole number")  # click's wording
    what = re.sub(r"is not in the range (.*)", lambda within: _range(within[1]), what)
    what, help = what[:1].lower() + what[1:], f"{path} --help"
    match error:
        case click.NoSuchOption(option_name=name, possibilities=some):
            near = _nearest(name, some or ())
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
    """Return in words the range that click describes as x>=1 or 0<=x<=3."""
    low, _, high = described.partition("x")
    low, high = low.rstrip("<="), high.lstrip("<=")
    if high.startswith(">="):
        return f"is refused: it must be {high[2:]} or more"
    return f"is refused: it must be {low} to {high}" if low else f"is refused: it must be {high} or less"


def _with_unit(what: str) -> str | None:
    """Return the typed command line with an `s` after the duration, if `what` says that it has no unit; else None."""
    match = re.search("'([0-9.]+)' is refused: text needs a unit", what)
    return corrected(match[1], f"{match[1]}s") if match else None


def _not_one_of(what: str, param: click.Parameter, words: Sequence[str], help: str) -> Failure:
    name = param.opts[-1] if isinstance(param, click.Option) else (param.name or "").upper()
    match = re.search("'([^']*)' is not one of", what)  # click quotes the value in its message
    given = match[1] if match else ""
    near = _nearest(given, words)
    why = (f"did you mean '{near}'? " if near else "") + f"expected: {', '.join(words)}"
    if not near and isinstance(param, click.Argument) and (option := FIELDS_BESIDE.get(name)):
        why, help = f"{why}; {option} takes one of the app", corrected(given, f"{option}={given}")
    what = f"{name} cannot be '{given}'" if match else what
    return Failure(what, why, corrected(given, near) if near and given else help, USAGE)


def _nearest(word: str, known: Sequence[str]) -> str | None:
    from ..errors import near_miss

    return near_miss(word, known, 0.5)


def _ours(error: Exception) -> Failure | None:
    """Return the failure that reports an error of redrive, by what the user can do; None for other errors."""
    from ..config import NotTrusted
    from ..errors import (
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
        case ConfigError() if why.startswith("set "):
            return Failure(what, f"{command()} needs them", f"{why.removeprefix('set ')} {command()}", USAGE)
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
    if "upgrade redrive" in text:  # the store's schema is newer than this version
        if not PUBLISHED:  # as the documents say: scripts/index_notes
            return f"git pull && {sys.executable} -m pip install .   (in your clone of redrive)"
        return f"{sys.executable} -m pip install --upgrade redrive"
    printed = None if "store upgrade" in text else re.search(r"`redrive (store sql[^`]*)`", text)
    return f"{program()} {printed[1] if printed else 'store upgrade'}"


def _mend(what: str) -> str | None:
    """Return the command that fixes a rejected setting, whose place is at the beginning of `what`; None if there is
    none."""
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
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"at {place[0].filename}:{place[0].lineno}" if place else "at an unknown place"
    what = f"unexpected {type(error).__name__}: {clip(str(error), 20_000, 500) or 'no text'}"
    failure = Failure(what, f"a mistake in redrive or in the app, {where}", f"REDRIVE_TRACEBACK=1 {completed()}")
    if os.environ.get("REDRIVE_TRACEBACK"):
        failure.traceback = "".join(traceback.format_exception(error)).rstrip()
    return failure
