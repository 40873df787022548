"""Failure groups: dead messages with the same failure, the largest group first. And one of them: the failing code,
its texts, what its messages share, and the actions of people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from ...audit import Audit
from ...batch import group_batches
from ...crypto import shown_text
from ...errors import SelectorError, StoreError, Unsupported
from ...fault.libraries import is_library
from ...message import FailureGroup, Filter, Lane, Message
from ...present.audit import entry_record
from ...present.formats import timestamp
from ...present.groups import annotation_record, batches_record, group_records, task_group_record
from ...present.permissions import Permission
from ...store import FIRST_PAGE, fitting
from ...triage.annotations import NOTHING, read_annotations
from ...triage.deaths import DeathStep, recent_deaths
from ...triage.group_states import held_counts, read_states
from ...triage.redrive.run import RunView, views
from ...triage.select.terms import exactly
from ...triage.selection import Selection
from .. import outside
from ..ask import PageAnswer, PageRequest, Problem, Record
from ..sums import KeptValue
from . import selecting, shares
from .arguments import rows_with_arguments
from .cause import FRAME, SHOWN_SAMPLES, chain, deaths, sample
from .fields import SINCE, span

ROWS = 100
SAMPLES = 50  # groups of a list whose samples are read to find the failing code
NEW_MS = 3_600_000  # ms after its first death for which a group is new
RUNS = 50  # the latest runs that are read to recognise a regressed group
MATCHED_MAX = 100_000  # the most messages that a thread reads to group them, if no index can
MESSAGES = 50  # messages of a group that its page lists
SAMPLE = 200  # messages of a group that are read to find what they share
LOG, LOG_READ = 10, 2000  # entries of the audit log that are shown of a group, and read to find them
FRAMES = 12
# Such a group has a page even without dead messages: its last may just have moved.
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_PATH = re.compile(r"[/\\]")


def groups(ask: PageRequest) -> Record:
    """Return all groups, or those of a selector's messages and of those that died in a time, with their annotations."""
    text = ask.text("q")
    try:
        selecting.understood(ask, text)
        kept = _found(ask, _in_time(ask, text))
    except SelectorError as error:
        return PageAnswer(_record(ask, mistake=selecting.mistake(error)), status=422, typed={"q": text})
    except Unsupported as error:
        return _record(ask, missing=str(error))
    if kept is None:
        return _record(ask, making=True)
    found = [group for group in kept.value if group.count]
    known = {group.task for group in found}
    shown = rows(ask, found[:ROWS], kept_places(ask, found))
    lines = deaths_lines(ask) if found else {}
    return _record(
        ask,
        groups=[row | {"deaths": lines.get(row["fingerprint"], [])} for row in shown],
        all=len(found),
        dead=sum(group.count for group in found),
        tasks=sorted(known),
        age_s=kept.age_s,
    )


def deaths_lines(ask: PageRequest, queue: str = "") -> Mapping[str, Sequence[int]]:
    """Return the deaths of the last hour, of a queue or of all, by fingerprint; empty while they are read."""
    key = f"deaths/of/{queue}"

    def read() -> tuple[Mapping[str, Sequence[int]], dict[int, DeathStep]]:
        before = ask.site.sums.peek(key)
        steps: dict[int, DeathStep] = {} if before is None else dict(before[1])
        return recent_deaths(ask.store, queue or None, steps), steps

    kept = ask.kept_soon(key, read)
    return {} if kept is None else kept.value[0]


def _in_time(ask: PageRequest, text: str) -> str:
    """Return the selector, narrowed to what died in the time that the address asks for. Raises Problem."""
    wanted = span(ask, "")
    if wanted.back and wanted.back not in SINCE:
        raise Problem(f"since={wanted.back!r} is none of the times", f"expected {', '.join(SINCE)}", status=422)
    if wanted.is_absolute and wanted.to_ms is not None:
        bounds = f"failed:>={timestamp(wanted.from_ms)} failed:<{timestamp(wanted.to_ms)}"
    elif wanted.back:
        bounds = f"failed:<{wanted.back}"
    else:
        return text
    return f"({text}) {bounds}" if text else bounds


def _record(ask: PageRequest, **known: object) -> Record:
    text = ask.text("q")
    try:
        narrowed = _in_time(ask, text)
    except Problem:  # it is told with the page's error
        narrowed = text
    words = ("dlq", "groups", *((narrowed,) if narrowed else ()))
    return {
        "q": text, "since": ask.text("since"), "from": ask.text("from"), "to": ask.text("to"), "sinces": list(SINCE),
        "groups": [], "all": 0, "dead": 0, "tasks": [], "age_s": 0.0, "mistake": None, "missing": None,
        "making": False, "completions": selecting.completions(ask), "command": ask.command(*words), **known,
    }  # fmt: skip


