"""Make an exception from a stored traceback, for logging handlers and error trackers, which expect `exc_info`.

The exception itself may have been raised in another process, and it holds secrets: in its text, and in the local
variables of its frames. A stand-in has the name of the exception's class, its text without secrets, its causes, and
frames without variables.
"""

from __future__ import annotations

import builtins
import linecache
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType, TracebackType
from typing import Any

from ..redact import HIDDEN, redact

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

_HEADER = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|None), in (.*)\n(?:    (.*)\n)?|  \[.*\]\n')
_BETWEEN = re.compile(
    r"\n(?:The above exception was the (direct cause) of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
_CLASS = re.compile(r"[\w.<>]{1,200}")


class StandIn(Exception):
    """The base class of all stand-ins."""


class CodeLine:
    """One line of code in a traceback. `hidden`: the source line holds a secret."""

    filename: str
    name: str
    hidden: bool

    def __init__(self, filename: str, line: str, name: str, source: str | None) -> None:
        self.filename, self.name, self.hidden = filename, name, HIDDEN in (source or "")
        self.line: int = 0 if line == "None" else int(line)


def stand_in(error: str, text: str, traceback: str) -> ExcInfo:
    """Return the `exc_info` of an exception whose class is named `error`. `text` and `traceback` have no secrets.

    If this process has the exception's class, the first item is that class, so that filters by class work.
    """
    sections = _BETWEEN.split(traceback)  # cause, line that links it to the next exception, next exception, …
    value = StandIn()
    for at in range(0, len(sections), 2):
        places, end = _read(sections[at])
        name, why = (error, text) if at + 1 == len(sections) else _class_and_text(end)
        earlier, value = value, _exception(name, why, places)
        if at:
            value.__cause__ = earlier if sections[at - 1] else None
            value.__context__, value.__suppress_context__ = earlier, False
    return _known_class(error) or type(value), value, value.__traceback__


def _read(section: str) -> tuple[list[CodeLine], str]:
    """Return the frames of one exception's section of the traceback, and the text after them."""
    places: list[CodeLine] = []
    at = len(_HEADER)
    if not section.startswith(_HEADER):
        return places, section
    while match := _FRAME.match(section, at):
        at = match.end()
        if match[1] is not None:
            places.append(CodeLine(*match.groups()))
    return places, section[at:]


def _class_and_text(end: str) -> tuple[str, str]:
    """Return the class name and the text of a cause from the end of its section."""
    name, _, text = end.strip().partition(": ")
    return (name, text) if _CLASS.fullmatch(name) else ("Exception", end.strip())


def _exception(error: str, text: str, places: list[CodeLine]) -> StandIn:
    step: TracebackType | None = None
    for place in reversed(places):
        frame = FunctionType(_code(place.filename, place.name, place.hidden), _globals(place.filename))()
        step = TracebackType(step, frame, -1, place.line)
    return _class(error)(text).with_traceback(step)


@lru_cache(maxsize=1_024)
def _class(error: str) -> type[StandIn]:
    module, _, name = error.rpartition(".")
    return type(name or "Exception", (StandIn,), {"__module__": module or "builtins"})


def _known_class(error: str) -> type[BaseException] | None:
    module, _, name = error.rpartition(".")
    value = getattr(sys.modules.get(module or builtins.__name__), "__dict__", {}).get(name)
    return value if isinstance(value, type) and issubclass(value, BaseException) else None


# -- frames


this_frame: Callable[[], Any] = sys._getframe


def _template() -> Any:
    return this_frame()


@lru_cache(maxsize=1_024)
def _code(filename: str, name: str, hidden: bool) -> CodeType:
    """Return a code object with these names. Formatters of tracebacks read source lines from the file. With `hidden`,
    the code object names a file that does not exist, so they ask the loader, which hides secrets."""
    shown = f"{filename} (secrets hidden)" if hidden else filename
    return _template.__code__.replace(co_filename=shown, co_name=name, co_qualname=name)


@lru_cache(maxsize=256)
def _globals(filename: str) -> dict[str, Any]:
    modules = list(sys.modules.items())
    name = next((name for name, each in modules if getattr(each, "__dict__", {}).get("__file__") == filename), "")
    return {"__name__": name, "__loader__": SourceLoader(filename), "this_frame": this_frame}


class SourceLoader:
    """Loads the source of a file without its secrets. Error trackers call it to show the lines around a frame."""

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._source: str | None = None

    def get_source(self, name: str | None = None) -> str:
        """Return the source without secrets; an empty text if removing them would shift lines."""
        if self._source is None:
            source = "".join(linecache.getlines(self._filename))
            shown = redact(source)
            self._source = shown if shown.count("\n") == source.count("\n") else ""
        return self._source
