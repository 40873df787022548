"""Chains: messages that run one after another, each enqueued in the commit that acks the one before.

The first message carries the drafts of the later steps in a header, each of the next ones those after itself. So a
chain needs no state beside its messages: a step that dies is a dead letter, and its redrive resumes the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from .errors import ConfigError, Unreadable
from .message import LABEL_PREFIX, UNREADABLE, Draft, Message

NEXT_HEADER = "redrive-next"  # header of a message with the later steps of its chain
STEP_HEADER = "redrive-step"  # header of the message of a workflow's step whose result is taken; an edit keeps it
RESULTS_HEADER = "redrive-results"  # header of a member of a batch whose results are kept, with the time in ms
BATCH_GROUP = "batch/"  # begins the name of the group of a batch with a width; its id follows
STEPS_MAX = 100


class Awaited:
    """An argument that is what an earlier step returned."""


class Previous(Awaited):
    """The type of `previous`."""

    def __repr__(self) -> str:
        return "previous"


#: An argument of a later step of a chain: what the step before returned.
previous: Any = Previous()


class ChainStep(Draft, frozen=True, kw_only=True, omit_defaults=True):
    """A draft of a later step. `awaits`: the names of arguments that are what the step before returned; `body` has the
    others."""

    awaits: tuple[str, ...] = ()


_decode = msgspec.json.Decoder(list[ChainStep]).decode


def chained(drafts: Sequence[Draft]) -> Draft:
    """Return the first draft with the others in its header. Raises ConfigError for a chain of another length than 2 to
    100, or one whose first step waits for a step before it."""
    if not 2 <= len(drafts) <= STEPS_MAX:
        raise ConfigError(f"a chain of {len(drafts)} steps: expected 2 to {STEPS_MAX}")
    first, *later = drafts
    if isinstance(first, ChainStep):
        raise ConfigError(
            f"the first step of a chain, of task {first.task!r}, takes `previous`, and has none before it"
        )
    return replace(first, headers=_headers(first.headers, [_step(draft) for draft in later]))


def next_step(message: Message, result: bytes | None, id: str) -> Draft | None:
    """Return the draft of the step after this message, with the JSON text that its handler returned; None if it is not
    in a chain, or its last step. Raises Unreadable for a header that no chain wrote."""
    written = message.headers.get(NEXT_HEADER)
    if written is None:
        return None
    try:
        step, *later = _decode(written)
        body = with_arguments(step.body, dict.fromkeys(step.awaits, result or b"null"))
    except UNREADABLE as error:
        raise Unreadable(f"header {NEXT_HEADER!r} cannot be read: {error}") from None
    fields = asdict(step)
    del fields["awaits"]
    fields |= {
        "id": id,
        "body": body,
        "headers": _headers(step.headers, later),
        "correlation_id": step.correlation_id or message.correlation_id,
        "causation_id": message.id,
        "traceparent": step.traceparent or message.traceparent,
        "batch": message.batch,
    }
    return joining(Draft(**fields), message)


def heir(draft: Draft, headers: Mapping[str, str]) -> Draft:
    """Return the draft of a member of a batch, or of a step of a chain, with the labels among these headers, and with
    its result kept if they say so. They are those of the batch, of the member that adds it, or of the step before. What
    the draft sets itself stays, and only the last step of a chain keeps its result for the batch."""
    passed = {name: text for name, text in headers.items() if name == RESULTS_HEADER or name.startswith(LABEL_PREFIX)}
    if not passed:
        return draft
    own = draft.headers or {}
    kept = passed.get(RESULTS_HEADER, "") if NEXT_HEADER not in own else ""
    keep_ms = max(draft.keep_ms, int(kept) if kept.isdecimal() else 0)
    return replace(draft, headers={**passed, **own}, keep_ms=keep_ms)


def joining(draft: Draft, message: Message) -> Draft:
    """Return the draft of a member that this one adds to its batch, or of the step after it, with what this one passes
    on (`heir`). In its queue it is in the batch's group, too, which bounds how many run at once."""
    draft, group = heir(draft, message.headers), f"{BATCH_GROUP}{message.batch}"
    joins = message.group == group and draft.group is None and draft.queue == message.queue
    return replace(draft, group=group) if joins else draft


def with_arguments(body: bytes, values: Mapping[str, bytes]) -> bytes:
    """Return the body of a step with these arguments, which are JSON texts, too."""
    if not values:
        return body
    arguments = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(arguments | {name: msgspec.Raw(value) for name, value in values.items()})


def _step(draft: Draft) -> ChainStep:
    return draft if isinstance(draft, ChainStep) else ChainStep(**asdict(draft))


def _headers(headers: Mapping[str, str] | None, later: Sequence[ChainStep]) -> Mapping[str, str] | None:
    if not later:
        return headers
    return {**(headers or {}), NEXT_HEADER: msgspec.json.encode(later).decode()}
