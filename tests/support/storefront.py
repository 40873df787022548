"""A small shop as a newcomer has it on the second day, with five dead messages; and its command line, in process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from click.utils import _detect_program_name  # type: ignore[attr-defined]  # what click puts before each command

from redrive import Draft
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.program.main import run
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.dlq import DeadLetters

FINGERPRINT, OTHER = "ab" * 8, "cd" * 8
APP = """
from redrive import App, AutoRedrive, Breaker

app = App("sqlite:///work.db")
app.queue("crm", auto_redrive=AutoRedrive(base="60s"))
app.dependency("stripe", breaker=Breaker())

@app.task(name="crm.push", queue="crm", dependency="stripe")
def push(record_id: int = 0, note: str = "") -> None: ...

@app.task(name="count", queue="crm")
def count(number: int, *, dry: bool = False) -> None: ...

@app.task(name="mail.send", queue="mail")
def send(to: str = "") -> None: ...

@app.periodic("0 3 * * *")
@app.task(name="nightly", queue="crm")
def nightly() -> None: ...
"""


class Answer(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def three(self) -> tuple[str, str, str]:
        """The three lines of its error, which are the last of stderr."""
        lines = [line.partition(": ") for line in self.err.splitlines() if line.startswith(("error:", "why:", "next:"))]
        assert [word for word, *_ in lines] == ["error", "why", "next"], self.err
        what, why, next = (text for *_, text in lines)
        return what, why, next


class Shop:
    """Its folder, and the names of what is in its store."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.program = _detect_program_name()
        self.names: dict[str, str] = json.loads((folder / "names.json").read_text())

    def __call__(self, *words: str) -> Answer:
        """Run `redrive WORDS` in its folder."""
        self._monkeypatch.delitem(sys.modules, "shop", raising=False)  # each process imports its app itself
        code = run(words)
        told = self._capsys.readouterr()
        return Answer(code, told.out, told.err)

    def line(self, text: str) -> Answer:
        """Run a line as it is typed into a shell, with the names of what is there for those in capitals."""
        return self(*shlex.split(self.named(text).removeprefix(f"{self.program} ")))

    def named(self, text: str) -> str:
        """The text with the names of what is in the store for those in capitals."""
        for name, value in self.names.items():
            text = text.replace(name, value)
        return text

    def again(self, told: Answer) -> Answer:
        """Run the next command of an error."""
        *_, next = told.three
        assert next.startswith(f"{self.program} "), next
        return self.line(next)

    def columns(self, count: int) -> None:
        """Let its terminal be so wide."""
        self._monkeypatch.setenv("COLUMNS", str(count))

    def store(self) -> closing[SqliteStore]:
        return closing(SqliteStore(self.folder / "work.db"))


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the shop, made once and copied for each test."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(APP)
    (folder / "redrive.toml").write_text('app = "shop:app"\n')
    (folder / "events.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    with closing(SqliteStore(folder / "work.db")) as store:
        crm = buried(store, 4, Draft(task="crm.push", queue="crm", body=b'{"record_id":7}'), "exhausted", FINGERPRINT)
        mail = buried(store, 2, Draft(task="mail.send", queue="mail", body=b'{"to":"ann"}'), "rejected", OTHER)
        letters = DeadLetters(store)
        letters.quarantine([crm[3]], reason="it kills their parser")
        letters.export(f"id:{crm[0]}", str(folder / "dead.jsonl"))
        waiting = store.put([Draft(task="crm.push", queue="crm", delay_ms=3_600_000)])[0].id
        plan = letters.select(f"id:{crm[1]}").plan()
        applied = letters.select(f"id:{crm[2]}").plan()
        applied.start(reason="r")
    names = (crm[0], crm[3], mail[0], waiting, plan.id, applied.id, FINGERPRINT)
    words = ("DEAD", "POISON", "MAIL", "WAITING", "PLAN", "RUN", "FINGERPRINT")
    (folder / "names.json").write_text(json.dumps(dict(zip(words, names, strict=True))))
    return folder


def buried(store: SqliteStore, count: int, draft: Draft, reason: str, fingerprint: str) -> list[str]:
    """Put that many messages into the store and let them die; returns their ids."""
    ids = [put.id for put in store.put([draft] * count)]
    fault = Fault(Kind.PERMANENT, "ConnectionError", "no answer", fingerprint, attempt=1)
    taken = store.exchange([], [ClaimRequest(draft.queue, count, 30_000)]).deliveries
    store.exchange([Settlement(each.receipt, DeadLetter(reason), fault) for each in taken], [])
    return ids


@pytest.fixture
def shop(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shop]:
    folder = shutil.copytree(filled, tmp_path / "shop")
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("REDRIVE_") or name == "COLUMNS"]:
        monkeypatch.delenv(name)
    yield Shop(folder, monkeypatch, capsys)
    sys.modules.pop("shop", None)
