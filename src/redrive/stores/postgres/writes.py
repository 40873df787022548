"""Insert, settle and swap in the PostgreSQL store, within a transaction of the session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import EnqueueError
from ...fault import Fault
from ...message import (
    DEGRADED,
    Ack,
    DeadLetter,
    Draft,
    Lane,
    PutResult,
    Quarantine,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
)
from . import batches
from .cells import SettlementCells, swap_values
from .latest import take_over, taken_again
from .notifications import Wakes
from .rows import (
    GROUPED_MEMBER,
    ID,
    MEMBER,
    PLAIN,
    SEQ,
    byteas,
    flags,
    group_of,
    hex_of,
    ids,
    ints,
    jsons,
    numbers,
    plain,
    put_rows,
    seq_of,
    seqs,
    texts,
)
from .statements import AnyConnection, Cursor, Statements

# -- putting


def insert_all(
    st: Statements, c: AnyConnection, drafts: Sequence[Draft], given: Sequence[str], now: int | None
) -> list[PutResult]:
    """Write these drafts, except those whose key is held. The caller locks their groups, and admits to them after."""
    if len(set(given)) < len(given):
        raise EnqueueError("two of these messages have the same id; nothing was written")
    held: dict[int, PutResult] = {}
    if any(draft.key is not None for draft in drafts):
        if (at := taken_again(drafts)) is not None:
            return [*insert_all(st, c, drafts[:at], given[:at], now), *insert_all(st, c, drafts[at:], given[at:], now)]
        held = holders(st, c, drafts, given, now)
    members = [(draft.batch, n) for n, draft in enumerate(drafts) if draft.batch is not None]
    new = [n for n in range(len(drafts)) if n not in held] if held else range(len(drafts))
    if new:
        fresh = [drafts[n] for n in new] if held else drafts
        name = "put" if all(draft.group is None for draft in fresh) else "put_grouped"
        of_batches = texts([draft.batch for draft in fresh]) if members else None
        st.do(c, name, *put_rows(fresh, [given[n] for n in new]), now, of_batches)
    if members:
        batches.count(st, c, Counter((batch, "duplicate" if n in held else "open") for batch, n in members))
    return puts_of(st, drafts, given, held)


def puts_of(
    st: Statements, drafts: Sequence[Draft], given: Sequence[str], held: dict[int, PutResult]
) -> list[PutResult]:
    now = st.now_ms()
    return [
        held.get(n) or PutResult(id, False, "scheduled" if is_later(draft, now) else "ready")
        for n, (id, draft) in enumerate(zip(given, drafts, strict=True))
    ]


def was_put(st: Statements, c: AnyConnection, drafts: Sequence[Draft], given: Sequence[str]) -> bool:
    """True if this put was committed before: a message exists under an id that was made for it; or, if the caller gave
    all ids, every message exists, except those whose key another message holds. Messages that were removed since may be
    known only by their keys."""
    made = [id for id, draft in zip(given, drafts, strict=True) if draft.id is None]
    stored = {row[0] for row in st.rows(c, "stored", ids(made or given))}
    keyed = [draft for draft in drafts if draft.key is not None]
    if keyed:
        keys = texts([draft.task for draft in keyed]), texts([str(draft.key) for draft in keyed])
        stored |= {row[0] for row in st.rows(c, "keyed", *keys, ids(made or given))}
    needed = {id for id, draft in zip(given, drafts, strict=True) if draft.key is None}
    return bool(stored) and (bool(made) or needed <= stored)


def holders(
    st: Statements,
    c: AnyConnection,
    drafts: Sequence[Draft],
    given: Sequence[str],
    now: int | None,
    *,
    take: bool = True,
) -> dict[int, PutResult]:
    """Take the keys of these drafts; returns the results, by index, of the drafts whose key another message holds.

    Among drafts of one key the first takes it. The rows of keys stay locked up to the commit: of concurrent puts with
    one key, the second sees the result of the first. `take=False` only reads.
    """
    first: dict[tuple[str, str], int] = {}
    for n, draft in enumerate(drafts):
        if draft.key is not None:
            first.setdefault((draft.task, draft.key), n)
    keys = [texts([task for task, _ in first]), texts([key for _, key in first])]
    of_first = [ids([given[n] for n in first.values()]), numbers([drafts[n].key_for_ms for n in first.values()])]
    taken = st.do(c, "take_keys", *keys, *of_first, now) if take else None
    held: dict[int, PutResult] = {}
    free: list[int] = []
    names, server_ms = list(first.values()), 0
    rows = st.rows(c, "key_holders", *keys, now)
    ours = None if taken is None else set(taken.fetchall())
    for at, id, until, lane, due, reason, server_ms in rows:
        n = names[at - 1]
        if id == given[n] if ours is None else (drafts[n].task, drafts[n].key) in ours:
            continue
        if lane in (None, "done") and until <= server_ms:
            free.append(n)
        else:
            held[n] = PutResult(id, True, _state(lane, due, reason, server_ms))
    if take and (over := [n for n in held if drafts[n].waiting or drafts[n].replace]):
        free += take_over(st, c, drafts, held, over, now)
    if free and take:
        whose = [texts([drafts[n].task for n in free]), texts([str(drafts[n].key) for n in free])]
        st.do(c, "hold_keys", *whose, ids([given[n] for n in free]), numbers([drafts[n].key_for_ms for n in free]), now)
    return held | _second(drafts, given, first, held, server_ms)


def _second(
    drafts: Sequence[Draft],
    given: Sequence[str],
    first: dict[tuple[str, str], int],
    held: dict[int, PutResult],
    server_ms: int,
) -> dict[int, PutResult]:
    """Return the results, by index, of drafts whose key an earlier draft of the same batch takes."""
    results = {}
    for n, draft in enumerate(drafts):
        earlier = n if draft.key is None else first[draft.task, draft.key]
        if earlier != n:
            scheduled = drafts[earlier].group is not None or is_later(drafts[earlier], server_ms)
            results[n] = held.get(earlier) or PutResult(given[earlier], True, "scheduled" if scheduled else "ready")
    return results


def _state(lane: str | None, due_ms: int | None, reason: str | None, now_ms: int) -> str:
    if lane == "ready" and (due_ms is None or due_ms > now_ms):
        return "scheduled"
    return "cancelled" if reason == "cancelled" else lane or "done"


def wakes_of(drafts: Iterable[Draft], now_ms: int) -> Wakes:
    """Return the queues of these drafts for waking waiters, with the due times of the drafts that are overdue."""
    wakes = Wakes()
    for draft in drafts:
        wakes.due(draft.queue, draft.due_ms, now_ms)
    return wakes


def is_later(draft: Draft, now_ms: int) -> bool:
    """True if the draft is due later than `now_ms`."""
    return draft.delay_ms > 0 if draft.due_ms is None else draft.due_ms > now_ms


# -- settling

SettledRow = tuple[list[Receipt], tuple[Any, ...]]  # receipts of a statement, and what it says of them


def plain_acks(settlements: Sequence[Settlement]) -> SettlementBatch | None:
    """Return the batch to write if all settlements are acks that delete messages without key and group, or members of
    batches without group; else None."""
    batch, given = SettlementBatch(), set[str]()
    acks, members = batch.acks, batch.members
    for s in settlements:
        decision, receipt = s.decision, s.receipt
        handle = receipt.handle
        if type(decision) is not Ack or decision.keep_ms != 0 or s.follow_ups or s.swaps:
            return None
        if type(handle) is not str:
            return None
        if (mark := handle[ID : ID + 1]) == PLAIN:
            acks.append(receipt)
        elif mark == MEMBER:
            members.append(receipt)
        else:
            return None
        given.add(handle[:ID])
    return batch if len(given) == len(settlements) else None


class SettlementBatch:
    """The settlements of one exchange, sorted by the statements that write them."""

    def __init__(self) -> None:
        self.acks: list[Receipt] = []
        self.members: list[Receipt] = []  # acks of members of batches
        self.swapping: list[Settlement] = []  # acks with one swap and nothing else
        self.keyed: list[Receipt] = []  # acks of messages that may hold a unique key
        self.kept: list[tuple[Receipt, Ack, bytes | None]] = []
        self.retries: list[tuple[Receipt, RetryAt, Fault]] = []
        self.moves: list[Settlement] = []
        self.grouped: list[str] = []  # ids of grouped messages that stay stored
        self._suffix = ""  # of the names of statements: "_members" if a message that stays stored is of a batch

    def add(self, s: Settlement) -> None:
        receipt, decision = s.receipt, s.decision
        mark = str(receipt.handle)[ID : ID + 1]
        is_member = mark in (MEMBER, GROUPED_MEMBER)
        if type(decision) is Ack and decision.keep_ms == 0:
            (self.acks if mark == PLAIN else self.members if is_member else self.keyed).append(receipt)
            return
        if is_member:
            self._suffix = "_members"
        if type(decision) is Ack:
            self.kept.append((receipt, decision, s.result))
            return
        if type(decision) is RetryAt and s.fault is not None and _is_plain(decision):
            self.retries.append((receipt, decision, s.fault))
        else:
            self.moves.append(s)
        if group_of(receipt.handle) is not None:
            self.grouped.append(str(receipt.handle)[:ID])

    def write(self, st: Statements, c: AnyConnection, now: int | None) -> list[tuple[list[Receipt], Cursor]]:
        """Send the statements; returns, for each statement, its receipts and its cursor. Each processes its messages in
        the order of ids, as `extend` does, to avoid deadlocks."""
        self.swapping.sort(key=lambda s: s.swaps[0].key)
        acks = {"ack": self.acks, "ack_keyed": self.keyed, "ack_members": self.members}
        for receipts in acks.values():
            receipts.sort(key=_named)
        self.kept.sort(key=lambda one: _named(one[0]))
        self.retries.sort(key=lambda one: _named(one[0]))
        self.moves.sort(key=lambda s: _named(s.receipt))
        sent: list[tuple[list[Receipt], Cursor]] = []
        if self.swapping:
            sent.append(([s.receipt for s in self.swapping], self._ack_swapping(st, c, now)))
        for name, receipts in acks.items():
            if receipts:
                sent.append((receipts, st.do(c, name, *named(receipts))))
        if self.kept:
            sent.append(([receipt for receipt, _, _ in self.kept], self._keep(st, c, now)))
        if self.retries:
            receipts = [receipt for receipt, _, _ in self.retries]
            dues = numbers([decision.at_ms for _, decision, _ in self.retries])
            faults = jsons([fault for _, _, fault in self.retries])
            sent.append((receipts, st.do(c, f"retry{self._suffix}", *named(receipts), dues, faults, now)))
        if self.moves:
            receipts = [s.receipt for s in self.moves]
            sent.append((receipts, st.do(c, f"move{self._suffix}", *named(receipts), *_moved(self.moves, now))))
        return sent

    def _ack_swapping(self, st: Statements, c: AnyConnection, now: int | None) -> Cursor:
        swaps = [s.swaps[0] for s in self.swapping]
        known = (*named([s.receipt for s in self.swapping]), texts([swap.key for swap in swaps]))
        return st.do(c, "ack_swapping", *known, numbers([swap.version for swap in swaps]), *swap_values(swaps), now)

    def _keep(self, st: Statements, c: AnyConnection, now: int | None) -> Cursor:
        return st.do(
            c,
            f"keep{self._suffix}",
            *named([receipt for receipt, _, _ in self.kept]),
            numbers([ack.keep_ms for _, ack, _ in self.kept]),
            texts([None if ack.degraded is None else DEGRADED for _, ack, _ in self.kept]),
            byteas([result for _, _, result in self.kept]),
            now,
        )


def _named(receipt: Receipt) -> str:
    return str(receipt[0])  # the handle, which begins with the message's id


def named(receipts: Sequence[Receipt]) -> tuple[bytes, bytes, bytes]:
    handles = [str(handle) for handle, _ in receipts]
    fences = ints([fence for _, fence in receipts])
    return ids([handle[:ID] for handle in handles]), fences, seqs([handle[SEQ] for handle in handles])


def _is_plain(retry: RetryAt) -> bool:
    return retry.counts and not retry.held and retry.deferral is None and not retry.crashed


def _moved(moves: Sequence[Settlement], now: int | None) -> tuple[Any, ...]:
    rows = [_move(s) for s in moves]
    lanes, dues, counts, held, reasons = zip(*rows, strict=True)
    faults = [s.fault for s in moves]
    retries = [s.decision if isinstance(s.decision, RetryAt) else None for s in moves]
    crashes = [_crash(s) for s in moves]
    last = [s.fault if due is None else None for s, due in zip(moves, dues, strict=True)]  # stored as cause of death
    return (
        texts(lanes),
        numbers(dues),
        flags(counts),
        flags(held),
        texts([None if reason is None else plain(reason) for reason in reasons]),
        texts([None if fault is None else plain(fault.fingerprint) for fault in last]),
        texts([None if fault is None else plain(fault.error) for fault in last]),
        jsons(faults),
        now,
        jsons([None if retry is None else retry.deferral for retry in retries]),
        flags([died is not None for died in crashes]),
        flags([died is not None and not died.in_company for died in crashes]),
    )


def _crash(s: Settlement) -> RetryAt | Quarantine | None:
    """Return the settlement's decision if it says that the process of the run died, else None."""
    return s.decision if isinstance(s.decision, RetryAt | Quarantine) and s.decision.crashed else None


