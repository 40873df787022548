"""Triage, settings, retention and repair of the Redis store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import astuple, replace

from ...ids import is_id, new_id
from ...message import (
    BatchCounts,
    BatchMark,
    Cancel,
    Damage,
    Discard,
    Draft,
    Edit,
    GroupOrder,
    Handle,
    Hasten,
    Isolate,
    Keep,
    Lane,
    Message,
    OnDead,
    Postpone,
    Readmit,
    Redrive,
    Replace,
    Return,
    Swap,
    Verdict,
)
from .. import batches, validation
from ..groups import refuse
from .arguments import Arguments, Zone, draft_rows, packed_ids, restored_rows
from .exchange import swap_rows
from .namespace import RedisNamespace
from .pages import QUEUES_AT_ONCE, with_faults
from .preflight import about, findings
from .rows import LETTERS, id_bytes, id_text, read_counts

CHECKED_MAX = 100  # most damaged messages that `check` lists
ODD_MAX = 20  # most set members without a message that `check` lists


_CANCELS = (Cancel.UNKNOWN, Cancel.CANCELLED, Cancel.REQUESTED, Cancel.TOO_LATE)


class RedisAdmin(RedisNamespace):
    """Administration of the Redis store. Each call is one script."""

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)
        arguments, ours = Arguments(), [at for at, handle in enumerate(handles) if is_id(handle.id)]
        arguments.blob(packed_ids([handles[at].id for at in ours]))
        times_ms = [_time_of(verdict, at) for at in ours]
        seen = [
            (
                handles[at].redrives,
                LETTERS[handles[at].lane],
                ms,
                handles[at].fence,
                handles[at].due_ms,
                handles[at].wait,
            )
            + ((verdict.to_of(at),) if isinstance(verdict, Edit) else ())
            for at, ms in zip(ours, times_ms, strict=True)
        ]
        self._begin_batches((draft.priority, draft.queue, draft.batch) for draft in _drafts(verdict))
        made = [draft.id or new_id(self.now_ms()) for draft in _drafts(verdict)]
        asked = (seen, _words_of(verdict, made, arguments), swap_rows(swaps, arguments))
        # A repetition after a lost reply would meet its own swaps and drafts, and could not report the result.
        once = bool(swaps) or isinstance(verdict, Replace)
        sent_s = time.monotonic()
        reply = self._link.call("triage", arguments.listed(self._now(), asked), again=not once)
        if reply[0] == b"held":
            raise validation.key_is_held(handles[0].id, _drafts(verdict)[0], id_text(reply[1].hex()))
        words, now = self._check_written(reply, swaps)
        self._saw_clock(now, sent_s)
        moved = [False] * len(handles)
        for at, word in zip(ours, words, strict=True):
            moved[at] = word == 1
        return moved

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        messages = validation.admit_restored(messages, self.traits)
        self._begin_batches((message.priority, message.queue, message.batch) for message in messages)
        arguments = Arguments()
        arguments.blob(packed_ids([message.id for message in messages]))
        asked = restored_rows(messages, arguments), swap_rows(swaps, arguments)
        reply = self._link.call("restore", arguments.listed(self._now(), asked), again=not swaps)
        return [word == 1 for word in self._check_written(reply, swaps)[0]]

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        known = [id for id in dict.fromkeys(ids) if is_id(id)]
        arguments = Arguments()
        arguments.blob(packed_ids(known))
        reply = self._link.call("cancel", arguments.listed(self._now(), swap_rows(swaps, arguments)), again=not swaps)
        words = dict(zip(known, self._check_written(reply, swaps) if reply else reply, strict=True))
        return [_CANCELS[words.get(id, 0)] for id in ids]

    def mark_batches(self, marks: Sequence[BatchMark]) -> None:
        self._call("mark_batches", [(id, astuple(counts), keep_ms) for id, counts, keep_ms in marks])

    def configure(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        group_width: int | None = None,
        group_order: GroupOrder | str | None = None,
        on_dead: OnDead | str | None = None,
        swaps: Sequence[Swap] = (),
    ) -> None:
        order, dead = validation.admit_settings(queue, group_width, group_order, on_dead)
        said = {"paused": paused, "width": group_width, "order": order, "on_dead": dead}
        changes = {name: value for name, value in said.items() if value is not None}
        arguments = Arguments()
        asked = queue, changes, swap_rows(swaps, arguments)
        reply = self._link.call("configure", arguments.listed(self._now(), asked), again=not swaps)
        self._refuse(queue, reply if reply == 1 else self._check_written(reply, swaps))

    def configure_group(
        self,
        queue: str,
        group: str | None,
        *,
        width: int | None = None,
        resume: bool = False,
        swaps: Sequence[Swap] = (),
    ) -> None:
        validation.admit_width(width, 0)
        validation.admit_names(queue, group)
        arguments = Arguments()
        asked = queue, group or "", width, resume, swap_rows(swaps, arguments)
        reply = self._link.call("configure_group", arguments.listed(self._now(), asked), again=not swaps)
        self._refuse(queue, reply if reply == 1 else self._check_written(reply, swaps))

    def _refuse(self, queue: str, reply: Any) -> None:
        if reply != 1:
            _, width, own, order, on_dead = reply
            refuse(queue, width, own == 1, GroupOrder(order.decode()), OnDead(on_dead.decode()))

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        now = self.now_ms()
        bounds = [
            (LETTERS[lane], keep.count, None if keep.age_ms is None else now - keep.age_ms)
            for lane, keep in ((Lane.DONE, done), (Lane.DEAD, dead))
        ]
        removed = self._call("retain", (queue, *bounds))
        return removed[0], removed[1]

    def check(self) -> list[str]:
        stored, stand, stuck, wrong = self._call("check", (self._queues(),))
        problems = [] if stored == stand else [f"{stored} messages are stored, but {stand} stand in a lane"]
        for n in range(0, len(stuck), 2):
            queue, group = _shown(stuck[n]), _shown(stuck[n + 1])
            problems.append(f"queue {queue!r}, group {group!r}: a message is parked though a place is free")
        for n in range(0, len(wrong), 3):
            what, queue, value = map(_shown, wrong[n : n + 3])
            problems.append((f"queue {queue!r}: " if queue else "") + f"{what} cannot be {value!r}")
        problems += [
            f"set {_shown(key)!r} has {member!r}: {why}" for key, member, why, _, _ in islice(self._odd(), ODD_MAX)
        ]
        counted = self._counted()
        bad, members = self._bad()
        problems += _miscounted(members, counted, self._counted())
        problems += [f"message {id_text(id.hex())}: {why}" for id, why in islice(bad.items(), CHECKED_MAX)]
        return problems + ([f"and {len(bad) - CHECKED_MAX:,} more messages"] if len(bad) > CHECKED_MAX else [])

    def _odd(self) -> Iterator[tuple[bytes, bytes, str, bytes, bytes]]:
        """Yield set members that belong to no message: key of the set, member, reason, queue and group of its place."""
        queues, names = self._queues(), self._looks.failure_names()
        for first in range(0, max(len(queues), len(names), 1), QUEUES_AT_ONCE):
            last, at, cursor = first + QUEUES_AT_ONCE, 0, "0"
            while True:
                at, leads_on, odd = self._call("odd", (queues[first:last], names[first:last], at, cursor, not first))
                for n in range(0, len(odd), 5):
                    key, member, why, queue, group = odd[n : n + 5]
                    yield key, member, why.decode(), queue, group
                cursor = leads_on.decode()
                if not at:
                    break

    def _counted(self) -> dict[str, BatchCounts]:
        """The counts of all batches."""
        counted, cursor = dict[str, BatchCounts](), "0"
        while True:
            next_cursor, rows = self._call("counted_batches", (cursor,))
            counted |= {_shown(rows[n]): read_counts(rows[n + 1]) for n in range(0, len(rows), 2)}
            cursor = next_cursor.decode()
            if cursor == "0":
                return counted

    def _bad(self) -> tuple[dict[bytes, str], dict[bytes, tuple[str, str]]]:
        """The ids of messages that are unreadable, quarantined as damaged, or in no lane, with the reasons; and the ids
        of members of batches, each with its batch and the field that counts it."""
        bad, members = dict[bytes, str](), dict[bytes, tuple[str, str]]()
        cursor = "0"
        while True:
            next_cursor, rows, counted = self._call("verify", (cursor, False, None))
            members |= {
                counted[n]: (_shown(counted[n + 1]), counted[n + 2].decode()) for n in range(0, len(counted), 3)
            }
            bad |= {rows[n]: rows[n + 1].decode(errors="backslashreplace") for n in range(0, len(rows), 3)}
            cursor = next_cursor.decode()
            if cursor == "0":
                break
        page = self.peek(None, limit=500)
        while True:
            for message in page.messages:
                if message.damage is not None:
                    bad.setdefault(id_bytes(message.id), message.damage.why)
            if page.cursor is None:
                return bad, members
            page = self.peek(None, limit=500, cursor=page.cursor)

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        report = []
        for key, member, *_, queue, group in [*self._odd()]:
            self._call("drop_odd", ((),), key, queue, group, member)
            report.append(f"set {_shown(key)!r} is without {member!r}")
        queues = self._queues()
        for first in range(0, len(queues), QUEUES_AT_ONCE):
            self._call("drop_odd", (queues[first : first + QUEUES_AT_ONCE],))
        for id, why in self._bad()[0].items():
            (stored,) = with_faults(self._call, [id])
            if stored is None:
                continue
            message = stored[0]
            keep(message if message.damage is not None else replace(message, damage=Damage(why)))
            done = ""
            for _ in range(2):  # the first pass quarantines a message just found, the second repairs it
                _, rows, _ = self._call("verify", ("0", True, True), id)
                done = rows[2].decode() if rows else done
            report.append(f"message {message.id}: {done or 'it cannot be mended: ' + why}")
        return report

    def doctor(self) -> list[str]:
        return list(findings(self._link))

    def info(self) -> dict[str, str | int]:
        return about(self._link)


def _shown(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _miscounted(
    members: Mapping[bytes, tuple[str, str]], before: Mapping[str, BatchCounts], after: Mapping[str, BatchCounts]
) -> list[str]:
    """Return where the stored members of a batch are not what it counts, for those that did not change meanwhile."""
    stored = Counter(members.values())
    return [
        batches.miscounted(id, field, counted, stored[id, field])
        for id, counts in after.items()
        if before.get(id) == counts
        for field in batches.STORED
        if (counted := getattr(counts, field)) != stored[id, field]
    ]


def _drafts(verdict: Verdict) -> list[Draft]:
    return [verdict.draft] if isinstance(verdict, Replace) else []


def _time_of(verdict: Verdict, at: int) -> int:
    """Return the delay, or the due time, that the verdict has for the message with this index."""
    match verdict:
        case Redrive():
            return verdict.delay_of(at)
        case Postpone(dues_ms=dues_ms):
            return dues_ms[at]
        case _:
            return 0


def _words_of(verdict: Verdict, made: Sequence[str], arguments: Arguments) -> Sequence[Any]:
    """Return the verdict as arguments of a script. `made`: the ids of the drafts that the verdict puts."""
    match verdict:
        case Redrive(to_queue=to_queue, attempts=attempts, run=run, keep_deadline=keep_deadline):
            return ("redrive", to_queue, attempts, run, keep_deadline)
        case Discard(waive=waive):
            return ("discard", waive)
        case Isolate(why):
            return ("isolate", why)
        case Return(run=run):
            return ("return", run)
        case Hasten(run=run):
            return ("hasten", run)
        case Postpone(run=run, back=back):
            return ("postpone", run, back)
        case Edit(run=run, cancel=cancel, back=back):
            return ("edit", run, back, cancel)
        case Readmit():
            return ("readmit",)
        case Replace(draft):
            zones = dict[Zone, int]()
            rows = draft_rows([draft], made, zones, arguments)
            return ("replace", rows, [*zones], arguments.blob(packed_ids(made)))
