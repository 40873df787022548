"""Journals that survive kill -9, and the check that holds them against the store.

Producer and handlers write down what they do, one record per `os.write` on a file opened for appending. A record that
was written is in the kernel's hands: killing the writer cannot take it back. `Ledger.problems` then compares what was
acknowledged, what ran and what is stored.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from redrive.message import Lane, Message
from redrive.store import Store
from redrive.stores import open_store

# Divides a page: the kernel breaks a write off for a kill between pages only, so a record is there whole or not at all.
RECORD_BYTES = 256
# Within it all that was held runs again: 3 s, but a gate must not fail because its machine was busy. Leases are longer.
RECOVERY_S = 3.0 if os.environ.get("TEST_SOAK") == "1" else 15.0
RUNS = {"flaky": 2}  # how often a message of that kind runs when nothing is killed; else once
DEAD = {"doomed": "rejected", "unreadable": "unreadable", "unroutable": "unroutable"}  # why it dies, if it is not done
CRASHED = ("started", "lapsed")  # how a message was left whose next claim counts a crash
NEVER_RUN = ("unreadable", "unroutable")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a journal. `at_s` is time.monotonic(), which all processes of a machine share."""

    what: str
    id: str = ""
    pid: int = 0
    attempt: int = 0
    crashes: int = 0
    fence: int = 0
    at_s: float = 0.0
    note: str = ""