def _found(ask: PageRequest, text: str) -> KeptValue[Sequence[FailureGroup]] | None:
    """Return the groups of the messages that the selector `text` matches, all if it is empty; None while a thread still
    reads messages. Raises Problem if it would read too many."""
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
    """Return groups as records with annotations and states. `places`: failing code by the id of a group's sample."""
    names = list(dict.fromkeys(group.fingerprint for group in groups if group.fingerprint))
    about = read_annotations(ask.store, names) if ask.store.traits.cells else {}
    runs = views(ask.store, RUNS) if ask.store.traits.cells else []
    now_ms = ask.store.now_ms()
    held = ask.kept("held", lambda: held_counts(ask.store, read_states(ask.store))).value
    return [
        {**record, "place": places.get(group.sample_id), "states": states(group, record, runs, now_ms)}
        for group, record in zip(groups, group_records(groups, about, held, now_ms), strict=True)
    ]


def states(group: FailureGroup, said: Record, runs: Sequence[RunView], now_ms: int) -> list[str]:
    """Return the notable states of a group: new, resolved, regressed, muted, its rule. `said` is its record."""
    words = ["regressed" if regressed(group, runs) else "new" if now_ms - group.first_ms < NEW_MS else ""]
    words[0] = said["state"] or words[0]
    words += ["muted" if said["muted_until"] else "", f"rule {said['rule']}" if said["rule"] else ""]
    words += ["held for a person"] if said.get("held") else []
    return [word for word in words if word]


def regressed(group: FailureGroup, runs: Sequence[RunView]) -> bool:
    """Return True if messages died with this failure after the end of a run that redrove just this failure."""
    if not group.fingerprint:
        return False
    of_it = [run for run in runs if f"fingerprint:{group.fingerprint}" in run.selector and run.state == "done"]
    return any(run.over_ms and group.last_ms > run.over_ms for run in of_it)


def kept_places(ask: PageRequest, groups: Sequence[FailureGroup]) -> dict[str, str]:
    """Return the failing code of the first SAMPLES groups, by the id of their sample, from the cache of sums."""
    ids = [group.sample_id for group in groups[:SAMPLES]]
    if not ids:
        return {}
    return ask.kept(f"places/{','.join(ids[:SAMPLES])}", lambda: _places(ask, ids)).value


def _places(ask: PageRequest, ids: Sequence[str]) -> dict[str, str]:
    return {m.id: place for m in ask.store.find(ids) if m is not None and (place := place_of(m))}


def place_of(message: Message) -> str:
    """Return the innermost function of the user's own code in the message's last traceback; empty if there is none."""
    frames = FRAME.findall(message.faults[-1].traceback) if message.faults else []
    own = [(file, line, name) for file, line, name in frames if not is_library(file)]
    if not own:
        return ""
    file, line, name = own[-1]
    return f"{name} ({_PATH.split(file)[-1]}:{line})"


def group(ask: PageRequest) -> Record:
    """Return a group by its fingerprint, over all its tasks."""
    fingerprint = ask.path["fingerprint"]
    whole = ask.dlq.family(fingerprint)
    where = Filter(fingerprint=whole if len(whole) > 1 else fingerprint)
    kept = ask.kept(f"group/{','.join(whole)}", lambda: ask.dlq.groups(where=where, trend=True))
    found, now_ms = [group for group in kept.value if group.count], ask.store.now_ms()
    about = read_annotations(ask.store, [fingerprint]).get(fingerprint, NOTHING) if ask.store.traits.cells else NOTHING
    if not found and not _FINGERPRINT.fullmatch(fingerprint):
        why = "expected the fingerprint of one, such as a1097e748bbaf6be"
        raise Problem(f"there is no failure group {fingerprint}", why, "look at all failure groups", 404)
    said = annotation_record(about, now_ms)
    sampled = dict(ask.kept(f"group-sample/{','.join(whole)}", lambda: _sample(ask, where, found)).value)
    sampled |= sample(ask, sampled.pop("ids"))
    if not ask.user.may(Permission.VIEW_BODIES):
        sampled |= {"shared": None, "shared_headers": None}
    waiting = ask.kept(f"group-batches/{','.join(whole)}", lambda: _waiting(ask, found, whole)).value
    runs = views(ask.store, RUNS) if ask.store.traits.cells else []
    selector, after = str(exactly("fingerprint", fingerprint)), ask.text("after")
    dead = replace(where, until_ms=now_ms + 1)  # the bound that the selector has now
    read = ask.store.peek(Lane.DEAD, where=dead, limit=MESSAGES, cursor=after or None)
    return {
        "fingerprint": fingerprint,
        "q": selector,
        "at": now_ms,
        "error": found[0].error if found else None,
        "text": shown_text(found[0].text) if found else None,
        "count": sum(each.count for each in found),
        "age_s": kept.age_s,
        "first_at": timestamp(min(each.first_ms for each in found)) if found else None,
        "last_at": timestamp(max(each.last_ms for each in found)) if found else None,
        **said,
        "merged": list(whole[1:]),
        "states": list(dict.fromkeys(word for each in found for word in states(each, said, runs, now_ms))),
        "by_task": [task_group_record(each) | waiting.get(each.task, {}) for each in found],
        **sampled,
        "chain": chain(sampled["traceback"] or ""),
        "deaths": deaths(ask, where, found, now_ms),
        "rows": rows_with_arguments(ask, read.messages, now_ms),
        "next": read.cursor,
        "after": after,
        "log": _log(ask, fingerprint),
        "rules": ["hold", "auto", "discard", "none"],
        "command": ask.command("dlq", "group", fingerprint),
        "plan_command": ask.command("dlq", "plan", selector),
    }


