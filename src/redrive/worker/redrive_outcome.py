"""The verdict on a redriven message: its first settled run after the redrive, told to the run that moved it.

It is a cell of its own, written in the commit that settles the message, and removed by whoever carries the redrive run
once it is counted there. Whatever is free says nothing: a snooze, a wait that flow control asked for, a crash that is
to be tried again.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..fault import Fault
from ..message import SEALED, Ack, Decision, Message, RetryAt, Settlement, Swap

KEPT_MS = 90 * 86_400_000  # where nobody counts it any more
TEXT_MAX = 200
DONE, FAILED = "done", "failed"


class FirstRun(Struct, frozen=True, array_like=True):
    """What the first settled run of a redriven message came to: done or failed, and what it failed of."""

    outcome: str
    kind: str = ""
    error: str = ""
    text: str = ""
    fingerprint: str = ""
    at_ms: int = 0


def cell_of(run: str, id: str) -> str:
    """The cell of this message's verdict in that redrive run."""
    return f"run/{run}/v/{id}"


def decode(value: bytes) -> FirstRun:
    """What such a cell holds."""
    return msgspec.json.decode(value, type=FirstRun)


def with_verdict(message: Message, settlement: Settlement, now_ms: int, *, texts: bool = True) -> Settlement:
    """The settlement, with the verdict where it is the first that counts since a redrive run moved the message. It is
    readable to all, so where payloads are encrypted it is to have no `texts`.

    Each life has one: an attempt is the first until a counted one has ended.
    """
    if message.run is None or verdict(message, settlement.decision) is None:
        return settlement
    told = _first_run(settlement.decision, settlement.fault, now_ms)
    value = msgspec.json.encode(told if texts else msgspec.structs.replace(told, text=""))
    swap = Swap(cell_of(message.run, message.id), 0, value, KEPT_MS)
    return msgspec.structs.replace(settlement, swaps=(*settlement.swaps, swap))


def verdict(message: Message, decision: Decision) -> str | None:
    """What the first run of a life comes to, done or failed; None where this is not the first that counts."""
    if message.attempt > 1 or (isinstance(decision, RetryAt) and (decision.crashed or not decision.counts)):
        return None
    return DONE if isinstance(decision, Ack) else FAILED


def of_dead(message: Message) -> FirstRun:
    """What is known of the first run of a message that was found dead after it, without a verdict."""
    at_ms = message.rested_ms or 0
    if not message.faults:
        return FirstRun(FAILED, message.reason or "", at_ms=at_ms)
    fault = message.faults[-1]
    text = "" if message.content.startswith(SEALED) else fault.text[:TEXT_MAX]
    return FirstRun(FAILED, fault.kind.value, fault.error, text, fault.fingerprint, at_ms)


def swap_of_dead(message: Message) -> Swap | None:
    """The verdict on a message that died of what no worker settled. To be written before the message is where a person
    may drive it on."""
    if message.run is None:
        return None
    return Swap(cell_of(message.run, message.id), 0, msgspec.json.encode(of_dead(message)), KEPT_MS)


def _first_run(decision: Decision, fault: Fault | None, now_ms: int) -> FirstRun:
    if isinstance(decision, Ack):
        return FirstRun(DONE, at_ms=now_ms)
    if fault is None:
        text = decision.why[:TEXT_MAX]
        return FirstRun(FAILED, getattr(decision, "reason", ""), text=text, at_ms=now_ms)
    return FirstRun(FAILED, fault.kind.value, fault.error, fault.text[:TEXT_MAX], fault.fingerprint, now_ms)
