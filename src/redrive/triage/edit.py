"""Edit a dead letter: replace it by a new message with another body or headers, in one commit.

The new message has an id of its own, names the original as its cause and in the header `redrive-replaces`, and is ready
to run at once. The audit log records the difference, without secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ..audit import Audit, signed
from ..blobs import is_raw, whole_body
from ..codec import is_json, to_json
from ..duration import Duration, milliseconds
from ..errors import ConfigError, KeyMissing, Refused, Unreadable, near_miss
from ..ids import new_id
from ..message import RAW, RESTING, Draft, Message, Replace
from ..redact import Redactor
from ..registry import Registry
from ..store import Store

if TYPE_CHECKING:
    from ..task import TaskSpec

_ARGS = "args."  # prefix of the path of an argument, as in selectors
_NOT_STORED = "the difference is not stored: payloads are encrypted"
REPLACES = "redrive-replaces"
Body = bytes | str | Mapping[str, Any]


class Edited(Struct, frozen=True):
    """A completed edit: the id of the new message, the id of the original, and the difference, without secrets."""

    id: str
    replaces: str
    diff: str


class Prepared(Struct, frozen=True):
    """An edit before its commit: the new message, and the difference from the original."""

    draft: Draft
    diff: str


class NoArgument(Refused):
    """The body has no argument at this path. `name` is the path as given, `near` the path of a similar argument."""

    def __init__(self, what: str, before: Sequence[str], path: Sequence[str], known: Iterable[str]) -> None:
        first, *rest = path
        near, listed = near_miss(first, known), ", ".join(map(repr, sorted(known))) or "none"
        self.name: str = ".".join([*before, *path])
        self.near: str | None = None if near is None else ".".join([*before, near, *rest])
        meant = f"did you mean {self.near!r}?" if self.near else f"there is {listed}."
        super().__init__(f"{what}: there is no argument {self.name!r}; {meant} Nothing was changed")


class Editor:
    """Edits the dead letters of a store, and validates their bodies by the app's tasks."""

    def __init__(self, store: Store, app: Registry | None) -> None:
        self._store, self._app = store, app

    def find(self, id: str) -> Message:
        """Return the dead letter with this id. Raises Refused if the message is not at rest or unknown."""
        message = self._store.find([id])[0]
        if message is None:
            raise Refused(f"there is no message {id}; nothing was changed")
        if message.lane not in RESTING:
            state = message.state_at(self._store.now_ms())
            raise Refused(f"message {id} is {state}; only dead and quarantined messages can be edited")
        return message

    def body(self, message: Message) -> bytes:
        """Return the body to edit: upgraded to the task's version if possible. Raises Unreadable, BlobsUnavailable."""
        body, task = whole_body(self._store, message), self._task(message)
        if task is None or message.version >= task.version:
            return body
        try:
            return task.codec.lifted(body, message.version)
        except Unreadable:
            return body

    def prepared(
        self,
        message: Message,
        *,
        args: Mapping[str, Any] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str | None] | None = None,
        delay: Duration = 0,
        unchecked: bool = False,
    ) -> Prepared:
        """Prepare an edit of the message; writes nothing. Raises as `Actions.edit`."""
        old = self._begin(message, body)
        new = old if body is None and args is None else self._new_body(message, old, args, body)
        task = self._task(message)
        version = message.version if task is None else task.version
        if unchecked:
            version = message.version
        else:
            self._check(message, task, new)
        kept = {**message.headers, **(headers or {})}
        named = {name: value for name, value in kept.items() if value is not None}
        draft = Draft(
            task=message.task,
            queue=message.queue,
            body=new,
            content=_content(message, task, new),
            id=new_id(self._store.now_ms()),
            delay_ms=milliseconds(delay, "delay"),
            priority=message.priority,
            key=message.key,
            group=message.group,
            keep_ms=message.keep_ms,
            version=version,
            headers={**named, REPLACES: message.id},
            correlation_id=message.correlation_id,
            causation_id=message.id,
            producer=message.producer,
            traceparent=message.traceparent,
            batch=message.batch,
        )
        diff = difference(old, new, message.headers, named)
        if not diff:
            raise ConfigError(f"edit of message {message.id} changes nothing; nothing was written")
        return Prepared(draft, diff)

    def commit(self, message: Message, prepared: Prepared, *, reason: str, actor: str | None) -> Edited:
        """Enqueue the new message and discard the original, in one commit with the entry in the audit log. Raises
        Refused if the original was moved meanwhile, EnqueueError if the store rejects the new message, StoreError; then
        nothing was written."""
        actor, reason = signed(actor, reason, f"edit of message {message.id}")
        new = prepared.draft.id or ""
        audit, verdict = Audit(self._store), Replace(prepared.draft, f"replaced by {new}")
        text = prepared.diff if self._store.box is None else _NOT_STORED
        entry = audit.entry("edit", actor, reason, text, ids=[message.id, new], count=1)
        if audit.commit(entry, lambda swaps: self._store.triage([message.handle], verdict, swaps=swaps)) != [True]:
            raise Refused(f"message {message.id} has moved meanwhile; nothing was changed; look at it again")
        return Edited(new, message.id, prepared.diff)

    def _begin(self, message: Message, body: Body | None) -> bytes:
        """Return the message's stored body; an empty one if that is unreadable and the new `body` replaces it."""
        try:
            return self.body(message)
        except KeyMissing:
            raise  # the new body would be unencrypted, or under a key that its readers lack
        except Unreadable:
            if body is None:
                raise
            return b""

    def _new_body(self, message: Message, old: bytes, args: Mapping[str, Any] | None, body: Body | None) -> bytes:
        if args is not None and body is not None:
            raise ConfigError("give args=, which changes some arguments, or body=, which is the whole; not both")
        if body is not None:
            if isinstance(body, bytes):
                return body
            return body.encode() if isinstance(body, str) else to_json(dict(body), "the body")
        try:
            named = msgspec.json.decode(old, type=dict[str, msgspec.Raw])
        except (ValueError, RecursionError) as error:
            raise Refused(
                f"edit of message {message.id}: its body is not a JSON object, so no argument can be changed "
                f"({error}); give the whole as body="
            ) from None
        task, what = self._task(message), f"edit of message {message.id}"
        known = named.keys() if task is None else named.keys() | task.codec.signature.parameters
        for name, value in (args or {}).items():
            given = name if name in known else name.removeprefix(_ARGS)
            first, *rest = [given] if given in known else given.split(".")
            if task is not None and first not in known and (rest or near_miss(first, known)):
                raise NoArgument(what, [], [first, *rest], known)
            raw = value if value is msgspec.UNSET else msgspec.Raw(to_json(value, f"argument {name!r}"))
            _change(named, [first, *rest], raw, what)
        return msgspec.json.encode(named)

    def _check(self, message: Message, task: TaskSpec | None, body: bytes) -> None:
        what = f"edit of message {message.id}"
        if self._app is None:
            raise Refused(
                f"{what}: the schema of task {message.task!r} is not known without its app, so the body cannot be "
                "checked; name the app, or edit it unchecked"
            )
        if task is None:
            near = near_miss(message.task, self._app.tasks)
            raise Refused(
                f"{what}: the app has no task {message.task!r}{f' (near: {near!r})' if near else ''}, so the body "
                "cannot be checked; register the task, or edit it unchecked"
            )
        if message.version > task.version:
            raise Refused(
                f"{what}: its body has version {message.version}, and the app knows {task.name!r} up to version "
                f"{task.version}, so it cannot be checked; use a newer app, or edit it unchecked"
            )
        try:
            task.codec.decode(body, raw=_was_raw(message))
        except Unreadable as error:
            raise Refused(f"{what}: the new {error}; nothing was changed") from None

    def _task(self, message: Message) -> TaskSpec | None:
        return None if self._app is None else self._app.tasks.get(message.task)