def _waiting(ask: PageRequest, groups: Sequence[FailureGroup], whole: tuple[str, ...]) -> dict[str, Record]:
    """Return by task how many batches wait for the group, as a record."""
    found = group_batches(ask.store, groups, lambda _: whole)
    return {group.task: batches_record(batches) for group, batches in zip(groups, found, strict=True)}


def _log(ask: PageRequest, fingerprint: str) -> list[Record]:
    """Return the latest entries of the audit log about the group as records."""
    if not ask.store.traits.cells:
        return []
    entries = islice(Audit(ask.store).entries(), LOG_READ)
    mine = islice((entry for entry in entries if entry.about == fingerprint), LOG)
    return [entry_record(entry) | {"who": entry.who} for entry in mine]


def _sample(ask: PageRequest, where: Filter, groups: Sequence[FailureGroup]) -> Record:
    """Return what a sample of the group's messages shows: frames, texts, fields, versions and hosts."""
    dead = _read(ask, Lane.DEAD, where)
    done = _done(ask, groups)
    last = next((message for message in dead if message.faults), None)
    texts = [shown_text(message.faults[-1].text) for message in dead if message.faults]
    of = groups[0].fingerprint if groups else ""
    return {
        "ids": [message.id for message in dead[:SHOWN_SAMPLES]],
        "sampled": len(dead),
        "place": place_of(last) if last is not None else None,
        "frames": _frames(last) if last is not None else [],
        "traceback": shown_text(last.faults[-1].traceback) if last is not None else None,
        "texts": shares.counted(texts, of, "text"),
        "text_count": len(set(texts)),
        "versions": shares.counted(str(message.version) for message in dead),
        "queues": shares.counted((message.queue for message in dead), of, "queue"),
        "tasks": shares.counted((message.task for message in dead), of, "task"),
        "hosts": shares.counted(_host(m.faults[-1].worker) for m in dead if m.faults),
        "workers": shares.counted(m.faults[-1].worker for m in dead if m.faults),
        "producers": shares.counted(message.producer for message in dead),
        "reasons": shares.counted((message.reason for message in dead), of, "reason"),
        "releases": shares.counted(m.faults[-1].release for m in dead if m.faults),
        "shared": shares.in_common(dead, done, of),
        "shared_headers": shares.in_common(dead, done, of, shares.HEADERS),
        "compared": len(done),
    }


def _read(ask: PageRequest, lane: Lane, where: Filter) -> list[Message]:
    """Return the first matching messages of a lane: at most SAMPLE, and fewer if they are large."""
    first = ask.store.peek(lane, where=where, limit=FIRST_PAGE)
    more = fitting(first.messages, SAMPLE) - len(first.messages)
    if first.cursor is None or more <= 0:
        return first.messages
    return first.messages + ask.store.peek(lane, where=where, limit=more, cursor=first.cursor).messages


def _done(ask: PageRequest, groups: Sequence[FailureGroup]) -> list[Message]:
    """Return done messages of the same tasks as these groups; none if the store does not keep or find them."""
    if not groups or not (ask.store.traits.keeps_done and ask.store.traits.finds):
        return []
    tasks = tuple(each.task for each in groups)
    try:
        return [m for m in _read(ask, Lane.DONE, Filter(task=tasks)) if m.reason != "cancelled"]
    except (Unsupported, StoreError):
        return []


def _frames(message: Message) -> list[Record]:
    frames = FRAME.findall(shown_text(message.faults[-1].traceback))
    return [
        {"file": file, "line": int(line), "function": name, "code": outside.code(file, int(line))}
        for file, line, name in frames[-FRAMES:][::-1]
    ]


def _host(worker: str) -> str:
    """Return the host in a worker's name `HOST.ID/NAME`."""
    return worker.partition("/")[0].rpartition(".")[0]
