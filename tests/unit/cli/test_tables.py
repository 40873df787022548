"""Every table, as it is at 80, 100 and 140 columns of a terminal and in a pipe: compared with the files of
`tests/data/tables`, which `REDRIVE_GOLDEN=write` writes again for a person to look at."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.attack.commands import Said, command

from redrive import Draft, audit
from redrive.duration import rfc3339
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Quarantine, Settlement, Swap
from redrive.present.table import Column, relative, table
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing.clock import ManualClock
from redrive.triage.actions import Actions
from redrive.triage.annotations import Annotations
from redrive.triage.redrive import plan as plans
from redrive.triage.redrive import run as runs
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.records import Failure, failures_cell
from redrive.triage.selection import Selection

GOLDEN = Path(__file__).parents[2] / "data" / "tables"
CRM = "connect to https://crm.example/api/v2/customers/4711 timed out after 30 s: the upstream did not answer"
APP = """
import time
from redrive import Aimd, App, Breaker, Budget
from redrive.stores.sqlite.store import SqliteStore
app = App(store=SqliteStore("work.db", clock_ms=lambda: time.time_ns() // 1_000_000))
app.dependency("crm", breaker=Breaker(), budget=Budget(), rate="20/s")
app.dependency("mail-gateway-of-the-second-region", concurrency=Aimd())
@app.periodic("*/5 * * * *", name="refresh", tz="Europe/Berlin")
def refresh() -> None: ...
@app.periodic("0 3 * * *", name="nightly-reconciliation-of-invoices")
def reconcile() -> None: ...
"""
TABLES = (
    "dlq list", "dlq list --quarantine", "dlq groups", "dlq audit", "dlq rule", "job list", "queue list", "run list",
    "group list crm", "flow list", "schedule list", "schedule next refresh --after 2026-01-31T15:04:05Z", "policy list",
    "policy preview emails", "job cancel 00", "run failures RUN",
)  # fmt: skip


class Scene:
    """A store with something in every table, whose clock stands still."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.store = clock, SqliteStore("work.db", clock_ms=clock)
        self.die("crm.push", "crm", 3, Fault(Kind.TRANSIENT, "ConnectionError", CRM, "a1097e748bbaf6be", attempt=5))
        clock.advance("2h")
        self.die(
            "billing.invoices.send_reminder",
            "invoices-of-the-second-region",
            1,
            Fault(Kind.DEFAULT, "sqlalchemy.exc.IntegrityError", "duplicate key", "5adb8c5d5d8d7435", attempt=1),
        )
        self.die("crm.push", "crm", 1, Fault(Kind.CRASHED, "", "killed by signal 9", "00c1c5d5d8d74355", attempt=1),
                 quarantine=True)  # fmt: skip
        clock.advance("3m")
        Annotations(self.store).note("a1097e748bbaf6be", "CRM-77: their cluster moves", actor="ann@ops")
        Annotations(self.store).rule("5adb8c5d5d8d7435", "hold", actor="bo@ops", reason="until the migration is done")
        self.store.put([Draft(task="crm.push", queue="crm", group=f"tenant-{n % 2}") for n in range(3)])
        self.store.put([Draft(task="crm.push", queue="crm", delay_ms=7_200_000)])
        self.store.exchange([], [ClaimRequest("crm", 1, 30_000, worker="web-1.5f/worker-0")])
        self.start("queue:crm", "the CRM is back, says their status page; see CRM-77 for the story of the outage")
        Actions(self.store).discard(
            [self.die("crm.push", "crm", 1, Fault(Kind.TRANSIENT, "OSError", "down", "f1"))],
            reason="a test", actor="ann@ops",
        )  # fmt: skip
        clock.advance("42s")

    def die(self, task: str, queue: str, count: int, fault: Fault, *, quarantine: bool = False) -> str:
        ids = [put.id for put in self.store.put([Draft(task=task, queue=queue) for _ in range(count)])]
        taken = self.store.exchange([], [ClaimRequest(queue, count, 30_000)]).deliveries
        decision = Quarantine("it kills", reason="poison") if quarantine else DeadLetter("exhausted")
        self.store.exchange([Settlement(each.receipt, decision, fault) for each in taken], [])
        return ids[0]

    def start(self, selector: str, reason: str) -> None:
        settings = read_settings(rate="20/s")
        plan = plans.draw_up(self.store, Selection(self.store, selector), selector, settings)
        runs.begin(self.store, plan, actor="ann@ops", reason=reason)
        failed = [Failure(plan.id, "default", "KeyError", "'total' is not in the answer", "f2", self.clock())]
        (cell,) = self.store.cells.read([failures_cell(plan.id)])
        swap = Swap(failures_cell(plan.id), cell.version if cell else 0, msgspec.json.encode(failed), None)
        assert all(self.store.cells.swap([swap]))
        self.run = plan.id


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        clock = ManualClock()
        folder = tmp_path_factory.mktemp("tables")
        (folder / "shop16.py").write_text(APP)
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setattr(time, "time_ns", lambda: clock() * 1_000_000)
        patch.setattr(time, "time", lambda: clock() / 1000)
        for place in (audit.actor, audit.log, runs):  # the one name that differs between machines
            patch.setattr(place, "user", lambda: "ops@host")
        patch.setattr(os, "urandom", random.Random(16).randbytes)
        for name in [name for name in os.environ if name.startswith("REDRIVE_") and name != "REDRIVE_GOLDEN"]:
            patch.delenv(name)
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["redrive"])
        patch.setattr(sys.modules["__main__"], "__package__", None)  # that of `python -m pytest`
        found = Scene(clock)
        yield found
        found.store.close()


def at(columns: int | None, words: str, patch: pytest.MonkeyPatch) -> Said:
    """What a command says at a terminal that wide, or (None) into a pipe."""
    if columns is None:
        patch.delenv("COLUMNS", raising=False)
    else:
        patch.setenv("COLUMNS", str(columns))
    form = [] if columns is not None else ["-o", "tsv"]
    flags = [] if words.startswith("policy") else ["--app", "shop16:app"]
    said = command(*words.split(), *flags, *form, terminal=columns is not None)
    if flags:
        sys.modules.pop("shop16").app.store.close()  # the next command imports it again
    return said


@pytest.mark.parametrize("words", TABLES)
def test_table_is_as_its_golden_file(scene: Scene, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        columns or "piped": at(columns, words.replace("RUN", scene.run), monkeypatch)
        for columns in (80, 100, 140, None)
    }
    assert all(each.code == (1 if "cancel" in words else 0) for each in said.values()), said
    parts = [f"== {form}\n{each.out if each.code else each.text}" for form, each in said.items()]
    file = (
        GOLDEN
        / f"{words.partition(' --after')[0].removesuffix(scene.run).strip().replace(' ', '_').replace('--', '')}.txt"
    )
    if os.environ.get("REDRIVE_GOLDEN") == "write":
        file.write_text("\n".join(parts))
    assert "\n".join(parts) == file.read_text()


def test_verbose_shows_every_column_whole_with_exact_times(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    said = at(80, "dlq list -v", monkeypatch)
    assert CRM in said.out and "2025-06-15T15:06:40.000Z" in said.out and said.err == ""
    assert scene.store.peek("dead").messages[0].id in said.out


def test_ids_are_not_shortened_where_two_would_look_alike() -> None:
    ids = ["0199f3a1-0000-7000-8000-00000000000" + end for end in "12"]
    made = table([{"id": id} for id in ids], [Column("id")], 80, now_ms=0)
    assert made.lines[1:] == ids and made.left_out == ""


@pytest.mark.parametrize(
    ("ahead_s", "told"),
    [(0, "now"), (-1, "1s ago"), (-59, "59s ago"), (-60, "1m ago"), (-3600, "1h ago"), (-172_799, "47h ago"),
     (-172_800, "2d ago"), (90, "in 1m"), (7200, "in 2h")],
)  # fmt: skip
def test_time_is_told_by_its_distance_in_one_unit(ahead_s: int, told: str) -> None:
    assert relative(rfc3339(1_750_000_000_000 + ahead_s * 1000), 1_750_000_000_000) == told