def _move(s: Settlement) -> tuple[str, int | None, bool, bool, str | None]:
    match s.decision:
        case RetryAt(at_ms=at_ms, counts=counts, held=held, crashed=crashed):
            return Lane.READY.value, at_ms, counts and not crashed, held, None
        case DeadLetter(reason=reason, counts=counts):
            return Lane.DEAD.value, None, counts, False, reason
        case Quarantine(reason=reason, counts=counts, crashed=crashed):
            return Lane.QUARANTINE.value, None, counts and not crashed, False, reason
        case _:
            raise TypeError(f"{s.decision!r} moves no message: expected RetryAt, DeadLetter or Quarantine")


def words_of(settlements: Sequence[Settlement], sent: Sequence[SettledRow]) -> list[Settled]:
    """Return the result of each settlement, from the rows of the cursors that `SettlementBatch.write` returned."""
    other: dict[Receipt, Settled] = {}
    for receipts, row in sent:
        cancelled, done = row[1:3]
        if done is not None or row[0] < len(receipts):
            known = set((done or "{}")[1:-1].split(","))
            other.update((r, Settled.STALE) for r in receipts if str(r.handle)[:ID] not in known)
        if cancelled is not None:
            ended = set(cancelled[1:-1].split(","))
            other.update((r, Settled.CANCELLED) for r in receipts if str(r.handle)[:ID] in ended)
    if not other:
        return [Settled.OK] * len(settlements)
    return [other.get(s.receipt, Settled.OK) for s in settlements]


