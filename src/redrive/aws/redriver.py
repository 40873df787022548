"""The re-driver: moves what lies in a dead-letter queue back to its queue, or to the poison queue, in batches of ten.

Each batch is sent first and deleted after, so a crash in between leaves a duplicate and loses nothing. What cannot be
moved in time, or not yet, goes on through a message in the work queue: an alarm acts only on its change of state, so
whoever it woke sees to it that nothing is left waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from ..errors import StoreError
from ..flow import dependency as flow
from .moves import BYTES_MAX, DELAY_MAX_S, Move, Raw, Settings, isolation, move_of

if TYPE_CHECKING:
    from ..store import Cells

BATCH = 10
HOLD_S = 60  # for how long a received message is this run's
POLL_S = 1  # a long poll asks all of SQS's servers; a short one may find nothing where something is
EACH = 100  # dead messages for which one trigger sets one more Lambda to work
AGAIN_S = 15  # how soon the next one looks for what this one had no time for; the queue's counts lag a little
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
_REFUSED = ("InvalidMessageContents", "InvalidParameterValue", "MessageTooLong", "InvalidParameterCombination")


class Calls(Protocol):
    """What makes a call of the SQS API. Raises StoreUnavailable or ConfigError."""

    def call(self, action: str, **parameters: Any) -> dict[str, Any]: ...


class Carried(Struct):
    """What one run of the re-driver came to. `again_s`: another one goes on in so many seconds, None where nothing is
    left; `why` says what for."""

    redriven: int = 0
    isolated: int = 0
    failed: int = 0
    again_s: int | None = None
    why: str = ""


class Redriver:
    """One run. `left_s()` says how many seconds it may still take, `now_ms()` what time it is."""

    def __init__(
        self,
        sqs: Calls,
        settings: Settings,
        cells: Cells | None,
        left_s: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._sqs, self._settings, self._cells = sqs, settings, cells
        self._left_s, self._now_ms = left_s, now_ms
        self.carried = Carried()

    def run(self, *, trigger: bool) -> Carried:
        """Move until nothing is left or the time is over, and see to it that what is left is gone on with. `trigger`:
        it was not called by the work queue, so it may call more. Raises StoreUnavailable, ConfigError."""
        until_ms = self._held_until_ms()
        if until_ms:
            wait_s = -(-(until_ms - self._now_ms()) // 1000)
            self._go_on(min(max(wait_s, 1), DELAY_MAX_S), f"{self._settings.dependency} is not to be called now")
            return self.carried
        if trigger:
            self._fan_out()
        while self._left_s() > 0:
            found = self._receive()
            if not found:
                break
            self._move(found)
        self._look_back()
        return self.carried

    # -- whether, and by how many

    def _held_until_ms(self) -> int:
        """Until when the dependency is to be left alone; 0 where nothing is known against it."""
        name, cells = self._settings.dependency, self._cells
        if name is None or cells is None:
            return 0
        now_ms = self._now_ms()
        try:
            state = flow.decode(cells.read([f"flow/{name}"])[0])
        except StoreError as error:  # what is moved waits a minute and meets the workers' own breakers
            self.carried.why = f"the breaker of {name} could not be read: {error}"
            return 0
        return held_until_ms(state, now_ms)

    def _fan_out(self) -> None:
        """Call more Lambdas, one for each hundred dead messages, less those that are under way."""
        work_url = self._settings.work_url
        if work_url is None:
            return
        dead = self._count(self._settings.dlq_url)[0]
        more = min(self._settings.fan_out, -(-dead // EACH)) - 1
        if more > 0:
            for _ in range(more - sum(self._count(work_url))):
                self._call_another(work_url, 0, "fan-out")

    def _look_back(self) -> None:
        """What is left: unseen for want of time, held by others (who may have died), or not moved by a failure."""
        seen, held, delayed = self._count(self._settings.dlq_url)
        if self._left_s() <= 0:
            self._go_on(AGAIN_S if not seen else 0, "its time is over")
        elif seen:
            self._go_on(AGAIN_S, f"{seen} came meanwhile")
        elif held or delayed:
            self._go_on(HOLD_S, f"{held + delayed} are held, or wait")

    def _go_on(self, delay_s: int, why: str) -> None:
        self.carried.again_s, self.carried.why = delay_s, why
        if self._settings.work_url is not None:
            self._call_another(self._settings.work_url, delay_s, why)

    def _call_another(self, url: str, delay_s: int, why: str) -> None:
        entry: dict[str, Any] = {"Id": "0", "MessageBody": json.dumps({"redrive": "go on", "why": why})}
        if url.endswith(".fifo"):
            entry |= {"MessageGroupId": "redrive", "MessageDeduplicationId": f"{self._now_ms()}"}
        elif delay_s:
            entry["DelaySeconds"] = delay_s
        answer = self._sqs.call("SendMessageBatch", QueueUrl=url, Entries=[entry])
        for failed in answer.get("Failed", ()):
            raise StoreError(f"the work queue {url} took no message: {failed.get('Code')} {failed.get('Message')}")

    def _count(self, url: str) -> tuple[int, int, int]:
        told = self._sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(_COUNTS))["Attributes"]
        seen, held, delayed = (int(told.get(name, 0)) for name in _COUNTS)
        return seen, held, delayed

    # -- one batch

    def _receive(self) -> list[Raw]:
        answer = self._sqs.call(
            "ReceiveMessage",
            QueueUrl=self._settings.dlq_url,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=POLL_S,
            VisibilityTimeout=HOLD_S,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        found: list[Raw] = answer.get("Messages", [])
        return found

    def _move(self, found: Sequence[Raw]) -> None:
        now_ms = self._now_ms()
        moves = [move_of(raw, self._settings, now_ms) for raw in found]
        if not self._settings.fifo:
            self._send(moves)
            return
        blocked: dict[str, int] = {}  # groups whose next message stays, and for how many seconds
        left = []
        for wave in _waves(moves):
            for move in wave:
                if move.wait_s and move.group not in blocked:
                    blocked[move.group] = move.wait_s
            going = [move for move in wave if move.group not in blocked]
            sent = self._send(going)
            unsent = [move for move in going if move not in sent]
            blocked |= {move.group: HOLD_S for move in unsent}
            left += unsent + [move for move in wave if move not in going]
        self._hide([(move, blocked[move.group]) for move in left])

    def _send(self, moves: Sequence[Move]) -> list[Move]:
        """Send, then delete; those that were sent. What the queue refuses for what it is goes to the poison queue."""
        sent: list[Move] = []
        for isolated, batch in _batches(moves):
            url = self._settings.poison_url if isolated else self._settings.queue_url
            answer = self._sqs.call("SendMessageBatch", QueueUrl=url, Entries=_entries(batch))
            good = [batch[int(entry["Id"])] for entry in answer.get("Successful", ())]
            sent += good
            self._delete(good)
            refused = []
            for entry in answer.get("Failed", ()):
                move = batch[int(entry["Id"])]
                code = str(entry.get("Code", "")).rpartition("#")[2]
                if not isolated and entry.get("SenderFault") and code in _REFUSED:
                    why = f"its queue refuses it: {entry.get('Message', code)}"
                    refused.append(isolation(move.raw, self._settings, move.redrive, why))
                else:
                    self.carried.failed += 1
            if refused:
                gone = {move.raw["MessageId"] for move in self._send(refused)}
                sent += [move for move in batch if move.raw["MessageId"] in gone]
        return sent

    def _delete(self, moves: Sequence[Move]) -> None:
        """They are where they belong; one that cannot be deleted will be moved again."""
        if not moves:
            return
        entries = [{"Id": str(n), "ReceiptHandle": move.raw["ReceiptHandle"]} for n, move in enumerate(moves)]
        answer = self._sqs.call("DeleteMessageBatch", QueueUrl=self._settings.dlq_url, Entries=entries)
        undeleted = {int(entry["Id"]) for entry in answer.get("Failed", ())}
        for n, move in enumerate(moves):
            if n in undeleted:
                self.carried.failed += 1
            elif move.isolated:
                self.carried.isolated += 1
            else:
                self.carried.redriven += 1

    def _hide(self, waits: Sequence[tuple[Move, int]]) -> None:
        """Leave them in the dead-letter queue until then; their groups wait with them."""
        if waits:
            entries = [
                {"Id": str(n), "ReceiptHandle": move.raw["ReceiptHandle"], "VisibilityTimeout": seconds}
                for n, (move, seconds) in enumerate(waits)
            ]
            self._sqs.call("ChangeMessageVisibilityBatch", QueueUrl=self._settings.dlq_url, Entries=entries)


def held_until_ms(state: flow.State, now_ms: int) -> int:
    """Until when a dependency is to be left alone, by its breaker or as it asked; 0 where it may be called."""
    breaker = state.breaker
    if breaker.status == "forced_open":
        return now_ms + DELAY_MAX_S * 1000
    open_ms = breaker.until_ms if breaker.status == "open" else 0
    until_ms = max(open_ms, state.cool.until_ms)
    return until_ms if until_ms > now_ms else 0


def _waves(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """The first message of each group, then the second of each, …: none may overtake one that failed."""
    groups: dict[str, list[Move]] = {}
    for move in moves:
        groups.setdefault(move.group, []).append(move)
    for n in range(max((len(group) for group in groups.values()), default=0)):
        yield [group[n] for group in groups.values() if n < len(group)]


def _batches(moves: Sequence[Move]) -> Iterator[tuple[bool, list[Move]]]:
    """What goes to the poison queue, and the rest, in batches of a megabyte."""
    ordered = sorted(moves, key=lambda move: bool(move.isolated))
    for isolated, group in groupby(ordered, key=lambda move: bool(move.isolated)):
        batch: list[Move] = []
        size = 0
        for move in group:
            if batch and size + move.size > BYTES_MAX:
                yield isolated, batch
                batch, size = [], 0
            batch.append(move)
            size += move.size
        yield isolated, batch


def _entries(batch: Sequence[Move]) -> list[dict[str, Any]]:
    return [{"Id": str(n), **move.entry} for n, move in enumerate(batch)]
