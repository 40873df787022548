"""The checks that every store makes, so that other engines can store, list and deliver every draft written too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar, overload

from msgspec.structs import astuple, replace

from ..chain import ChainStep
from ..errors import ConfigError, EnqueueError, TooLarge, Unsupported, near_miss
from ..ids import is_id
from ..message import (
    PRIORITIES,
    REASON_MAX,
    RESTING,
    Draft,
    Edit,
    Filter,
    GroupOrder,
    Handle,
    Hasten,
    Lane,
    Message,
    OnDead,
    Postpone,
    Readmit,
    Redrive,
    Replace,
    Return,
    Verdict,
)
from ..store import Traits

E = TypeVar("E", bound=StrEnum)
_USE_BLOBS = (
    'keep large bodies in files or S3 with App(…, blobs="file:///DIRECTORY" or "s3://BUCKET/PREFIX"), or REDRIVE_BLOBS'
)
_RAISE_MAX = "blob_max (REDRIVE_BLOB_MAX) bounds what blob storage takes"
INT_MAX = 2**62  # stores use 64-bit integers; the rest is room for sums
COUNT_MAX = 2**31 - 1  # the largest count: stores use four-byte counters where they can
WIDTH_MAX = 100_000
# Limits of names, and of the data other than the body: about those of SQS.
NAME_MAX = 255  # characters of a name of a task, a queue or a group
KEY_BYTES_MAX = 1024  # largest unique key, and largest id or trace context in a message
HEADERS_MAX, HEADERS_BYTES_MAX = 100, 64 * 1024  # number of headers, and bytes of all names and values
RESTED = (Lane.DEAD, Lane.QUARANTINE, Lane.DONE)
_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


@overload
def word(kind: type[E], said: E | str, what: str) -> E: ...
@overload
def word(kind: type[E], said: E | str | None, what: str) -> E | None: ...
def word(kind: type[E], said: E | str | None, what: str) -> E | None:
    """Return the member of `kind` for `said`, a member or its text; None stays None. Raises ConfigError for any other
    text, which a store would otherwise keep, or put into a statement."""
    if said is None or type(said) is kind:
        return said
    for one in kind:  # not kind(said), which also accepts words of newer versions
        if one == said:
            return one
    near = near_miss(str(said), list(kind))
    meant = f"did you mean {str(near)!r}? " if near else ""
    known = ", ".join(repr(str(one)) for one in kind)
    raise ConfigError(f"{what}={said!r}; {meant}expected one of {known}")


def lane_of(said: Lane | str | None) -> Lane | None:
    """Return the lane to read for a Lane or its text; None means all lanes. Raises ConfigError for another word."""
    return word(Lane, said, "lane")


def admit(drafts: Iterable[Draft], traits: Traits, *, bounded: bool = True) -> None:
    """Raise TooLarge or EnqueueError for the first draft that cannot be put, Unsupported for a unique key or a batch in
    a store without them. Unless `bounded`, names and headers may be of any length that the store accepts."""
    for draft in drafts:
        if len(draft.body) > traits.body_bytes_max:
            raise TooLarge(
                f"body of task {draft.task!r} has {len(draft.body)} bytes; this store takes {traits.body_bytes_max}; "
                + (_USE_BLOBS if traits.blob_threshold is None else _RAISE_MAX)
            )
        if type(draft) is ChainStep and draft.awaits:
            raise EnqueueError(
                f"a message of task {draft.task!r} takes `previous`, which only app.chain(…) gives; nothing was written"
            )
        why = (bounded and _too_long(draft)) or _numbers(draft, traits) or _texts(draft, traits.names_bytes_max)
        if why is not None:
            raise EnqueueError(f"a message of task {draft.task[:100]!a} is refused: {why}; nothing was written")
        if draft.key is not None and not traits.unique:
            raise Unsupported(
                f"a message of task {draft.task!r} is refused: store {traits.name} keeps no unique keys, and it has "
                f"key={draft.key[:100]!r}; enqueue it without one, and let the task be idempotent: a duplicate is then "
                "delivered, and has no effect"
            )
        if draft.waiting or draft.replace:
            _admit_taking(draft, traits)
        if draft.batch is not None and not traits.batches:
            raise Unsupported(
                f"a message of task {draft.task!r} is refused: store {traits.name} keeps no counts of batches, and it "
                f"is a member of batch {draft.batch[:100]!r}; put batches into a store on SQLite, PostgreSQL or Redis, "
                "or on SQS with cells="
            )


def _admit_taking(draft: Draft, traits: Traits) -> None:
    """Raise Unsupported or EnqueueError for a draft that may not take its key over, or replace what waits with it."""
    what = "replace=True" if draft.replace else "unique='waiting'"
    if not traits.takes_over:
        raise Unsupported(
            f"a message of task {draft.task!r} is refused: store {traits.name} cannot tell whether a message still "
            f"waits, and it has {what}; enqueue it with key= alone, or into a store on SQLite, PostgreSQL or Redis"
        )
    if draft.replace and not traits.replaces:
        raise Unsupported(
            f"a message of task {draft.task!r} is refused: what is encrypted is bound to its message, so it has no "
            f"{what}; use unique='waiting', and let the handler read what is the latest"
        )
    why = None
    if draft.key is None:
        why = "needs a key"
    elif draft.key_for_ms:
        why = "holds its key while it waits, and no longer: it has no for_="
    elif draft.replace and draft.group is not None:
        why = "has no group=, in which each message keeps its place in the order; unique='waiting' has one"
    elif draft.replace and draft.batch is not None:
        why = "is no member of a batch, which waits for each of its members"
    if why is not None:
        raise EnqueueError(f"a message of task {draft.task!r} with {what} {why}; nothing was written")


def admit_verdict(handles: Sequence[Handle], verdict: Verdict, traits: Traits) -> Sequence[Handle]:
    """Return the handles, each with its lane as a Lane. Raises ValueError for a verdict that does not fit the number of
    handles, EnqueueError for a draft that `admit` refuses, ConfigError for an unknown lane."""
    if isinstance(verdict, Redrive) and len(verdict.delays_ms) not in (0, len(handles)):
        raise ValueError(
            f"{len(verdict.delays_ms)} delays_ms for {len(handles)} handles; expected one for each, or none"
        )
    if isinstance(verdict, Postpone) and len(verdict.dues_ms) != len(handles):
        raise ValueError(f"{len(verdict.dues_ms)} dues_ms for {len(handles)} handles; expected one for each")
    if isinstance(verdict, Edit) and len(verdict.to) != (0 if verdict.cancel and not verdict.back else len(handles)):
        raise ValueError(f"{len(verdict.to)} changes for {len(handles)} handles; expected one for each, none to cancel")
    if isinstance(verdict, Replace):
        if len(handles) != 1:
            raise ValueError(f"Replace is for one message at a time, not {len(handles)}")
        if verdict.draft.id == handles[0].id:
            raise EnqueueError(f"message {handles[0].id} cannot be replaced under its own id; give the draft another")
        admit([verdict.draft], traits)
    if all(type(handle.lane) is Lane for handle in handles):
        return handles
    return [handle._replace(lane=word(Lane, handle.lane, "lane")) for handle in handles]


def judged_lanes(verdict: Verdict) -> tuple[Lane, ...]:
    """Return the lanes in which a message must be for this verdict to apply."""
    match verdict:
        case Redrive():
            return (*RESTING, Lane.DONE)
        case Return() | Hasten() | Postpone():
            return (Lane.READY,)
        case Edit():
            return (verdict.lane,)
        case Readmit():
            return (Lane.QUARANTINE,)
        case _:
            return RESTING


def key_is_held(old: str, draft: Draft, holder: str) -> EnqueueError:
    """Return the error for a Replace of the message `old` by a draft whose unique key `holder` holds."""
    return EnqueueError(
        f"message {old} cannot be replaced: message {holder} holds the unique key {draft.key!r} of task "
        f"{draft.task!r}; nothing was changed"
    )


def values_of(where: Filter, *fields: str) -> dict[str, tuple[str, ...]]:
    """The distinct values that the filter allows for each of these fields, without fields it does not restrict."""
    named = {field: getattr(where, field) for field in fields}
    return {
        field: (str(said),) if isinstance(said, str) else tuple(dict.fromkeys(said))
        for field, said in named.items()
        if said is not None
    }


def admit_restored(messages: Sequence[Message], traits: Traits) -> Sequence[Message]:
    """The messages, each with its lane as a Lane, and the dead ones with the first REASON_MAX characters of their
    reasons. Raises TooLarge or EnqueueError for one that cannot be stored."""
    for message in messages:
        if message.lane not in RESTING:
            raise EnqueueError(
                f"message {message.id[:100]!a} lies in lane {str(message.lane)!r}; only what is dead or in quarantine "
                "can be restored; nothing was written"
            )
        admit([draft_of(message)], traits, bounded=False)  # unbounded: messages that died in SQS must be accepted
        why = _counters(message) or _unwritable([message.reason, message.worker, *_found_by(message)])
        if why is not None:
            raise EnqueueError(f"message {message.id} is refused: {why}; nothing was written")
    if all(type(message.lane) is Lane and len(message.reason or "") <= REASON_MAX for message in messages):
        return messages
    return [
        replace(message, lane=Lane(message.lane), reason=message.reason[:REASON_MAX])
        if message.reason and message.lane == Lane.DEAD
        else replace(message, lane=Lane(message.lane))
        for message in messages
    ]


def unstorable(message: Message) -> str | None:
    """Return why no store could keep a message that another program wrote; None if every store can."""
    return (
        _counters(message)
        or _history(message)
        or _numbers(draft_of(message), _ANY)
        or _unwritable([message.task, message.queue, message.reason, message.run, *_found_by(message)])
    )


_ANY = Traits("any")
_BOUNDS = {
    **dict.fromkeys(("fence", "attempt", "crashes", "crashes_alone", "redrives", "attempts_allowed"), COUNT_MAX),
    **dict.fromkeys(("due_ms", "enqueued_ms", "life_ms", "held_ms", "rested_ms"), INT_MAX),
}


def _counters(message: Message) -> str | None:
    for name, most in _BOUNDS.items():
        value = getattr(message, name)
        if value is not None and not 0 <= value <= most:
            return f"{name} is {value}, expected 0 to {most}"
    return None


def _history(message: Message) -> str | None:
    parts = [message.deferral, *(part for fault in message.faults for part in (fault, fault.crash))]
    for value in (value for part in parts if part is not None for value in astuple(part)):
        if isinstance(value, int | float) and abs(value) > INT_MAX:
            return f"a number in its history is {value}, expected at most {INT_MAX}"
    return None


def _found_by(message: Message) -> tuple[str, ...]:
    return (message.faults[-1].error, message.faults[-1].fingerprint) if message.faults else ()


def draft_of(message: Message) -> Draft:
    """Return the message as a draft, so that the checks of drafts apply to it."""
    return Draft(
        task=message.task,
        queue=message.queue,
        body=message.body,
        content=message.content,
        id=message.id,
        priority=message.priority,
        key=message.key,
        group=message.group,
        deadline_ms=message.deadline_ms,
        keep_ms=message.keep_ms,
        version=message.version,
        headers=message.headers,
        correlation_id=message.correlation_id,
        causation_id=message.causation_id,
        producer=message.producer,
        traceparent=message.traceparent,
        batch=message.batch,
    )


def read_cursor(cursor: str | None) -> tuple[int, int]:
    """Return the position in a cursor, after which a page begins. Raises ValueError for a cursor of another origin."""
    if cursor is None:
        return -1, -1
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise ValueError(f"cursor {cursor!r} is not one this store gave; start again without one")
    return int(match[1]), int(match[2])


def begin(where: Filter, lane: Lane | None, after: tuple[int, int]) -> tuple[Filter, tuple[int, int]]:
    """Return the filter without its lower bound on the time of rest, and the page's start, moved up to that bound."""
    if where.since_ms is None or lane not in RESTED:
        return where, after
    return replace(where, since_ms=None), max(after, (where.since_ms, -1))


