"""The audit log: who changed what, when and why."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...audit import Entry
from ...ids import is_id
from ...present.audit import entry_record
from ..ask import PageRequest, Problem, Record

PAGE = 100  # number of entries on a page
SCANNED_MAX = 5_000  # the most entries that are read for one page
IDS_SHOWN = 10  # the most messages of an entry that the page lists
_CURSOR = re.compile(r"(\d{1,15})-(\d{1,4})")
_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_PLACES = {"queue": "queues", "flow": "flow"}  # the page about an entry's subject, by the first part of its `about`


def audit(ask: PageRequest) -> Record:
    """Return a page of the log, newest first, and the result of its verification if requested."""
    wanted = {name: ask.text(name) for name in ("actor", "action", "about", "id", "since")}
    store = ask.store
    since_ms = store.now_ms() - ask.duration_ms("since", "") if wanted["since"] else 0
    until_ms, skipped = _cursor(ask.text("before"))
    entries: list[Entry] = []
    scanned, last, same = 0, None, skipped
    more = False
    for entry in _from(ask, since_ms, until_ms, skipped):
        if len(entries) == PAGE or scanned == SCANNED_MAX:
            more = True
            break
        scanned += 1
        same = same + 1 if entry.at_ms == (until_ms if last is None else last) else 1
        last = entry.at_ms
        if _matches(entry, wanted):
            entries.append(entry)
    return {
        "missing": None if store.traits.cells else "not kept: name cells= in the store's URL, and the log is there",
        "wanted": wanted,
        "entries": [_row(entry) for entry in entries],
        "before": f"{last}-{same}" if more else None,
        "scanned": scanned,
        "verified": _verified(ask) if ask.checked("verify") else None,
        "command": ask.command(*_words(wanted)),
    }


def _cursor(text: str) -> tuple[int | None, int]:
    """Parse a cursor: the time of the page's first entries, and how many entries of that time are shown already. Raises
    Problem."""
    if not text:
        return None, 0
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise Problem(f"before={text!r} is no place in the log", "a link to older entries has it", status=422)
    return int(match[1]), int(match[2])


def _from(ask: PageRequest, since_ms: int, until_ms: int | None, skipped: int) -> Iterator[Entry]:
    """Yield the entries of the log from a cursor on, the newest first."""
    for entry in ask.app.audit.entries(since_ms=since_ms, until_ms=until_ms):
        if skipped and entry.at_ms == until_ms:
            skipped -= 1
            continue
        yield entry


def _matches(entry: Entry, wanted: dict[str, str]) -> bool:
    return (
        (not wanted["actor"] or wanted["actor"] in (entry.actor, entry.claimed))
        and (not wanted["action"] or wanted["action"] == entry.action)
        and (not wanted["about"] or wanted["about"] == entry.about)
        and (not wanted["id"] or wanted["id"] in entry.ids)
    )


def _row(entry: Entry) -> Record:
    row = entry_record(entry)
    about = row["about"]
    return {
        **row,
        "seq": entry.seq or None,
        "who": entry.who,
        "to": _place(entry, about) if about else [],
        "shown": IDS_SHOWN,
    }


def _place(entry: Entry, about: str) -> list[str]:
    """Return the address of the page about an entry's subject; empty if there is no page."""
    kind, _, rest = about.partition("/")
    if kind in _PLACES and rest:
        return [_PLACES[kind], rest.partition("/group/")[0] if kind == "queue" else rest]
    if kind in ("schedule", "worker"):
        return [f"{kind}s"]
    if _FINGERPRINT.fullmatch(about):
        return ["groups", about]
    if entry.action == "redrive" or entry.action.startswith("run "):
        return ["runs", about]
    return ["messages", about] if is_id(about) and about in entry.ids else []


def _verified(ask: PageRequest) -> Record:
    """Return the result of verifying the whole log, cached for all pages, with its age."""
    kept = ask.kept("audit/verify", ask.app.audit.verify)
    verdict = kept.value
    return {
        "ok": not verdict.problems,
        "problems": list(verdict.problems),
        "entries": verdict.entries,
        "pruned": verdict.pruned,
        "head": verdict.head,
        "age_s": kept.age_s,
    }


def _words(wanted: dict[str, str]) -> list[str]:
    """Return the words of the command that lists the entries that these fields request."""
    given = [(name, value) for name, value in wanted.items() if value and name != "action"]
    return ["audit", "list", *(word for name, value in given for word in (f"--{name}", value))]
