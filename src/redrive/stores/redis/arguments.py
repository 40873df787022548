"""Encode the arguments of the Redis store's scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...message import Draft, Message
from ..meta import encode
from ..validation import draft_of
from .rows import LETTERS, NO_NAME, pack, tail

Zone = tuple[int, str, str | None]  # priority, queue and batch


class Arguments:
    """Arguments of a script: values as msgpack, and separate byte strings, to which values refer by their index."""

    def __init__(self) -> None:
        self._blobs: list[bytes] = []

    def blob(self, blob: bytes) -> int:
        """Add a byte string; returns its index in the script's ARGV."""
        self._blobs.append(blob)
        return len(self._blobs) + 2

    def blobs(self, blobs: Sequence[bytes]) -> int:
        """Add byte strings; returns the index of the first one in the script's ARGV."""
        first = len(self._blobs) + 3
        self._blobs += blobs
        return first

    def listed(self, now: bytes, asked: Any) -> list[bytes]:
        return [now, pack(asked), *self._blobs]


def draft_rows(
    drafts: Sequence[Draft], ids: Sequence[str], zones: dict[Zone, int], arguments: Arguments
) -> list[list[Any]]:
    """Return drafts as rows for `_puts.lua`. Adds their zones to `zones`, each with its number."""
    rows = []
    for draft, id in zip(drafts, ids, strict=True):
        zone = zones.setdefault((draft.priority, draft.queue, draft.batch), len(zones))
        row: list[Any] = [zone, draft.delay_ms, arguments.blob(tail(draft, id))]
        if draft.due_ms is not None or draft.key is not None or draft.id is not None or draft.group is not None:
            key = None if draft.key is None else f"{draft.task}\0{draft.key}"
            row += [draft.due_ms, key, draft.key_for_ms, draft.id is not None, draft.group]
            if draft.waiting or draft.replace:
                row.append(draft.replace)
        rows.append(row)
    return rows


def restored_rows(messages: Sequence[Message], arguments: Arguments) -> list[list[Any]]:
    """Return messages at rest as rows for `restore.lua`."""
    rows = []
    for m in messages:
        last = m.faults[-1] if m.faults else None
        rows.append(
            [
                *(m.queue, m.task, m.priority, LETTERS[m.lane], m.enqueued_ms),
                arguments.blob(tail(draft_of(m), m.id)),
                *(m.fence, m.attempt, m.crashes, m.crashes_alone, m.redrives),
                0 if m.life_ms == m.enqueued_ms else m.life_ms,
                *(m.held_ms, m.suspect, NO_NAME if m.worker == "" else m.worker or ""),
                None if m.key is None else f"{m.task}\0{m.key}",
                *(m.group, m.reason, m.rested_ms, m.attempts_allowed),
                None if last is None else last.fingerprint,
                arguments.blobs([encode(fault) for fault in m.faults]),
                len(m.faults),
                None if m.progress is None else arguments.blob(m.progress),
                m.batch,
            ]
        )
    return rows


def packed_ids(ids: Sequence[str]) -> bytes:
    return bytes.fromhex("".join(ids).replace("-", ""))
