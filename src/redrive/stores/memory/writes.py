"""The changes of the memory store, as functions of its tables. Callers hold the lock, and commit or undo afterwards."""

from __future__ import annotations

from itertools import takewhile

from msgspec.structs import replace

from ...errors import EnqueueError
from ...ids import new_id
from ...message import (
    RESTING,
    Ack,
    Before,
    Cancel,
    ClaimRequest,
    Delivery,
    Discard,
    Draft,
    Edit,
    Group,
    Handle,
    Hasten,
    Isolate,
    Keep,
    Lane,
    LeaseStatus,
    Message,
    Postpone,
    PutResult,
    Readmit,
    Receipt,
    Redrive,
    Replace,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Verdict,
)
from .. import lifecycle, validation
from ..groups import PLACE, WOKEN_MIN, GroupLine, in_line, settled
from ..lifecycle import WAITING
from ..retry_share import chosen
from .rows import StoredMessage
from .tables import Tables, state_of_put

CANCELLED_KEPT_MS = 24 * 3600 * 1000  # how long a cancelled message can still be found
RETAIN_MAX = 1000


def put(tables: Tables, draft: Draft, now: int) -> PutResult:
    id = draft.id or new_id(now)
    if draft.key is not None:
        held = tables.key_holder(draft.task, draft.key, now)
        if held is not None and (draft.waiting or draft.replace):
            held = _taken_over(tables, draft, held, now)
        if held is not None:
            if draft.batch is not None:
                tables.count(draft.batch, None, "duplicate")
            return held
        tables.hold_key(draft.task, draft.key, id, now + draft.key_for_ms if draft.key_for_ms else 0)
    if id in tables.seqs:
        raise EnqueueError(f"a message with id {id} is already stored; nothing was written")
    message = lifecycle.enqueued(draft, id, now)
    tables.add(message, now)
    return PutResult(id, False, state_of_put(message, now))


def _taken_over(tables: Tables, draft: Draft, held: PutResult, now: int) -> PutResult | None:
    """Return the result of a put that takes its key over from a message that does not wait: None if it does."""
    if held.state not in WAITING:
        return None
    if not draft.replace:
        return held
    seq = tables.seqs[held.id]
    message = tables.kept[seq].message
    if not lifecycle.may_replace(message, draft):
        return None
    message = lifecycle.replaced(message, draft, now)
    tables.write(seq, StoredMessage(message))
    return PutResult(message.id, True, message.state_at(now), True)


def claim(tables: Tables, ask: ClaimRequest, deliveries: list[Delivery], now: int) -> bool:
    """Claim messages into `deliveries`; True if it claimed too few because it examined only the first due messages."""
    if ask.limit <= 0:
        return False
    tables.wake(ask.queue, max(ask.limit, WOKEN_MIN), now)
    tables.admit(now)
    seqs, clogged = due(tables, ask, now)  # listed before the first is leased, since leasing changes the lines
    for seq in seqs:
        kept = tables.kept[seq]
        message = lifecycle.leased(kept.message, ask, kept.alone, now)
        tables.write(seq, kept._replace(message=message, alone=False))
        due_ms = kept.message.due_ms or 0
        deliveries.append(Delivery(message, Receipt(seq, message.fence), now + ask.lease_ms, due_ms))
    return clogged


def due(tables: Tables, ask: ClaimRequest, now: int) -> tuple[list[int], bool]:
    """The seqs to claim, in order; and True if they are too few because only the first due messages were examined."""
    backlog: list[tuple[int, int]] = []
    clogged = False
    for priority, line in enumerate(tables.lines(ask)):
        for due_ms, seq in takewhile(lambda place: place[0] <= now, line):
            if len(backlog) == ask.limit:
                break
            if seq is None:
                clogged = True
            elif not ask.leaves(tables.kept[seq].message.lane, due_ms):
                backlog.append((priority, seq))
    seqs = chosen(tables.retries_due(ask, now), backlog, ask)
    return seqs, clogged and len(seqs) < ask.limit


