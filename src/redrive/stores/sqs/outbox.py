"""Move dead letters from SQS to the triage store, and redriven messages back.

A redrive is one commit of the triage store, which makes the message ready *there*: the store's ready lane is the
outbox. A pump claims messages from it, sends each to its SQS queue, and acks. If the pump is killed in between, the
claim runs out and the message is sent again under the same id: twice at worst, never lost. So plans, runs, delays and
undo (before a message has left) work as in any other store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import groupby
from time import monotonic, sleep

from msgspec.structs import replace

from ...errors import ConfigError, EnqueueError, StoreError
from ...fault import Fault, Kind, fingerprint
from ...message import (
    RESTING,
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Discard,
    Lane,
    Message,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from ...store import Store
from ..run_marks import sent_swap

BATCH = 200  # most messages that a pump claims at once
LEASE_MS = 60_000  # how long messages that a killed pump claimed wait for the next one
PAUSE_S = (0.5, 60.0)  # first and longest pause after a queue accepted nothing
LOOK_S = 5.0  # longest time between two looks of the thread for new queues
OWNER = "outbox"  # the cell with the owner of this triage store's outbox
SETTLE_S = 1.0  # how long a dead letter waits until the pump that sent its message has settled
UNROUTED = "unrouted"  # stored as the task of a message without one, as stores require a task
WIDE = 1000  # width of groups in the outbox whose order does not matter

SendBatch = Callable[[Sequence[Message]], Sequence[Exception | None]]
Tell = Callable[[str, str], object]


def _ignore(name: str, text: str) -> None:
    """The default of `tell`: drop the notice."""


class Outbox:
    """Sends redriven messages back to SQS. Any number of processes may pump one triage store.

    `send` takes messages of one queue, in order. It returns for each None if SQS accepted the message, or the error:
    ConfigError if SQS surely did not get it, EnqueueError if SQS never accepts it, otherwise StoreError. It may raise
    these for all messages. `owner`: the region and prefix that the triage store serves; it can have only one.
    `ordered`: True if the order within the groups of a queue matters.
    """

    tell: Tell

    def __init__(
        self,
        triage: Store,
        send: SendBatch,
        *,
        owner: str = "",
        ordered: Callable[[str], bool] = lambda queue: False,
        tell: Tell = _ignore,
    ) -> None:
        self._triage, self._send, self._owner, self._ordered, self.tell = triage, send, owner, ordered, tell
        self._owned = False
        self._wide: set[str] = set()  # queues whose groups have the width WIDE in the outbox
        self._lock = threading.Lock()  # lets one thread of the process pump at a time: two would only share the work
        self._pauses: dict[str, tuple[float, float]] = {}  # by queue: when its pause ends, and how long it is
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def own(self) -> None:
        """Claim the triage store for this outbox's owner. Raises ConfigError if it belongs to another owner, or has
        waiting messages already, which would be sent to SQS."""
        if self._owned or not self._owner:
            return
        cells, mine = self._triage.cells, self._owner.encode()
        (cell,) = cells.read([OWNER])
        if cell is None:
            counts = self._triage.counts()
            if counts.waiting + counts.leased:
                raise ConfigError(
                    f"triage= of sqs://{self._owner} names a store that has waiting messages of its own; give it a "
                    "store of its own: another file, schema or namespace"
                )
            cells.swap([Swap(OWNER, 0, mine)])
            (cell,) = cells.read([OWNER])
        if cell is not None and cell.value != mine:
            raise ConfigError(
                f"triage= of sqs://{self._owner} names the triage store of sqs://{cell.value.decode()}; give each "
                "prefix one of its own: another file, schema or namespace"
            )
        self._owned = True

    # -- pumping

    def pump(self, limit: int) -> int:
        """Send up to `limit` due messages; returns the number that SQS accepted. The others are due again a moment
        later. Raises StoreError if the triage store is unreachable, ConfigError as `own` does."""
        with self._lock:
            self.own()
            sent = 0
            while limit > 0:
                asks = self._asks(min(limit, BATCH))
                deliveries = list(self._triage.exchange([], asks).deliveries) if asks else []
                if not deliveries:
                    break
                limit -= len(deliveries)
                sent += self._send_on(deliveries)
            return sent

    def _asks(self, limit: int) -> list[ClaimRequest]:
        now_s = monotonic()
        names = [name for name in self._triage.queues() if now_s >= self._pauses.get(name, (0.0, 0.0))[0]]
        share = max(1, limit // len(names)) if names else 0
        return [ClaimRequest(name, share, LEASE_MS, worker=OWNER) for name in names]

    def _send_on(self, deliveries: Sequence[Delivery]) -> int:
        """Send the messages, then settle them; returns the number sent. A kill in between sends them again."""
        sent = 0
        for queue, of_queue in groupby(sorted(deliveries, key=_queue_of), key=_queue_of):
            mine = list(of_queue)
            self._make_room(queue, mine)
            decisions = self._sent([fresh(delivery.message) for delivery in mine], queue)
            sent += sum(isinstance(decision, Ack) for decision, _ in decisions)
            self._settle(mine, decisions)
        return sent

    def _sent(self, messages: Sequence[Message], queue: str) -> list[tuple[Decision, Fault | None]]:
        """Send messages of the queue; returns the decision and the fault with which each is settled in the outbox."""
        errors = self._errors(messages)
        passing = [error for error in errors if error is not None and not isinstance(error, EnqueueError)]
        if not passing:
            self._pauses.pop(queue, None)
        pause_ms = self._pause(queue, str(passing[0])) if passing else 0
        return [self._after(error, pause_ms) for error in errors]

    def _errors(self, messages: Sequence[Message]) -> Sequence[Exception | None]:
        """Send messages; returns the error of each, or None. An error raised for one does not stop the others."""
        try:
            return self._send(messages)
        except (StoreError, ConfigError, EnqueueError) as error:
            return [error] * len(messages)
        except Exception as error:
            if len(messages) > 1:
                return [self._errors([message])[0] for message in messages]
            return [EnqueueError(f"it cannot be written for SQS: {type(error).__name__}: {error}")]

    def _after(self, error: Exception | None, pause_ms: int) -> tuple[Decision, Fault | None]:
        now_ms = self._triage.now_ms()
        if error is None:
            return Ack(), None
        if isinstance(error, EnqueueError):
            return _refused(error, now_ms)
        # A sending that may have succeeded counts as an attempt, so that no undo returns the message.
        return RetryAt(now_ms + pause_ms, "outbox", counts=not isinstance(error, ConfigError)), None

    def _pause(self, queue: str, why: str) -> int:
        """Pause the queue, for longer each time; returns the pause in milliseconds. Reports the first pause."""
        first_s, longest_s = PAUSE_S
        before_s = self._pauses.get(queue, (0.0, 0.0))[1]
        pause_s = min(max(before_s * 2, first_s), longest_s)
        self._pauses[queue] = monotonic() + pause_s, pause_s
        if not before_s:
            self.tell("outbox_stuck", f"queue {queue!r} takes nothing back: {why}; tried again")
        return int(pause_s * 1000)

    def _settle(self, deliveries: Sequence[Delivery], decisions: Sequence[tuple[Decision, Fault | None]]) -> None:
        now_ms, settlements = self._triage.now_ms(), []
        for delivery, (decision, fault) in zip(deliveries, decisions, strict=True):
            swaps = _marks(delivery.message, now_ms) if isinstance(decision, Ack) else ()
            settlements.append(Settlement(delivery.receipt, decision, fault, swaps=swaps))
        words = self._triage.exchange(settlements, []).settled
        # STALE: the lease ran out, and another pump sends the message again; or its mark exists, as it was sent twice.
        marked = [s for s, word in zip(settlements, words, strict=True) if word is Settled.STALE and s.swaps]
        if marked:
            self._triage.exchange([replace(settlement, swaps=()) for settlement in marked], [])

    def _make_room(self, queue: str, deliveries: Iterable[Delivery]) -> None:
        """Widen the queue's groups if their order does not matter: else an exchange sends one message per group."""
        if queue not in self._wide and any(delivery.message.group for delivery in deliveries):
            self._wide.add(queue)
            if not self._ordered(queue):
                self._triage.configure_group(queue, None, width=WIDE)

    # -- the thread that pumps beside a worker

    def begin(self) -> None:
        """Pump on a thread of its own until `close`. While the triage store is unavailable, the thread retries. Raises
        ConfigError as `own` does."""
        if self._thread is None:
            with suppress(StoreError):
                self.own()
            self._stop.clear()
            self._thread = threading.Thread(target=self._work, name="redrive-outbox", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the pumping thread, after it has settled its claims."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._triage.nudge()
            thread.join()

    def _work(self) -> None:
        pause_s = 0.0
        while not self._stop.is_set():
            try:
                if not self.pump(BATCH):
                    self._triage.wait(self._asks(BATCH), timeout_ms=int(LOOK_S * 1000))
                pause_s = 0.0
            except Exception as error:  # even a bug: without this thread no message would be sent back
                if not pause_s:
                    known = isinstance(error, StoreError | ConfigError)
                    self.tell("outbox_unavailable", str(error) if known else f"{type(error).__name__}: {error}")
                pause_s = min(max(pause_s * 2, PAUSE_S[0]), PAUSE_S[1])
                self._stop.wait(pause_s)


def fresh(message: Message) -> Message:
    """Return the message as the redrive left it, without traces of the outbox's claim. Identity, first enqueue,
    redrives, history and its new life stay. Each sending of the message is identical byte by byte."""
    return replace(
        message,
        fence=message.fence - message.attempt - message.crashes,
        task="" if message.task == UNROUTED else message.task,
        lane=Lane.READY,
        due_ms=None,
        attempt=0,
        crashes=0,
        crashes_alone=0,
        suspect=False,
        worker=None,
        deferral=None,
        parked=False,
        in_line=False,
    )


def _queue_of(delivery: Delivery) -> str:
    return delivery.message.queue


def _marks(message: Message, now_ms: int) -> tuple[Swap, ...]:
    if message.run is None:
        return ()
    return (sent_swap(message.run, message.id, now_ms),)


def _refused(error: EnqueueError, now_ms: int) -> tuple[Decision, Fault | None]:
    """Return the settlement of a message that SQS never accepts: dead again, with `error` as the reason."""
    name, text = f"redrive.{type(error).__name__}", str(error)
    kind = Kind.PERMANENT
    fault = Fault(kind, name, text, fingerprint(name, text), (name,), at_ms=now_ms)
    return DeadLetter("permanent", text), fault


# -- from SQS to the triage store


class LetterEnd(StrEnum):
    """The result of writing a dead letter. LEFT: the letter is not in the triage store, so SQS must keep it."""

    NEW = "new"
    REPLACED = "replaced"  # the letter replaced the row of an earlier life of its message
    KNOWN = "known"
    LEFT = "left"


def bury(triage: Store, messages: Sequence[Message], *, keys: bool = False) -> list[bool]:
    """Write dead letters as `lay` does; returns True for each that is in the triage store, so SQS may delete it."""
    return [word is not LetterEnd.LEFT for word in lay(triage, messages, keys=keys)]


def lay(triage: Store, messages: Sequence[Message], *, keys: bool = False) -> list[LetterEnd]:
    """Write dead letters into the triage store; with `keys` each with its unique key, unless another message has it.

    The same death twice is one row; a message that died again after a redrive replaces its older row. A letter whose
    message is still in the outbox waits a moment for the pump that sent it. It is LEFT if the pump does not settle it,
    or if the store never accepts it. Raises StoreUnavailable if the store cannot be written: the result is unknown.
    """
    letters = [_fitting(message, keys=keys) for message in messages]
    words = [LetterEnd.NEW if word else LetterEnd.LEFT for word in _restored(triage, letters)]
    end_s, at = monotonic() + SETTLE_S, [k for k, word in enumerate(words) if word is LetterEnd.LEFT]
    while at:
        rows = dict(zip(at, triage.find([letters[k].id for k in at]), strict=True))
        known = {k for k, row in rows.items() if _has_death(letters[k], row)}
        way = [k for k in at if k not in known and _makes_way(triage, letters[k], rows[k])]
        for k, word in zip(way, _restored(triage, [letters[k] for k in way]), strict=True):
            if word:
                words[k] = LetterEnd.NEW if rows[k] is None else LetterEnd.REPLACED
            else:
                letters[k] = replace(letters[k], key=None)
        for k in known:
            words[k] = LetterEnd.KNOWN
        at = [k for k in at if words[k] is LetterEnd.LEFT and _leaves(rows[k])]
        if monotonic() > end_s:
            break
        if at:
            sleep(0.02)
    return words


def _restored(triage: Store, messages: Sequence[Message]) -> list[bool]:
    if not messages:
        return []
    try:
        return triage.restore(messages)
    except EnqueueError:
        if len(messages) == 1:
            return [False]
        return [word for message in messages for word in _restored(triage, [message])]


def _makes_way(triage: Store, message: Message, row: Message | None) -> bool:
    """True if the letter can be written now, as its message has no row. Removes the row of an earlier life."""
    if row is None:
        return True
    if row.lane in RESTING and row.redrives < message.redrives:
        return triage.triage([row.handle], Discard("it died again"))[0]
    return False


def _has_death(message: Message, row: Message | None) -> bool:
    """True if the row already has this death of the message, or a later life."""
    if row is None or row.redrives < message.redrives:
        return False
    return row.redrives > message.redrives or row.lane in RESTING


def _leaves(row: Message | None) -> bool:
    """True if the row is in the outbox or has just left it (None), so that the letter can soon be written."""
    return row is None or row.lane in (Lane.READY, Lane.LEASED)


def _fitting(message: Message, *, keys: bool) -> Message:
    """Return the message as a store accepts it: with a task, and without its unique key unless `keys`."""
    return replace(message, task=message.task or UNROUTED, key=message.key if keys else None)
