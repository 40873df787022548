"""Describe a message as text: its error, why it waits or died, its body, its life, and next commands.

`-v` shows the other fields of the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import msgspec

from ..duration import show
from ..fault import kind_word
from ..redact import one_line
from .commands import onward, typed
from .formats import state_word
from .messages import crash_text, moment_text
from .table import field_lines

BODY_LINES, TRACEBACK_LINES = 40, 10  # the most lines that are shown without -v
ENDS = {
    "budget": "no budget was left, and it was not to wait",
    "deadline": "its deadline passed",
    "elapsed": "its time for retries is over",
    "held": "it is held for a person, as its retries are used up",
    "exhausted": "its attempts are used up",
    "permanent": "a retry would not help",
    "poison": "it kills its workers",
    "rejected": "its handler rejected it",
    "tampered": "its bytes were changed",
    "unreadable": "its body cannot be read",
    "unroutable": "no worker knows its task, its version, or an argument in its body",
}
_TOLD = (
    "id",
    "task",
    "queue",
    "batch",
    "body",
    "result",
    "progress",
    "faults",
    "timeline",
    "damage",
    "purged",
    "held",
    "running",
)  # the fields of the record that are in the text already

MessageRecord = Mapping[str, Any]


class StoryReader(Protocol):
    """The options for a reader of the text: all details, relative times, and a function that dims text."""

    @property
    def verbose(self) -> bool: ...

    @property
    def is_brief(self) -> bool: ...

    def when(self, at: str | None) -> str: ...

    def dim(self, text: str) -> str: ...


def story(record: MessageRecord, out: StoryReader, *, why: str) -> Iterator[str]:
    """Yield the lines about a message's record. `why` says why it waits, if it does."""
    last = record["faults"][-1] if record["faults"] and record["state"] != "done" else None
    yield from field_lines(dict(_head(record, last, out, why)))
    for name in ("body", "result", "progress"):
        if record[name] is not None:
            yield from _value(name, record[name], out)
    yield from _life(record["timeline"], last, out)
    if out.verbose:
        yield from chain.from_iterable(_fault(each, out) for each in record["faults"])
        yield from chain(("", out.dim("details")), (f"  {line}" for line in field_lines(_details(record))))
    elif last is not None and last["traceback"]:
        yield from _section("traceback", last["traceback"].splitlines(), TRACEBACK_LINES, out, end=True)
    yield from chain([""], (f"{out.dim('next:')} {words}" for words in next_commands(record, out)))


def _head(record: MessageRecord, last: MessageRecord | None, out: StoryReader, why: str) -> Iterator[tuple[str, str]]:
    if record.get("damage"):
        yield "error", f"its row cannot be read: {record['damage']}"
    elif last is not None and _is_bystander(record, last):
        crash, others = last["crash"], max(last["crash"]["started_count"], len(last["crash"]["started"])) - 1
        how = crash_text(last["text"] or "").partition(";")[0]
        beside = f"{others:,} other{'s' * (others != 1)} that had been started in it"
        yield (
            "crash",
            f"its process died ({how}), with {beside}: which one is at fault is not known"
            + ("" if out.verbose or not crash["started"] else "; -v lists them"),
        )
    elif last is not None:
        yield "error", _error(last, out)
    yield state_word(record["state"]), _state(record, out, why)
    run = record.get("running")
    if record.get("cancel_requested"):
        yield "cancel", "requested; its worker is notified within a third of its lease"
    if run is not None and (record.get("cancel_requested") or run["worker_hung"]):
        yield "end", run["end"]
    if record.get("purged"):
        yield "purged", record["purged"]
    yield "task", f"{record['task']} in queue {record['queue']}"
    yield "id", record["id"]
    if last is not None and last["fingerprint"]:
        yield "failure", f"{last['fingerprint']} ({kind_word(last['kind'])})"
    if record.get("batch"):
        yield "batch", record["batch"]
    if record.get("known"):
        yield "known", record["known"]
    if str(record.get("body_in", "inline")) != "inline":
        yield "stored", f"{record['bytes']:,} bytes in {record['body_in']}; --body shows them"


def _is_bystander(record: MessageRecord, last: MessageRecord) -> bool:
    """Return True if the last run died in a process with other messages that may be the cause, and the message is not
    at rest."""
    crash = last["crash"]
    shared = crash is not None and not crash["alone"] and max(crash["started_count"], len(crash["started"])) > 1
    return shared and record["state"] in ("ready", "scheduled", "parked", "leased")


def _error(fault: MessageRecord, out: StoryReader) -> str:
    text = fault["text"] if out.verbose else crash_text(fault["text"] or "")
    return f"{fault['error']}: {text}".rstrip(": ")


