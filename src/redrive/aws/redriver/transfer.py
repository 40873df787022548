"""Execute the steps of dead-lettered messages: send them in batches, then delete them.

A kill in between duplicates a message and never loses it. The second copy is recognised: on FIFO queues by its
deduplication id, elsewhere by the id in redrive's own messages, which `Idempotency` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ...awsapi import client as aws
from ...errors import StoreError
from ...message import Isolate
from ...stores.sqs.wire import BYTES_MAX, size_of
from .settings import RedriverSettings
from .steps import MoveStep, Raw, RedriveStep, entry_of, group_of

BATCH_MAX = 10
_REFUSED = ("InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "MessageTooLong")

SqsCall = Callable[..., dict[str, Any]]


class MoveFailure(Struct, frozen=True):
    """A message left in the dead-letter queue, and why. `sent`: a copy was sent, only the delete failed."""

    raw: Raw
    step: RedriveStep
    why: str
    sent: bool = False


class MoveOutcome(Struct, frozen=True):
    """The outcome of some steps: the numbers redriven and isolated, the failures, and the messages `moved`."""

    redriven: int = 0
    isolated: int = 0
    failures: tuple[MoveFailure, ...] = ()
    moved: tuple[tuple[Raw, RedriveStep], ...] = ()

    def __add__(self, other: MoveOutcome) -> MoveOutcome:
        failures, moved = (*self.failures, *other.failures), (*self.moved, *other.moved)
        return MoveOutcome(self.redriven + other.redriven, self.isolated + other.isolated, failures, moved)


def receive(call: SqsCall, url: str, limit: int, *, visibility_s: int, wait_s: int = 1) -> list[Raw]:
    """Receive at most ten messages with all attributes. A wait of one second asks all of SQS's servers."""
    answer = call(
        "ReceiveMessage",
        QueueUrl=url,
        MaxNumberOfMessages=min(limit, BATCH_MAX),
        VisibilityTimeout=visibility_s,
        WaitTimeSeconds=wait_s,
        MessageSystemAttributeNames=["All"],
        MessageAttributeNames=["All"],
    )
    return list(answer.get("Messages") or ())


def send(
    call: SqsCall, settings: RedriverSettings, steps: Sequence[tuple[Raw, RedriveStep]], now_ms: int
) -> MoveOutcome:
    """Send each message as its step says, then delete the sent ones from the dead-letter queue.

    A message that its queue rejects as invalid goes to the poison queue. In a FIFO group no message overtakes one that
    failed. Messages left behind return when their visibility ends.
    """
    if not settings.fifo:
        return _send(call, settings, steps, now_ms)
    done = MoveOutcome()
    for wave in _waves(steps):
        stuck = {group_of(failure.raw) for failure in done.failures}
        late = tuple(
            MoveFailure(*step, "one before it in its group was left") for step in wave if group_of(step[0]) in stuck
        )
        done += MoveOutcome(failures=late)
        done += _send(call, settings, [step for step in wave if group_of(step[0]) not in stuck], now_ms)
    return done


def delete(call: SqsCall, url: str, sent: Sequence[tuple[Raw, RedriveStep]]) -> MoveOutcome:
    """Delete the sent messages from the dead-letter queue; the outcome has only the failures."""
    done = MoveOutcome()
    for at in range(0, len(sent), BATCH_MAX):
        done += _delete(call, url, sent[at : at + BATCH_MAX])
    return done


def hide(call: SqsCall, url: str, raws: Sequence[Raw], seconds: Sequence[int]) -> None:
    """Make message number n visible again in `seconds[n]`. If the call fails, the old visibility timeout stays."""
    for at in range(0, len(raws), BATCH_MAX):
        entries = [
            {"Id": str(n), "ReceiptHandle": raws[n]["ReceiptHandle"], "VisibilityTimeout": seconds[n]}
            for n in range(at, min(at + BATCH_MAX, len(raws)))
        ]
        call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)


def hold(call: SqsCall, url: str, raws: Sequence[Raw], seconds: int) -> list[Raw]:
    """Hide these messages for `seconds` from now; return those still held under their receipts. A message that was
    deleted, or became visible again, is left out. Raises StoreUnavailable."""
    held: list[Raw] = []
    for at in range(0, len(raws), BATCH_MAX):
        batch = raws[at : at + BATCH_MAX]
        entries = [
            {"Id": str(n), "ReceiptHandle": raw["ReceiptHandle"], "VisibilityTimeout": seconds}
            for n, raw in enumerate(batch)
        ]
        answer = call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
        held += [batch[int(entry["Id"])] for entry in answer.get("Successful") or ()]
    return held


