"""Walk an exception's frames once, and write its traceback: like Python's own, with causes and members, but bounded.

A repeated failure has the same frames, so stacks are cached by their code objects and line numbers. Memory: at most
STACKS_MAX texts of at most 32 frames, and their code objects.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType

from msgspec import Struct

from .inspection import (
    DEPTH_MAX,
    MEMBERS_MAX,
    ExceptionFacts,
    Inspection,
    attributes_of,
    call,
    cause_of,
    context_of,
    members_of,
    storable,
    string,
    suppressed,
    traceback_of,
)
from .libraries import is_library, package
from .model import TRACEBACK_MAX
from .templates import Template, templates_of

SHOWN_MAX = 16  # most exceptions in one traceback
NOTES_MAX = 5
FRAMES_WALKED_MAX = 100_000
FRAMES_HEAD, FRAMES_TAIL = 8, 24  # most frames shown of each exception: outermost and innermost
LINE_MAX = 200  # most characters of a source line
PLACES_MAX = 5  # most functions that count for a fingerprint
STACKS_MAX = 512
_LINES_MAX = 4_096  # most lines of code that are cached

_HEADER = "Traceback (most recent call last):\n"
_PACKAGE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib is not imported elsewhere
# Paths of frames that are left out: redrive's own are useless to users.
_OWN = (f"{_PACKAGE}{os.sep}worker{os.sep}", f"{_PACKAGE}{os.sep}gathered.py")
_INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})  # names of frames that exist only before Python 3.12
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Frame(Struct, frozen=True):
    """One line of code in a traceback."""

    shown: str
    place: str  # file and function, without the line number
    library: bool
    own: bool


class Stack(Struct, frozen=True):
    """The frames that an exception passed, outermost first; not the worker's own, nor the middle of a deep stack."""

    shown: str  # the frames as Python prints them, with the header; empty without frames
    raised: str  # the library function that raised the exception; empty if the user's code did
    places: tuple[str, ...]  # the library that raised the exception, if any, then the user's functions that led there
    all_places: tuple[str, ...]  # all functions of the stack, sorted
    names: frozenset[str]  # words that are literals in the user's innermost function
    templates: tuple[Template, ...]  # message templates in the user's functions
    codes: tuple[CodeType, ...]  # keeps the code objects alive, so that their ids stay unique


_stacks: dict[tuple[int, ...], Stack] = {}


def stack_of(exception: BaseException) -> Stack:
    """Return the frames through which the exception was raised."""
    codes: list[CodeType] = []
    lines: list[int] = []
    step = traceback_of(exception)
    while step is not None and len(codes) < FRAMES_WALKED_MAX:
        codes.append(step.tb_frame.f_code)
        lines.append(step.tb_lineno)
        step = step.tb_next
    left_out = 0
    if len(codes) > FRAMES_HEAD + FRAMES_TAIL:
        left_out = len(codes) - FRAMES_HEAD - FRAMES_TAIL
        del codes[FRAMES_HEAD:-FRAMES_TAIL], lines[FRAMES_HEAD:-FRAMES_TAIL]
    key = (left_out, *map(id, codes), *lines)
    stack = _stacks.get(key)
    if stack is None:
        stack = _stack(codes, lines, left_out, _scopes(exception))
        if len(_stacks) >= STACKS_MAX:
            _stacks.clear()
        _stacks[key] = stack
    return stack


def _scopes(exception: BaseException) -> dict[int, Mapping[str, object]]:
    """Return the global names of each frame's module, by the id of the frame's code object."""
    scopes: dict[int, Mapping[str, object]] = {}
    step = traceback_of(exception)
    while step is not None and len(scopes) < FRAMES_WALKED_MAX:
        scopes[id(step.tb_frame.f_code)] = step.tb_frame.f_globals
        step = step.tb_next
    return scopes


def _stack(codes: list[CodeType], lines: list[int], left_out: int, scopes: Mapping[int, Mapping[str, object]]) -> Stack:
    frames = [_frame_of(code, line) for code, line in zip(codes, lines, strict=True)]
    if left_out:
        frames.insert(FRAMES_HEAD, Frame(f"  [{left_out:,} frames left out]\n", "", False, False))
    frames = [each for each in frames if not each.own] or frames  # a fault of the worker itself keeps its own frames
    shown = _HEADER + "".join([each.shown for each in frames]) if frames else ""
    places = _places(frames)
    raised = next((each for each in reversed(frames) if each.place), None)
    in_library = raised.place if raised is not None and raised.library else ""
    own = [each for each in reversed(codes) if not is_library(each.co_filename)]
    templates = templates_of([(each, scopes.get(id(each), {})) for each in list(dict.fromkeys(own))[:PLACES_MAX]])
    return Stack(shown, in_library, places[:PLACES_MAX], tuple(sorted(places)), _names(own), templates, tuple(codes))


