"""One message: its life, its body, why it waits, where it came from and what can be done with it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...blobs import whole_body
from ...crypto import shown_text
from ...errors import BlobsUnavailable, Unreadable
from ...fault import Fault
from ...message import BLOB, RESTING, Message
from ...present.detail import message_detail
from ...present.done import done_of, done_text
from ...present.formats import timestamp
from ...present.messages import body_json, moment_record, moment_text
from ...present.story import ENDS
from ...triage.edit import REPLACES
from ...triage.timeline import ended_by
from .. import outside
from ..ask import PageAnswer, PageRequest, Problem, Record
from . import selecting

BODY_MAX = 256 * 1024  # bytes of the largest body, result or checkpoint that a page shows
ROW_MAX = 10_000  # characters that are shown of a column of a damaged row
_PARTS = {"body": "body", "result": "result", "progress": "checkpoint"}
_PRIVATE = ("body", "result", "progress", "headers", "row")
_MAYBE = (
    "attempts_allowed",
    "bytes",
    "causation_id",
    "damage",
    "deadline_at",
    "fence",
    "group",
    "headers",
    "key",
    "known",
    "life_began_at",
    "priority",
    "producer",
    "row",
    "traceparent",
    "version",
    "worker",
)  # the fields that a message lacks if only its record is known
_ACTIONS = {
    "dead": ("retry", "edit", "quarantine", "discard"),
    "quarantine": ("readmit", "retry", "edit", "discard"),
    "ready": ("cancel",),
    "scheduled": ("run-now", "cancel"),
    "parked": ("cancel",),
    "leased": ("cancel",),
}


def message(ask: PageRequest) -> Record:
    """Return a message by its id; redirect from the beginning of an id to the whole."""
    id = ask.path["id"]
    if not selecting.is_whole_id(id):
        begun = selecting.ids_that_begin(ask, id)
        if len(begun) == 1:
            return PageAnswer({"found": list(begun)}, to=("messages", begun[0]))
    stored = ask.store.find([id])[0]
    if stored is None:
        raise gone(ask, id)
    return _record(ask, stored)


def gone(ask: PageRequest, id: str) -> Problem:
    """Return the Problem for a message that does not exist: when, where and for how long it ran if it was done lately,
    or the reason if the audit log has it."""
    if (done := done_of(ask.store, id)) is not None:
        why = done_text(done, ask.store.now_ms())
        return Problem(f"message {id} is done", why, "keep_done_for= of its task keeps such messages", 404)
    entry = ended_by(ask.store, id) if ask.store.traits.cells else None
    if entry is None:
        why = "the id is wrong, or the message is done: done messages are deleted unless their task keeps them"
        if not ask.store.traits.finds:
            why = "it does not rest: this store finds nothing that waits or runs, and done messages are deleted"
        return Problem(f"there is no message {id}", why, "look for it by another of its fields", 404)
    why = f"{entry.reason} ({entry.who}, {timestamp(entry.at_ms)})"
    if entry.action == "edit":
        return Problem(f"message {id} was edited: {entry.ids[1]} took its place", why, f"open {entry.ids[1]}", 404)
    return Problem(f"message {id} was discarded", why, "the audit log has more", 404)


def _record(ask: PageRequest, message: Message) -> Record:
    now_ms = ask.store.now_ms()
    detail = message_detail(ask.store, ask.registry, _without_large(message), now_ms, ask.leads)
    record: Record = dict.fromkeys(_MAYBE) | detail.record | _large(message)
    record["timeline"] = [_moment(message, moment) for moment in detail.moments]
    record["blob"] = None
    if message.content == BLOB and ask.sees_bodies:
        record |= _of_blob(ask, message, record["bytes"] or 0)
    latest = message.faults[-1] if message.faults else None
    last = latest if message.lane in RESTING else None
    hastens = ask.store.traits.hastens
    record |= {
        "why": ENDS.get(message.reason or ""),
        "fingerprint": last.fingerprint if last else None,
        "run": message.run_id,
        "replaces": message.headers.get(REPLACES),
        "links": _links(message, latest, (latest.traceparent if latest else "") or message.traceparent),
        "actions": [action for action in _actions(message, record["state"]) if hastens or action != "run-now"],
        "command": ask.command("job", "show", message.id),
    }
    if not ask.sees_bodies:
        record |= dict.fromkeys(_PRIVATE)
        record["withheld"] = "the body, the headers and the result need the permission 'view_bodies'"
    else:
        record["withheld"] = None
    return record


def _actions(message: Message, state: str) -> tuple[str, ...]:
    return _ACTIONS.get(state, ()) if message.damage is None else ("discard",)


def _large(message: Message) -> Record:
    """Return which parts of a message are too large for a page, with notes about their sizes."""
    sizes = {name: len(getattr(message, name) or b"") for name in _PARTS}
    large = {name: size for name, size in sizes.items() if size > BODY_MAX}
    notes = [
        f"the {_PARTS[name]} has {size:,} bytes; the command below shows it with --body" for name, size in large.items()
    ]
    return {**dict.fromkeys(large), "large": notes, "bytes": len(message.body)} if large else {"large": []}


def _without_large(message: Message) -> Message:
    empty = {name: b"null" for name in _PARTS if len(getattr(message, name) or b"") > BODY_MAX}
    damage = message.damage
    if damage is not None and any(len(text) > ROW_MAX for text in damage.raw.values()):
        raw = {name: text if len(text) <= ROW_MAX else text[:ROW_MAX] + "…" for name, text in damage.raw.items()}
        empty["damage"] = replace(damage, raw=raw)  # type: ignore[assignment]
    return replace(message, **empty) if empty else message


def _links(message: Message, fault: Fault | None, parent: str | None) -> Record:
    """Return external links to the trace `parent` and the logs of the message, or of the run with this fault."""
    about: Record = {"message_id": message.id, "task": message.task, "queue": message.queue}
    about |= {"worker": fault.worker, "at": timestamp(fault.at_ms)} if fault else {}
    return outside.links(parent, **about)


def _moment(message: Message, moment: Any) -> Record:
    """Return one moment of the message's life as a record, with its text, traceback and links."""
    record = moment_record(moment)
    fault = moment.fault
    return {
        **record,
        "told": moment_text(record),
        "traceback": shown_text(fault.traceback) if fault is not None and fault.traceback else None,
        "fingerprint": fault.fingerprint if fault is not None else None,
        "links": _links(message, fault, fault.traceparent) if fault is not None else {},
    }


def _of_blob(ask: PageRequest, message: Message, size: int) -> Record:
    """Return the record of the body in the message's blob; a note if the `size` is large, or the blob unreadable."""
    if size > BODY_MAX:
        return {"blob": f"the body has {size:,} bytes; the command below shows it with --body"}
    try:
        return {"body": body_json(whole_body(ask.store, message)), "blob": None}
    except (Unreadable, BlobsUnavailable) as error:
        return {"blob": str(error)}