def admit_width(width: int | None, least: int) -> None:
    """Raise ConfigError for a group width below `least` or above WIDTH_MAX; None passes."""
    if width is not None and not least <= width <= WIDTH_MAX:
        raise ConfigError(f"group width is {width}, expected {least} to {WIDTH_MAX}")


def admit_names(queue: str, group: str | None = None) -> None:
    """Raise ConfigError for names that no message can have; `group` None means all groups of the queue."""
    if group == "":
        raise ConfigError("the group has an empty name; name one, or give None for all groups of the queue")
    if not queue:
        raise ConfigError("the queue has an empty name; name one")
    for what, name in (("queue", queue), ("group", group or "")):
        if len(name) > NAME_MAX:
            raise ConfigError(f"the {what}'s name has {len(name):,} characters, expected at most {NAME_MAX}")
    if (why := _unwritable([queue, group])) is not None:
        raise ConfigError(f"queue {queue!a}: {why}")


def admit_batch(name: object, key: str | None) -> None:
    """Raise ConfigError for a name or a key that no batch can have."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"batch name={name!r}: expected a text, such as 'nightly-import'")
    if len(name) > NAME_MAX:
        raise ConfigError(f"the batch's name has {len(name):,} characters, expected at most {NAME_MAX}")
    if (count := len((key or "").encode(errors="replace"))) > KEY_BYTES_MAX:
        raise ConfigError(f"batch {name!a}: its key has {count:,} bytes, expected at most {KEY_BYTES_MAX:,}")
    if (why := _unwritable([name, key])) is not None:
        raise ConfigError(f"batch {name!a}: {why}")


def admit_settings(
    queue: str, width: int | None, order: GroupOrder | str | None, on_dead: OnDead | str | None
) -> tuple[GroupOrder | None, OnDead | None]:
    """The order and `on_dead` as enum members. Raises ConfigError for settings that no queue could have."""
    admit_names(queue)
    admit_width(width, 1)
    return word(GroupOrder, order, "group_order"), word(OnDead, on_dead, "on_dead")


def _too_long(draft: Draft) -> str | None:
    """Return why the draft's names, keys or headers exceed their limits, or None."""
    size = len(draft.task) + len(draft.queue) + len(draft.content)
    for text in (
        draft.group,
        draft.key,
        draft.correlation_id,
        draft.causation_id,
        draft.producer,
        draft.traceparent,
        draft.batch,
    ):
        if text:
            size += len(text)
    why = _longest(draft) if size > NAME_MAX else None  # only then can one field be too long
    return why if why or not draft.headers else _headers(draft.headers)


