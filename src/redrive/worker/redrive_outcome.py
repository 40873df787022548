"""Record how the first counted run of a message ended since a run redrove it or made it due, for that run.

The outcome is a cell of its own, written in the commit that settles the message. The runner deletes it after counting
it. Free deliveries (a snooze, a deferral, a retried crash) record none.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..fault import Fault
from ..message import SEALED, UNWATCHED, Ack, Decision, Message, RetryAt, Settlement, Swap

KEPT_MS = 90 * 86_400_000  # ms for which an outcome is stored if no redrive run counts it
TEXT_MAX = 200
DONE, FAILED = "done", "failed"


class RedriveOutcome(Struct, frozen=True, array_like=True):
    """The redrive outcome of a message: `done` or `failed`, and the fault if it failed."""

    outcome: str
    kind: str = ""
    error: str = ""
    text: str = ""
    fingerprint: str = ""
    at_ms: int = 0


def cell_of(run: str, id: str) -> str:
    """Return the key of the cell with the outcome of message `id` in redrive run `run`."""
    return f"run/{run}/v/{id}"


def decode(value: bytes) -> RedriveOutcome:
    """Decode a redrive outcome from the value of its cell."""
    return msgspec.json.decode(value, type=RedriveOutcome)


def with_redrive_outcome(message: Message, settlement: Settlement, now_ms: int, *, texts: bool = True) -> Settlement:
    """Add the redrive outcome to a settlement, if it is the first counted one since a redrive run moved the message.
    The cell is not encrypted: if payloads are, leave out its `texts`.

    There is one outcome for each move, as free deliveries do not raise the attempt.
    """
    if message.run_id is None or first_outcome(message, settlement.decision) is None:
        return settlement
    first = _redrive_outcome(settlement.decision, settlement.fault, now_ms)
    value = msgspec.json.encode(first if texts else msgspec.structs.replace(first, text=""))
    swap = Swap(cell_of(message.run_id, message.id), 0, value, KEPT_MS)
    return msgspec.structs.replace(settlement, swaps=(*settlement.swaps, swap))


def first_outcome(message: Message, decision: Decision) -> str | None:
    """Return how the first counted run of the message's life, or since a run made it due, ended: done or failed. None
    if this was not that run, or the run does not await it."""
    free = isinstance(decision, RetryAt) and (decision.crashed or not decision.counts)
    if free or message.attempt > message.run_attempts + 1 or UNWATCHED in (message.run or ""):
        return None
    return DONE if isinstance(decision, Ack) else FAILED


def of_dead(message: Message) -> RedriveOutcome:
    """Return the redrive outcome of a dead message that has no recorded one, from its last fault."""
    at_ms = message.rested_ms or 0
    if not message.faults:
        return RedriveOutcome(FAILED, message.reason or "", at_ms=at_ms)
    fault = message.faults[-1]
    text = "" if message.content.startswith(SEALED) else fault.text[:TEXT_MAX]
    return RedriveOutcome(FAILED, fault.kind.value, fault.error, text, fault.fingerprint, at_ms)


def swap_of_dead(message: Message) -> Swap | None:
    """Return the swap with the redrive outcome of a message that died without a settlement, if a redrive run moved it.
    Write it before anyone can redrive the message."""
    if message.run_id is None or UNWATCHED in (message.run or ""):
        return None
    return Swap(cell_of(message.run_id, message.id), 0, msgspec.json.encode(of_dead(message)), KEPT_MS)


def _redrive_outcome(decision: Decision, fault: Fault | None, now_ms: int) -> RedriveOutcome:
    if isinstance(decision, Ack):
        return RedriveOutcome(DONE, at_ms=now_ms)
    if fault is None:
        text = decision.why[:TEXT_MAX]
        return RedriveOutcome(FAILED, getattr(decision, "reason", ""), text=text, at_ms=now_ms)
    return RedriveOutcome(FAILED, fault.kind.value, fault.error, fault.text[:TEXT_MAX], fault.fingerprint, now_ms)
