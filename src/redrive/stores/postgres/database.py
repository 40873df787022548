"""One schema of a PostgreSQL database: its connections, listener and clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

import psycopg
from msgspec.structs import replace

from ...message import Cell, Draft, PutResult, Swap
from ...store import Cells, Store, Traits
from ..failpoints import no_failpoint
from ..state_dir import state_dir
from . import cells, groups
from . import writes as changes
from .damage import Beyond
from .doctor import preflight
from .exchange import Exchanges
from .floors import Floors
from .listen import Listener
from .rows import texts
from .schema import open_schema
from .session import Session
from .statements import AnyConnection, Statements, prepared
from .url import parse

TICK_S = 0.01  # how often a waiting thread reads a clock that is set by hand
NAMES_MAX = 2500  # an index row has at most 2,704 bytes: the rest is for numbers and headers


class PostgresDatabase(Store):
    """The parts that all of the PostgreSQL store shares: session, statements, listener and floors."""

    traits: Traits = Traits(
        name="postgres",
        names_bytes_max=NAMES_MAX,
        batches=True,
        hastens=True,
        edits=True,
        takes_over=True,
        replaces=True,
    )

    def __init__(self, url: str, *, clock_ms: Callable[[], int] | None = None) -> None:
        self.failpoint: Callable[[str], None] = no_failpoint  # tests set one that kills the process or raises
        self._link = Session(parse(url), failpoint=self._at)
        self._st = Statements(prepared(self._link.schema), self._link.now_ms, clock_ms)
        try:
            preflight(self._link)
            self._link.read_only = why = open_schema(self._link).read_only
        except BaseException:
            self._link.close()
            raise
        self.traits = replace(type(self).traits, read_only=why)
        self._floors = Floors(self._link, self._st)
        beyond = Beyond(self._link, self._st)
        self._link.mend = beyond.mend
        self._exchanges = Exchanges(self._link, self._st, self._floors, beyond, self._at)
        self._listener = Listener(self._link, now_ms=self.now_ms, tick_s=TICK_S if clock_ms else inf)
        self._link.store_ms, self._link.on_late = self.now_ms, self._floors.expect
        self._floors.on_kept = self._listener.attend
        self.state_dir: Path | None = state_dir(f"{self._link.url.place}/{self._link.schema}")
        self.cells: Cells = PostgresCells(self)
        self._swept_ms, self._keys_at, self._lines_at = self.now_ms(), 0, ("", "")

    def _at(self, point: str) -> None:
        self.failpoint(point)

    def now_ms(self) -> int:
        return self._st.now_ms()

    def _write(
        self, c: AnyConnection, drafts: Sequence[Draft], given: Sequence[str], swaps: Sequence[Swap]
    ) -> list[PutResult]:
        """Write the drafts and swaps of a put in the caller's transaction; returns the result of each draft."""
        now, names = self._st.now(), cells.names_of(drafts)
        self.failpoint("put")
        if names:
            groups.lock(self._st, c, names, now)
        puts = changes.insert_all(self._st, c, drafts, given, now)
        groups.admit(self._st, c, names, now)
        if swaps:
            cells.swap_all(self._st, c, swaps, now)
        return puts

    def _look(self, name: str, *args: Any) -> list[tuple[Any, ...]]:
        return self._link.read(lambda c: self._st.rows(c, name, *args))

    def close(self) -> None:
        self._listener.close()
        self._link.close()


class PostgresCells:
    """The cells of a PostgreSQL store, in the schema of its messages."""

    def __init__(self, store: PostgresDatabase) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        rows = self._store._look("read_cells", texts(keys), self._store._st.now())
        cells = {key: Cell(version, value) for key, version, value in rows}
        return [cells.get(key) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        st = self._store._st

        def work(c: AnyConnection, pipeline: psycopg.Pipeline) -> cells.SentSwaps:
            st.do(c, "patience", durable)
            return cells.try_swaps(st, c, swaps, st.now())

        return self._store._link.pipeline(work, locked=durable).won() if swaps else []
