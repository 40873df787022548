"""Encode settlements and claim requests for the exchange script of the Redis store."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...fault import Fault
from ...ids import new_id
from ...message import (
    DEGRADED,
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Quarantine,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from ...store import Traits
from .. import validation
from ..meta import text
from .arguments import Arguments, Zone, draft_rows, packed_ids
from .rows import NO_NAME

ACK, RETRY, DIE, POISON = range(4)
WORDS = (Settled.OK, Settled.STALE, Settled.CANCELLED)
_MEMBER = 44  # hex digits in a handle that identify the message, before its zone
_fault = msgspec.json.Encoder().encode


class RedisSettling:
    """A batch of settlements: encodes the arguments of the script, and decodes results from the script's reply.

    Plain acks of one zone (priority, queue, batch) are sent as two strings, counted retries as columns, all others as a
    row each.
    """

    def __init__(self, settlements: Sequence[Settlement], traits: Traits, now_ms: Callable[[], int]) -> None:
        self.arguments: Arguments = Arguments()
        self._words = [Settled.OK] * len(settlements)
        self.zones: dict[Zone, int] = {}  # numbers of the zones of follow-ups
        # By (zone in the handle, True if each ack swaps a cell): plain acks.
        self._acks: dict[tuple[str, bool], tuple[list[int], list[str], list[int], list[Swap]]] = {}
        self._retries: dict[str, tuple[list[int], list[str], list[int], list[int], list[bytes]]] = {}
        self._moves: list[tuple[int, Settlement]] = []
        self._apart: bool | None = None  # None: not computed yet, as most batches have no swaps
        self._traits, self._now_ms = traits, now_ms
        self._sort(settlements)

    def _sort(self, settlements: Sequence[Settlement]) -> None:
        seen = {s.receipt.handle for s in settlements}
        plain = len(seen) == len(settlements)  # False: a message occurs twice, so the order matters
        acks = self._acks
        for at, s in enumerate(settlements):
            handle, fence = s.receipt
            if type(handle) is not str or _is_handle(handle) is None or fence >> 32:
                self._words[at] = Settled.STALE
                continue
            decision = s.decision
            if (
                plain
                and type(decision) is Ack
                and decision.keep_ms == 0
                and not s.follow_ups
                and (not s.swaps or (_swaps_one(s) and self._are_apart(settlements)))
            ):
                zone = handle[_MEMBER:], bool(s.swaps)
                group = acks.get(zone)
                if group is None:
                    group = acks[zone] = ([], [], [], [])
                group[0].append(at)
                group[1].append(handle[:_MEMBER])
                group[2].append(fence)
                if s.swaps:
                    group[3].append(s.swaps[0])
            elif plain and type(decision) is RetryAt and _is_plain_retry(s, decision):
                columns = self._retries.setdefault(handle[_MEMBER:], ([], [], [], [], []))
                columns[0].append(at)
                columns[1].append(handle[:_MEMBER])
                columns[2].append(fence)
                columns[3].append(decision.at_ms)
                columns[4].append(_fault(s.fault))
            else:
                self._moves.append((at, s))

    def asked(self, swaps: Sequence[Swap], asks: Sequence[ClaimRequest]) -> Any:
        blob = self.arguments.blob
        blob(bytes.fromhex("".join([str(s.receipt.handle)[:_MEMBER] for _, s in self._moves])))
        blob(_fences([s.receipt.fence for _, s in self._moves]))
        acks = [
            (
                *_zone(zone),
                blob(bytes.fromhex("".join(members))),
                blob(_fences(fences)),
                one and self._swaps_of(one),
            )
            for (zone, _), (_, members, fences, one) in self._acks.items()
        ]
        retries = [
            (*head, blob(bytes.fromhex("".join(members))), blob(_fences(fences)), dues, self.arguments.blobs(lines))
            for head, (_, members, fences, dues, lines) in ((_zone(z), rows) for z, rows in self._retries.items())
        ]
        moves = [self._move(s) for _, s in self._moves]
        wanted = [
            (*(ask.queue, ask.limit, ask.lease_ms, ask.worker or NO_NAME, skip_row(ask), ask.retries), ask.lapsed_by_ms)
            for ask in asks
        ]
        return acks, moves, [*self.zones], swap_rows(swaps, self.arguments) if swaps else (), wanted, retries

    def _are_apart(self, settlements: Sequence[Settlement]) -> bool:
        """True if each cell is swapped at most once by the settlements: otherwise their order matters."""
        if self._apart is None:
            keys = [swap.key for s in settlements for swap in s.swaps]
            self._apart = len(set(keys)) == len(keys)
        return self._apart

    def _swaps_of(self, swaps: Sequence[Swap]) -> Any:
        values = self.arguments.blobs([swap.value or b"" for swap in swaps])
        return [s.key for s in swaps], [s.version for s in swaps], values, [s.ttl_ms for s in swaps]

    def _move(self, s: Settlement) -> list[Any]:
        handle = str(s.receipt.handle)
        row: list[Any] = [0, *_zone(handle[_MEMBER:])]
        fault = None if s.fault is None else self.arguments.blob(_fault(s.fault))
        fingerprint = _fingerprint(s.fault)
        match s.decision:
            case Ack(degraded, keep_ms):
                keep = None if keep_ms == 0 else -1 if keep_ms is None else keep_ms
                result = None if s.result is None or keep is None else self.arguments.blob(s.result)
                row[0] = ACK
                row += [keep, True, False, None if degraded is None else DEGRADED, None, None, result]
            case RetryAt(at_ms=at_ms, counts=counts, held=held, crashed=crashed):
                row[0] = RETRY
                row += [at_ms, counts and not crashed, held, None, fault, None, None]
            case DeadLetter(reason=reason, counts=counts):
                row[0] = DIE
                row += [None, counts, False, reason, fault, fingerprint, None]
            case Quarantine(reason=reason, counts=counts, crashed=crashed):
                row[0] = POISON
                row += [None, counts and not crashed, False, reason, fault, fingerprint, None]
        details = _crash_details(s.decision)
        if s.swaps or s.follow_ups or details:
            row += [swap_rows(s.swaps, self.arguments) or None, self._follow_ups(s), *details]
        return row

    def _follow_ups(self, s: Settlement) -> Any:
        if not s.follow_ups:
            return None
        validation.admit(s.follow_ups, self._traits)
        now = self._now_ms()
        ids = [draft.id or new_id(now) for draft in s.follow_ups]
        rows = draft_rows(s.follow_ups, ids, self.zones, self.arguments)
        return rows, self.arguments.blob(packed_ids(ids))

    def words(self, stale: Sequence[int], other: Sequence[int], words: Sequence[int]) -> list[Settled]:
        if not (stale or other or words):
            return self._words
        retries = [columns[0] for columns in self._retries.values()]
        for n in range(0, len(other), 3):
            self._words[retries[other[n]][other[n + 1]]] = WORDS[other[n + 2]]
        groups = [at for at, _, _, _ in self._acks.values()]
        for n in range(0, len(stale), 2):
            self._words[groups[stale[n]][stale[n + 1]]] = Settled.STALE
        for (at, _), word in zip(self._moves, words, strict=True):
            self._words[at] = WORDS[word]
        return self._words


def _swaps_one(s: Settlement) -> bool:
    return len(s.swaps) == 1 and s.swaps[0].value is not None


_is_handle = re.compile("[0-9a-f]{44}[0-3].", re.S).match


class HeldReceipts:
    """Those of the receipts that may be valid, in the form that scripts take."""

    def __init__(self, receipts: Sequence[Receipt]) -> None:
        self.at: list[int] = [
            at for at, (handle, fence) in enumerate(receipts) if _is_handle(str(handle)) is not None and not fence >> 32
        ]
        handles = [str(receipts[at].handle) for at in self.at]
        zones = dict[str, int]()
        self.zone_of: list[int] = [zones.setdefault(handle[_MEMBER:], len(zones)) for handle in handles]
        self.zones: list[Zone] = [_zone(zone) for zone in zones]
        self.members: bytes = bytes.fromhex("".join([handle[:_MEMBER] for handle in handles]))
        self.fences: bytes = _fences([receipts[at].fence for at in self.at])


def _zone(text: str) -> Zone:
    """Return priority, queue and batch from the end of a handle."""
    queue, _, batch = text[1:].partition("\0")
    return int(text[0]), queue, batch or None


def _is_plain_retry(s: Settlement, retry: RetryAt) -> bool:
    if not retry.counts or retry.held or retry.deferral is not None or retry.crashed:
        return False
    return s.fault is not None and not s.follow_ups and not s.swaps


def _crash_details(decision: Decision) -> tuple[Any, ...]:
    """Return (deferral as JSON, True if the run's process died, True if it ran alone), or () if none of these holds."""
    match decision:
        case RetryAt(deferral=deferral, crashed=crashed) if deferral is not None or crashed:
            return None if deferral is None else text(deferral), crashed, crashed and not decision.in_company
        case Quarantine(crashed=True, in_company=in_company):
            return None, True, not in_company
        case _:
            return ()


def _fences(fences: Sequence[int]) -> bytes:
    return struct.pack(f">{len(fences)}I", *fences)


def _fingerprint(fault: Fault | None) -> str | None:
    return None if fault is None else fault.fingerprint


def skip_row(ask: ClaimRequest) -> dict[str, int] | None:
    """Return the tasks that a claim skips, as a map for scripts; None if it skips none."""
    return dict.fromkeys(ask.skip, 1) if ask.skip else None


def swap_rows(swaps: Sequence[Swap], arguments: Arguments) -> list[tuple[str, int, int | None, int | None]]:
    """Return the swaps in the form that `_cells.lua` takes. Adds their values to `arguments`."""
    return [
        (swap.key, swap.version, None if swap.value is None else arguments.blob(swap.value), swap.ttl_ms)
        for swap in swaps
    ]
