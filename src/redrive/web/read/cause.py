"""Parts of a failure group's page: its deaths over time, the exceptions of a traceback, and the sample."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from ...crypto import shown_text
from ...errors import Unsupported
from ...fault.libraries import is_library
from ...message import BLOB, SEALED, FailureGroup, Filter, Lane, Message
from ...present.formats import timestamp
from ...present.messages import body_json
from .. import outside
from ..ask import PageRequest, Record
from .message import BODY_MAX

FRAME = re.compile(r'^ *File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
STEPS_S = (60, 300, 900, 3600, 10_800, 21_600, 43_200, 86_400, 259_200, 604_800)  # of the chart's bars
BARS, BARS_MOST = 24, 48  # the least and the most bars, unless the group is older than the steps can show
DRAWN_MAX, AT_ONCE = 100_000, 5_000  # the largest group whose deaths are drawn, and the largest drawn without a thread
SHOWN_SAMPLES = 50  # messages of a group through which its page leads
_LINKED = re.compile(
    r"\n\n(The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
_WORDS = {"The": "It was raised from", "During": "It was raised while this was handled"}


def deaths(ask: PageRequest, where: Filter, groups: Sequence[FailureGroup], now_ms: int) -> Record | None:
    """Return how many of the group's dead messages died in each step of time since the first; None if they are too
    many to be counted so, or are still being counted."""
    count, key = sum(each.count for each in groups), f"deaths/{where.fingerprint}"
    if not 0 < count <= DRAWN_MAX:
        return None
    first_ms = min(each.first_ms for each in groups)
    try:
        if count <= AT_ONCE:
            return ask.kept(key, lambda: _deaths(ask, where, first_ms, now_ms)).value
        kept = ask.kept_soon(key, lambda: _deaths(ask, where, first_ms, now_ms))
    except Unsupported:
        return None
    return None if kept is None else kept.value


def _deaths(ask: PageRequest, where: Filter, first_ms: int, now_ms: int) -> Record:
    step_ms = 1000 * next((s for s in STEPS_S if (now_ms - first_ms) / 1000 / s <= BARS_MOST), STEPS_S[-1])
    begin_ms, last_ms = first_ms // step_ms * step_ms, now_ms // step_ms * step_ms
    begin_ms = min(begin_ms, last_ms - (BARS - 1) * step_ms)
    starts = range(max(begin_ms, last_ms - (2 * BARS_MOST - 1) * step_ms), last_ms + 1, step_ms)
    died = [
        sum(g.count for g in ask.store.failure_groups(where=replace(where, since_ms=at, until_ms=at + step_ms)))
        if at + step_ms > first_ms
        else 0
        for at in starts
    ]
    return {"step_s": step_ms / 1000, "times": [timestamp(at) for at in starts], "died": died}


def chain(traceback: str) -> list[Record]:
    """Return the exceptions of a traceback, each with its frames. The last exception and the innermost frame come
    first. Neighbouring frames of libraries are one fold. Empty if no frame is found.

    >>> [each["error"] for each in chain('Traceback:\\n  File "a.py", line 3, in f\\n    g()\\nValueError: no')]
    ['ValueError: no']
    """
    parts = _LINKED.split(traceback)
    found = [_exception(part, link) for part, link in zip(parts[::2], [*parts[1::2], ""], strict=True)]
    return found[::-1] if any(each["folds"] for each in found) else []


def _exception(part: str, link: str) -> Record:
    """Return one exception as a record. `link` says how the next one in the traceback came of it."""
    at = list(FRAME.finditer(part))
    frames = []
    for n, frame in enumerate(at, 1):
        after = at[n].start() if n < len(at) else len(part)
        source = part[frame.end() : after].lstrip("\n").partition("\n")[0]
        file, line, name = frame.groups()
        frames.append(
            {
                "file": file, "line": int(line), "function": name, "own": not is_library(file),
                "source": source.strip() if source.startswith("  ") else "", "code": outside.code(file, int(line)),
            }
        )  # fmt: skip
    tail = part[at[-1].end() if at else 0 :]
    text = re.search(r"^\S.*", tail, re.MULTILINE | re.DOTALL)
    folds = [{"own": own, "frames": list(some)} for own, some in groupby(frames[::-1], key=lambda each: each["own"])]
    return {"error": text[0].strip() if text else "", "how": _WORDS[link.split()[0]] if link else None, "folds": folds}


def sample(ask: PageRequest, ids: Sequence[str]) -> Record:
    """Return the sample that the request chooses of these messages, with its body, the numbers of the ones before and
    after it, and its traceback."""
    number = min(ask.number("sample", 1, least=1, most=10**6), max(1, len(ids)))
    message = ask.store.find([ids[number - 1]])[0] if ids else None
    if message is not None and message.lane is not Lane.DEAD:
        message = None  # it moved since the samples were read
    shown: Record = {
        "sample": {
            "number": number, "count": len(ids), "previous": number - 1 or None,
            "next": number + 1 if number < len(ids) else None,
        },
        "sample_id": ids[number - 1] if ids else None, "body": None, "withheld": None,
    }  # fmt: skip
    if message is None:
        return shown
    if message.faults and message.faults[-1].traceback:
        shown["traceback"] = shown_text(message.faults[-1].traceback)
    return shown | _body(ask, message)


def _body(ask: PageRequest, message: Message) -> Record:
    if not ask.sees_bodies:
        return {"withheld": "its body needs the permission 'view_bodies'"}
    if message.damage is not None or message.content == BLOB or message.content.startswith(SEALED):
        return {"withheld": "its body is not kept in its row; its own page has it"}
    if len(message.body) > BODY_MAX:
        return {"withheld": f"its body has {len(message.body):,} bytes; its own page says how to read it"}
    return {"body": body_json(message.body)}