def _longest(draft: Draft) -> str | None:
    for name in ("task", "queue", "group"):
        if (count := len(getattr(draft, name) or "")) > NAME_MAX:
            return f"its {name} has {count} characters, expected at most {NAME_MAX}"
    for name in ("key", "correlation_id", "causation_id", "producer", "traceparent", "content", "batch"):
        if (count := len((getattr(draft, name) or "").encode(errors="replace"))) > KEY_BYTES_MAX:
            return f"its {name} has {count} bytes, expected at most {KEY_BYTES_MAX}"
    return None


def _headers(headers: Mapping[str, str]) -> str | None:
    if len(headers) > HEADERS_MAX:
        return f"it has {len(headers)} headers, expected at most {HEADERS_MAX}"
    size = sum(len(text.encode(errors="replace")) for pair in headers.items() for text in pair)
    return None if size <= HEADERS_BYTES_MAX else f"its headers have {size} bytes, expected at most {HEADERS_BYTES_MAX}"


def _numbers(draft: Draft, traits: Traits) -> str | None:
    if draft.priority not in PRIORITIES:
        return f"priority is {draft.priority!r}, expected one of {', '.join(map(str, PRIORITIES))}"
    if not 0 <= draft.delay_ms <= (traits.delay_ms_max or INT_MAX):
        return f"delay_ms is {draft.delay_ms}, expected 0 to {traits.delay_ms_max or INT_MAX}"
    due_ms, deadline_ms = draft.due_ms or 0, draft.deadline_ms or 0
    if (due_ms | deadline_ms | draft.key_for_ms | draft.keep_ms | draft.version) >> 62:  # a number is out of range
        for name in ("due_ms", "deadline_ms", "key_for_ms", "keep_ms", "version"):
            value = getattr(draft, name)
            if value is not None and not 0 <= value <= INT_MAX:
                return f"{name} is {value}, expected 0 to {INT_MAX}"
    if draft.id is not None and not is_id(draft.id):
        return f"id {draft.id!a} is not a UUIDv7 in lower case"
    return None