def _names(own: list[CodeType]) -> frozenset[str]:
    return frozenset(
        [each for code in own[:1] for each in code.co_consts if isinstance(each, str) and each.isidentifier()]
    )


def _frame_of(code: CodeType, line: int | None) -> Frame:
    return _frame(code.co_filename, line, code.co_name, code.co_qualname)


@lru_cache(maxsize=_LINES_MAX)
def _frame(filename: str, line: int | None, name: str, qualname: str) -> Frame:
    source = string(call(linecache.getline, filename, line)).strip()[:LINE_MAX] if line else ""
    shown = f'  File "{filename}", line {line}, in {name}\n' + (f"    {source}\n" if source else "")
    basename = filename.replace("\\", "/").rpartition("/")[2]
    library = is_library(filename)
    place = "" if name in _INLINED else f"{package(filename, qualname) if library else basename}:{qualname}"
    return Frame(shown, place, library, filename.startswith(_OWN))


def _places(frames: list[Frame]) -> tuple[str, ...]:
    """Return the library that raised, then the user's functions that led there, each once, however deep a recursion is.

    A library's own functions are left out, since they change with its releases.
    """
    places: list[str] = []
    for each in reversed(frames):
        place = each.place.partition(":")[0] if each.library else each.place
        if place and (not each.library or not places) and place not in places:
            places.append(place)
    return tuple(places)


def traceback_text(inspection: Inspection, seen: ExceptionFacts, stack: Stack) -> str:
    """Return an exception's traceback. The middle is left out if it has over TRACEBACK_MAX characters."""
    exception = seen.exception
    if not seen.known.group and cause_of(exception) is None and context_of(exception) is None:
        whole = _section(seen, stack)
    else:
        whole = _with_causes(inspection, exception, set(), 0)
    if len(whole) > TRACEBACK_MAX:
        mark = f"\n[{len(whole):,} characters; the middle is left out]\n"
        head = TRACEBACK_MAX // 4
        whole = whole[:head] + mark + whole[len(whole) - (TRACEBACK_MAX - head - len(mark)) :]
    return storable(whole, TRACEBACK_MAX).rstrip("\n")


def _section(seen: ExceptionFacts, stack: Stack) -> str:
    last = f"{seen.known.name}: {seen.text}\n" if seen.text else f"{seen.known.name}\n"
    return f"{stack.shown}{last}{_notes(seen.exception)}"


def _with_causes(inspection: Inspection, exception: BaseException, done: set[int], depth: int) -> str:
    """Return the traceback of the exception, after those of its causes and before those of its members."""
    parts: list[str] = []
    current: BaseException | None = exception
    while current is not None:
        if id(current) in done or len(done) >= SHOWN_MAX:
            parts[-1:] = ["\n[from here on the causes are left out: too many, or in a circle]\n\n"] if parts else []
            break
        done.add(id(current))
        parts.append(_with_members(inspection, current, done, depth))
        cause = cause_of(current)
        context = None if cause is not None or suppressed(current) else context_of(current)
        if cause is not None or context is not None:
            parts.append(_CAUSED if cause is not None else _DURING)
        current = cause if cause is not None else context
    return "".join(reversed(parts))


def _with_members(inspection: Inspection, exception: BaseException, done: set[int], depth: int) -> str:
    seen = inspection.see(exception)
    own = _section(seen, stack_of(exception))
    if not seen.known.group or depth >= DEPTH_MAX:
        return own
    members = members_of(exception)
    texts = [(n, _with_causes(inspection, each, done, depth + 1)) for n, each in enumerate(members[:MEMBERS_MAX], 1)]
    inner = [f"+---------------- {n} of {len(members)} ----------------\n{text}" for n, text in texts if text]
    return own + "".join(f"  {line}\n" for each in inner for line in each.splitlines())


def _notes(exception: BaseException) -> str:
    notes = attributes_of(exception).get("__notes__")
    if notes is None or not isinstance(notes, list | tuple):
        return ""
    return "".join(f"{storable(note, LINE_MAX)}\n" for note in notes[:NOTES_MAX] if isinstance(note, str))