def calls(client: Any) -> SqsCall:
    """Return a function that calls an action of this boto3 client by its name and raises redrive's errors."""

    def call(action: str, **parameters: Any) -> dict[str, Any]:
        method = getattr(client, aws.method_of(action))
        try:
            answer: dict[str, Any] = method(**parameters)
        except aws.errors() as error:
            raise aws.failure(error, f"{action} of {parameters.get('QueueUrl', 'AWS')}") from error
        return answer

    return call


_SendEntry = tuple[Raw, RedriveStep, dict[str, Any]]


def _send(
    call: SqsCall, settings: RedriverSettings, steps: Sequence[tuple[Raw, RedriveStep]], now_ms: int
) -> MoveOutcome:
    done = MoveOutcome()
    for url, poison in ((settings.queue, False), (settings.poison, True)):
        chosen = [(raw, step) for raw, step in steps if isinstance(step, Isolate) is poison]
        entries = [(raw, step, entry_of(raw, step, url, now_ms, settings.auto)) for raw, step in chosen]
        for batch in _batches(entries):
            done += _pass(call, settings, url, batch, now_ms)
    return done


def _pass(call: SqsCall, settings: RedriverSettings, url: str, batch: Sequence[_SendEntry], now_ms: int) -> MoveOutcome:
    """Send one batch and delete it. After a kill between the two, the whole batch is received again."""
    failed = _call(call, "SendMessageBatch", url, [entry for _, _, entry in batch])
    unfit = [
        (raw, Isolate(f"its queue refuses it: {failed[n].why}"))
        for n, (raw, step, _) in enumerate(batch)
        if n in failed and failed[n].unfit and isinstance(step, MoveStep)
    ]
    given_up = {id(raw) for raw, _ in unfit}
    failures = tuple(
        MoveFailure(raw, step, failed[n].why)
        for n, (raw, step, _) in enumerate(batch)
        if n in failed and id(raw) not in given_up
    )
    sent = [(raw, step) for n, (raw, step, _) in enumerate(batch) if n not in failed]
    done = MoveOutcome(failures=failures) + delete(call, settings.dead, sent)
    return done + _send(call, settings, unfit, now_ms) if unfit else done


def _delete(call: SqsCall, url: str, sent: Sequence[tuple[Raw, RedriveStep]]) -> MoveOutcome:
    failed = _call(call, "DeleteMessageBatch", url, [{"ReceiptHandle": raw["ReceiptHandle"]} for raw, _ in sent])
    moved = tuple(each for n, each in enumerate(sent) if n not in failed)
    isolated = sum(isinstance(step, Isolate) for _, step in moved)
    failures = tuple(MoveFailure(*step, failed[n].why, sent=True) for n, step in enumerate(sent) if n in failed)
    return MoveOutcome(len(moved) - isolated, isolated, failures, moved)


class _Failed(Struct, frozen=True):
    why: str
    unfit: bool = False  # the message itself is invalid: a retry would fail too


def _call(call: SqsCall, action: str, url: str, entries: Sequence[dict[str, Any]]) -> dict[int, _Failed]:
    """Call a batch action; return the failed entries by number, or all entries if the call failed."""
    try:
        answer = call(action, QueueUrl=url, Entries=[{"Id": str(n), **entry} for n, entry in enumerate(entries)])
    except StoreError as error:
        return dict.fromkeys(range(len(entries)), _Failed(str(error)))
    return {int(failure["Id"]): _failed(action, failure) for failure in answer.get("Failed") or ()}


def _failed(action: str, failure: dict[str, Any]) -> _Failed:
    code = str(failure.get("Code", "")).rpartition("#")[2]
    unfit = bool(failure.get("SenderFault")) and code in _REFUSED
    return _Failed(f"{action}: {code} {failure.get('Message', '')}".strip(), unfit)


def _waves(steps: Sequence[tuple[Raw, RedriveStep]]) -> Iterator[list[tuple[Raw, RedriveStep]]]:
    """Yield the first message of each FIFO group, then the second of each, and so on."""
    groups: dict[str, list[tuple[Raw, RedriveStep]]] = {}
    for step in steps:
        groups.setdefault(group_of(step[0]), []).append(step)
    for n in range(max((len(group) for group in groups.values()), default=0)):
        yield [group[n] for group in groups.values() if n < len(group)]


def _batches(entries: Sequence[_SendEntry]) -> Iterator[list[_SendEntry]]:
    batch: list[_SendEntry] = []
    size = 0
    for entry in entries:
        more = size_of(entry[2]["MessageBody"], entry[2].get("MessageAttributes", {}))
        if batch and (len(batch) == BATCH_MAX or size + more > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch
