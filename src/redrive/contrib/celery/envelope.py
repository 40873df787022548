"""Read a message as kombu writes it: an envelope of JSON around a task of Celery's protocol 2. Pure.

Nothing is unpickled or decompressed. Values that kombu marks with their type become what redrive's codec reads: a
datetime, date, time, Decimal or UUID its text, bytes their base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from msgspec import Struct

from ...codec.foreign import header_name, storable
from ...errors import RedriveError

JSON = "application/json"
# Celery's own headers; all others come from `apply_async(headers=…)`.
_OWN = frozenset((
    "lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id",
    "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers",
    "stamps", "compression", "redelivered",
))  # fmt: skip


class CeleryUnsupported(RedriveError):
    """A message of Celery's cannot be run by the app; the text has the reason."""


class Signature(Struct, frozen=True):
    """A task that Celery is to run after another one, as Celery writes it."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    subtask_type: str | None = None
    immutable: bool = False


class ChordEnd(Struct, frozen=True, omit_defaults=True):
    """The chord that waits for a result: the id of its group, and the result's place in the list that its body gets,
    such as "3"; "3.1" is in a list of its own at the place 3. `body` and `size`, the number of all results, are known
    of a chord that Celery's producer sent."""

    group: str
    at: str
    body: Signature | None = None
    size: int | None = None


class Next(Struct, frozen=True, omit_defaults=True):
    """The tasks that run after a task: its `link` callbacks, and the rest of its chain, whose next step is the last;
    and the chord that waits for the last result."""

    callbacks: Sequence[Signature] = ()
    chain: Sequence[Signature] = ()
    end: ChordEnd | None = None

    def __bool__(self) -> bool:
        return bool(self.callbacks or self.chain)


class CeleryTask(Struct, frozen=True, kw_only=True):
    """A task as a Celery producer sent it."""

    task: str
    id: str
    key: str  # the same for each delivery of one send
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    next: Next = Next()
    errbacks: Sequence[Signature] = ()
    group: str | None = None
    eta: datetime | None = None
    expires: datetime | None = None
    retries: int = 0
    priority: int = 0
    root_id: str | None = None
    parent_id: str | None = None
    headers: Mapping[str, str] = {}


def key_of(raw: bytes) -> str:
    """Return a key that all deliveries of one send share: Celery's id of the task, and kombu's tag of the send.

    The id alone is not enough: Celery's retries have the id of the task, and a program may use an id again. The tag
    stays the same when kombu puts an unacknowledged message back. Other messages get a hash as key.
    """
    try:
        envelope = json.loads(raw)
        headers, properties = envelope["headers"], envelope["properties"]
        id, tag = str(headers["id"]), properties.get("delivery_tag") or f"retry {headers.get('retries') or 0}"
    except Exception:
        return f"celery:sha256:{sha256(raw).hexdigest()}"
    return f"celery:{storable(id[:200])}:{storable(str(tag)[:200])}"


def read(raw: bytes) -> CeleryTask:
    """Return the task in one message. Raises only CeleryUnsupported."""
    try:
        return _read(raw)
    except CeleryUnsupported:
        raise
    except Exception as error:  # a sender may write anything, and no field may stop the messages behind this one
        raise CeleryUnsupported(f"it has a field that cannot be read: {type(error).__name__}: {error}") from None


