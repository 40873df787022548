"""Track a redrive run: the messages it moved, their outcomes, and the writes of each tick."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from msgspec.structs import replace

from ...message import (
    RESTING,
    Cell,
    Handle,
    Lane,
    Message,
    Swap,
    version_of,
)
from ...store import Store
from ...stores.run_marks import read_sent, sent_cell
from ...worker import redrive_outcome
from .records import (
    CHUNK,
    FAILURES_MAX,
    KEPT_MS,
    LEASE_MS,
    Failure,
    Line,
    PlanMark,
    RunState,
    encode,
    failures_cell,
    longer,
    marks_cell,
    read_chunk,
    read_failures,
    read_story,
    state_cell,
    story_cell,
)

FIND_MAX = 200  # most messages in one look-up
LOST_EVERY_MS = 5000  # ms between searches for messages that ended without an outcome
CHUNKS_KEPT = 4  # most chunks cached
MARKS_READ = 100  # cells of marks in one read
OUTCOME_LATE_MS = 10_000  # ms after its death in which a message's outcome may arrive, if stores commit the two apart
AWAY_MS = 15 * 86_400_000  # ms after which a message that cannot be looked up is given up: SQS keeps no message longer


class UnitOfWork:
    """The writes of one tick of a run, made in one commit."""

    state: RunState
    id: str
    now_ms: int

    def __init__(self, id: str, before: RunState, cell: Cell, now_ms: int, owner: str) -> None:
        """`before` is the state of the run as `cell` holds it; `owner` is the runner that has the lease now."""
        self.id, self.state, self.now_ms = id, replace(before, owner=owner), now_ms
        self._cell, self._before = cell, before
        self._marks: dict[int, bytearray] = {}
        self._versions: dict[int, int] = {}
        self.changed: set[int] = set()  # chunks whose marks changed
        self.more: list[Swap] = []
        self.removed: set[str] = set()  # keys of cells that `more` removes
        self.failures: list[Failure] = []
        self.done = 0  # messages that this tick counted as done
        self.notices: list[tuple[str, str]] = []
        self._lines: list[Line] = []
        self.ttl_ms = KEPT_MS

    def say(self, text: str) -> None:
        """Add a line to the run's story, in this commit."""
        self._lines.append(Line(self.now_ms, text))

    def notify(self, name: str, text: str) -> None:
        """Emit this notice once the tick is committed."""
        self.notices.append((name, text))

    def remove(self, key: str, cell: Cell) -> None:
        """Remove a cell in this commit."""
        self.removed.add(key)
        self.more.append(Swap(key, cell.version, None))

    @property
    def news(self) -> bool:
        """True if the tick writes more than the run's state and lease."""
        return bool(self.changed or self.more or self._lines)

    def marks_of(self, store: Store, n: int, size: int) -> bytearray:
        """Return the marks of chunk n, to be changed in place. `size`: the number of its messages."""
        if n not in self._marks:
            (cell,) = store.cells.read([marks_cell(self.id, n)])
            left = PlanMark.LEFT.encode() * size
            self._marks[n] = bytearray(cell.value if cell is not None and len(cell.value) == size else left)
            self._versions[n] = version_of(cell)
        return self._marks[n]

    def swaps(self, store: Store) -> list[Swap]:
        """Return the swaps to commit; none if nothing changed and the lease lasts long enough."""
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
            stored, failed = store.cells.read([story_cell(self.id), failures_cell(self.id)])
            if self._lines:
                story = longer(read_story(stored), self._lines)
                swaps.append(Swap(story_cell(self.id), version_of(stored), encode(story), self.ttl_ms))
            known = read_failures(failed) if self.failures else []
            if self.failures and len(known) < FAILURES_MAX:
                kept = [*known, *self.failures][:FAILURES_MAX]
                swaps.append(Swap(failures_cell(self.id), version_of(failed), encode(kept), self.ttl_ms))
        return swaps


