"""What SQLite did for a call of the store: each statement, with its parameters, its plan and the steps it took."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrive.stores.sqlite.store import SqliteStore

STEPS = 10  # of SQLite's virtual machine, for which it calls once


class Ran:
    """A statement that was run."""

    def __init__(self, sql: str, args: Any) -> None:
        self.sql, self.args, self.steps = sql, args, 0
        self.plan: list[str] = []

    @property
    def walks(self) -> list[str]:
        """The parts of its plan that go through more than what they look up: `SCAN …`."""
        return [line for line in self.plan if line.startswith("SCAN") and "message" in line]

    @property
    def sorts(self) -> bool:
        return any("TEMP B-TREE" in line for line in self.plan)

    def __repr__(self) -> str:
        return "\n  ".join([f"{self.steps} steps: {' '.join(self.sql.split())[:100]}", *self.plan])


class _Recorder:
    """A connection that writes down what is run on it."""

    def __init__(self, c: sqlite3.Connection, ran: list[Ran]) -> None:
        self._c, self._ran = c, ran
        c.set_progress_handler(self._stepped, STEPS)

    def _stepped(self) -> None:
        if self._ran:
            self._ran[-1].steps += STEPS

    def execute(self, sql: str, args: Any = ()) -> sqlite3.Cursor:
        self._ran.append(Ran(sql, args))
        return self._c.execute(sql, args)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        rows = list(rows)
        self._ran.append(Ran(sql, rows[0]))
        return self._c.executemany(sql, rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._c, name)


class Recorded(SqliteStore):
    """A store whose statements are written down."""

    def __init__(self, path: Path) -> None:
        self._ran: list[Ran] = []
        super().__init__(path, synchronous="normal")

    def _connect(self) -> sqlite3.Connection:
        return _Recorder(super()._connect(), self._ran)  # type: ignore[return-value]

    def ran(self, do: Callable[[], object], *, sweeps: bool = False) -> list[Ran]:
        """The statements that `do` ran on tables of the store, in their order; without the sweep of each minute, which
        a busy machine would come to in it, unless it `sweeps`."""
        self._swept_ms = self._cells_swept_ms = 0 if sweeps else self.now_ms()
        self._ran.clear()
        do()
        found = [ran for ran in self._ran if "message" in ran.sql or "queue" in ran.sql]
        with sqlite3.connect(self.path) as c:
            for ran in found:
                ran.plan = [row[3] for row in c.execute(f"explain query plan {ran.sql}", ran.args)]
        c.close()
        return found
