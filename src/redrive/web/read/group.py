"""One failure group: the failing code, its texts, what its messages share, and the actions of people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from ...audit.log import Audit
from ...crypto import shown_text
from ...errors import StoreError, Unsupported
from ...message import FailureGroup, Filter, Lane, Message
from ...present.audit import entry_record
from ...present.formats import timestamp
from ...present.groups import annotation_record, task_group_record
from ...triage.annotations import NOTHING, read_annotations
from ...triage.redrive.run import views as runs_of
from ...triage.search import FIRST_PAGE, fitting
from ...triage.select.terms import as_node
from .. import outside
from ..access import Permission
from ..ask import PageRequest, Problem, Record
from . import fields, messages, shares
from .groups import FRAME, RUNS, place_of, states

SAMPLE = 200  # messages read to find what they share
LOG, LOG_READ = 10, 2000  # entries of the audit log: shown, and read
FRAMES = 12
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")  # a group without dead messages has a page: its last may just have moved


def group(ask: PageRequest) -> Record:
    """Return a group by its fingerprint, over all its tasks."""
    fingerprint = ask.path["fingerprint"]
    where = Filter(fingerprint=fingerprint)
    kept = ask.kept(f"group/{fingerprint}", lambda: ask.app.dlq.groups(where=where, trend=True))
    found, now_ms = [group for group in kept.value if group.count], ask.store.now_ms()
    about = read_annotations(ask.store, [fingerprint]).get(fingerprint, NOTHING) if ask.store.traits.cells else NOTHING
    if not found and not _FINGERPRINT.fullmatch(fingerprint):
        why = "expected the fingerprint of one, such as a1097e748bbaf6be"
        raise Problem(f"there is no failure group {fingerprint}", why, "look at all failure groups", 404)
    said = annotation_record(about, now_ms)
    selection = ask.app.dlq.select(str(as_node(where)))
    read = selection.page(messages.ROWS, ask.text("after") or None)
    return {
        "fingerprint": fingerprint,
        "q": str(selection),
        "at": selection.now_ms,
        "error": found[0].error if found else None,
        "text": shown_text(found[0].text) if found else None,
        "count": sum(each.count for each in found),
        "age_s": kept.age_s,
        "first_at": timestamp(min(each.first_ms for each in found)) if found else None,
        "last_at": timestamp(max(each.last_ms for each in found)) if found else None,
        **said,
        "states": _states(ask, found, said, now_ms),
        "by_task": [task_group_record(each) for each in found],
        **_sampled(ask, fingerprint, found),
        "rows": [messages.row(message, now_ms) for message in read.messages],
        "next": read.cursor,
        "after": ask.text("after"),
        "log": _log(ask, fingerprint),
        "rules": ["hold", "auto", "discard", "none"],
        "command": fields.command(ask, "dlq", "group", fingerprint),
        "plan_command": fields.command(ask, "dlq", "plan", str(selection)),
    }


def _states(ask: PageRequest, groups: Sequence[FailureGroup], said: Record, now_ms: int) -> list[str]:
    runs = runs_of(ask.store, RUNS) if ask.store.traits.cells else []
    return list(dict.fromkeys(word for each in groups for word in states(each, said, runs, now_ms)))


def _log(ask: PageRequest, fingerprint: str) -> list[Record]:
    """Return the latest entries of the audit log about the group."""
    if not ask.store.traits.cells:
        return []
    entries = islice(Audit(ask.store).entries(), LOG_READ)
    mine = islice((entry for entry in entries if entry.about == fingerprint), LOG)
    return [entry_record(entry) | {"who": entry.who} for entry in mine]


def _sampled(ask: PageRequest, fingerprint: str, groups: Sequence[FailureGroup]) -> Record:
    """Return frames, texts, fields, versions and hosts of sampled messages, shared between requests for a while."""
    kept = ask.kept(f"group-sample/{fingerprint}", lambda: _sample(ask, fingerprint, groups))
    sample = dict(kept.value)
    if not ask.user.may(Permission.VIEW_BODIES):
        sample["shared"] = None
    return sample


def _sample(ask: PageRequest, fingerprint: str, groups: Sequence[FailureGroup]) -> Record:
    dead = _read(ask, Lane.DEAD, Filter(fingerprint=fingerprint))
    done = _done(ask, groups)
    last = next((message for message in dead if message.faults), None)
    texts = [shown_text(message.faults[-1].text) for message in dead if message.faults]
    return {
        "sampled": len(dead),
        "place": place_of(last) if last is not None else None,
        "frames": _frames(last) if last is not None else [],
        "traceback": shown_text(last.faults[-1].traceback) if last is not None else None,
        "sample_id": last.id if last is not None else None,
        "texts": shares.counted(texts),
        "text_count": len(set(texts)),
        "versions": shares.counted(str(message.version) for message in dead),
        "queues": shares.counted(message.queue for message in dead),
        "hosts": shares.counted(_host(m.faults[-1].worker) for m in dead if m.faults),
        "workers": shares.counted(m.faults[-1].worker for m in dead if m.faults),
        "producers": shares.counted(message.producer for message in dead),
        "reasons": shares.counted(message.reason for message in dead),
        "shared": shares.in_common(dead, done),
        "compared": len(done),
    }


def _read(ask: PageRequest, lane: Lane, where: Filter) -> list[Message]:
    """Return the first matching messages, at most SAMPLE, and fewer if they are large."""
    first = ask.store.peek(lane, where=where, limit=FIRST_PAGE)
    more = fitting(first.messages, SAMPLE) - len(first.messages)
    if first.cursor is None or more <= 0:
        return first.messages
    return first.messages + ask.store.peek(lane, where=where, limit=more, cursor=first.cursor).messages


def _done(ask: PageRequest, groups: Sequence[FailureGroup]) -> list[Message]:
    """Return done messages of the same tasks, if the store keeps them."""
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
    """Return the host in a worker's name, `HOST.ID/NAME`."""
    return worker.partition("/")[0].rpartition(".")[0]
