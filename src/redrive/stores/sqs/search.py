"""Which messages are found, and cancelled: those that rest, those that run here, and with `track=true` all others."""

from __future__ import annotations

from collections.abc import Sequence

from ...message import Cancel, Lane, Message
from ...store import Store
from .in_flight import Holding
from .track import Track


class Finding:
    """Finds messages of one store."""

    def __init__(self, holding: Holding, triage: Store | None, track: Track | None) -> None:
        self._holding, self._triage, self._track = holding, triage, track

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        """As `Store.find`."""
        found: list[Message | None] = self._triage.find(ids) if self._triage is not None else [None] * len(ids)
        held = self._running()
        found = [held.get(id, message) for id, message in zip(ids, found, strict=True)]
        if self._track is not None:
            left = [id for id, message in zip(ids, found, strict=True) if message is None]
            told = dict(zip(left, self._track.find(left), strict=True))
            found = [told[id] if message is None else message for id, message in zip(ids, found, strict=True)]
        return found

    def _running(self) -> dict[str, Message]:
        return {held.message.id: held.message for held in self._holding.all()}

    def cancel(self, track: Track, ids: Sequence[str]) -> list[Cancel]:
        """As `Store.cancel`."""
        running = self._running()
        rows = [None] * len(ids) if self._triage is None else self._triage.find(ids)
        lying = {row.id: row.lane for row in rows if row is not None and row.id not in running}
        words = track.cancel([id for id in ids if lying.get(id) in (None, Lane.LEASED)], running)
        waiting = [id for id, lane in lying.items() if words.get(id, Cancel.UNKNOWN) is Cancel.UNKNOWN]
        if waiting and self._triage is not None:  # or rest; or are just being sent back
            words |= zip(waiting, self._triage.cancel(waiting), strict=True)
        return [words[id] for id in ids]
