"""A store whose payloads are encrypted: `Sealed` stands before an engine, seals what goes in and opens what comes out.

It is the one place where bytes pass to and from a store. Above it all see plain messages; below it nothing does, SQS's
outbox, dead-letter queues and triage store included. A claim check for large bodies stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from ..errors import KeyMissing, Unreadable
from ..message import (
    Ask,
    Delivery,
    Draft,
    Exchange,
    FailureGroup,
    Handle,
    Message,
    Page,
    Put,
    Receipt,
    Replace,
    Settlement,
    Swap,
    Verdict,
    Where,
)
from ..store import Store, Traits, box_of
from ..stores.validation import admit
from .box import OVERHEAD, Box
from .fields import (
    TEXT,
    open_or_raise,
    opened,
    opened_text,
    sealed_draft,
    sealed_fault,
    sealed_message,
)


class Held(Receipt):
    """A receipt that knows its message: what is settled with it is bound to that."""

    id: str
    task: str

    def _replace(self, **fields: Any) -> Held:
        return held(super()._replace(**fields), self.id, self.task)


def held(receipt: Receipt, id: str, task: str) -> Held:
    made = Held(receipt.handle, receipt.fence)
    made.id, made.task = id, task
    return made


class Sealed:
    """A `Store` like the one within, which gets no payload in the clear."""

    def __init__(self, store: Store, box: Box) -> None:
        self.store, self.box = store, box
        self.traits = _smaller(store.traits)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name == "adopt":  # only SQS has it
            return lambda *args, **named: [self._opened(delivery) for delivery in found(*args, **named)]
        return found

    # -- in

    def put(self, drafts: Sequence[Draft], **rest: Any) -> list[Put]:
        """As the store's. Raises StoreUnavailable where no key can be had; then nothing was put."""
        return self.store.put(self._sealed(drafts), **rest)

    def _sealed(self, drafts: Sequence[Draft]) -> list[Draft]:
        box, now_ms, most = self.box, self.store.now_ms, self.traits.body_bytes_max
        for draft in drafts:
            if len(draft.body) > most:
                admit([draft], self.traits)
        return [sealed_draft(box, draft, now_ms) for draft in drafts]

    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[Ask], **rest: Any) -> Exchange:
        """As the store's. Raises StoreUnavailable where no key can be had; then nothing was settled."""
        sealed = [self._settling(s) if s.fault or s.result is not None or s.follow_ups else s for s in settlements]
        found = self.store.exchange(sealed, asks, **rest)
        if not found.deliveries:
            return found
        return replace(found, deliveries=[self._opened(delivery) for delivery in found.deliveries])

    def _settling(self, s: Settlement) -> Settlement:
        box, (id, task) = self.box, _message_of(s.receipt)
        return replace(
            s,
            fault=None if s.fault is None else sealed_fault(box, s.fault, id, task),
            result=None if s.result is None else box.seal(s.result, "result", "", id, task),
            follow_ups=tuple(self._sealed(s.follow_ups)) if s.follow_ups else (),
        )

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        """As the store's. Raises StoreUnavailable where no key can be had."""
        return self.store.checkpoint(receipt, self.box.seal(state, "checkpoint", "", *_message_of(receipt)))

    def triage(self, handles: Sequence[Handle], verdict: Verdict, **rest: Any) -> list[bool]:
        """As the store's."""
        if isinstance(verdict, Replace):
            verdict = replace(verdict, draft=self._sealed([verdict.draft])[0])
        return self.store.triage(handles, verdict, **rest)

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """As the store's; what was exported without its key is written as it is."""
        return self.store.restore([sealed_message(self.box, message) for message in messages], swaps=swaps)

    # -- out

    def _opened(self, delivery: Delivery) -> Delivery:
        message = opened(self.box, delivery.message)
        return Delivery(message, held(delivery.receipt, message.id, message.task), delivery.until_ms)

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        """As the store's."""
        return [None if message is None else opened(self.box, message) for message in self.store.find(ids)]

    def peek(self, *args: Any, **named: Any) -> Page:
        """As the store's."""
        page = self.store.peek(*args, **named)
        return Page([opened(self.box, message) for message in page.messages], page.cursor)

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        """As the store's."""
        return [self._group(group) for group in self.store.failure_groups(where=where, trend=trend)]

    def _group(self, group: FailureGroup) -> FailureGroup:
        text = opened_text(self.box, group.text, "text", group.sample_id, group.task)
        if text.startswith(TEXT):  # it is of another message of the group than the sample
            sample = self.find([group.sample_id])[0]
            faults = () if sample is None else reversed(sample.faults)
            text = next((fault.text for fault in faults if fault.fingerprint == group.fingerprint), text)
        return replace(group, text=text)


def _message_of(receipt: Receipt) -> tuple[str, str]:
    """The id and task of the message that was claimed. A receipt from nowhere has none, and is stale."""
    return (receipt.id, receipt.task) if isinstance(receipt, Held) else ("", "")


def _smaller(traits: Traits) -> Traits:
    """An envelope takes room beside what it holds."""
    kept = traits.kept_bytes_max
    kept_max = None if kept is None else kept - OVERHEAD
    return replace(traits, body_bytes_max=traits.body_bytes_max - OVERHEAD, kept_bytes_max=kept_max)


def sealed_by(store: Store, box: Box) -> Store:
    """The store with encryption before it."""
    return cast(Store, Sealed(store, box))


def why_closed(store: object, message: Message) -> Unreadable:
    """Why a message that is closed does not open: KeyMissing or Tampered."""
    box = box_of(store)
    if box is None:
        return KeyMissing("it is encrypted, and no keys are given here: App(…, encrypt=Keys.from_env())")
    try:
        open_or_raise(box, message)
    except Unreadable as error:
        return error
    return KeyMissing("its key has come just now")  # between the claim and here: the next claim opens it
