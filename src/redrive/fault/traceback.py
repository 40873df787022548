"""The traceback as text: like Python's own, with causes and the members of groups, but bounded."""

from __future__ import annotations

from .foreign import attributes_of, cause_of, context_of, members_of, storable, suppressed
from .inspection import DEPTH_MAX, MEMBERS_MAX, Looks, Seen
from .model import TRACEBACK_MAX
from .stack import LINE_MAX, Stack, stack_of

SHOWN_MAX = 16  # exceptions in one traceback
NOTES_MAX = 5

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def story(looks: Looks, seen: Seen, stack: Stack) -> str:
    """The traceback of what was seen, at most TRACEBACK_MAX characters with its end kept."""
    exception = seen.exception
    if not seen.known.group and cause_of(exception) is None and context_of(exception) is None:
        whole = _section(seen, stack)
    else:
        whole = _story(looks, exception, set(), 0)
    if len(whole) > TRACEBACK_MAX:
        mark = f"\n[{len(whole):,} characters; the middle is left out]\n"
        head = TRACEBACK_MAX // 4
        whole = whole[:head] + mark + whole[len(whole) - (TRACEBACK_MAX - head - len(mark)) :]
    return storable(whole, TRACEBACK_MAX).rstrip("\n")


def _section(seen: Seen, stack: Stack) -> str:
    last = f"{seen.known.name}: {seen.text}\n" if seen.text else f"{seen.known.name}\n"
    return f"{stack.shown}{last}{_notes(seen.exception)}"


def _story(looks: Looks, exception: BaseException, told: set[int], depth: int) -> str:
    """The exception with its causes before it and its members after it."""
    parts: list[str] = []
    current: BaseException | None = exception
    while current is not None:
        if id(current) in told or len(told) >= SHOWN_MAX:
            parts[-1:] = ["\n[from here on the causes are left out: too many, or in a circle]\n\n"] if parts else []
            break
        told.add(id(current))
        parts.append(_told(looks, current, told, depth))
        cause = cause_of(current)
        context = None if cause is not None or suppressed(current) else context_of(current)
        if cause is not None or context is not None:
            parts.append(_CAUSED if cause is not None else _DURING)
        current = cause if cause is not None else context
    return "".join(reversed(parts))


def _told(looks: Looks, exception: BaseException, told: set[int], depth: int) -> str:
    seen = looks.at(exception)
    own = _section(seen, stack_of(exception))
    if not seen.known.group or depth >= DEPTH_MAX:
        return own
    members = members_of(exception)
    stories = [(n, _story(looks, each, told, depth + 1)) for n, each in enumerate(members[:MEMBERS_MAX], 1)]
    inner = [f"+---------------- {n} of {len(members)} ----------------\n{story}" for n, story in stories if story]
    return own + "".join(f"  {line}\n" for each in inner for line in each.splitlines())


def _notes(exception: BaseException) -> str:
    notes = attributes_of(exception).get("__notes__")
    if notes is None or not isinstance(notes, list | tuple):
        return ""
    return "".join(f"{storable(note, LINE_MAX)}\n" for note in notes[:NOTES_MAX] if isinstance(note, str))
