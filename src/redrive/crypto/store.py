"""Encrypt payloads before a store gets them, and decrypt the messages that it returns.

`Sealed` wraps an engine. Code above it sees plain messages; code below it never does, including the outbox, the
dead-letter queues and the triage store of SQS. The claim check for large bodies wraps `Sealed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..errors import KeyMissing, Unreadable
from ..message import (
    ClaimRequest,
    Delivery,
    Draft,
    Exchange,
    FailureGroup,
    Filter,
    Handle,
    Lane,
    Message,
    Page,
    PutResult,
    Receipt,
    Replace,
    Settlement,
    Swap,
    Verdict,
)
from ..store import Store, Traits
from ..store.wrapper import StoreWrapper
from ..stores.validation import admit
from .box import OVERHEAD, Box
from .fields import (
    TEXT,
    open_message,
    open_or_raise,
    opened_text,
    sealed_draft,
    sealed_fault,
    sealed_message,
)


class MessageReceipt(Receipt):
    """A receipt with the id and task of the claimed message, to which the ciphertexts of its settlement are bound."""

    id: str
    task: str

    def _replace(self, **fields: Any) -> MessageReceipt:
        return with_message(super()._replace(**fields), self.id, self.task)


def with_message(receipt: Receipt, id: str, task: str) -> MessageReceipt:
    made = MessageReceipt(receipt.handle, receipt.fence)
    made.id, made.task = id, task
    return made


class Sealed(StoreWrapper):
    """A wrapper of a store that encrypts every payload before the store gets it."""

    traits: Traits

    def __init__(self, inner: Store, box: Box) -> None:
        super().__init__(inner)
        self.box = box
        self.traits = _smaller(inner.traits)

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Like `Store.put`. Raises StoreUnavailable if no key is available; then no message was put."""
        return self.inner.put(self._seal(drafts), swaps=swaps, tx=tx)

    def _seal(self, drafts: Sequence[Draft]) -> list[Draft]:
        box, now_ms, most = self.box, self.inner.now_ms, self.traits.body_bytes_max
        for draft in drafts:
            if len(draft.body) > most or draft.replace:
                admit([draft], self.traits)
        return [sealed_draft(box, draft, now_ms) for draft in drafts]

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        """Like `Store.exchange`. Raises StoreUnavailable if no key is available; then nothing was exchanged."""
        sealed = [self._settling(s) if s.fault or s.result is not None or s.follow_ups else s for s in settlements]
        result = self.inner.exchange(sealed, asks, swaps=swaps)
        if not result.deliveries:
            return result
        return replace(result, deliveries=[self._open(delivery) for delivery in result.deliveries])

    def _settling(self, s: Settlement) -> Settlement:
        box, (id, task) = self.box, _message_of(s.receipt)
        return replace(
            s,
            fault=None if s.fault is None else sealed_fault(box, s.fault, id, task),
            result=None if s.result is None else box.seal(s.result, "result", "", id, task),
            follow_ups=tuple(self._seal(s.follow_ups)) if s.follow_ups else (),
        )

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        """Like `Store.checkpoint`, for the encrypted state. Raises StoreUnavailable if no key is available."""
        return self.inner.checkpoint(receipt, self.box.seal(state, "checkpoint", "", *_message_of(receipt)))

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        if isinstance(verdict, Replace):
            verdict = replace(verdict, draft=self._seal([verdict.draft])[0])
        return self.inner.triage(handles, verdict, swaps=swaps)

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Like `Store.restore`; parts of messages that are already encrypted are written unchanged."""
        return self.inner.restore([sealed_message(self.box, message) for message in messages], swaps=swaps)

    def _open(self, delivery: Delivery) -> Delivery:
        message = open_message(self.box, delivery.message)
        return Delivery(
            message, with_message(delivery.receipt, message.id, message.task), delivery.until_ms, delivery.due_ms
        )

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        return [None if message is None else open_message(self.box, message) for message in self.inner.find(ids)]

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str = "") -> list[Delivery]:
        return [self._open(d) for d in self.inner.adopt(queue, raws, lease_ms=lease_ms, worker=worker)]

    def peek(
        self, lane: Lane | str | None, *, where: Filter = Filter(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        page = self.inner.peek(lane, where=where, limit=limit, cursor=cursor)
        return Page([open_message(self.box, message) for message in page.messages], page.cursor)

    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        return [self._group(group) for group in self.inner.failure_groups(where=where, trend=trend)]

    def _group(self, group: FailureGroup) -> FailureGroup:
        text = opened_text(self.box, group.text, "text", group.sample_id, group.task)
        if text.startswith(TEXT):  # the text is encrypted for another message of the group
            sample = self.find([group.sample_id])[0]
            faults = () if sample is None else reversed(sample.faults)
            text = next((fault.text for fault in faults if fault.fingerprint == group.fingerprint), text)
        return replace(group, text=text)


def _message_of(receipt: Receipt) -> tuple[str, str]:
    """Return the id and task of the claimed message; empty for a receipt from elsewhere, which is stale."""
    return (receipt.id, receipt.task) if isinstance(receipt, MessageReceipt) else ("", "")


def _smaller(traits: Traits) -> Traits:
    """Return the traits with limits that are lower by the size of an envelope, and without `replaces`."""
    kept = traits.kept_bytes_max
    kept_max = None if kept is None else kept - OVERHEAD
    most = traits.body_bytes_max - OVERHEAD
    return replace(traits, body_bytes_max=most, kept_bytes_max=kept_max, replaces=False)  # each is bound to its message


def sealed_by(store: Store, box: Box) -> Store:
    """Return the store wrapped in encryption by `box`."""
    return Sealed(store, box)


def why_closed(store: Store, message: Message) -> Unreadable:
    """Return why a message is still encrypted, as KeyMissing or Tampered."""
    box = store.box
    if box is None:
        return KeyMissing("it is encrypted, and no keys are given here: App(…, encrypt=Keys.from_env())")
    try:
        open_or_raise(box, message)
    except Unreadable as error:
        return error
    return KeyMissing("its key has come just now")  # the key arrived after the claim: the next claim decrypts