def _change(
    fields: dict[str, msgspec.Raw], path: Sequence[str], value: Any, what: str, before: Sequence[str] = ()
) -> None:
    """Set the value at `path` in these fields, or remove it (UNSET); other values keep their bytes. Raises Refused."""
    first, *rest = path
    if not rest and value is msgspec.UNSET:
        fields.pop(first, None)
        return
    if not rest:
        fields[first] = value
        return
    if first not in fields:
        raise NoArgument(what, before, path, fields)
    here = ".".join([*before, first])
    try:
        within = msgspec.json.decode(fields[first], type=dict[str, msgspec.Raw])
    except ValueError:
        why = f"{here!r} is no object, so it has no {'.'.join(rest)!r}; give all of it as JSON. Nothing was changed"
        raise Refused(f"{what}: {why}") from None
    _change(within, rest, value, what, [*before, first])
    fields[first] = msgspec.Raw(msgspec.json.encode(within))


def _was_raw(message: Message) -> bool:
    """True if another program wrote the body, so the new body need not name arguments either."""
    try:
        return is_raw(message)
    except Unreadable:
        return False


def _content(message: Message, task: TaskSpec | None, new: bytes) -> str:
    if not is_json(new):
        return RAW
    if not _was_raw(message) or task is None:
        return "json"
    try:
        task.codec.decode(new)
    except Unreadable:
        return RAW  # the handler takes the whole body
    return "json"


def difference(old: bytes, new: bytes, old_headers: Mapping[str, str], new_headers: Mapping[str, str]) -> str:
    """Return a unified diff of two bodies and their headers, without secrets; empty if they are equal. Secrets that
    changed differ in the number after their stars."""
    hide = Redactor()
    parts = (
        ("body", _lines(old, hide), _lines(new, hide)),
        ("headers", _header_lines(old_headers, hide), _header_lines(new_headers, hide)),
    )
    lines = [
        line
        for what, before, after in parts
        for line in unified_diff(before, after, f"{what} before", f"{what} after", lineterm="")
    ]
    if not lines and old != new:
        lines = ["the bytes of the body differ, but not their meaning"]
    return "\n".join(lines)


def _header_lines(headers: Mapping[str, str], hide: Redactor) -> list[str]:
    return [f"{name}: {value}" for name, value in sorted(hide(dict(headers)).items())]


def _lines(body: bytes, hide: Redactor) -> list[str]:
    """Return the lines of a body to compare: JSON with one value per line; text as it is; else hexadecimal."""
    try:
        read = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        try:
            return [hide.text(line) for line in body.decode().splitlines()]
        except UnicodeDecodeError:
            return [f"{at:08x}  {body[at : at + 16].hex(' ')}" for at in range(0, len(body), 16)]
    return msgspec.json.format(msgspec.json.encode(hide(read)), indent=2).decode().splitlines()
