"""What is done is known for a while: by whom, when and for how long, on each engine."""

from __future__ import annotations

import json
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tests.support.sites import Browser
from tests.support.urls import url_of

from redrive import App, Reject
from redrive.errors import ConfigError
from redrive.history import done, done_by_queue, read_done
from redrive.history.done import DoneLog, DoneWriter
from redrive.ids import new_id
from redrive.message import Swap
from redrive.present.formats import milliseconds
from redrive.program.main import run
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.top.model import Model
from redrive.top.screens.messages import MessageDetail


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def an_app(url: str, known_for: str | int = "1h") -> App:
    app = App(url, known_for=known_for)

    @app.task(name="push", queue="crm")
    async def push(n: int) -> None:
        if n < 0:
            raise Reject("no")

    @app.task(name="mail", queue="post")
    def mail() -> None:
        time.sleep(0.03)

    return app


def test_what_a_worker_did_is_known_by_its_id(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = an_app(url)
    before_ms = app.store.now_ms()
    refs = app.enqueue_many([app.tasks["push"].draft(n) for n in range(-3, 300)] + [app.tasks["mail"].draft()])
    app.run_worker(["crm", "post"], drain=True)
    known = read_done(app.store, [ref.id for ref in refs])
    assert [ref.id in known for ref in refs] == [False] * 3 + [True] * 301
    assert {one.task for one in known.values()} == {"push", "mail"}
    mail = known[refs[-1].id]
    assert (mail.id, mail.queue, mail.task) == (refs[-1].id, "post", "mail")
    assert 30 <= mail.ran_ms < 30_000 and before_ms <= mail.at_ms <= app.store.now_ms() and mail.worker
    assert done_by_queue(app.store) == {"crm": 300, "post": 1}
    assert read_done(app.store, [new_id(app.store.now_ms()), "no id"]) == {}
    assert run(["job", "show", mail.id, "--url", url, "-o", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["state"], record["run_ms"], record["worker"]) == ("done", mail.ran_ms, mail.worker)
    assert run(["job", "show", mail.id, "--url", url, "-o", "table"]) == 0
    assert "mail in queue post is done" in capsys.readouterr().out
    told = MessageDetail(mail.id).read(Model(app.store, app, url)).lines
    assert [f"it ran {milliseconds(mail.ran_ms)} in worker {mail.worker}" in line for line in told] == [True]
    page = Browser(app.dashboard()).get(f"/messages/{mail.id}")
    assert page.status_code == 404 and f"message {mail.id} is done" in page.text
    assert f"it ran {milliseconds(mail.ran_ms)} in worker {mail.worker}" in page.text
    assert run(["queue", "list", "--url", url, "-o", "tsv"]) == 0
    names, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    rows = {row["queue"]: row for row in [dict(zip(names, line, strict=True)) for line in lines]}
    assert (rows["crm"]["done_1h"], rows["crm"]["done"], rows["post"]["done_1h"]) == ("300", "0", "1")
    app.store.close()


def test_with_known_for_0_nothing_is_written(url: str) -> None:
    app = an_app(url, known_for=0)
    (ref,) = app.enqueue_many([app.tasks["push"].draft(1)])
    app.run_worker(["crm"], drain=True)
    assert read_done(app.store, [ref.id]) == {}
    app.store.close()


def test_processes_that_write_in_one_minute_lose_nothing(url: str) -> None:
    app = an_app(url)
    store = app.store
    written: list[list[str]] = []

    def write(number: int) -> None:
        writer = DoneWriter(store, threading.Lock(), 3_600_000)
        log, ids = writer.log(f"w{number}"), [new_id(store.now_ms()) for _ in range(50)]
        for id in ids:
            note(log, id, store.now_ms())
        writer.write()
        written.append(ids)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(12)))
    ids = [id for some in written for id in some]
    assert read_done(store, ids).keys() == {*ids}
    store.close()


def test_a_long_time_is_refused() -> None:
    with pytest.raises(ConfigError):
        an_app("memory://", known_for="25h")


def note(log: DoneLog, id: str, now_ms: int, ran_ms: float = 1) -> None:
    log.begun.append((len(log.ids), now_ms, ("crm", "push")))
    log.ids.append(id)
    log.ran.append(ran_ms)


