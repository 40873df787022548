"""Export and import dead letters as JSON lines, to run them in another store.

Fields have the names of `Message`; default values are left out. A body that is JSON in one line is written unchanged as
`body`, so that people can read and edit it; other text as `body_text`, and other bytes as `body_base64`. A body in a
blob is written out.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..audit import IDS_MAX, Audit, Entry, signed
from ..blobs import read_reference, whole_body
from ..codec import is_json
from ..config import is_shared
from ..crypto import key_of, key_of_text
from ..errors import BlobsUnavailable, EnqueueError, Refused, Unreadable
from ..fault import Fault
from ..files import output
from ..message import BLOB, RESTING, SEALED, Message
from ..redact import redact, redact_json, redact_value, shown_traceback
from ..store import Store
from ..stores.validation import admit_restored
from .selection import Selection

FORMAT = 1
REDACTED = "redacted"  # this field is true in a line with hidden secrets
BATCH, BATCH_BYTES = 500, 16 * 1024 * 1024  # most messages of one commit, and about the most bytes
DAMAGED_MAX = 1000  # most damaged lines that are reported; further lines are only counted
_BYTES = ("body", "result", "progress")
_TEXTS = (
    "task", "queue", "key", "group", "reason", "worker", "producer", "correlation_id", "causation_id", "traceparent",
    "batch",
)  # fmt: skip
_DEFAULTS = dict(
    zip(reversed(Message.__struct_fields__), reversed(Message.__struct_defaults__), strict=False)
)  # defaults by name of the fields that have one

ExportFile = str | Path | IO[bytes]


class Exported(Struct, frozen=True):
    """The result of an export: `count` messages were written. `unread`: the ids of those whose blob was unreadable,
    which contain its reference. `hidden`: the number of those with hidden secrets, which cannot be imported."""

    count: int = 0
    unread: tuple[str, ...] = ()
    hidden: int = 0


class Damaged(Struct, frozen=True):
    """A line that cannot be imported: its number, from 1, and the reason."""

    line: int
    why: str


class Inspected(Struct, frozen=True):
    """A file's content: the numbers of importable messages and bad lines, and the first DAMAGED_MAX of the latter."""

    count: int = 0
    bad: int = 0
    damaged: tuple[Damaged, ...] = ()


