"""What PostgreSQL did for a call of the store: it writes the plan of each statement, with what it read, into its log.

So these are the very statements, with their parameters, prepared and planned as they are where the store works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from tests.support.servers import PostgresServer

from redrive.stores.postgres.store import PostgresStore

_SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
}
OPTIONS = "options=" + quote(" ".join(f"-c {name}={value}" for name, value in _SETTINGS.items()))


class Plan:
    """The plan of one statement that was run; of its nodes those are told that touch the table of messages."""

    def __init__(self, sql: str, root: dict[str, Any]) -> None:
        self.sql, self._root = sql, root

    def _nodes(self, node: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        node = node or self._root
        yield node
        for child in node.get("Plans", ()):
            yield from self._nodes(child)

    @property
    def _scans(self) -> list[dict[str, Any]]:
        return [n for n in self._nodes() if n.get("Relation Name") == "message" and n["Node Type"] != "ModifyTable"]

    @property
    def indexes(self) -> set[str]:
        """The indexes by which it went; a scan without one stands here as what it is."""
        ran = [n for n in self._scans if n["Actual Loops"]]
        return {n.get("Index Name", n["Node Type"]) for n in ran if n["Node Type"] != "Tid Scan"}

    @property
    def could_scan(self) -> bool:
        """Whether there is a part, run or not, that would read the whole table."""
        return any(n["Node Type"] in ("Seq Scan", "Bitmap Heap Scan") for n in self._scans)

    def scanned(self, table: str) -> bool:
        """Whether there is a part, run or not, that would read this whole table."""
        scans = [n for n in self._nodes() if n.get("Relation Name") == table]
        return any(n["Node Type"] in ("Seq Scan", "Bitmap Heap Scan") for n in scans)

    @property
    def rows(self) -> int:
        """How many rows it looked at, those that it threw away among them."""
        read = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        return sum(round(n["Actual Loops"] * sum(n.get(name, 0) for name in read)) for n in self._scans)

    @property
    def sorts(self) -> int:
        """The longest of what it sorted."""
        of = [n["Plans"][0] for n in self._nodes() if n["Node Type"].endswith("Sort")]
        return max((round(n["Actual Rows"]) for n in of if n["Actual Loops"]), default=0)

    @property
    def index_only(self) -> bool:
        return all(n["Node Type"] == "Index Only Scan" for n in self._scans)

    @property
    def buffers(self) -> int:
        """Pages it looked at, in memory or not."""
        return int(self._root["Shared Hit Blocks"] + self._root["Shared Read Blocks"])

    def __repr__(self) -> str:
        lines = [f"{self.buffers} buffers, {self.rows} rows, {self.sorts} sorted: {' '.join(self.sql.split())[:100]}"]
        for n in self._scans:
            words = (n["Node Type"], n.get("Index Name", ""), n["Actual Loops"], "×", n["Actual Rows"])
            removed = n.get("Rows Removed by Filter", 0)
            lines.append(f"  {' '.join(map(str, words))}, {removed} removed; {n.get('Index Cond')}; {n.get('Filter')}")
        return "\n".join(lines)


def _named(sql: str) -> str:
    """Of a statement that is put together when it is asked."""
    if sql.startswith("select (select count"):
        return "counted"
    return "failure_groups" if "g.count" in sql else "peek"


class Explained:
    """A store on this server, and the plans of what it does. `floors`: it keeps floors where looks take long; else only
    those that a test keeps, so that no plan hangs on how busy the machine is."""

    def __init__(self, server: PostgresServer, schema: str, *, floors: bool = False) -> None:
        self.url = f"{server.url}?schema={schema}&timeout=100&{OPTIONS}"
        self.store = PostgresStore(self.url)
        if not floors:
            self.store._floors._due = lambda queues: None  # type: ignore[method-assign]
        self._log = server.folder / "log"
        self._names = {sql.decode(): name for name, sql in self.store._st.sql.items()}

    def plans(self, do: Callable[[], object]) -> dict[str, Plan]:
        """Of each statement that `do` ran, by its name in statements.sql, the plan: of one that ran more than once, the
        one that read most. `peek` is a page of `peek`, `counted` what is counted to choose the way to it."""
        begin = self._log.stat().st_size
        do()
        with self._log.open(encoding="utf-8", errors="replace") as log:
            log.seek(begin)
            written = log.read()
        found: dict[str, Plan] = {}
        for part in written.split("plan:\n")[1:]:
            told = json.JSONDecoder().raw_decode(part.lstrip())[0]
            plan = Plan(told["Query Text"], told["Plan"])
            name = self._names.get(plan.sql, _named(plan.sql))
            if name not in found or plan.buffers > found[name].buffers:
                found[name] = plan
        return found

    def plan(self, name: str, do: Callable[[], object]) -> Plan:
        return self.plans(do)[name]
