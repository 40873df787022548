"""What one tick of a redrive run comes to, until it is committed: all of it or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...message import Cell, Swap, version_of
from .run_state import (
    FAILURES_MAX,
    KEPT_MS,
    LEASE_MS,
    Failure,
    Line,
    Mark,
    RunState,
    encode,
    failures_cell,
    longer,
    marks_cell,
    read_failures,
    read_story,
    state_cell,
    story_cell,
)

if TYPE_CHECKING:
    from ...store import Store


class Sheet:
    """What one tick comes to, until it is committed."""

    def __init__(self, id: str, before: RunState, cell: Cell, now_ms: int, owner: str) -> None:
        """`before`: the run's state as `cell` has it; `owner`: who carries it now."""
        self.id, self.state, self.now_ms = id, replace(before, owner=owner), now_ms
        self._cell, self._before = cell, before
        self._marks: dict[int, bytearray] = {}
        self._versions: dict[int, int] = {}
        self.changed: set[int] = set()  # chunks whose letters did
        self.more: list[Swap] = []
        self.told: set[str] = set()  # cells of the verdicts that are among those
        self.failures: list[Failure] = []
        self.done = 0  # how many verdicts of this tick are good
        self.notices: list[tuple[str, str]] = []
        self._lines: list[Line] = []
        self.ttl_ms = KEPT_MS

    def say(self, text: str) -> None:
        """A line for its story."""
        self._lines.append(Line(self.now_ms, text))

    def tell(self, name: str, text: str) -> None:
        """A notice for who observes this worker, once it is committed."""
        self.notices.append((name, text))

    @property
    def news(self) -> bool:
        """Whether there is anything to write but the lease."""
        return bool(self.changed or self.more or self._lines)

    def marks_of(self, store: Store, n: int, size: int) -> bytearray:
        """The letters of this chunk, to be changed in place."""
        if n not in self._marks:
            (cell,) = store.cells.read([marks_cell(self.id, n)])
            self._marks[n] = bytearray(Mark.LEFT.encode() * size if cell is None else cell.value)
            self._versions[n] = version_of(cell)
        return self._marks[n]

    def swaps(self, store: Store) -> list[Swap]:
        """All that is to be written; nothing where nothing changed and the lease holds for a while."""
        before = self._before
        held = before.until_ms > self.now_ms + LEASE_MS // 2
        if self.state == before and held and not self.news:
            return []
        if not self.state.closed:
            self.state = replace(self.state, until_ms=self.now_ms + LEASE_MS)
        swaps = [Swap(state_cell(self.id), self._cell.version, encode(self.state), self.ttl_ms), *self.more]
        for n in sorted(self.changed):
            swaps.append(Swap(marks_cell(self.id, n), self._versions[n], bytes(self._marks[n]), self.ttl_ms))
        if self._lines or self.failures:
            told, failed = store.cells.read([story_cell(self.id), failures_cell(self.id)])
            if self._lines:
                story = longer(read_story(told), self._lines)
                swaps.append(Swap(story_cell(self.id), version_of(told), encode(story), self.ttl_ms))
            known = read_failures(failed) if self.failures else []
            if self.failures and len(known) < FAILURES_MAX:
                kept = [*known, *self.failures][:FAILURES_MAX]
                swaps.append(Swap(failures_cell(self.id), version_of(failed), encode(kept), self.ttl_ms))
        return swaps