def filled(store: Store, count: int, *, step_ms: int = 0) -> tuple[DoneWriter, list[str]]:
    writer = DoneWriter(store, threading.Lock(), 3_600_000)
    log = writer.log("w")
    ids = [new_id(store.now_ms() + n * step_ms) for n in range(count)]
    for n, id in enumerate(ids):
        note(log, id, store.now_ms(), n)
        if len(log.ids) >= done.CHUNK:
            log.close()
    return writer, ids


def test_each_message_has_its_own_duration_and_time() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    writer, ids = filled(store, 5000)
    writer.write()
    known = read_done(store, ids[::100])
    assert {id: known[id].ran_ms for id in known} == {id: n * 100 for n, id in enumerate(ids[::100])}
    log = writer.logs[0]
    first, second = new_id(store.now_ms()), new_id(store.now_ms())
    log.begun += [(0, 1000, ("a", "t")), (0, 2000, ("b", "u"))]  # of a, nothing was done
    log.ids += [first, second]
    log.ran += [2.6, 10**12]
    writer.write()
    known = read_done(store, [first, second])
    assert (known[first].queue, known[first].task, known[first].at_ms, known[first].ran_ms) == ("b", "u", 2000, 2)
    assert known[second].ran_ms == 2**32 - 1


def test_after_its_time_nothing_is_known_and_the_cells_are_swept() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    writer, ids = filled(store, 3)
    writer.write()
    clock.advance("59m")
    assert read_done(store, ids).keys() == {*ids}
    clock.advance("3m")
    assert read_done(store, ids) == {}
    store.exchange([], [])
    assert not store._tables._cells


def test_a_message_that_waited_for_hours_is_known() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    writer = DoneWriter(store, threading.Lock(), 3_600_000)
    old = new_id(store.now_ms())
    clock.advance("3d")
    note(writer.log("w"), old, store.now_ms())
    writer.write()
    assert read_done(store, [old]).keys() == {old}


def test_a_minute_takes_its_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(done, "MINUTE_BYTES", 100_000)
    clock = ManualClock()
    store = MemoryStore(clock)
    ids = []
    for _ in range(8):
        writer, some = filled(store, 1000)
        writer.write()
        ids += some
    known = read_done(store, ids)
    minute = store.now_ms() // 60_000
    indexes = [done._index_of(cell) for cell in store.cells.read([done._key(minute, n) for n in range(4)])]
    assert 0 < len(known) < len(ids)
    assert 50_000 < sum(size for index in indexes for size in index.values()) <= 100_000
    clock.advance("1m")
    writer, some = filled(store, 1000)
    writer.write()
    assert read_done(store, some).keys() == {*some}


def test_a_worker_whose_store_does_not_answer_keeps_a_bounded_number() -> None:
    log = DoneLog("w")
    for _ in range(done.FULL_MAX + 3):
        for _ in range(done.CHUNK):
            note(log, new_id(0), 0)
        log.close()
    assert len(log.take()) == done.FULL_MAX
    assert log.take() == []


def test_damage_makes_records_unknown_and_breaks_nothing() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    writer, ids = filled(store, 3)
    writer.write()
    keys = [key for key in store._tables._cells if len(key.rpartition("/")[2]) > 1]
    (cell,) = store.cells.read(keys)
    assert cell is not None
    store.cells.swap([Swap(keys[0], cell.version, b"\x93 no chunk")])
    assert read_done(store, ids) == {}
    (cell,) = store.cells.read(keys)
    assert cell is not None
    chunk = done._Chunk("w", 0, [("crm", "push")], [(1, 0, 0)], bytes.fromhex(ids[0].replace("-", "")), b"no zlib")
    store.cells.swap([Swap(keys[0], cell.version, done._encode(chunk))])
    assert read_done(store, ids) == {}
    for name in (1, -2):  # of none
        (cell,) = store.cells.read(keys)
        assert cell is not None
        altered = msgspec.structs.replace(chunk, runs=[(1, 0, name)], ran=zlib.compress(b"\0" * 4))
        store.cells.swap([Swap(keys[0], cell.version, done._encode(altered))])
        assert read_done(store, ids) == {}


def test_a_store_that_cannot_look_up_messages_writes_no_records() -> None:
    class Blind(MemoryStore):
        traits = done_traits = MemoryStore.traits

    from msgspec.structs import replace

    from redrive.history import Flusher, Recorder

    Blind.traits = replace(Blind.done_traits, finds=False)
    assert Flusher(Recorder({}, {}), Blind(), 1000).done is None
    assert Flusher(Recorder({}, {}), MemoryStore(), 0).done is None