def apart(settlements: Sequence[Settlement]) -> tuple[list[Settlement], list[Settlement]]:
    """Separate the acks with exactly one swap and nothing else from the other settlements. The first list is empty if a
    message or a cell occurs twice, since then the order matters."""
    keys = [swap.key for s in settlements for swap in s.swaps]
    if not keys or len(set(keys)) < len(keys):
        return [], list(settlements)
    if len({str(s.receipt.handle)[:ID] for s in settlements}) < len(settlements):
        return [], list(settlements)
    swapping, others = list[Settlement](), list[Settlement]()
    for s in settlements:
        (swapping if _only_swaps(s) else others).append(s)
    return swapping, others


def _only_swaps(s: Settlement) -> bool:
    if type(s.decision) is not Ack or s.decision.keep_ms != 0 or s.follow_ups or len(s.swaps) != 1:
        return False
    return s.swaps[0].value is not None and str(s.receipt.handle)[ID : ID + 1] == PLAIN


def is_simple(settlements: Sequence[Settlement]) -> bool:
    """True if statements for many messages can settle these: each message occurs once, without swaps and follow-ups."""
    return len({str(s.receipt.handle)[:ID] for s in settlements}) == len(settlements) and not any(
        s.follow_ups or s.swaps for s in settlements
    )


def settle_each(
    st: Statements, c: AnyConnection, settlements: Sequence[Settlement], now: int | None
) -> tuple[list[Settled], SettlementBatch, list[Draft]]:
    """Decide settlements one by one; returns the results, the batch to write for them, and the follow-ups to put."""
    current = st.do(c, "held_now", *named([s.receipt for s in settlements]))
    cells = SettlementCells(st, c, [swap.key for s in settlements for swap in s.swaps], now)
    held = {(hex_of(seq), fence): cancel for seq, fence, cancel in current.fetchall()}
    words, batch, drafts = list[Settled](), SettlementBatch(), list[Draft]()
    for s in settlements:
        cancel = held.pop((seq_of(s.receipt.handle), s.receipt.fence), None)  # popped: a receipt's second use is stale
        if cancel is None or not cells.swap(s.swaps):
            words.append(Settled.STALE)
            continue
        batch.add(s)
        if cancel and type(s.decision) is not Ack:
            words.append(Settled.CANCELLED)  # the message ended as cancelled, not as decided, so without follow-ups
            continue
        words.append(Settled.OK)
        drafts.extend(s.follow_ups)
    cells.write(now)
    return words, batch, drafts


# -- cells
