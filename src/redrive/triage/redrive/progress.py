"""What became of the messages of a redrive run: which were moved, and the verdicts on their first runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...message import (
    RESTING,
    Cell,
    Handle,
    Lane,
    Message,
    Swap,
)
from ...stores.run_marks import read_sent, sent_cell
from ...worker import redrive_outcome
from .plan import CHUNK, read_chunk
from .run_state import Failure, Mark, marks_cell
from .unit_of_work import Sheet

if TYPE_CHECKING:
    from ...store import Store

LOOKED = 200  # messages that are looked at in one go
LOST_EVERY_MS = 5000  # how often it looks for messages that ended without a verdict
CHUNKS_KEPT = 4  # chunks held in memory
MARKS_READ = 100  # cells
TOLD_MS = 10_000  # how long the verdict on a message may come after its death, where the two are no one commit
AWAY_MS = 15 * 86_400_000  # after which a message that cannot be looked up is given up: SQS keeps none so long


class Tally:
    """Keeps the letters of one run, for as long as one carries it. What it remembers is written with the sheet that it
    is told of; where that is not committed, `forget`."""

    def __init__(self, store: Store, id: str) -> None:
        self._store, self.id = store, id
        self._chunks: OrderedDict[int, list[Handle]] = OrderedDict()
        self._open: dict[int, int] | None = None  # by chunk: how many wait for a verdict; None: not looked up yet
        self._turn = 0  # whose turn it is of the chunks that are not the latest
        self._looked_ms = self._lost_at = 0  # when it looked for lost ones, and from which position it does so next
        self._tried: tuple[int, list[bool]] | None = None  # what the last batch, up to this position, came to

    def forget(self) -> None:
        """What was not written, or another may have changed since."""
        self._open, self._tried = None, None

    def tried(self, at: int, moved: list[bool]) -> None:
        """The batch that ended at this position was committed, and moved these of it."""
        self._tried = at, moved

    # -- what was moved

    def record(self, sheet: Sheet) -> None:
        """Write down what the last batch came to; after another's, find it out."""
        state = sheet.state
        if state.known == state.at:
            return
        if self._tried is None or self._tried[0] != state.at or len(self._tried[1]) != state.at - state.known:
            moved = self._found_out([self._handle(position).id for position in range(state.known, state.at)])
        else:
            moved = self._tried[1]
        for position, done in zip(range(state.known, state.at), moved, strict=True):
            self._mark(sheet, position, Mark.WAITING if done else Mark.CHANGED)
        count = sum(moved)
        sheet.state = replace(
            state, known=state.at, moved=state.moved + count, changed=state.changed + len(moved) - count
        )
        self._tried = None

    def _found_out(self, ids: Sequence[str]) -> list[bool]:
        """Whether the run moved these: what it moved names it, or has left a verdict as it settled. The messages are
        looked at first, as a verdict is there once its message is gone."""
        found = self.find(ids)
        told = self._store.cells.read([redrive_outcome.cell_of(self.id, id) for id in ids])
        return [
            verdict is not None or sent is not None or (message is not None and message.run == self.id)
            for message, verdict, sent in zip(found, told, self._sent(ids), strict=True)
        ]

    def _sent(self, ids: Sequence[str]) -> list[Cell | None]:
        """What tells that they have left for where no message can be looked up; nothing where all can."""
        if self._store.traits.finds:
            return [None] * len(ids)
        return self._store.cells.read([sent_cell(self.id, id) for id in ids])

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        """The messages of these ids, read a few at a time."""
        found: list[Message | None] = []
        for at in range(0, len(ids), LOOKED):
            found += self._store.find(ids[at : at + LOOKED])
        return found

    def _handle(self, position: int) -> Handle:
        n, k = divmod(position, CHUNK)
        return self.chunk(n)[k]

    def chunk(self, n: int) -> list[Handle]:
        """The messages of this chunk as they were planned."""
        if n not in self._chunks:
            self._chunks[n] = read_chunk(self._store.cells, self.id, n)
            if len(self._chunks) > CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(n)
        return self._chunks[n]

    def _marks(self, sheet: Sheet, n: int) -> bytearray:
        return sheet.marks_of(self._store, n, len(self.chunk(n)))

    def _mark(self, sheet: Sheet, position: int, mark: Mark) -> None:
        n, k = divmod(position, CHUNK)
        self._marks(sheet, n)[k] = ord(mark)
        sheet.changed.add(n)
        if mark is Mark.WAITING:
            waits = self._waits(sheet)
            waits[n] = waits.get(n, 0) + 1

    # -- verdicts

    def _waits(self, sheet: Sheet) -> dict[int, int]:
        """By chunk, how many wait for a verdict."""
        if self._open is None:
            tried, self._open = -(-sheet.state.known // CHUNK), {}
            for at in range(0, tried, MARKS_READ):
                numbers = range(at, min(at + MARKS_READ, tried))
                cells = self._store.cells.read([marks_cell(self.id, n) for n in numbers])
                for n, cell in zip(numbers, cells, strict=True):
                    count = 0 if cell is None else cell.value.count(Mark.WAITING.encode())
                    if count:
                        self._open[n] = count
        return self._open

    def fold(self, sheet: Sheet) -> None:
        """Take up the verdicts that are in: of the two latest chunks, and of another, each in its turn."""
        waits = self._waits(sheet)
        numbers = sorted(n for n, count in waits.items() if count)
        older = numbers[:-2]
        self._turn += 1
        for n in [*numbers[-2:], *([older[self._turn % len(older)]] if older else [])]:
            self._fold_chunk(sheet, n)
        if numbers and not 0 <= sheet.now_ms - self._looked_ms < LOST_EVERY_MS:
            found = self._look_for_lost(sheet, numbers)
            self._looked_ms = 0 if found else sheet.now_ms  # where some are lost there are more

    def _fold_chunk(self, sheet: Sheet, n: int) -> None:
        places = self.waiting_in(sheet, n)
        keys = [redrive_outcome.cell_of(self.id, self.chunk(n)[k].id) for k in places]
        cells = self._store.cells.read(keys)
        self._forget_sent(sheet, [self.chunk(n)[k].id for k, cell in zip(places, cells, strict=True) if cell])
        for k, key, cell in zip(places, keys, cells, strict=True):
            # One that moved while the plan was drawn up may stand in it twice: there is one verdict on both.
            if cell is not None and key not in sheet.told:
                sheet.told.add(key)
                sheet.more.append(Swap(key, cell.version, None))
                self._judged(sheet, n, k, redrive_outcome.decode(cell.value))

    def _forget_sent(self, sheet: Sheet, ids: Sequence[str]) -> None:
        for id, cell in zip(ids, self._sent(ids), strict=True):
            key = sent_cell(self.id, id)
            if cell is not None and key not in sheet.told:
                sheet.told.add(key)
                sheet.more.append(Swap(key, cell.version, None))

    def waiting_in(self, sheet: Sheet, n: int) -> list[int]:
        """Where in this chunk those stand that wait for a verdict."""
        return [k for k, mark in enumerate(self._marks(sheet, n)) if mark == ord(Mark.WAITING)]

    def _judged(self, sheet: Sheet, n: int, k: int, first: redrive_outcome.FirstRun) -> None:
        done = first.outcome == redrive_outcome.DONE
        self._marks(sheet, n)[k] = ord(Mark.DONE if done else Mark.FAILED)
        self._settled(sheet, n)
        state = sheet.state
        sheet.state = replace(state, done=state.done + done, failed=state.failed + (not done))
        if done:
            sheet.done += 1
        else:
            failure = Failure(self.chunk(n)[k].id, first.kind, first.error, first.text, first.fingerprint, first.at_ms)
            sheet.failures.append(failure)

    def _settled(self, sheet: Sheet, n: int) -> None:
        sheet.changed.add(n)
        waits = self._waits(sheet)
        # Letters that were read after the state may be newer, of another's commit: then this tick's will not succeed.
        waits[n] = waits.get(n, 0) - 1
        if waits[n] <= 0:
            del waits[n]

    def _look_for_lost(self, sheet: Sheet, numbers: Sequence[int]) -> int:
        """Those that ended without a verdict, by a person's hand: cancelled, removed, returned, driven on by another
        run. Looked at before their verdicts are, as above; some of a chunk at a time, all in turn. How many it found.
        """
        last, after = divmod(self._lost_at, CHUNK)
        n = next((n for n in numbers if n >= last), numbers[0])
        places = [k for k in self.waiting_in(sheet, n) if n != last or k >= after][:LOOKED]
        self._lost_at = n * CHUNK + places[-1] + 1 if len(places) == LOOKED else (n + 1) * CHUNK
        messages = self._store.find([self.chunk(n)[k].id for k in places])
        gone = [k for k, message in zip(places, messages, strict=True) if _left(message, self.id)]
        told = self._store.cells.read([redrive_outcome.cell_of(self.id, self.chunk(n)[k].id) for k in gone])
        untold = [k for k, cell in zip(gone, told, strict=True) if cell is None]
        lying = dict(zip(places, messages, strict=True))
        if not self._store.traits.finds:
            untold = self._without_those_away(sheet, n, untold, lying)
        # An undo that was cut off may have returned them, and not written so.
        back = [k for k in untold if as_planned(lying[k], self.chunk(n)[k])]
        self.returned(sheet, n, back)
        for k in sorted({*untold} - {*back}):
            self._marks(sheet, n)[k] = ord(Mark.ENDED)
            self._settled(sheet, n)
            sheet.state = replace(sheet.state, moved=sheet.state.moved - 1, ended=sheet.state.ended + 1)
        return len(untold)

    def _without_those_away(
        self, sheet: Sheet, n: int, places: Sequence[int], lying: Mapping[int, Message | None]
    ) -> list[int]:
        """Which of these ended by a person's hand, where what waits or runs cannot be looked up. One that was sent and
        lies nowhere is waited for, as long as it can be there. One that rests in the life that the run gave it has died
        of what no worker settled, such as the queue's own bound on receives: it has failed."""
        ended, chunk = [], self.chunk(n)
        sent = self._sent([chunk[k].id for k in places])
        for k, cell in zip(places, sent, strict=True):
            message = lying[k]
            if message is None:
                if cell is None or read_sent(cell).at_ms + AWAY_MS < sheet.now_ms:
                    ended.append(k)
            elif message.lane in RESTING and message.redrives == chunk[k].redrives + 1:
                if (message.rested_ms or 0) + TOLD_MS < sheet.now_ms:
                    self._forget_sent(sheet, [message.id])
                    self._judged(sheet, n, k, redrive_outcome.of_dead(message))
            else:
                ended.append(k)
        return ended

    def returned(self, sheet: Sheet, n: int, places: Iterable[int]) -> None:
        """Undo has returned those at these places of the chunk."""
        for k in places:
            self._marks(sheet, n)[k] = ord(Mark.RETURNED)
            self._settled(sheet, n)
            sheet.state = replace(sheet.state, moved=sheet.state.moved - 1, returned=sheet.state.returned + 1)


def as_planned(message: Message | None, handle: Handle) -> bool:
    """Whether it lies as it lay when it was planned: of what was moved, only an undo makes that."""
    return message is not None and message.handle == handle


def _left(message: Message | None, run: str) -> bool:
    """Whether it is no longer on the way that the run sent it."""
    return message is None or message.run != run or message.lane in (*RESTING, Lane.DONE)
