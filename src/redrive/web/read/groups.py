"""Failure groups: dead messages with the same failure, the largest group first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import SelectorError, Unsupported
from ...message import FailureGroup, Message
from ...present.groups import group_records
from ...triage.annotations import read_annotations
from ...triage.redrive.run import RunView, views
from ...triage.selection import Selection
from ..ask import PageAnswer, PageRequest, Problem, Record
from ..sums import KeptValue
from . import fields, selecting

ROWS = 100
SAMPLES = 50  # groups whose sample is read to find the failing code
NEW_MS = 3_600_000  # a group is new for so long after its first death
RUNS = 50  # the latest runs, by which a regressed group is recognised
MATCHED_MAX = 100_000  # messages that a thread reads if no index can group them
FRAME = re.compile(r'^ *File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<")
_PATH = re.compile(r"[/\\]")


def groups(ask: PageRequest) -> Record:
    """Return all groups, or those of a selector's messages, with their annotations."""
    text = ask.text("q")
    try:
        kept = _found(ask, text)
    except SelectorError as error:
        return PageAnswer(_record(ask, mistake=selecting.mistake(error)), status=422, typed={"q": text})
    except Unsupported as error:
        return _record(ask, missing=str(error))
    if kept is None:
        return _record(ask, making=True)
    found = [group for group in kept.value if group.count]
    known = {group.task for group in found}
    return _record(
        ask,
        groups=rows(ask, found[:ROWS], kept_places(ask, found)),
        all=len(found),
        dead=sum(group.count for group in found),
        tasks=sorted(known),
        age_s=kept.age_s,
    )


def _record(ask: PageRequest, **known: object) -> Record:
    text = ask.text("q")
    words = ("dlq", "groups", *((text,) if text else ()))
    return {
        "q": text, "groups": [], "all": 0, "dead": 0, "tasks": [], "age_s": 0.0, "mistake": None, "missing": None,
        "making": False, "completions": selecting.completions(ask), "command": fields.command(ask, *words), **known,
    }  # fmt: skip


def _found(ask: PageRequest, text: str) -> KeptValue[Sequence[FailureGroup]] | None:
    """Return the groups of matching messages; None while a thread still reads them."""
    if not text:
        return ask.kept("groups", lambda: ask.app.dlq.groups(trend=True))
    selection = selecting.chosen(ask, text)
    key = f"groups/{selection}"
    if selection.indexed or selecting.at_rest(ask) <= selecting.COUNTED_MAX:
        return ask.kept(key, lambda: selection.groups(trend=True))
    if (width := _width(ask, selection)) > MATCHED_MAX:
        why = f"no index groups these, and {width:,} messages would be read"
        raise Problem("this selector is too wide to group by", why, "add queue:, task:, error: or failed:", 422)
    return ask.kept_soon(key, lambda: selection.groups(trend=True))


def _width(ask: PageRequest, selection: Selection) -> int:
    """Estimate how many messages are read to group a selection."""
    width = ask.kept(f"width/{selection}", selection.width).value
    return selecting.dead_in(ask, selection.where.queue).value if width is None else width


def rows(ask: PageRequest, groups: Sequence[FailureGroup], places: dict[str, str]) -> list[Record]:
    """Return groups with annotations and states. `places`: the failing code by the id of the group's sample."""
    names = list(dict.fromkeys(group.fingerprint for group in groups if group.fingerprint))
    about = read_annotations(ask.store, names) if ask.store.traits.cells else {}
    runs = views(ask.store, RUNS) if ask.store.traits.cells else []
    now_ms = ask.store.now_ms()
    return [
        {**record, "place": places.get(group.sample_id), "states": states(group, record, runs, now_ms)}
        for group, record in zip(groups, group_records(groups, about, now_ms), strict=True)
    ]


def states(group: FailureGroup, said: Record, runs: Sequence[RunView], now_ms: int) -> list[str]:
    """Return the notable states of a group: new, regressed, muted, or its rule."""
    words = ["regressed" if regressed(group, runs) else "new" if now_ms - group.first_ms < NEW_MS else ""]
    words += ["muted" if said["muted_until"] else "", f"rule {said['rule']}" if said["rule"] else ""]
    return [word for word in words if word]


def regressed(group: FailureGroup, runs: Sequence[RunView]) -> bool:
    """Return whether messages died with this failure after a run that redrove just this failure was done."""
    if not group.fingerprint:
        return False
    of_it = [run for run in runs if f"fingerprint:{group.fingerprint}" in run.selector and run.state == "done"]
    return any(run.over_ms and group.last_ms > run.over_ms for run in of_it)


def kept_places(ask: PageRequest, groups: Sequence[FailureGroup]) -> dict[str, str]:
    """Return the failing code of the largest groups, by the id of their sample."""
    ids = [group.sample_id for group in groups[:SAMPLES]]
    if not ids:
        return {}
    return ask.kept(f"places/{','.join(ids[:SAMPLES])}", lambda: _places(ask, ids)).value


def _places(ask: PageRequest, ids: Sequence[str]) -> dict[str, str]:
    return {m.id: place for m in ask.store.find(ids) if m is not None and (place := place_of(m))}


def place_of(message: Message) -> str:
    """Return the innermost function of the user's own code in the last traceback; empty if there is none."""
    frames = FRAME.findall(message.faults[-1].traceback) if message.faults else []
    own = [(file, line, name) for file, line, name in frames if not _LIBRARY.search(file)]
    if not own:
        return ""
    file, line, name = own[-1]
    return f"{name} ({_PATH.split(file)[-1]}:{line})"