class Imported(Struct, frozen=True):
    """The result of an import: the ids written; `held`, the ids of messages whose id or unique key the store has; and
    the damaged lines, which were skipped."""

    ids: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    damaged: tuple[Damaged, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def write_line(message: Message, *, redacted: bool = False) -> bytes:
    """Return the message as a line with its line break. `redacted`: the message's secrets are hidden."""
    record: dict[str, Any] = {"format": FORMAT} | ({REDACTED: True} if redacted else {})
    for name in Message.__struct_fields__:
        value = getattr(message, name)
        if name in _DEFAULTS and value == _DEFAULTS[name]:
            continue
        if name in _BYTES:
            record |= _written(name, value)
        else:
            record[name] = value
    return msgspec.json.encode(record) + b"\n"


def read_line(line: bytes) -> Message:
    """Return the message in a line. Raises ValueError with the reason if the line is damaged."""
    try:
        record = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise ValueError("it is not a JSON object") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    number = _decoded(record.pop("format", msgspec.Raw(b"0")), int, "format")
    if number != FORMAT:
        raise ValueError(f"its format is {number}; expected {FORMAT}, as `redrive dlq export` writes it")
    if _decoded(record.pop(REDACTED, msgspec.Raw(b"false")), bool, REDACTED):
        raise ValueError("its secrets were hidden by the export, so it would run without them; export with --reveal")
    fields: dict[str, Any] = {}
    for name in _BYTES:
        if (value := _read_bytes(name, record)) is not None:
            fields[name] = value
    unknown = sorted(record.keys() - set(Message.__struct_fields__))
    if unknown:
        raise ValueError(f"there is no field {unknown[0][:100]!r}")
    fields |= {name: _decoded(value, Any, name) for name, value in record.items()}
    try:
        message = msgspec.convert(fields, Message)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    if message.damage is not None:
        raise ValueError(f"it was written from a row that cannot be read: {message.damage.why[:200]}")
    return message


def _written(name: str, value: bytes) -> dict[str, Any]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
    return {name: msgspec.Raw(value)} if _in_one_line(value) else {f"{name}_text": text}


def _in_one_line(value: bytes) -> bool:
    """True if the value is JSON that a line of the file can hold unchanged."""
    return b"\n" not in value and b"\r" not in value and value.strip() == value and is_json(value)


def _read_bytes(name: str, record: dict[str, msgspec.Raw]) -> bytes | None:
    given = [each for each in (name, f"{name}_text", f"{name}_base64") if each in record]
    if len(given) > 1:
        raise ValueError(f"it has both {given[0]} and {given[1]}")
    if not given:
        return None
    raw = record.pop(given[0])
    if given[0] == name:
        _decoded(raw, Any, name)
        return bytes(raw)
    text = _decoded(raw, str, given[0])
    if given[0].endswith("_text"):
        return str(text).encode()
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError(f"{given[0]}: {error}") from None


def _decoded(raw: msgspec.Raw, type: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=type)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {error}") from None


# -- out


def export(
    store: Store,
    selection: Selection,
    file: ExportFile,
    *,
    reveal: bool = False,
    actor: str | None = None,
    reason: str = "",
) -> Exported:
    """Write the selected messages, one a line, the longest dead first; with `reveal`, with their secrets.

    Only this user may read the file, which gets its name once it is complete and its entry is in the audit log. For a
    stream the entry is written first, and completed with the count. Raises ConfigError, OSError, StoreError.
    """
    log = _Log(store, selection, *signed(actor, reason, "export", needed=False))
    if not isinstance(file, str | Path):
        return _streamed(store, selection, file, log, reveal)
    path = Path(file)
    if path.exists() and not path.is_file():  # a device or pipe, such as /dev/stdout
        with path.open("wb") as out:
            return _streamed(store, selection, out, log, reveal)
    with output(path, shared=is_shared()) as out:
        ids, done = _export(store, selection, out, reveal)
        if done.count:
            log.audit.keep(log.entry(f"to {path}", ids, done.count))
    return done


class _Log(NamedTuple):
    """Writes the audit entries of an export."""

    store: Store
    selection: Selection
    actor: str
    reason: str

    @property
    def audit(self) -> Audit:
        return Audit(self.store)

    def entry(self, text: str, ids: Sequence[str], count: int) -> Entry:
        about = str(self.selection) or "all"
        return self.audit.entry("export", self.actor, self.reason, text, ids=ids, count=count, about=about)


def _streamed(store: Store, selection: Selection, out: IO[bytes], log: _Log, reveal: bool) -> Exported:
    entry = log.entry(f"to {getattr(out, 'name', 'a stream')}", (), 0)
    log.audit.keep(entry)
    ids, done = _export(store, selection, out, reveal)
    log.audit.amend(entry, ids=ids, count=done.count)
    return done


def _export(store: Store, selection: Selection, out: IO[bytes], reveal: bool) -> tuple[list[str], Exported]:
    """Write the selected messages as lines; return the first ids and the result."""
    count = hidden = 0
    ids: list[str] = []
    unread: list[str] = []
    for message in selection:
        whole = _whole(store, message)
        if whole is None:
            unread.append(message.id)
        if count < IDS_MAX:
            ids.append(message.id)
        exported = message if whole is None else whole
        shown = exported if reveal else without_secrets(exported)
        hidden += shown is not exported
        out.write(write_line(shown, redacted=shown is not exported))
        count += 1
    return ids, Exported(count, tuple(unread), hidden)


def without_secrets(message: Message) -> Message:
    """Return the message with its secrets hidden; the same object if the message has none."""
    fields: dict[str, Any] = {
        name: redact_json(value)
        for name in _BYTES
        if (value := getattr(message, name)) is not None and key_of(value) is None  # encrypted values reveal nothing
    }
    fields |= {name: redact(value) for name in _TEXTS if (value := getattr(message, name)) is not None}
    fields["headers"] = redact_value(message.headers)
    if key_of_text(error := message.headers.get("redrive-dead-error", "")) is not None:
        fields["headers"] = {**fields["headers"], "redrive-dead-error": error}
    fields["faults"] = tuple(map(_fault, message.faults))
    if message.damage is not None and message.damage.raw:  # secrets cannot be recognized in a raw row
        fields["damage"] = replace(message.damage, raw={})
    changed = {name: value for name, value in fields.items() if value != getattr(message, name)}
    return replace(message, **changed) if changed else message


def _fault(fault: Fault) -> Fault:
    texts = {
        name: text if key_of_text(text := getattr(fault, name)) is not None else hide(text)
        for name, hide in (("error", redact), ("text", redact), ("traceback", shown_traceback))
    }
    return replace(fault, **texts) if any(texts[name] != getattr(fault, name) for name in texts) else fault


def _whole(store: Store, message: Message) -> Message | None:
    """Return the message, with its body from the blob if there is one; None if that is unreadable."""
    if message.content != BLOB:
        return None if message.content == SEALED + BLOB else message
    try:
        return replace(message, body=whole_body(store, message), content=read_reference(message.body).content)
    except (Unreadable, BlobsUnavailable):
        return None


# -- in


class Importer:
    """An import of one file, which is read twice: first to check every line, then to write the messages."""

    def __init__(self, store: Store, file: ExportFile) -> None:
        self._store, self._file = store, file
        self._stack = ExitStack()
        self.name: str | Any = str(file) if isinstance(file, str | Path) else getattr(file, "name", "a stream")

    def __enter__(self) -> Importer:
        if not isinstance(self._file, str | Path):  # a pipe cannot be read a second time
            spool = self._stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(self._file, spool)
            self._spool: IO[bytes] = spool
        else:
            self._spool = self._stack.enter_context(Path(self._file).open("rb"))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def inspect(self) -> Inspected:
        """Check every line; write nothing."""
        count = bad = 0
        damaged: list[Damaged] = []
        for number, content in self._lines():
            if isinstance(content, Message):
                count += 1
                continue
            bad += 1
            if len(damaged) < DAMAGED_MAX:
                damaged.append(Damaged(number, content))
        return Inspected(count, bad, tuple(damaged))

    def write(self, *, actor: str, reason: str) -> Imported:
        """Import the good lines in batches, each one commit with an entry in the audit log. If the call is repeated
        after a crash, messages of the earlier batches are `held`. Raises StoreError."""
        ids: list[str] = []
        held: list[str] = []
        damaged: list[Damaged] = []
        for batch in _batched(self._messages(damaged)):
            done = self._restore(batch, actor, reason)
            ids += [m.id for m, was in zip(batch, done, strict=True) if was]
            held += [m.id for m, was in zip(batch, done, strict=True) if not was]
        return Imported(tuple(ids), tuple(held), tuple(damaged[:DAMAGED_MAX]))

    def _restore(self, batch: list[Message], actor: str, reason: str) -> list[bool]:
        """Import a batch; its entry names all messages, and is then corrected, unless the process crashes before."""
        audit = Audit(self._store)
        entry = audit.entry("import", actor, reason, ids=[m.id for m in batch], about=self.name)
        done = audit.commit(entry, lambda swaps: self._store.restore(batch, swaps=swaps))
        if not all(done):
            audit.amend(entry, ids=[m.id for m, was in zip(batch, done, strict=True) if was])
        return done

    def _messages(self, damaged: list[Damaged]) -> Iterator[Message]:
        for number, content in self._lines():
            if isinstance(content, Message):
                yield content
            else:
                damaged.append(Damaged(number, content))

    def _lines(self) -> Iterator[tuple[int, Message | str]]:
        """Yield the number of each line that is not empty, with its message or why it is damaged."""
        self._spool.seek(0)
        for number, line in enumerate(self._spool, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")  # some editors write a byte order mark
            if line.strip():
                yield number, self._read(line)

    def _read(self, line: bytes) -> Message | str:
        try:
            message = read_line(line)
            if message.lane not in RESTING:
                return f"its lane is {str(message.lane)!r}; expected 'dead' or 'quarantine'"
            admit_restored([message], self._store.traits)
        except (ValueError, EnqueueError) as error:
            return str(error).removesuffix("; nothing was written")
        return message


def import_lines(store: Store, file: ExportFile, *, actor: str, reason: str, skip_damaged: bool = False) -> Imported:
    """Import a file. If a line is damaged, imports nothing and raises Refused; `skip_damaged` skips such lines."""
    with Importer(store, file) as importer:
        inspected = importer.inspect()
        if inspected.bad and not skip_damaged:
            raise Refused(
                f"import of {importer.name}: {damage(inspected)}; nothing was imported; skip_damaged=True skips them"
            )
        return importer.write(actor=actor, reason=reason)


def damage(inspected: Inspected, shown: int = 3) -> str:
    """Describe the damaged lines and the reasons in words."""
    lines = ", ".join(f"line {each.line}: {each.why}" for each in inspected.damaged[:shown])
    more = f" and {inspected.bad - shown:,} more" if inspected.bad > shown else ""
    return f"{inspected.bad:,} of {inspected.count + inspected.bad:,} lines cannot be read ({lines}{more})"


def _batched(messages: Iterable[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        if batch and (len(batch) >= BATCH or size + len(message.body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.body)
    if batch:
        yield batch
