"""The counts of batches, in cells beside SQS.

- `sqs/b/ID` is the head of a batch: how many indexes its members have taken;
- `sqs/p/N/ID` is a page of its members (`members.py`);
- `sqs/news/N/PREFIX` lists batches to look at: written before the pages that have the news, so a kill hides none;
- `sqs/batches/N/PREFIX` lists all batches, by a hash of the id. A full list leaves out those that ended first.

An index is taken before the message is sent, and counts once it is known that it was sent, or once the message settles.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...chance import uniform
from ...errors import EnqueueError, StoreUnavailable
from ...message import BatchCounts, BatchMark, Cell, Message, Swap, version_of
from ...store import Cells
from ..batches import is_news
from .members import PAGE, MemberMove, MemberPage, MemberState, numbered

HEADS, PAGES, NEWS, LISTS = "sqs/b/", "sqs/p/", "sqs/news/", "sqs/batches/"
NEWS_CELLS = 4  # a process writes to one of them, so that many processes rarely meet
LIST_CELLS = 64
LIST_BYTES_MAX = 390 * 1024  # an item of DynamoDB holds it
HEAD_STAYS_MS = 60_000  # the head outlives its pages, so that nothing is added to old pages
TRIES = 40
PAUSE_S = (0.01, 0.4)  # longest pause before a cell is written again, after the first conflict and after many

Place = tuple[str, int]  # a batch and the number of a page


class BatchHead(Struct, frozen=True, omit_defaults=True):
    """The head of a batch: the next index; the `taken` indexes from `first` on that the put named `token` has, so that
    the same put takes the same ones if it is repeated. `ends`: the pages expire."""

    next: int = 0
    token: str | None = None
    first: int = 0
    taken: int = 0
    ends: bool = False


_read_head = msgspec.json.Decoder(BatchHead).decode
_read_list = msgspec.json.Decoder(dict[str, int]).decode
_encode = msgspec.json.Encoder().encode


class BatchCells:
    """The batches of one store. Thread-safe. `prefix`: the store's, as several may share their cells."""

    def __init__(
        self, cells: Cells, *, prefix: str, now_ms: Callable[[], int], failpoint: Callable[[str], None]
    ) -> None:
        self._cells, self._now_ms, self._failpoint = cells, now_ms, failpoint
        self._all_news = [f"{NEWS}{n}/{prefix}" for n in range(NEWS_CELLS)]
        self._all_lists = [f"{LISTS}{n}/{prefix}" for n in range(LIST_CELLS)]
        self._news = self._all_news[os.urandom(1)[0] % NEWS_CELLS]

    # -- taking indexes

    def number(self, messages: Sequence[Message], *, repeats: bool = False) -> list[Message]:
        """Return the messages, those in a batch each with an index in it. `repeats`: all messages of the batch in one
        put that is repeated, the first with the same id, get the same indexes again. Raises EnqueueError for a batch
        that no list has room for."""
        by_batch: dict[str, list[int]] = {}
        for at, message in enumerate(messages):
            if message.batch is not None:
                by_batch.setdefault(message.batch, []).append(at)
        made = [*messages]
        for batch, ats in by_batch.items():
            token = messages[ats[0]].id if repeats else None
            for at, index in zip(ats, self._take(batch, len(ats), token), strict=True):
                made[at] = numbered(messages[at], index)
        return made

    def _take(self, batch: str, n: int, token: str | None) -> list[int]:
        for turn in range(TRIES):
            (cell,) = self._cells.read([HEADS + batch])
            head = BatchHead() if cell is None else _read_head(cell.value)
            mine = range(head.first, head.first + min(n, head.taken)) if token and token == head.token else range(0)
            more = n - len(mine)
            if not more and not head.ends:
                return [*mine]
            if cell is None or head.ends:
                self._list(batch, 0)
            if head.ends and not self._expire(batch, None):
                continue
            if not head.ends:
                new = replace(head, next=head.next + more)
                if token and not mine:
                    new = replace(new, token=token, first=head.next, taken=n)
                if self._cells.swap([Swap(HEADS + batch, version_of(cell), _encode(new))])[0]:
                    return [*mine, *range(head.next, new.next)]
            pause(turn)
        raise _busy(batch)

    # -- counting

    def merge(self, moves: Sequence[MemberMove | None]) -> tuple[str, ...]:
        """Write what became of members; returns the batches, sorted, that have nothing open now or lost a member to a
        death. May be repeated. Raises StoreError; some pages may be written then."""
        places: dict[Place, list[MemberMove]] = {}
        for move in moves:
            if move is not None:
                places.setdefault((move.member.batch, move.member.number // PAGE), []).append(move)
        if not places:
            return ()
        pages = Counter(batch for batch, _ in places)
        # Members that join must be counted before the one that brought them is done, so that the batch cannot end.
        first = {
            place: joined
            for place, some in places.items()
            if pages[place[0]] > 1 and (joined := [move for move in some if move.state is MemberState.OPEN])
        }
        self._failpoint("count")
        died, ended = set[str](), set[str]()
        for part in filter(None, (first, places)):
            self._write(part, died, ended)
        self._failpoint("counted")
        ids = sorted(ended - died)
        over = {id for id, counts in zip(ids, self.counts(ids), strict=True) if not counts.open}
        return tuple(sorted(died | over))

    def _write(self, places: Mapping[Place, Sequence[MemberMove]], died: set[str], ended: set[str]) -> None:
        left = dict(places)
        for turn in range(TRIES):
            cells = self._cells.read([_page_cell(place) for place in left])
            gone = self._gone([place[0] for place, cell in zip(left, cells, strict=True) if cell is None])
            swaps, news = dict[Place, Swap](), set[str]()
            for (place, moves), cell in zip(left.items(), cells, strict=True):
                page = MemberPage.read(cell.value if cell else None)
                before, batch = page.died, place[0]
                changed = (cell is not None or batch not in gone) and page.move(moves)
                if changed:
                    swaps[place] = Swap(_page_cell(place), version_of(cell), page.written())
                if page.died > before:
                    died.add(batch)
                if not page.open and batch not in gone:
                    ended.add(batch)
                if changed and (page.died > before or not page.open):
                    news.add(batch)
            if news:
                self._edit(self._news, lambda ids, news=news: ids | {id: ids.get(id, 0) + 1 for id in news})  # type: ignore[misc]
                self._failpoint("news")
            words = self._cells.swap([*swaps.values()]) if swaps else []
            left = {place: left[place] for place, won in zip(swaps, words, strict=True) if not won}
            if not left:
                return
            pause(turn)
        raise _busy(next(iter(left))[0])

    def _gone(self, ids: Sequence[str]) -> set[str]:
        """Return those of these batches that are forgotten, or were never begun here: their members count nowhere."""
        heads = self._cells.read([HEADS + id for id in ids]) if ids else []
        return {id for id, cell in zip(ids, heads, strict=True) if cell is None or _read_head(cell.value).ends}

    # -- looking

    def counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        """Return the counts of these batches. One that has nothing open had nothing open at one moment."""
        made, versions, left = dict[str, BatchCounts](), dict[str, list[int]](), list(dict.fromkeys(ids))
        while left:
            pages = self._pages(left)
            for id, cells in pages.items():
                made[id] = _sum(cells)
            read = {id: [version_of(cell) for cell in cells] for id, cells in pages.items()}
            # A member may have joined in a page that was read, before one ended in a page that was not read yet.
            left = [id for id in left if not made[id].open and len(read[id]) > 1 and versions.get(id) != read[id]]
            versions |= read
        return [made[id] for id in ids]

    def _pages(self, ids: Sequence[str]) -> dict[str, list[Cell | None]]:
        heads = self._cells.read([HEADS + id for id in ids]) if ids else []
        nexts = [0 if cell is None else _read_head(cell.value).next for cell in heads]
        places = {id: [(id, n) for n in range(-(-most // PAGE))] for id, most in zip(ids, nexts, strict=True)}
        names = [_page_cell(place) for some in places.values() for place in some]
        cells = dict(zip(names, self._cells.read(names) if names else [], strict=True))
        return {id: [cells[_page_cell(place)] for place in some] for id, some in places.items()}

    def ids(self, after: str) -> list[str]:
        now, cells = self._now_ms(), self._cells.read(self._all_lists)
        listed = {id: at for cell in cells if cell for id, at in _read_list(cell.value).items()}
        return sorted(id for id, until_ms in listed.items() if id > after and not 0 < until_ms <= now)

    def changed(self, after: str, limit: int) -> list[str]:
        ids = sorted(id for id in {id for ids, _ in self._read_news() for id in ids} if id > after)
        return [id for id, counts in zip(ids, self.counts(ids), strict=True) if is_news(counts)][:limit]

    def mark(self, marks: Sequence[BatchMark]) -> None:
        """Take the batches off the news, unless they changed, and let the pages of those that are over expire."""
        lists = self._read_news()  # read before the counts: a page that changes later has its news written later, too
        last = {mark.id: mark for mark in marks}
        now_there = self.counts([*last])
        seen = [mark for mark, counts in zip(last.values(), now_there, strict=True) if mark.counts == counts]
        for mark in seen:
            if mark.keep_ms is not None and self._expire(mark.id, mark.keep_ms):
                self._list(mark.id, self._now_ms() + mark.keep_ms)
        # Last: after a kill or an error before it, these batches are marked again.
        names = {mark.id for mark in seen}
        swaps = []
        for name, (ids, version) in zip(self._all_news, lists, strict=True):
            if not names.isdisjoint(ids):
                left = {id: at for id, at in ids.items() if id not in names}
                swaps.append(Swap(name, version, _encode(left) if left else None))
        if swaps:
            self._cells.swap(swaps)  # a list that changed meanwhile stays: it costs one more look

    def _read_news(self) -> list[tuple[dict[str, int], int]]:
        cells = self._cells.read(self._all_news)
        return [(_read_list(cell.value) if cell else {}, version_of(cell)) for cell in cells]

    # -- writing

    def _expire(self, batch: str, keep_ms: int | None) -> bool:
        """Let the cells of a batch expire, or with None keep them; False if they changed meanwhile. The head decides:
        what takes an index while it `ends` keeps the pages first."""
        (cell,) = self._cells.read([HEADS + batch])
        if cell is None:
            return False
        pages = self._pages([batch])[batch]
        head = replace(_read_head(cell.value), ends=keep_ms is not None)
        stays_ms = None if keep_ms is None else keep_ms + HEAD_STAYS_MS
        write_head = Swap(HEADS + batch, cell.version, _encode(head), stays_ms)
        write_pages = [
            Swap(_page_cell((batch, n)), page.version, page.value, keep_ms)
            for n, page in enumerate(pages)
            if page is not None
        ]
        for swaps in ([write_head], write_pages) if keep_ms is not None else (write_pages, [write_head]):
            if swaps and not all(self._cells.swap(swaps)):
                return False
        return True

    def _list(self, id: str, until_ms: int) -> None:
        now = self._now_ms()
        self._edit(
            self._all_lists[zlib.crc32(id.encode()) % LIST_CELLS],
            lambda ids: _fitting({one: at for one, at in ids.items() if not 0 < at <= now} | {id: until_ms}, id),
        )

    def _edit(self, name: str, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        for turn in range(TRIES):
            (cell,) = self._cells.read([name])
            new = change(_read_list(cell.value) if cell else {})
            if self._cells.swap([Swap(name, version_of(cell), _encode(new))])[0]:
                return
            pause(turn)
        raise _busy(name)


def pause(turn: int) -> None:
    """Pause before a cell that another process changed is read again: the longer, the more of them write to it."""
    time.sleep(uniform(0, min(PAUSE_S[0] * 2**turn, PAUSE_S[1])))


def _fitting(ids: dict[str, int], new: str) -> dict[str, int]:
    """Leave out the batches that ended first, as far as the list would be too large. Raises EnqueueError if it has no
    room for the batch `new` among those that did not end."""
    over = len(_encode(ids)) - LIST_BYTES_MAX
    ended = sorted((id for id, until_ms in ids.items() if until_ms), key=ids.__getitem__) if over > 0 else []
    for id in ended:
        if over > 0:
            over -= len(_encode({id: ids.pop(id)})) - 1
    if over > 0 and new in ids:
        raise EnqueueError(
            f"batch {new} cannot begin: its list, one of {LIST_CELLS}, is full, with {len(ids) - 1:,} batches that "
            "have not ended; it can begin once some of them have ended; nothing was sent"
        )
    return ids


def _page_cell(place: Place) -> str:
    return f"{PAGES}{place[1]}/{place[0]}"


def _sum(cells: Sequence[Cell | None]) -> BatchCounts:
    return sum((MemberPage.read(cell.value).counts() for cell in cells if cell is not None), BatchCounts())


def _busy(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"the cells of batch {what} were changed by others all the time; nothing is lost")
