"""The claim check: keep large bodies in blob storage beside the store, and put a reference into the message.

A blob is written before its message and removed after it. So a crash can leave a blob without a message, which
`collect` finds, and never a message without its blob.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import BlobsUnavailable, Conflict, EnqueueError, StoreError, StoreUnavailable, Unreadable, Unsupported
from ..ids import new_id
from ..message import (
    ABSENT,
    BLOB,
    SEALED,
    ClaimRequest,
    Discard,
    Draft,
    Exchange,
    Handle,
    Message,
    PutResult,
    Replace,
    Settlement,
    Swap,
    Verdict,
    decoded,
    version_of,
)
from ..store import Store
from ..store.traits import Traits
from ..store.wrapper import StoreWrapper
from ..stores.failpoints import no_failpoint
from ..stores.validation import admit as check_drafts
from ..stores.validation import admit_restored, admit_verdict
from .place import Blobs, is_key, new_key, owner, written_ms

PLACE_CELL = "redrive:blobs:place"  # the cell with the name of this store's part of the blob storage
SWEPT_CELL = "redrive:blobs:swept"  # the cell with the time of the last collection of blobs, in ms of the store's clock
SWEEP_EVERY_MS = 3_600_000
LOOKED_UP = 500  # messages in one look-up
COMPLAIN_EVERY_S = 60.0


class Reference(msgspec.Struct, frozen=True):
    """The body that the store has for a message whose original body is in a blob.

    `blob` is the blob's key in this store's part of the blob storage; the blob belongs to the same message. `bytes`,
    `sha256` and `content` (the content type) are those of the original body.
    """

    blob: str
    bytes: int
    sha256: str
    content: str


_encode, _decode = msgspec.json.encode, msgspec.json.Decoder(Reference).decode


class ClaimCheck(StoreWrapper):
    """A wrapper of a store for bodies up to `blob_max` bytes: a body over `threshold` goes to blob storage.

    `open_place` opens the storage, given the name of this store's part. A message returned by a query has the reference
    as its body; `body` reads the original one.
    """

    traits: Traits

    def __init__(self, inner: Store, open_place: Callable[[str], Blobs], *, threshold: int, blob_max: int) -> None:
        super().__init__(inner)
        self.large_bodies = self
        inline_max = inner.traits.body_bytes_max
        self._threshold = min(threshold, inline_max)
        self.traits = replace(
            inner.traits, body_bytes_max=blob_max, blob_threshold=self._threshold, inline_bytes_max=inline_max
        )
        self._open_place = open_place
        self._opened: Blobs | None = None
        self._lock = threading.Lock()
        self._complained_s = float("-inf")
        self.failpoint: Callable[[str], None] = no_failpoint  # tests set one that kills the process at a named point

    @property
    def blobs(self) -> Blobs:
        """This store's part of the blob storage. Its first use by any process creates the part."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open_place(self._named_place() or self._place() or self._made_place())
        return self._opened

    def _named_place(self) -> str | None:
        """Return the place that the store itself names; None if the name is to be stored in a cell."""
        name = self.blobs_place
        if name is not None:
            self._open_place(name).make()
        return name

    def _place(self) -> str | None:
        cell = self.inner.cells.read([PLACE_CELL])[0]
        return None if cell is None else cell.value.decode()

    def _made_place(self) -> str:
        """Create a place, then store its name. So if a place whose name is stored does not exist, its disk is missing:
        then redrive neither reports damage nor writes blobs elsewhere."""
        name = new_id(self.inner.now_ms())
        self._open_place(name).make()
        try:
            self.inner.cells.swap([Swap(PLACE_CELL, 0, name.encode())])  # another process may win: its name is used
        except StoreUnavailable as error:
            raise BlobsUnavailable(
                f"the place for this store's blobs cannot be noted in it: {error}; where the first large body ever is "
                "put with tx=, the transaction itself is in the way: start a worker or run `redrive store sweep` first"
            ) from error
        return self._place() or name

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Like `Store.put`. Also raises BlobsUnavailable; then no message was put."""
        deposited = self.deposit(drafts)
        if deposited is drafts:
            return self.inner.put(drafts, swaps=swaps, tx=tx)
        self.failpoint("deposited")
        try:
            puts = self.inner.put(deposited, swaps=swaps, tx=tx)
        except (EnqueueError, Conflict, Unsupported) as error:
            # On SQS a swap may turn out not to apply after the messages were sent.
            if self.inner.traits.atomic_moves or not isinstance(error, Conflict):
                self._discard(_deposited_keys(drafts, deposited))
            raise
        # After any other StoreError the messages may be stored or not: `collect` removes unused blobs.
        refused = [(d, e) for d, e, put in zip(drafts, deposited, puts, strict=True) if put.id != e.id]
        if refused:
            self._discard(_deposited_keys(*zip(*refused, strict=True)))
        return puts

    def deposit(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Write large bodies to blobs, durably; return the drafts to store, or the same object if no body is large.

        A draft with a reference to another message's blob, such as the follow-up of a dead message, gets a copy of the
        blob: every blob belongs to one message. Raises EnqueueError, BlobsUnavailable.
        """
        if not any(len(draft.body) > self._threshold or draft.content == BLOB for draft in drafts):
            return drafts
        check_drafts(drafts, self.traits)
        bodies: dict[str, bytes] = {}
        deposited = [self._copy(d) if d.content == BLOB else self._split(d, bodies) for d in drafts]
        if bodies:
            self._write(bodies)
        return deposited

    def _write(self, bodies: dict[str, bytes]) -> None:
        try:
            self.blobs.put(bodies)
        except BlobsUnavailable:
            self._discard(bodies)
            raise

    def _split(self, draft: Draft, bodies: dict[str, bytes]) -> Draft:
        if len(draft.body) <= self._threshold:
            return draft
        from hashlib import sha256

        if draft.replace:
            raise EnqueueError(
                f"a message of task {draft.task!r} with replace=True has {len(draft.body)} bytes, and a body over "
                f"{self._threshold} bytes goes to a blob, which belongs to one message; enqueue what names the data"
            )
        key, id = self._key_for(draft)
        bodies[key] = draft.body
        reference = Reference(key, len(draft.body), sha256(draft.body).hexdigest(), draft.content)
        return replace(draft, id=id, body=_encode(reference), content=BLOB)

    def _copy(self, draft: Draft) -> Draft:
        try:
            reference = read_reference(draft.body)
        except Unreadable:
            return draft  # the worker will report the missing blob, and the message dies of it
        if owner(reference.blob) == draft.id:
            return draft
        key, id = self._key_for(draft)
        if not self.blobs.copy(reference.blob, key):
            return draft
        return replace(draft, id=id, body=_encode(replace(reference, blob=key)))

    def _key_for(self, draft: Draft) -> tuple[str, str]:
        now_ms = self.inner.now_ms()
        id = draft.id or new_id(now_ms)
        return new_key(id, now_ms), id

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        """Like `Store.exchange`. Also raises BlobsUnavailable; then no message was settled or claimed."""
        if any(s.follow_ups for s in settlements):
            settlements = [self._with_deposits(s) if s.follow_ups else s for s in settlements]
        return self.inner.exchange(settlements, asks, swaps=swaps)

    def _with_deposits(self, settlement: Settlement) -> Settlement:
        deposited = self.deposit(settlement.follow_ups)
        if deposited is settlement.follow_ups:
            return settlement
        return replace(settlement, follow_ups=tuple(deposited))

    def stored(self) -> Blobs:
        """Return the blobs as stored, without decryption."""
        return self.blobs.stored

    def body(self, message: Message) -> bytes:
        """Return the message's body, from its blob if it has one, checked by length and digest.

        Raises Unreadable if the blob is missing or damaged or the reference invalid, BlobsUnavailable if the storage
        cannot be read at present.
        """
        if message.content != BLOB:
            return message.body
        from hashlib import sha256

        reference = read_reference(message.body)
        key = reference.blob
        if owner(key) != message.id:
            raise Unreadable(f"its body refers to blob {key}, which belongs to another message")
        blob = self.blobs.get(key, reference.bytes + 1)
        if blob is None:
            raise Unreadable(f"its body of {reference.bytes} bytes is gone: there is no blob {key}")
        if len(blob) != reference.bytes:
            word = "more" if len(blob) > reference.bytes else f"only {len(blob)}"
            raise Unreadable(f"its blob {key} is damaged: it has {word} instead of {reference.bytes} bytes")
        if sha256(blob).hexdigest() != reference.sha256:
            raise Unreadable(f"its blob {key} is damaged: its {len(blob)} bytes do not have the SHA-256 they had")
        return blob

    def complains(self) -> bool:
        """Return True, at most once a minute, if the caller should report a problem of the storage now."""
        now_s = time.monotonic()
        if now_s - self._complained_s < COMPLAIN_EVERY_S:
            return False
        self._complained_s = now_s
        return True

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Like `Store.triage`, and removes the blobs of discarded and replaced messages. Also raises BlobsUnavailable
        for a Replace; then nothing was changed."""
        if not isinstance(verdict, Discard | Replace):
            return self.inner.triage(handles, verdict, swaps=swaps)
        messages = self.inner.find([handle.id for handle in handles])
        done = (
            self._replace(handles, verdict, swaps)
            if isinstance(verdict, Replace)
            else self.inner.triage(handles, verdict, swaps=swaps)
        )
        self._discard(key for m, gone in zip(messages, done, strict=True) if gone and m for key in _keys_of(m))
        return done

    def _replace(self, handles: Sequence[Handle], verdict: Replace, swaps: Sequence[Swap]) -> list[bool]:
        admit_verdict(handles, verdict, self.traits)
        (deposited,) = self.deposit([verdict.draft])
        made = [] if deposited is verdict.draft else _deposited_keys([verdict.draft], [deposited])
        self.failpoint("deposited")
        try:
            done = self.inner.triage(handles, replace(verdict, draft=deposited), swaps=swaps)
        except (EnqueueError, Conflict, Unsupported):
            self._discard(made)
            raise
        if done != [True]:
            self._discard(made)
        return done

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Like `Store.restore`; large bodies go to blobs. Also raises BlobsUnavailable; nothing was written then."""
        admit_restored(messages, self.traits)
        bodies: dict[str, bytes] = {}
        deposited = [self._split_large(message, bodies) for message in messages]
        if bodies:
            self._write(bodies)
        self.failpoint("deposited")
        try:
            done = self.inner.restore(deposited, swaps=swaps)
        except (EnqueueError, Conflict, Unsupported):
            self._discard(bodies)
            raise
        self._discard(
            key for m, kept in zip(deposited, done, strict=True) if not kept for key in _keys_of(m) if key in bodies
        )
        return done

    def _split_large(self, message: Message, bodies: dict[str, bytes]) -> Message:
        if len(message.body) <= self._threshold or message.content == BLOB:
            return message
        draft = Draft(task=message.task, id=message.id, body=message.body, content=message.content)
        deposited = self._split(draft, bodies)
        return replace(message, body=deposited.body, content=deposited.content)

    def remove(self, settled: Sequence[Message]) -> None:
        """Remove the blobs of these messages, except of those still stored. Raises StoreError."""
        keys = [key for message in settled for key in _keys_of(message)]
        self.failpoint("settled")
        self.blobs.delete(self._orphans(keys))

    def collect(self, older_than_ms: int = SWEEP_EVERY_MS) -> int:
        """Remove every blob that is older than `older_than_ms` and that no message refers to; return the number of
        blobs removed.

        A put writes its blob first, so `older_than_ms` must exceed any put or transaction. Raises StoreError.
        """
        if not self.traits.finds:
            raise Unsupported(
                f"{self.traits.name} cannot say which messages wait in it, so no blob is known to be unused; let a "
                "lifecycle rule of the bucket expire what is older than any message of yours"
            )
        before_ms = self.inner.now_ms() - older_than_ms
        old = (key for key in self.blobs.listed() if written_ms(key) <= before_ms)
        count = 0
        while keys := list(islice(old, LOOKED_UP)):
            orphans = self._orphans(keys)
            self.blobs.delete(orphans)
            count += len(orphans)
        return count

    def collect_if_due(self) -> int | None:
        """Call `collect`, unless a process did so within the last hour. Returns its result; None if it was not called,
        and always on a store that cannot list waiting messages. Raises StoreError."""
        if not self.traits.finds:
            return None
        now_ms, cell = self.inner.now_ms(), self.inner.cells.read([SWEPT_CELL])[0]
        if cell is not None and 0 <= now_ms - decoded(cell, int, 0) < SWEEP_EVERY_MS:
            return None  # some process collected lately; a time in the future would be from a wrong clock
        if not self.inner.cells.swap([Swap(SWEPT_CELL, version_of(cell), str(now_ms).encode())])[0]:
            return None
        return self.collect()  # if killed here, the next process collects in an hour

    def _orphans(self, keys: Sequence[str]) -> list[str]:
        """Return the keys of blobs whose message is not stored, or does not refer to the blob."""
        owners = list(dict.fromkeys(map(owner, keys)))
        stored: dict[str, Message] = {}
        for at in range(0, len(owners), LOOKED_UP):
            stored |= {m.id: m for m in self.inner.find(owners[at : at + LOOKED_UP]) if m is not None}
        return [key for key in keys if (m := stored.get(owner(key))) is None or not _may_refer(m, key)]

    def _discard(self, keys: Iterable[str]) -> None:
        """Delete these blobs and ignore errors: `collect` removes the rest."""
        keys = list(keys)
        if keys:
            with contextlib.suppress(StoreError):
                self.blobs.delete(keys)


def read_reference(body: bytes) -> Reference:
    """Decode a reference to a blob. Raises Unreadable for invalid bytes."""
    try:
        reference = _decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"its reference to a blob cannot be read: {error}") from None
    if not is_key(reference.blob) or reference.bytes < 0:
        raise Unreadable(f"its reference names no blob: {reference.blob[:100]!a}")
    return reference


def _keys_of(message: Message) -> Iterator[str]:
    if message.content == BLOB:
        with contextlib.suppress(Unreadable):
            key = read_reference(message.body).blob
            if owner(key) == message.id:
                yield key


def _may_refer(message: Message, key: str) -> bool:
    if message.content != BLOB:
        # An encrypted or unreadable message may refer to any blob of its own.
        return message.content in (ABSENT, SEALED + BLOB) or message.damage is not None
    try:
        return read_reference(message.body).blob == key
    except Unreadable:
        return True  # if the blob is kept, a person may repair the message


def _deposited_keys(drafts: Sequence[Draft], deposited: Sequence[Draft]) -> list[str]:
    changed = [after for before, after in zip(drafts, deposited, strict=True) if after is not before]
    return [read_reference(draft.body).blob for draft in changed]