class Progress:
    """Maintains the marks of one run while a runner has its lease.

    Marks are cached between ticks: call `forget` if a unit of work was not committed, or if another runner may have
    written.
    """

    id: str

    def __init__(self, store: Store, id: str) -> None:
        self._store, self.id = store, id
        self._chunks: OrderedDict[int, list[Handle]] = OrderedDict()
        self._open: dict[int, int] | None = None  # number of messages without an outcome by chunk; None: not read yet
        self._turn = 0  # a counter that selects an older chunk in each tick
        # time of the last search for lost messages, and position at which the next one starts
        self._searched_ms = self._lost_at = 0
        self._tried: tuple[int, list[bool]] | None = None  # last batch: position after it; which of its messages moved

    def forget(self) -> None:
        """Drop the cached marks and the last batch, so that the store is read again."""
        self._open, self._tried = None, None

    def tried(self, at: int, moved: list[bool]) -> None:
        """Remember the last committed batch: the position after it, and for each message whether it was moved."""
        self._tried = at, moved

    def record(self, work: UnitOfWork, *, unwatched: bool = False) -> None:
        """Mark which messages of the last batch were moved; if another runner committed it, look that up. `unwatched`:
        they are done then, as the run awaits no outcomes."""
        state = work.state
        if state.known == state.at:
            return
        if self._tried is None or self._tried[0] != state.at or len(self._tried[1]) != state.at - state.known:
            moved = self._find_moved([self._handle(position).id for position in range(state.known, state.at)])
        else:
            moved = self._tried[1]
        for position, done in zip(range(state.known, state.at), moved, strict=True):
            mark = PlanMark.DONE if unwatched else PlanMark.WAITING
            self._mark(work, position, mark if done else PlanMark.CHANGED)
        count = sum(moved)
        work.state = replace(
            state,
            known=state.at,
            moved=state.moved + count,
            done=state.done + (count if unwatched else 0),
            changed=state.changed + len(moved) - count,
        )
        self._tried = None

    def _find_moved(self, ids: Sequence[str]) -> list[bool]:
        """Return whether the run moved each of these messages: it names the run, or left an outcome as it was settled.
        Messages are read first, since a message's outcome is written before the message is removed."""
        messages = self.find(ids)
        outcomes = self._store.cells.read([redrive_outcome.cell_of(self.id, id) for id in ids])
        return [
            outcome is not None or sent is not None or (message is not None and message.run_id == self.id)
            for message, outcome, sent in zip(messages, outcomes, self._sent(ids), strict=True)
        ]

    def _sent(self, ids: Sequence[str]) -> list[Cell | None]:
        """Read the cells of messages sent to a store that cannot look messages up; all None for other stores."""
        if self._store.traits.finds:
            return [None] * len(ids)
        return self._store.cells.read([sent_cell(self.id, id) for id in ids])

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        """Read the messages with these ids, FIND_MAX at a time; None for an unknown id."""
        messages: list[Message | None] = []
        for at in range(0, len(ids), FIND_MAX):
            messages += self._store.find(ids[at : at + FIND_MAX])
        return messages

    def _handle(self, position: int) -> Handle:
        n, k = divmod(position, CHUNK)
        return self.chunk(n)[k]

    def chunk(self, n: int) -> list[Handle]:
        """Return the messages of chunk n as planned, from the cache or the store."""
        if n not in self._chunks:
            self._chunks[n] = read_chunk(self._store.cells, self.id, n)
            if len(self._chunks) > CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(n)
        return self._chunks[n]

    def _marks(self, work: UnitOfWork, n: int) -> bytearray:
        return work.marks_of(self._store, n, len(self.chunk(n)))

    def _mark(self, work: UnitOfWork, position: int, mark: PlanMark) -> None:
        n, k = divmod(position, CHUNK)
        self._marks(work, n)[k] = ord(mark)
        work.changed.add(n)
        if mark is PlanMark.WAITING:
            waits = self._waits(work)
            waits[n] = waits.get(n, 0) + 1

    def _waits(self, work: UnitOfWork) -> dict[int, int]:
        """Return the number of messages that wait for their outcome by chunk, from the cache or the marks."""
        if self._open is None:
            tried, self._open = -(-work.state.known // CHUNK), {}
            for at in range(0, tried, MARKS_READ):
                numbers = range(at, min(at + MARKS_READ, tried))
                cells = self._store.cells.read([marks_cell(self.id, n) for n in numbers])
                for n, cell in zip(numbers, cells, strict=True):
                    count = 0 if cell is None else cell.value.count(PlanMark.WAITING.encode())
                    if count:
                        self._open[n] = count
        return self._open

    def count_outcomes(self, work: UnitOfWork) -> None:
        """Count new outcomes in the two latest chunks that await any, and in one older chunk, in rotation."""
        waits = self._waits(work)
        numbers = sorted(n for n, count in waits.items() if count)
        older = numbers[:-2]
        self._turn += 1
        for n in [*numbers[-2:], *([older[self._turn % len(older)]] if older else [])]:
            self._count_chunk(work, n)
        if numbers and not 0 <= work.now_ms - self._searched_ms < LOST_EVERY_MS:
            recovered = self._search_lost(work, numbers)
            self._searched_ms = 0 if recovered else work.now_ms  # there are probably more lost ones

    def _count_chunk(self, work: UnitOfWork, n: int) -> None:
        offsets = self.marked_in(work, n, PlanMark.WAITING)
        keys = [redrive_outcome.cell_of(self.id, self.chunk(n)[k].id) for k in offsets]
        cells = self._store.cells.read(keys)
        self._remove_sent(work, [self.chunk(n)[k].id for k, cell in zip(offsets, cells, strict=True) if cell])
        for k, key, cell in zip(offsets, keys, cells, strict=True):
            # A message that moved while the plan was made may be in the plan twice: one outcome counts for both.
            if cell is not None and key not in work.removed:
                work.remove(key, cell)
                self._count(work, n, k, redrive_outcome.decode(cell.value))

    def _remove_sent(self, work: UnitOfWork, ids: Sequence[str]) -> None:
        for id, cell in zip(ids, self._sent(ids), strict=True):
            if cell is not None and (key := sent_cell(self.id, id)) not in work.removed:
                work.remove(key, cell)

    def marked_in(self, work: UnitOfWork, n: int, mark: PlanMark) -> list[int]:
        """Return the offsets in chunk n of messages with this mark."""
        return [k for k, each in enumerate(self._marks(work, n)) if each == ord(mark)]

    def _count(self, work: UnitOfWork, n: int, k: int, first: redrive_outcome.RedriveOutcome) -> None:
        done = first.outcome == redrive_outcome.DONE
        self._marks(work, n)[k] = ord(PlanMark.DONE if done else PlanMark.FAILED)
        self._no_longer_waits(work, n)
        state = work.state
        work.state = replace(state, done=state.done + done, failed=state.failed + (not done))
        if done:
            work.done += 1
        else:
            failure = Failure(self.chunk(n)[k].id, first.kind, first.error, first.text, first.fingerprint, first.at_ms)
            work.failures.append(failure)

    def _no_longer_waits(self, work: UnitOfWork, n: int) -> None:
        work.changed.add(n)
        waits = self._waits(work)
        # Another runner may have written the marks after this tick read the state: then this tick's commit fails.
        waits[n] = waits.get(n, 0) - 1
        if waits[n] <= 0:
            del waits[n]

    def _search_lost(self, work: UnitOfWork, numbers: Sequence[int]) -> int:
        """Mark the messages that will have no outcome: a person cancelled, removed or returned them, or another run
        moved them. Each call checks the next part of a chunk, messages before outcomes. Returns how many it marked."""
        last, after = divmod(self._lost_at, CHUNK)
        n = next((n for n in numbers if n >= last), numbers[0])
        offsets = [k for k in self.marked_in(work, n, PlanMark.WAITING) if n != last or k >= after][:FIND_MAX]
        self._lost_at = n * CHUNK + offsets[-1] + 1 if len(offsets) == FIND_MAX else (n + 1) * CHUNK
        messages = self._store.find([self.chunk(n)[k].id for k in offsets])
        gone = [k for k, message in zip(offsets, messages, strict=True) if _left(message, self.id, self.chunk(n)[k])]
        outcomes = self._store.cells.read([redrive_outcome.cell_of(self.id, self.chunk(n)[k].id) for k in gone])
        lost = [k for k, cell in zip(gone, outcomes, strict=True) if cell is None]
        current = dict(zip(offsets, messages, strict=True))
        if not self._store.traits.finds:
            lost = self._without_those_away(work, n, lost, current)
        for k in [*lost]:
            if _failed_unseen(message := current[k], self.id, self.chunk(n)[k]):
                lost.remove(k)
                self._count(work, n, k, redrive_outcome.of_dead(message))
        # An undo that was interrupted may have returned messages without marking them.
        back = [k for k in lost if as_planned(current[k], self.chunk(n)[k], self.id)]
        self.returned(work, n, back)
        for k in sorted({*lost} - {*back}):
            self._marks(work, n)[k] = ord(PlanMark.ENDED)
            self._no_longer_waits(work, n)
            work.state = replace(work.state, moved=work.state.moved - 1, ended=work.state.ended + 1)
        return len(lost)

    def _without_those_away(
        self, work: UnitOfWork, n: int, offsets: Sequence[int], current: Mapping[int, Message | None]
    ) -> list[int]:
        """Return the offsets of messages that a person ended; for a store that cannot look up waiting and running ones.

        A message that was sent and cannot be found is waited for as long as it can exist. A message that is dead in the
        life that this run gave it has failed, even if no worker settled it: the queue itself may limit receives.
        """
        ended, chunk = [], self.chunk(n)
        sent = self._sent([chunk[k].id for k in offsets])
        for k, cell in zip(offsets, sent, strict=True):
            message = current[k]
            if message is None:
                if cell is None or read_sent(cell).at_ms + AWAY_MS < work.now_ms:
                    ended.append(k)
            elif message.lane in RESTING and message.redrives == chunk[k].redrives + 1:
                if (message.rested_ms or 0) + OUTCOME_LATE_MS < work.now_ms:
                    self._remove_sent(work, [message.id])
                    self._count(work, n, k, redrive_outcome.of_dead(message))
            else:
                ended.append(k)
        return ended

    def returned(self, work: UnitOfWork, n: int, offsets: Iterable[int]) -> None:
        """Mark the messages at these offsets of chunk n as returned by an undo."""
        for k in offsets:
            marks, state = self._marks(work, n), work.state
            done = marks[k] == ord(PlanMark.DONE)  # of a run that awaits no outcomes
            marks[k] = ord(PlanMark.RETURNED)
            if done:
                work.changed.add(n)
            else:
                self._no_longer_waits(work, n)
            work.state = replace(state, moved=state.moved - 1, done=state.done - done, returned=state.returned + 1)


def as_planned(message: Message | None, handle: Handle, run: str) -> bool:
    """True if the message is at rest as it was planned, or waits, unclaimed since, and does not name the run. Once the
    run has moved it, only an undo can restore that."""
    if message is None or message.handle[:3] != handle[:3]:
        return False
    if handle.wait is not None:
        return message.fence == handle.fence and message.run is None
    return handle.fence is None or (message.fence == handle.fence and message.run_id != run)


def _left(message: Message | None, run: str, handle: Handle) -> bool:
    """True if, since this run moved the message, it has ended, died, or been moved by another run."""
    if message is None or message.run_id != run or message.lane in (*RESTING, Lane.DONE):
        return True
    return _failed_unseen(message, run, handle)


def _failed_unseen(message: Message | None, run: str, handle: Handle) -> TypeGuard[Message]:
    """True if a message that this run made due has failed since, and the worker, of an older version, left no outcome
    as the message had failed before."""
    if message is None or handle.fence is None or message.run_id != run:
        return False
    failed = message.lane is Lane.READY and message.attempt > message.run_attempts
    return failed or (message.lane in RESTING and message.redrives == handle.redrives)
