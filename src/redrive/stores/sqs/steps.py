"""Decide the steps to settle a message: which copies to send, whether to hide or delete it, which record to write.

`settle.py` executes the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ...errors import ConfigError, StoreError
from ...ids import new_id
from ...message import Ack, Draft, Lane, Message, Receipt, RetryAt, Settled, Settlement, Swap
from ...store import Cells, Store
from .. import lifecycle
from .in_flight import VISIBLE_MAX_S, ClaimedMessage
from .members import MemberMove, MemberState, move_of
from .members import state_of as state_of_member
from .queues import QueueDirectory, SqsQueue
from .send import SendRequest
from .url import Mode, SqsUrl
from .wire import MessageState, state_of


class SettleStep(Struct):
    """The steps to settle one message, and which of them are carried out."""

    held: ClaimedMessage
    sends: list[SendRequest]
    rest: Message | None = None  # the dead letter to write to the triage store, if any
    hide_until_ms: int | None = None  # hide the message until this time; None: delete it
    record: MessageState | None = None
    swaps: tuple[Swap, ...] = ()
    left: Message | None = None  # the message after its settlement; None: it leaves the store
    cancelled: bool = False
    sent: bool = False
    kept: bool = False
    ended: bool = False
    counted: bool = False
    joins: list[MemberMove | None] | None = None  # what its follow-ups add to batches; None: not known yet
    error: StoreError | ConfigError | None = None
    refused: StoreError | ConfigError | None = None  # the error of a follow-up that SQS never accepts
    word: Settled = Settled.OK

    @property
    def is_over(self) -> bool:
        """True if the step removes the message from its queue for good, without a copy there."""
        id, queue = self.held.message.id, self.held.queue
        return self.hide_until_ms is None and all(
            send.message.id != id or send.queue is not queue for send in self.sends
        )

    @property
    def outcome(self) -> tuple[Message, Message | None]:
        """The message before its settlement, and after it (None: it leaves the store)."""
        return self.held.message, self.left

    @property
    def moves(self) -> list[MemberMove | None]:
        """What the settlement means for the batches of its message and of its follow-ups."""
        if self.left is None:
            return [*(self.joins or ()), move_of(self.held.message, MemberState.DONE)]
        state = state_of_member(self.left)
        return [*(self.joins or ()), None if state is MemberState.OPEN else move_of(self.held.message, state)]

    def drop_join(self, message: Message) -> None:
        """Note that a follow-up was a duplicate of its unique key."""
        joined = move_of(message, MemberState.OPEN)
        self.joins = [move_of(message, MemberState.DUPLICATE) if move == joined else move for move in self.joins or ()]

    @property
    def gives_key_back(self) -> bool:
        """True if the step's message is done or cancelled, which frees its unique key."""
        return self.left is None or self.left.lane is Lane.DONE


