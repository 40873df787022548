"""What people do to queues, flow control and the files of dead letters is in the audit log, on every store, in the
commit of what they did; on SQS, which commits nothing with it, right after."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Breaker, Draft
from redrive.audit.log import Audit, Entry
from redrive.errors import Conflict, StoreUnavailable
from redrive.message import ClaimRequest, DeadLetter, Settlement
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.testing.sqs import SqsServer
from redrive.triage.pauses import pause, resume
from redrive.triage.purge import purge

WHY = "by hand"


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "sqs"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    own = {"postgres": "schema", "redis": "namespace"}.get(request.param)
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'work.db'}"}.get(request.param)
    if own is not None:
        url = f"{request.getfixturevalue(f'{request.param}_server').url}?{own}=audit_{secrets.token_hex(4)}"
    if request.param == "sqs":
        server = request.getfixturevalue("sqs")
        url = f"sqs://eu-central-1/shop?create=true&endpoint={server.url}&triage=sqlite:///{tmp_path}/dead.db"
    made = App(url)

    @made.task(name="push", dependency="shop")
    def push(record_id: int) -> None: ...

    made.dependency("shop", breaker=Breaker())
    yield made
    made.store.close()


@pytest.fixture
def sqs() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server


def log(store: Store) -> list[tuple[str, str, str, str, int]]:
    """The newest first: action, who, why, what it was done to, how many messages."""
    return [(e.action, e.claimed, e.reason, e.about, e.count) for e in Audit(store)]


def dead(app: App, count: int) -> list[str]:
    ids = [put.id for put in app.store.put([Draft(task="push") for _ in range(count)])]
    taken = app.store.exchange([], [ClaimRequest("default", count, 30_000)]).deliveries
    app.store.exchange([Settlement(each.receipt, DeadLetter("exhausted")) for each in taken], [])
    return ids


def test_a_pause_and_its_end(app: App) -> None:
    pause(app.store, "crm", actor="ann", reason=WHY)
    assert app.store.paused() == {"crm"}
    resume(app.store, "crm", actor="bob")
    assert app.store.paused() == frozenset()
    assert log(app.store) == [("resume", "bob", "", "queue/crm", 0), ("pause", "ann", WHY, "queue/crm", 0)]


def test_a_breaker_that_is_held_and_let_go(app: App) -> None:
    app.flow.open("shop", reason=WHY, actor="ann")
    app.flow.auto("shop", reason="they are back", actor="bob", key="eu")
    assert app.flow.show("shop").breaker == "forced_open"
    entries = [*Audit(app.store)]
    assert [e.text for e in entries] == ["breaker: closed to closed", "breaker: closed to forced_open"]
    assert log(app.store) == [
        ("flow", "bob", "they are back", "flow/shop/eu", 0),
        ("flow", "ann", WHY, "flow/shop", 0),
    ]


@pytest.mark.parametrize("app", ["memory", "sqlite", "postgres", "redis"], indirect=True)
def test_an_export_and_an_import(app: App, tmp_path: Path) -> None:
    ids, file, stream = dead(app, 3), tmp_path / "dead.jsonl", io.BytesIO()
    app.dlq.export("queue:default", file, reason=WHY, actor="ann")
    app.dlq.export(f"id:{ids[0]}", stream, actor="bob")
    app.dlq.export("queue:none", stream, actor="bob")  # nothing left
    app.dlq.discard(ids[:2], reason=WHY, actor="ann")
    assert len(app.dlq.import_(file, reason="too many", actor="bob")) == 2
    told = [(e.action, e.claimed, e.reason, e.about, set(e.ids), e.count) for e in Audit(app.store)]
    assert told == [
        ("import", "bob", "too many", str(file), {*ids[:2]}, 2),
        ("discard", "ann", WHY, "", {*ids[:2]}, 2),
        ("export", "bob", "", f"id:{ids[0]}", {ids[0]}, 1),
        ("export", "ann", WHY, "queue:default", {*ids}, 3),
    ]


@pytest.mark.parametrize("app", ["memory", "sqlite", "postgres", "redis"], indirect=True)  # SQS lists nothing
def test_a_purge(app: App) -> None:
    app.store.put([Draft(task="push", queue="crm") for _ in range(700)])
    assert purge(app.store, "crm", actor="ann", reason=WHY).cancelled == 700
    purge(app.store, "crm", actor="bob")  # of nothing
    assert log(app.store) == [("purge", "ann", WHY, "queue/crm", 700)]


# -- one commit


class Failing(MemoryStore):
    """A store whose next call of that name fails."""

    fails = ""

    def _refuse(self, name: str) -> None:
        if self.fails == name:
            self.fails = ""
            raise StoreUnavailable(f"{name} is out")

    def configure(self, *args: Any, **options: Any) -> None:
        super().configure(*args, **options)
        self._refuse("configured")

    def restore(self, *args: Any, **options: Any) -> list[bool]:
        self._refuse("restore")
        return super().restore(*args, **options)


def test_a_pause_that_fails_is_not_in_the_log_and_one_whose_answer_is_lost_is() -> None:
    class Taken(MemoryStore):
        """Refuses the first commit, as another entry came first."""

        tries = 0

        def configure(self, *args: Any, **options: Any) -> None:
            self.tries += 1
            if self.tries == 1:
                Audit(self).keep(Audit(self).entry("rule", "bob"))
            super().configure(*args, **options)

    taken = Taken()
    pause(taken, "crm", actor="ann")
    assert taken.tries == 2 and taken.paused() == {"crm"}
    assert [entry.action for entry in Audit(taken)] == ["pause", "rule"]
    failing = Failing()
    failing.fails = "configured"
    with pytest.raises(StoreUnavailable):
        pause(failing, "crm", actor="ann")
    assert failing.paused() == {"crm"} and [entry.action for entry in Audit(failing)] == ["pause"]


def test_an_import_that_fails_is_not_in_the_log() -> None:
    app, store, stream = App("memory://"), Failing(), io.BytesIO()
    app.task(name="push")(lambda record_id: None)
    dead(app, 2)
    app.dlq.export("", stream)
    other = App(store=store)
    store.fails = "restore"
    with pytest.raises(StoreUnavailable):
        other.dlq.import_(io.BytesIO(stream.getvalue()), reason=WHY)
    assert log(store) == []
    assert len(other.dlq.import_(io.BytesIO(stream.getvalue()), reason=WHY, actor="ann")) == 2
    assert [entry.action for entry in Audit(store)] == ["import"]


def test_a_purge_that_is_cut_off_is_in_the_log_with_what_waited() -> None:
    store = MemoryStore()
    store.put([Draft(task="push", queue="crm") for _ in range(700)])

    def cut(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purge(store, "crm", actor="ann", reason=WHY, tick=cut)
    assert store.counts("crm").done == 500
    assert log(store) == [("purge", "ann", WHY, "queue/crm", 700)]
    purge(store, "crm", actor="ann", reason="the rest")
    assert log(store)[0] == ("purge", "ann", "the rest", "queue/crm", 200)


def test_an_export_has_its_entry_before_the_file_has_its_name(tmp_path: Path) -> None:
    app, file = App("memory://"), tmp_path / "dead.jsonl"
    app.task(name="push")(lambda record_id: None)
    dead(app, 2)
    kept = Audit.keep

    def watched(audit: Audit, entry: Entry) -> None:
        assert not file.exists()
        kept(audit, entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Audit, "keep", watched)
        app.dlq.export("", file, actor="ann")
    assert file.exists() and log(app.store) == [("export", "ann", "", "all", 2)]

    def refused(audit: Audit, entry: Entry) -> None:
        raise Conflict("others write")

    file.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Audit, "keep", refused)
        with pytest.raises(Conflict):
            app.dlq.export("", file, actor="ann")
    assert [*tmp_path.iterdir()] == [], "no file without its entry"


def test_a_breaker_whose_entry_meets_another_is_set_once() -> None:
    app = App("memory://")
    app.dependency("shop", breaker=Breaker())
    app.task(name="push", dependency="shop")(lambda record_id: None)
    put, tries = app.store.put, list[int]()

    def contended(drafts: Any, *, swaps: Any = (), tx: Any = None) -> Any:
        tries.append(1)
        if len(tries) == 1:
            app.store.cells.swap([swaps[-1]])  # another was quicker
        return put(drafts, swaps=swaps, tx=tx)

    app.store.put = contended  # type: ignore[method-assign]
    assert app.flow.open("shop", reason=WHY, actor="ann").breaker == "forced_open"
    assert len(tries) >= 2 and len(app.flow.show("shop").transitions) == 1