def _texts(draft: Draft, names_bytes_max: int | None) -> str | None:
    if not draft.task or not draft.queue or draft.group == "" or draft.batch == "":
        return "task, queue, group and batch must have names"
    texts = [draft.task, draft.queue, draft.content, draft.key, draft.group, draft.producer, draft.traceparent]
    texts += [draft.correlation_id, draft.causation_id, draft.batch]
    for name, value in (draft.headers or {}).items():
        texts += [name, value]
    return _unwritable(texts) or (None if names_bytes_max is None else _names(draft, names_bytes_max))


def _unwritable(texts: Iterable[str | None]) -> str | None:
    every = "".join([text for text in texts if text])
    if "\0" in every:
        return "one of its names, keys or headers holds a NUL character"
    try:
        every.encode()
    except UnicodeEncodeError as error:
        return f"one of its names, keys or headers cannot be written as UTF-8 ({error.reason})"
    return None


def _names(draft: Draft, bytes_max: int) -> str | None:
    for one, other in (("queue", "group"), ("task", "key")):
        names = getattr(draft, one) + (getattr(draft, other) or "")
        if len(names) * 4 > bytes_max and len(names.encode()) > bytes_max:
            return f"{one} and {other} have {len(names.encode())} bytes together; this store takes {bytes_max}"
    return None