class Journal:
    """An append-only file that several processes may write to; its order is the order in which things happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(
        self,
        what: str,
        id: str = "",
        *,
        note: str = "",
        attempt: int = 0,
        crashes: int = 0,
        fence: int = 0,
        at_s: float | None = None,
    ) -> None:
        at_s = time.monotonic() if at_s is None else at_s
        line = msgspec.json.encode(Record(what, id, os.getpid(), attempt, crashes, fence, at_s, note))
        assert len(line) < RECORD_BYTES, line
        os.write(self._file, line.ljust(RECORD_BYTES - 1) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path, since: int = 0) -> list[Record]:
    """All records so far, oldest first; `since` leaves out that many bytes, a size the file once had."""
    data = path.read_bytes()[since:] if path.exists() else b""
    whole = len(data) - len(data) % RECORD_BYTES
    return [msgspec.json.decode(data[at : at + RECORD_BYTES], type=Record) for at in range(0, whole, RECORD_BYTES)]


def produced(place: Path) -> Path:
    return place / "producer.journal"


def handled(place: Path) -> Path:
    return place / "handler.journal"


def database(place: Path) -> Path:
    """In a folder of its own, so that a small file system can be mounted there."""
    folder = place / "disk"
    folder.mkdir(exist_ok=True)
    return folder / "work.db"


def url_of(place: Path) -> str:
    """The store of a place: what its file `url` says, else an SQLite file."""
    said = place / "url"
    return said.read_text() if said.exists() else f"sqlite:///{database(place)}"


def opened(place: Path) -> Store:
    """The store of a place, to be closed by the caller."""
    return open_store(url_of(place))


class Ledger:
    """What the journals in `place` say, and what the store holds now. `lost`: workers that lived on without their
    leases, and so count as killed."""

    def __init__(self, place: Path, *, lost: Iterable[int] = ()) -> None:
        self.producer, self.handler = read(produced(place)), read(handled(place))
        self.kind = {r.id: r.note.partition("#")[0] for r in self.producer if r.what == "try"}
        self.batch = {r.id: r.note.partition("#")[2] for r in self.producer if r.what == "try"}
        self.acknowledged = {r.id for r in self.producer if r.what == "ack"}
        self.starts: dict[str, list[Record]] = defaultdict(list)
        for record in self.handler:
            if record.what == "start":
                self.starts[record.id].append(record)
        self.done = {r.id for r in self.handler if r.what == "end" and r.note == "ok"}
        self.up = {r.pid: r for r in self.handler if r.what == "up"}
        self.killed = (self.up.keys() - {r.pid for r in self.handler if r.what == "exit"}) | set(lost)
        store = opened(place)
        self.damage = store.check()
        self.stored = {m.id: m for m in everything(store)}
        store.close()

    def problems(self, *, worked_off: bool) -> list[str]:
        """Empty when the books balance. `worked_off`: a worker has drained the store since, so nothing may wait."""
        found = [f"check: {line}" for line in self.damage]
        found += self._lost(worked_off)
        found += self._unexpected()
        found += self._halves()
        for id in self.starts:
            found += self._runs(id)
        found += self._counting()
        found += self._late()
        return found

    def _lost(self, worked_off: bool) -> Iterator[str]:
        for id in sorted(self.acknowledged):
            message, reason = self.stored.get(id), DEAD.get(self.kind[id])
            if message is None and (id not in self.done or reason is not None):
                yield f"{self._name(id)} was acknowledged and is lost"
            elif worked_off and (message is not None or reason is not None) and _end(message) != reason:
                yield f"{self._name(id)} should be {reason or 'done'}, but is {_end(message)}"

    def _unexpected(self) -> Iterator[str]:
        for id in (self.stored.keys() | self.starts.keys()) - self.kind.keys():
            yield f"{id} was never enqueued"

    def _halves(self) -> Iterator[str]:
        """A batch is written whole or not at all."""
        there: dict[str, set[bool]] = defaultdict(set)
        for id, batch in self.batch.items():
            there[batch].add(id in self.stored or id in self.starts)
        for batch in sorted(b for b, found in there.items() if len(found) > 1):
            yield f"batch {batch} was written in part"

    def _runs(self, id: str) -> Iterator[str]:
        """At most once more per kill that hit it while it ran, and the attempt only rises after a failure."""
        starts = self.starts[id]
        kind = self.kind.get(id, "")
        planned = 0 if kind in NEVER_RUN else RUNS.get(kind, 1)
        hit = len({r.pid for r in starts} & self.killed)
        if len(starts) > planned + hit:
            yield f"{self._name(id)} ran {len(starts)} times; {planned} planned, {hit} of its workers killed"
        if id in self.done and starts[-1].attempt != planned:
            yield f"{self._name(id)} ended with attempt {starts[-1].attempt}, expected {planned}"
        for before, after in pairwise(starts):
            if after.fence <= before.fence:
                yield f"{self._name(id)} ran with fence {after.fence} after {before.fence}"
            if after.attempt == before.attempt and before.pid not in self.killed:
                yield f"{self._name(id)} ran attempt {after.attempt} twice, though worker {before.pid} lived"

    def _counting(self) -> Iterator[str]:
        """What a dead worker had started comes back as a crash, the rest as if it had never been claimed."""
        left: dict[str, Record] = {}
        last: dict[str, Record] = {}
        for record in self.handler:
            if record.what not in ("start", "found"):
                continue
            ran, seen = last.get(record.id), left.pop(record.id, None)
            if (
                seen is not None and seen.fence == record.fence
            ):  # the next one was killed before it took this back for good
                left[record.id] = seen if seen.note in CRASHED else record
                continue
            if record.what == "found" and ran is not None and ran.fence == record.fence and record.note not in CRASHED:
                yield f"{self._name(record.id)} had been started by {ran.pid}, which its slot file does not say"
            if seen is not None and seen.fence < record.fence:
                expected = seen.attempt, seen.crashes + (seen.note in CRASHED)
                if (record.attempt, record.crashes) != expected and not self._failed(record.id, seen.attempt):
                    counts = f"attempt {record.attempt}, crashes {record.crashes}"
                    yield f"{self._name(record.id)} left {seen.note} came back with {counts}; expected {expected}"
            (left if record.what == "found" else last)[record.id] = record

    def _failed(self, id: str, attempt: int) -> bool:
        """Whether that attempt came to its own end between two sightings: then the next one counts anew."""
        return any(
            r.what == "end" and r.id == id and r.attempt == attempt and r.note == "ConnectionError"
            for r in self.handler
        )

    def _late(self) -> Iterator[str]:
        """Everything a dead worker held runs again within the bound, counted from the first line of the next one."""
        ends_s = {pid: self._ended_s(pid) for pid in self.up}
        for found in [r for r in self.handler if r.what == "found" and self.kind.get(r.id) not in NEVER_RUN]:
            until_s = self.up[found.pid].at_s + RECOVERY_S
            again = [r for r in self.starts[found.id] if r.at_s >= found.at_s and r.at_s <= until_s]
            if not again and ends_s[found.pid] > until_s:
                yield f"{self._name(found.id)} did not run again within {RECOVERY_S:g} s of the start of {found.pid}"

    def _ended_s(self, pid: int) -> float:
        """When a worker ended: with its last record, or no later than the next one's first line if it was killed."""
        if pid not in self.killed:
            return float("inf")
        last = max(at for at, r in enumerate(self.handler) if r.pid == pid)
        following = (r.at_s for r in self.handler[last:] if r.what == "up")
        return next(following, self.handler[last].at_s)

    def unstarted(self) -> int:
        """How many claimed messages were found that their dead worker had not started."""
        return sum(r.what == "found" and r.note == "unstarted" for r in self.handler)

    def crashed(self) -> int:
        """How many runs were cut off by a kill."""
        return sum(r.what == "found" and r.note == "started" for r in self.handler)

    def points(self) -> Counter[str]:
        """The named points at which processes killed themselves."""
        return Counter(r.note for r in (*self.producer, *self.handler) if r.what == "killing")

    def _name(self, id: str) -> str:
        return f"{self.kind.get(id, 'unknown')} message {id}"


def _end(message: Message | None) -> str | None:
    """Where it lies: None when it is done and gone, the reason when dead, else the lane."""
    if message is None:
        return None
    return message.reason if message.lane is Lane.DEAD else str(message.lane)


def everything(store: Store) -> Iterator[Message]:
    """Every message it holds."""
    cursor: str | None = None
    while True:
        page = store.peek(None, limit=1000, cursor=cursor)
        yield from page.messages
        cursor = page.cursor
        if cursor is None:
            return