def settle(tables: Tables, settlement: Settlement, now: int) -> Settled:
    mark = tables.mark()
    message = tables.held(settlement.receipt)
    if message is None or not all(tables.swap(swap, now) for swap in settlement.swaps):
        tables.undo(mark)
        return Settled.STALE
    seq = int(settlement.receipt.handle)
    if isinstance(settlement.decision, Ack):
        tables.write(seq, _acked(message, settlement.decision, settlement.result, now))
        return Settled.OK
    moved = lifecycle.decided(message, settlement.decision, settlement.fault, now)
    fatal = None if isinstance(settlement.decision, RetryAt) else settlement.fault
    turn = settled(moved, tables.rules(moved.queue), now) if tables.kept[seq].turn == PLACE else None
    expires = now + CANCELLED_KEPT_MS if moved.lane is Lane.DONE else None
    tables.write(seq, StoredMessage(moved, fatal, turn, expires, before=tables.kept[seq].before))
    return Settled.CANCELLED if message.cancel else Settled.OK


def _acked(message: Message, ack: Ack, result: bytes | None, now: int) -> StoredMessage | None:
    if ack.keep_ms == 0:
        return None
    done = lifecycle.done(message, ack, result, now)
    return StoredMessage(done, expires_ms=None if ack.keep_ms is None else now + ack.keep_ms)


def extend(tables: Tables, receipt: Receipt, until_ms: int, alone: bool) -> LeaseStatus:
    message = tables.held(receipt)
    if message is None:
        return LeaseStatus.LOST
    seq = int(receipt.handle)
    kept = tables.kept[seq]
    held = replace(message, due_ms=until_ms, suspect=message.suspect or alone)
    tables.write(seq, kept._replace(message=held, alone=kept.alone or alone))
    return LeaseStatus.CANCEL if message.cancel else LeaseStatus.HELD


def judge(tables: Tables, handle: Handle, verdict: Verdict, at: int, now: int) -> bool:
    """Apply the verdict to the message of `handle`, the one at index `at` of its batch. Return False, and change
    nothing, if the message has moved or may not get this verdict."""
    seq = tables.seqs.get(handle.id)
    if seq is None:
        return False
    kept = tables.kept[seq]
    message = kept.message
    if not lifecycle.as_seen(message, handle) or not _may_judge(tables, kept, verdict, at, now):
        return False
    match verdict:
        case Redrive():
            before = _before(kept) if verdict.run is not None else None
            tables.rejoin(seq, lifecycle.redriven(message, verdict, verdict.delay_of(at), now), before, now)
        case Discard():
            tables.write(seq, None, verdict)
        case Isolate():
            before = kept.before if message.lane is Lane.QUARANTINE else _before(kept)
            tables.write(seq, kept._replace(message=lifecycle.isolated(message, verdict, now), before=before))
        case Return():
            tables.write(seq, _returned(tables, kept))
        case Hasten(run=run):
            due_ms = None if message.due_ms is None else min(message.due_ms, now)
            moved_by = message.run if run is None else lifecycle.moved_by(run, message.attempt)
            tables.change(seq, replace(message, due_ms=due_ms, run=moved_by))
        case Postpone(run=run, dues_ms=dues_ms, back=back):
            moved_by = None if back else lifecycle.moved_by(run, message.attempt)
            stays = message.group is None or tables.rules(message.queue).strict
            later = replace(message, due_ms=dues_ms[at], run=moved_by)
            tables.write(seq, kept._replace(message=later, turn=kept.turn if stays else None))
        case Edit(cancel=cancel, back=back):
            edited = lifecycle.edited(message, verdict, verdict.to_of(at), now)
            if cancel:
                tables.write(seq, StoredMessage(edited, expires_ms=None if back else now + CANCELLED_KEPT_MS))
            else:
                turn = kept.turn and in_line(edited, tables.rules(message.queue), kept.turn)
                tables.write(seq, kept._replace(message=edited, turn=turn))
        case Readmit():
            tables.write(seq, kept._replace(message=lifecycle.readmitted(message, kept.before), before=None))
        case Replace():
            _replace(tables, seq, verdict, now)
    return True