class Steps:
    """Decides how to settle the messages of one store. `cells`, `triage`: None if the store has none."""

    def __init__(
        self,
        at: SqsUrl,
        queues: QueueDirectory,
        cells: Cells | None,
        triage: Store | None,
        *,
        now_ms: Callable[[], int],
        near_limit: Callable[[SqsQueue], bool],
    ) -> None:
        self._at, self._queues, self._cells, self._triage = at, queues, cells, triage
        self._now_ms, self._near_limit = now_ms, near_limit
        self._begun: dict[Receipt, SettleStep] = {}  # steps of calls that failed half-way, for repeated calls

    @property
    def counts_all(self) -> bool:
        """True if every delivery counts as an attempt, as only SQS's receive count records a retry."""
        return self._at.mode is Mode.VISIBILITY and self._cells is None

    def step(self, held: ClaimedMessage, settlement: Settlement) -> SettleStep:
        """Decide the step for a settlement, or return the step that an earlier call began and did not end."""
        begun = self._begun.get(settlement.receipt)
        if begun is not None:
            begun.error = None
            return begun
        now, message, decision = self._now_ms(), held.message, settlement.decision
        sends = [self._follow_up(draft, now) for draft in settlement.follow_ups]
        if isinstance(decision, Ack):
            return SettleStep(held, sends, swaps=settlement.swaps)
        decided = lifecycle.decided(message, decision, settlement.fault, now)
        if isinstance(decision, RetryAt) and not message.cancel:
            step = self._again(held, decided, decision, now)
        else:
            step = self._resting(held, decided)
        step.left, step.cancelled = decided, message.cancel
        step.sends = sends + step.sends
        step.swaps = settlement.swaps
        return step

    def _follow_up(self, draft: Draft, now: int) -> SendRequest:
        message = lifecycle.enqueued(draft, draft.id or new_id(now), now)
        return SendRequest(self._queues.of(draft.queue), message, draft.key_for_ms)

    def _again(self, held: ClaimedMessage, decided: Message, retry: RetryAt, now: int) -> SettleStep:
        if self._can_stay(held, retry, now):
            return self.hidden(held, state_of(decided, receives=held.receives), retry.at_ms)
        return SettleStep(held, [SendRequest(held.queue, decided)])

    def hidden(self, held: ClaimedMessage, kept: MessageState, until_ms: int) -> SettleStep:
        """Return the step that hides a message in its queue until `until_ms`; with cells, a record keeps its state."""
        return SettleStep(held, [], hide_until_ms=until_ms, record=kept if self._cells is not None else None)

    def _can_stay(self, held: ClaimedMessage, retry: RetryAt, now: int) -> bool:
        if held.queue.fifo:
            return True  # a copy would be delivered after messages that were sent later
        if self._at.mode is Mode.REQUEUE or self._near_limit(held.queue):
            return False
        if self._is_near_its_end(held, retry.at_ms):
            return False
        if self._cells is not None:
            return True
        plain = retry.counts and not retry.crashed and not retry.held and retry.deferral is held.state.deferral is None
        return plain and math.ceil((retry.at_ms - now) / 1000) <= held.stays_s(now)

    def _is_near_its_end(self, held: ClaimedMessage, until_ms: int) -> bool:
        """True if SQS would move the message away, or let it expire, before a run at `until_ms` is settled. A copy
        starts again with full bounds."""
        bounds = self._queues.bounds(held.queue)
        often = bounds.receives_max is not None and held.receives + 1 >= bounds.receives_max
        return often or until_ms + VISIBLE_MAX_S * 1000 > held.sent_ms + bounds.retention_ms

    def _resting(self, held: ClaimedMessage, decided: Message) -> SettleStep:
        if decided.lane is Lane.DONE:  # the message was cancelled
            return SettleStep(held, [])
        if self._triage is not None:
            return SettleStep(held, [], rest=decided)
        return SettleStep(held, [SendRequest(self._queues.resting(decided.queue, decided.lane), decided)])

    def early(self, held: ClaimedMessage, due_ms: int) -> SettleStep:
        """Return the step that puts off a message received before it is due. This hop costs no attempt."""
        records = self._at.mode is Mode.VISIBILITY and self._cells is not None
        if held.queue.fifo or (records and not self._is_near_its_end(held, due_ms)):
            record = replace(held.state, receives=held.receives, due_ms=due_ms)
            step = self.hidden(held, record, due_ms)
        else:
            step = SettleStep(held, [SendRequest(held.queue, held.message)])
        step.left = held.message
        return step

    def fresh_copy(self, held: ClaimedMessage, claimed: Message) -> SettleStep:
        """The step that sends a copy, with all of its state, of a message that SQS would move away after a crash."""
        counted = claimed.attempt - 1  # this attempt is counted by the copy's claim
        copy = replace(claimed, lane=Lane.READY, due_ms=None, attempt=counted)
        return SettleStep(held, [SendRequest(held.queue, copy)], left=copy)

    def dropped(self, held: ClaimedMessage) -> SettleStep:
        """Return the step that ends a message which was cancelled while it waited."""
        return SettleStep(held, [], left=lifecycle.cancelled(held.message, self._now_ms()))

    def is_last(self, held: ClaimedMessage) -> bool:
        """True if SQS would move the message away at its next receive. False on a first delivery and in FIFO queues."""
        most = None if held.queue.fifo or held.receives == 1 else self._queues.bounds(held.queue).receives_max
        return most is not None and held.receives >= most

    # -- calls that failed half-way

    def remember(self, receipt: Receipt, step: SettleStep) -> None:
        """Keep the step of a call that failed, so that a repeated call resumes it."""
        self._begun[receipt] = step

    def ended(self, receipt: Receipt) -> SettleStep | None:
        """Return the step remembered for this receipt if the step's message has ended; otherwise None."""
        step = self._begun.get(receipt)
        return step if step is not None and step.ended else None

    def forget(self, receipt: Receipt) -> None:
        self._begun.pop(receipt, None)