def _state(record: MessageRecord, out: StoryReader, why: str) -> str:
    """Return since when and why the message is in its state; `why` says why it waits."""
    attempts = f"{record['attempt']:,} attempt{'s' if record['attempt'] != 1 else ''}"
    match record["state"]:
        case "dead" | "quarantine":
            reason = record["reason"] or ""
            cause = f"{reason}: {ENDS[reason]}" if reason in ENDS else reason
            return f"{out.when(record['rested_at'])}, {cause or 'no reason is recorded'}, after {attempts}"
        case "done" | "cancelled":
            return f"{out.when(record['rested_at'])}, after {attempts}"
        case "leased":
            return f"{_running(record)}; the lease ends {out.when(record['due_at'])}"
        case _:
            return why or "its row is damaged"


def _running(record: MessageRecord) -> str:
    """Return where a leased message runs, and for how long."""
    worker = f"its worker is {record['worker']}" if record.get("worker") else "its worker is not known"
    run, attempt = record.get("running"), f"attempt {record['attempt']:,}"
    if run is None:
        return f"it runs, {attempt}; {worker}"
    if run["for_s"] is None:
        return f"it is claimed and has not begun; {worker}, pid {run['pid']} on {run['host']}"
    place = "in a child of" if run["isolated"] else "in"
    return f"it has run for {show(round(run['for_s']))}, {attempt}; {worker}, {place} pid {run['pid']} on {run['host']}"


def next_commands(record: MessageRecord, out: StoryReader) -> Iterator[str]:
    """Yield commands that a person may need next for this message."""
    id = typed(record["id"])
    yield from (hold["next"] for hold in record["held"][:1] if hold["next"] not in (None, onward(f"job show {id}")))
    last = record["faults"][-1] if record["faults"] else None
    match record["state"]:
        case "dead":
            yield onward(f"dlq retry {id}")
            if last is not None and last["fingerprint"]:
                yield onward(f"dlq group {typed(last['fingerprint'])}")
        case "quarantine":
            yield onward(f"dlq readmit {id} --reason 'it is fixed'")
        case "ready" | "scheduled" | "parked" | "leased":
            if _waits_for_its_time(record):
                yield onward(f"job run {id}")
            run = record.get("running") or {"isolated": False}
            yield onward(f"job cancel {id}" + (" --kill" if run["isolated"] and record["cancel_requested"] else ""))
        case _:
            yield onward(f"job list --task {typed(record['task'])}")
    if record.get("batch"):
        yield onward(f"batch show {typed(record['batch'])}")
    if not out.verbose:
        yield onward(f"{'dlq' if record['state'] in ('dead', 'quarantine') else 'job'} show {id} -v")


def _waits_for_its_time(record: MessageRecord) -> bool:
    """Return True if a message waits for its due time alone, and can be made due: a record alone is of SQS."""
    first = record["held"][0]["kind"] if record["held"] else ""
    return record["state"] == "scheduled" and first in ("retry", "delay", "spread") and not record.get("known")


def _value(name: str, value: Any, out: StoryReader) -> Iterator[str]:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return _section(name, text.splitlines(), BODY_LINES, out)


def _section(name: str, lines: Sequence[str], most: int, out: StoryReader, *, end: bool = False) -> Iterator[str]:
    """Yield lines under a heading; without -v only the first `most` (with `end` the last), and the number of others."""
    yield from ("", out.dim(name))
    left = 0 if out.verbose else max(0, len(lines) - most)
    more = [f"… {left:,} more lines; -v shows all"] if left else []
    shown = [*more, *lines[left:]] if end else [*lines[: len(lines) - left], *more]
    yield from (f"  {one_line(line)}" for line in shown)


def _life(moments: Sequence[MessageRecord], last: MessageRecord | None, out: StoryReader) -> Iterator[str]:
    """Yield a line for each moment of a message's life: the time since the one before, and what happened."""
    if not moments:
        return
    yield from ("", out.dim("life"))
    afters = ["" if m["after_s"] is None else f"+{show(m['after_s'])}" for m in moments]
    if out.is_brief:
        afters[0] = out.when(moments[0]["at"])
    wide = max(map(len, afters))
    for moment, after in zip(moments, afters, strict=True):
        at = "" if out.is_brief else f"{moment['at']}  "
        yield f"  {at}{after:>{wide}}  {one_line(moment_text(moment, known=last))}"


def _fault(fault: MessageRecord, out: StoryReader) -> Iterator[str]:
    again = "" if fault["delay_ms"] is None else f", again in {show(fault['delay_ms'] / 1000)}"
    of_attempt = f"of attempt {fault['attempt']} " if fault["attempt"] else ""  # not if its process died
    yield ""
    yield (
        f"{out.dim('fault')} {of_attempt}at {fault['at']}: {kind_word(fault['kind'])}{again} ({fault['fingerprint']})"
    )
    yield from (f"  {one_line(line)}" for line in (fault["traceback"] or _error(fault, out)).splitlines())


def _details(record: MessageRecord) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in _TOLD and value not in (None, "", False, {})}