def _may_judge(tables: Tables, kept: StoredMessage, verdict: Verdict, at: int, now: int) -> bool:
    message, before = kept.message, kept.before
    match verdict:
        case Redrive() if message.lane is Lane.DONE:
            return message.reason != "cancelled"
        case Return(run=run):
            mine = message.run == run and before is not None and before.redrives == message.redrives - 1
            return mine and message.lane is Lane.READY and message.attempt == message.crashes == 0
        case Hasten(run=run):
            return message.lane is Lane.READY and (run is None or (message.due_ms or 0) > now)
        case Postpone(run=run, back=back):
            fits = message.run_id == run if back else (message.due_ms or 0) > now
            return message.lane is Lane.READY and fits
        case Edit():
            keyed = message.lane is Lane.DONE and message.key is not None
            free = not keyed or tables.key_until(message.task, message.key or "", message.id) is not None
            return free and lifecycle.may_edit(message, verdict, verdict.to_of(at))
        case Readmit():
            return message.lane is Lane.QUARANTINE
        case _:
            return message.lane in RESTING


def _before(kept: StoredMessage) -> Before:
    return lifecycle.before(kept.message, kept.fault, kept.turn == PLACE, kept.expires_ms)


def _returned(tables: Tables, kept: StoredMessage) -> StoredMessage:
    before = kept.before
    assert before is not None
    message = lifecycle.returned(kept.message, before)
    head = before.blocked and kept.turn == PLACE and before.queue == kept.message.queue
    turn = PLACE if head and tables.rules(before.queue).block else None
    fault = lifecycle.died_of(message.faults, before.fingerprint, before.error)
    return StoredMessage(message, fault, turn, before.expires_ms)


def _replace(tables: Tables, seq: int, verdict: Replace, now: int) -> None:
    """Put the draft in place of message `seq`. A draft with the same key takes over the key's expiry too."""
    old, draft = tables.kept[seq].message, verdict.draft
    tables.write(seq, None, verdict)
    until_ms = None if draft.key is None else tables.key_until(draft.task, draft.key, old.id)
    if draft.key is not None and until_ms is not None:
        tables.free_key(draft.task, draft.key)
    made = put(tables, draft, now)
    if made.duplicate:
        raise validation.key_is_held(old.id, draft, made.id)
    if draft.key is not None and until_ms is not None and until_ms > now + draft.key_for_ms:
        tables.hold_key(draft.task, draft.key, made.id, until_ms)


def restore(tables: Tables, message: Message, now: int) -> bool:
    if message.id in tables.seqs:
        return False
    if message.key is not None:
        held = tables.key_holder(message.task, message.key, now)
        if held is not None and held.id != message.id:
            return False
        if held is None:
            tables.hold_key(message.task, message.key, message.id, 0)
    tables.restore(lifecycle.restored(message, now))
    return True


def cancel(tables: Tables, id: str, now: int) -> Cancel:
    seq = tables.seqs.get(id)
    if seq is None:
        return Cancel.UNKNOWN
    message = tables.kept[seq].message
    if message.lane is Lane.READY:
        tables.write(seq, StoredMessage(lifecycle.cancelled(message, now), expires_ms=now + CANCELLED_KEPT_MS))
        return Cancel.CANCELLED
    if message.lane is Lane.LEASED:
        tables.change(seq, replace(message, cancel=True))
        return Cancel.REQUESTED
    return Cancel.TOO_LATE


def group(tables: Tables, queue: str, name: str) -> Group:
    line = tables.groups.get((queue, name)) or GroupLine()
    held = [message for seq in line.taken if (message := tables.kept[seq].message).lane in RESTING]
    blocked_by = max((message.id for message in held), default=None)
    return Group(queue, name, tables.width(queue, name), len(line.taken), len(line.parked), blocked_by)


def retain(tables: Tables, queue: str, lane: Lane, keep: Keep, now: int) -> int:
    done = sorted(
        (message.rested_ms or 0, int(seq))
        for seq, (message, *_) in tables.kept.items()
        if message.lane is lane and message.queue == queue
    )
    kept = len(done) if keep.count is None else keep.count
    beyond = [seq for _, seq in done[: max(0, len(done) - kept)]]
    old = [seq for rested_ms, seq in done if keep.age_ms is not None and rested_ms < now - keep.age_ms]
    going = [seq for _, seq in done if seq in {*beyond, *old}][:RETAIN_MAX]
    for seq in going:
        tables.write(seq, None)
    return len(going)