def _read(raw: bytes) -> CeleryTask:
    try:
        envelope = json.loads(raw)
        headers, properties = envelope["headers"], envelope["properties"]
        task, id = headers.get("task"), headers.get("id")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CeleryUnsupported("it is not an envelope of kombu's: JSON with headers, properties and a body") from None
    if not isinstance(task, str) or not isinstance(id, str):
        raise CeleryUnsupported(
            "it does not name its task in its headers, so it is not of Celery's protocol 2; expected task_protocol=2"
        )
    named = f"task {task!r}"
    if (kind := envelope.get("content-type")) != JSON:
        raise CeleryUnsupported(f"{named} has a body of {kind}; expected task_serializer='json'")
    if compression := headers.get("compression"):
        raise CeleryUnsupported(f"{named} has a compressed body ({compression}); expected no task_compression")
    args, kwargs, embed = _body(named, envelope, properties)
    try:
        chain, group, body = signatures(embed.get("chain")), _text(headers.get("group")), embed.get("chord")
        last = Signature(task, options={"chord": body, "group_id": group, "group_index": headers.get("group_index")})
        return CeleryTask(
            task=task,
            id=id,
            key=key_of(raw),
            args=args,
            kwargs=kwargs,
            next=Next(signatures(embed.get("callbacks")), chain, end_of(chain[0] if chain else last)),
            errbacks=signatures(embed.get("errbacks")),
            group=group,
            eta=when(headers.get("eta")),
            expires=when(headers.get("expires")),
            retries=int(headers.get("retries") or 0),
            priority=int(properties.get("priority") or 0),
            root_id=_text(headers.get("root_id")),
            parent_id=_text(headers.get("parent_id")),
            headers={
                header_name(name): value
                for name, value in headers.items()
                if name not in _OWN and isinstance(value, str)
            },
        )
    except CeleryUnsupported:
        raise
    except Exception as error:
        raise CeleryUnsupported(f"{named} has a field that cannot be read: {type(error).__name__}: {error}") from None


def _body(
    named: str, envelope: Mapping[str, Any], properties: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    try:
        body = envelope["body"]
        encoded = properties.get("body_encoding") == "base64"
        args, kwargs, embed = json.loads(base64.b64decode(body) if encoded else body, object_hook=_plain)
    except CeleryUnsupported as error:
        raise CeleryUnsupported(f"{named}: {error}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CeleryUnsupported(f"{named} has a body that is not [args, kwargs, embed] in JSON: {error}") from None
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(embed, dict | None):
        raise CeleryUnsupported(f"{named} has a body that is not [args, kwargs, embed] in JSON")
    return args, kwargs, embed or {}


def signatures(written: Any) -> tuple[Signature, ...]:
    """Return the signatures in one written signature, a list of them, or None. Raises TypeError for anything else."""
    some = [] if written is None else written if isinstance(written, list | tuple) else [written]
    return tuple(
        Signature(
            task=_require(one["task"]),
            args=tuple(one.get("args") or ()),
            kwargs=dict(one.get("kwargs") or {}),
            options=dict(one.get("options") or {}),
            subtask_type=_text(one.get("subtask_type")),
            immutable=bool(one.get("immutable")),
        )
        for one in some
    )


def end_of(signature: Signature) -> ChordEnd | None:
    """Return the chord that waits for the result of this task, of the last step of this chain or of this chord's body;
    None if none does. Raises CeleryUnsupported, TypeError."""
    options, kwargs = signature.options, signature.kwargs
    body = options.get("chord")
    if body is None and signature.subtask_type == "chain" and kwargs["tasks"]:
        return end_of(signatures(kwargs["tasks"])[-1])
    if body is None:
        return end_of(*signatures(kwargs["body"])) if signature.subtask_type == "chord" else None
    group, index = options.get("group_id"), options.get("group_index")
    if not isinstance(group, str) or not isinstance(index, int):
        raise CeleryUnsupported(f"task {signature.task!r} has no place in its chord; expected Celery 5")
    return ChordEnd(group, str(index), signatures(body)[0], body.get("chord_size"))


def when(written: Any, now: datetime | None = None) -> datetime | None:
    """Return a written time: ISO 8601, by default in UTC, or seconds after `now`; None for None. Raises ValueError or
    TypeError."""
    if written is None:
        return None
    if isinstance(written, int | float) and now is not None:
        return datetime.fromtimestamp(now.timestamp() + written, UTC)
    at = datetime.fromisoformat(written)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _plain(value: dict[str, Any]) -> Any:
    """Return a value that kombu marked with its type in the form that redrive's codec reads."""
    if value.keys() != {"__type__", "__value__"}:
        return value
    kind, inner = value["__type__"], value["__value__"]
    match kind:
        case "datetime" | "date" | "time" | "decimal" | "base64":
            return inner
        case "uuid":
            return str(UUID(hex=inner["hex"] if isinstance(inner, dict) else inner))
        case "bytes":
            return base64.b64encode(str(inner).encode()).decode()
        case _:
            raise CeleryUnsupported(f"an argument has the type {kind!r}, which kombu's JSON here does not have")


def _require(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no name of a task")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
