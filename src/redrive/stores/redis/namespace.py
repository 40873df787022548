"""A namespace of a Redis server: its connections, scripts and clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...errors import Conflict, EnqueueError
from ...message import Cell, Swap
from ...store import Cells, Store, Traits
from ..failpoints import no_failpoint
from ..state_dir import state_dir
from ..url import REDIS_GROUPS_BY
from .arguments import Arguments, Zone
from .exchange import swap_rows
from .pages import RedisSearch
from .preflight import preflight
from .rows import id_text, names_of
from .session import Session
from .url import RedisUrl
from .wake import Wake

LOOK_EVERY_S = 0.01  # how often a waiting thread reads `clock_ms`, a clock set by hand


class RedisNamespace(Store):
    """The parts that all of the Redis store shares: session, waits and clock."""

    traits: Traits = Traits(
        name="redis", groups_by=REDIS_GROUPS_BY, batches=True, hastens=True, edits=True, takes_over=True, replaces=True
    )

    def __init__(self, url: str, *, clock_ms: Callable[[], int] | None = None) -> None:
        self.failpoint: Callable[[str], None] = no_failpoint  # tests set one that kills the process or raises
        self._clock_ms = clock_ms
        at = RedisUrl.parse(url)
        self._link = Session(at, failpoint=lambda point: self.failpoint(point))
        self._wake = Wake(self._link, look_every_s=math.inf if clock_ms is None else LOOK_EVERY_S)
        self.state_dir: Path | None = state_dir(f"{at.shown.partition('@')[2] or at.shown}/{at.namespace}")
        self._looks = RedisSearch(self._call, self._queues)
        try:
            preflight(self._link)
        except BaseException:
            self.close()
            raise
        self.traits = replace(type(self).traits, read_only=self._link.read_only)
        self._swept_ms = self.now_ms()
        self._has_batches = False  # True: this namespace is known to have had a batch
        self.cells: Cells = RedisCells(self)

    def now_ms(self) -> int:
        return self._link.now_ms() if self._clock_ms is None else self._clock_ms()

    def _saw_clock(self, now: int, sent_s: float) -> None:
        if self._clock_ms is None:
            self._link.saw_clock(now, sent_s)

    def _now(self) -> bytes:
        """Return the time as an argument for a script; empty if the script must read the server's clock."""
        return b"" if self._clock_ms is None else b"%d" % self._clock_ms()

    def _call(self, script: str, asked: Any, *blobs: bytes) -> Any:
        arguments = Arguments()
        for blob in blobs:
            arguments.blob(blob)
        return self._link.call(script, arguments.listed(self._now(), asked))

    def _begin_batches(self, zones: Iterable[Zone]) -> None:
        """Before members of batches are written in any of these zones: exclude programs that cannot count them."""
        for *_, batch in zones:
            if batch is not None and not self._has_batches:
                self._call("begin_batches", None)
                self._has_batches = True

    def close(self) -> None:
        self._wake.close()
        self._link.close()

    def _check_written(self, reply: Any, swaps: Sequence[Swap]) -> Any:
        """Return the reply of a script that writes. Raises the error if the reply says why nothing was written."""
        if reply[0] == b"stored":
            raise EnqueueError(f"a message with id {id_text(reply[1].hex())} is already stored; nothing was written")
        if reply[0] == b"conflict":
            swap = swaps[reply[1] - 1]
            raise Conflict(f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again")
        return reply

    def _queues(self) -> list[str]:
        held, said = self._named()
        return sorted(held | said)

    def _named(self) -> tuple[set[str], set[str]]:
        """Return the queues that have ever had messages, and the queues that have settings."""
        held, said = self._call("queues", None)
        return {*names_of(held)}, {*names_of(said)}


class RedisCells:
    """The cells of a Redis store, in the namespace of its messages."""

    def __init__(self, store: RedisNamespace) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        cells = self._timed("read_cells", Arguments(), (keys,))
        return [None if cell is None else Cell(*cell) for cell in cells]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        arguments = Arguments()
        words = self._timed("swap_cells", arguments, (swap_rows(swaps, arguments),))
        return [word == 1 for word in words]

    def _timed(self, script: str, arguments: Arguments, asked: Any) -> Any:
        """Run a script and set the clock by the time in its reply, so that no later reading is before this call."""
        sent_s = time.monotonic()
        now, answer = self._store._link.call(script, arguments.listed(self._store._now(), asked))
        self._store._saw_clock(now, sent_s)
        return answer
