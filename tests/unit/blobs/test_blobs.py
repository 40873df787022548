"""Large bodies lie in blob storage: written before their message, removed after it, and lost by no crash between."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.workers import PATIENCE_S, SOON, Heard, Watched, stored, until

from redrive import App, Backoff, Context, Draft, Idempotency, Rate, Reject, Retry, context
from redrive.blobs import Blobs, ClaimCheck, Cleaner, FileBlobs, open_blobs, read_reference, whole_body, with_blobs
from redrive.blobs.claims import SWEEP_EVERY_MS, SWEPT_CELL
from redrive.blobs.place import is_key, new_key, owner, written_ms
from redrive.config import settings
from redrive.errors import BlobsUnavailable, ConfigError, Conflict, EnqueueError, TooLarge, Unreadable
from redrive.ids import new_id
from redrive.message import (
    BLOB,
    ClaimRequest,
    DeadLetter,
    Discard,
    Handle,
    Isolate,
    Lane,
    Message,
    Readmit,
    Redrive,
    Replace,
    Return,
    Settlement,
    Swap,
)
from redrive.store import Store, Traits
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing.clock import ManualClock
from redrive.worker import bodies as reading
from redrive.worker.bodies import READ_MAX

AT_ONCE = Retry(max_attempts=3, backoff=Backoff.fixed(0))
THRESHOLD, MAX = 1000, 5000
INLINE_MAX = Traits("any").body_bytes_max
BIG = "x" * 3000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDRIVE_BLOB_THRESHOLD", str(THRESHOLD))
    monkeypatch.setenv("REDRIVE_BLOB_MAX", str(MAX))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[App]:
    store: Store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "db", clock_ms=clock)
    made = App(store=store, blobs=f"file://{tmp_path}/blobs")
    yield made
    made.store.close()


def checked(app: App) -> ClaimCheck:
    assert isinstance(app.store, ClaimCheck)
    return app.store


def files(app: App) -> list[Path]:
    """Every file in the app's blob folder."""
    blobs = checked(app).blobs
    assert isinstance(blobs, FileBlobs)
    return sorted(blobs.folder.iterdir())


def keys(app: App, *ids: str) -> list[str]:
    """The keys that these messages refer to."""
    return sorted(read_reference(stored(app, id).body).blob for id in ids)


def names(app: App) -> list[str]:
    return [path.name for path in files(app)]


def body_of(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


def put(app: App, size: int = 3000, **fields: str) -> str:
    return app.store.put([Draft(task="t", body=body_of(size), content="raw", **fields)])[0].id  # type: ignore[arg-type]


def taking(app: App, got: list[str] | None = None) -> list[str]:
    """Register async task `take` and sync task `take_sync`; what they are given."""
    got = [] if got is None else got

    @app.task(name="take")
    async def take(text: str) -> None:
        got.append(text)

    @app.task(name="take_sync", ctx=True)
    def take_sync(ctx: Context, text: str) -> None:
        assert ctx.message.id
        got.append(text)

    return got


# -- how large


@pytest.mark.parametrize("size", [THRESHOLD - 1, THRESHOLD])
def test_body_up_to_the_threshold_lies_in_the_store(app: App, size: int) -> None:
    message = stored(app, put(app, size))
    assert (message.content, message.body) == ("raw", body_of(size))
    assert not files(app)


def test_body_a_byte_over_the_threshold_lies_in_a_blob(app: App) -> None:
    message = stored(app, put(app, THRESHOLD + 1))
    reference = read_reference(message.body)
    assert message.content == BLOB and owner(reference.blob) == message.id
    assert (reference.bytes, reference.content) == (THRESHOLD + 1, "raw")
    [path] = files(app)
    assert path.name == reference.blob and path.read_bytes() == body_of(THRESHOLD + 1)
    assert whole_body(app.store, message) == body_of(THRESHOLD + 1)
    assert len(message.body) < 300


def test_each_body_of_a_batch_is_measured_by_itself(app: App) -> None:
    sizes = [THRESHOLD, THRESHOLD + 1, 10, MAX]
    puts = app.store.put([Draft(task="t", body=body_of(size)) for size in sizes])
    assert [stored(app, put.id).content for put in puts] == ["json", BLOB, "json", BLOB]


@pytest.mark.parametrize("size", [MAX - 1, MAX])
def test_body_up_to_the_maximum_is_taken(app: App, size: int) -> None:
    assert app.body(stored(app, put(app, size))) == body_of(size)


def test_body_a_byte_over_the_maximum_is_refused_and_the_error_names_the_setting(app: App) -> None:
    with pytest.raises(TooLarge, match=rf"has {MAX + 1} bytes; this store takes {MAX}; blob_max \(REDRIVE_BLOB_MAX\)"):
        put(app, MAX + 1)
    assert not files(app) and app.counts().ready == 0


def test_follow_up_over_the_stores_own_limit_is_taken_up_to_the_maximum_of_blobs(app: App) -> None:
    assert app.store.traits.body_bytes_max == MAX
    assert app.store.traits.blob_threshold == THRESHOLD


@pytest.mark.parametrize("more", [-1, 0])
def test_without_blobs_a_body_up_to_the_stores_limit_lies_in_the_store(tmp_path: Path, more: int) -> None:
    app = App("memory://")
    assert type(app.store) is MemoryStore, "nothing stands between the app and its store"
    message = stored(app, put(app, INLINE_MAX + more))
    assert (message.content, len(message.body)) == ("raw", INLINE_MAX + more)


def test_without_blobs_a_body_a_byte_over_the_stores_limit_is_refused_and_the_error_names_the_fix() -> None:
    with pytest.raises(TooLarge, match=rf"has {INLINE_MAX + 1} bytes; this store takes {INLINE_MAX}; .*REDRIVE_BLOBS"):
        put(App("memory://"), INLINE_MAX + 1)


def test_threshold_above_what_the_store_takes_is_lowered_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(MemoryStore):
        traits = Traits("small", body_bytes_max=400)

    app = App(store=Small(), blobs=f"file://{tmp_path}/blobs")
    assert stored(app, put(app, 400)).content == "raw"
    assert stored(app, put(app, 401)).content == BLOB


def test_default_limits_are_those_that_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDRIVE_BLOB_THRESHOLD")
    monkeypatch.delenv("REDRIVE_BLOB_MAX")
    assert (settings().blobs, settings().blob_threshold, settings().blob_max) == (None, 200_000, 512 * 2**20)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("200_000", 200_000), ("200KB", 200_000), ("2 MiB", 2**21), ("1gb", 10**9)]
)
def test_sizes_are_bytes_or_carry_a_unit(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_BLOB_THRESHOLD", text)
    assert settings().blob_threshold == size


@pytest.mark.parametrize("text", ["-1", "many", "2 litres", "1.5MB"])
def test_size_that_is_none_is_refused_with_an_example(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_BLOB_MAX", text)
    with pytest.raises(ConfigError, match=r"^REDRIVE_BLOB_MAX = .* is refused: .*; expected bytes, or a size such as"):
        settings()


# -- where


def test_blobs_are_named_by_argument_variable_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not isinstance(App("memory://").store, ClaimCheck)
    (tmp_path / "redrive.toml").write_text(f'blobs = "file://{tmp_path}/from-file"\n')
    put(App("memory://"))
    monkeypatch.setenv("REDRIVE_BLOBS", f"file://{tmp_path}/from-variable")
    put(App("memory://"))
    put(App("memory://", blobs=f"file://{tmp_path}/from-argument"))
    assert all((tmp_path / f"from-{place}").is_dir() for place in ("file", "variable", "argument"))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("gs://bucket", "unknown scheme 'gs'; known: file:///DIRECTORY, s3://BUCKET/PREFIX"),
        ("s3://", "expected s3://BUCKET/PREFIX"),
        ("s3:///prefix", "expected s3://BUCKET/PREFIX"),
        ("s3://key:secret@bucket/x", "expected s3://BUCKET/PREFIX"),
        ("s3://bucket/x?zone=1", "unknown option 'zone'; known: region, endpoint"),
        ("flie:///x", "did you mean 'file'"),
        ("file://host/x", "three slashes"),
        ("file://x", "three slashes"),
        ("file:///x?y=1", "nothing more"),
        ("/srv/blobs", "it has no scheme; known: file:///DIRECTORY"),
        ("file:///%00", "nothing more"),
    ],
)
def test_place_that_cannot_be_meant_is_refused_when_the_store_is_opened(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        _ = App("memory://", blobs=url).store


def test_maximum_below_the_threshold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_BLOB_MAX", str(THRESHOLD - 1))
    with pytest.raises(ConfigError, match=f"blob_max is {THRESHOLD - 1} bytes, and blob_threshold {THRESHOLD}"):
        with_blobs(MemoryStore(), f"file://{tmp_path}")


def test_a_store_has_one_claim_check_at_most(app: App, tmp_path: Path) -> None:
    assert with_blobs(app.store, f"file://{tmp_path}/other") is app.store


def test_stores_that_share_a_directory_do_not_touch_each_others_blobs(tmp_path: Path) -> None:
    one, two = (App("memory://", blobs=f"file://{tmp_path}/blobs") for _ in range(2))
    mine, others = put(one), put(two)
    assert (one.collect_blobs(0), two.collect_blobs(0)) == (0, 0)
    assert names(one) == keys(one, mine) and names(two) == keys(two, others)


def test_processes_that_open_a_store_at_once_agree_on_its_place(tmp_path: Path) -> None:
    apps = [App(f"sqlite:///{tmp_path}/db", blobs=f"file://{tmp_path}/blobs") for _ in range(6)]
    threads = [threading.Thread(target=put, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(names(app)) for app in apps}) == 1 and len(files(apps[0])) == 6
    for app in apps:
        app.store.close()


# -- in, on every path, and out at its end


@pytest.mark.parametrize("task", ["take", "take_sync"])
def test_handler_gets_the_body_and_the_blob_goes_with_the_ack(app: App, task: str) -> None:
    got = taking(app)
    ref = app.tasks[task].enqueue(BIG)
    assert stored(app, ref.id).content == BLOB and len(files(app)) == 1
    app.run_worker(burst=True)
    assert got == [BIG] and app.job(ref.id) is None
    assert not files(app)


def test_every_way_to_enqueue_takes_large_bodies(app: App) -> None:
    got = taking(app)
    take = app.tasks["take"]

    async def asynchronously() -> None:
        await asyncio.gather(take.aenqueue(BIG + "1"), take.aenqueue("small"), take.aenqueue(BIG + "2"))
        await app.aenqueue_many([take.draft(BIG + "3")])

    asyncio.run(asynchronously())
    app.enqueue_many([take.draft(BIG + "4"), take.draft("tiny"), take.using(priority=1).draft(BIG + "5")])
    take.using(delay="1s").enqueue(BIG + "6")
    assert len(files(app)) == 6
    app.run_worker(burst=True)
    assert sorted(got) == sorted([BIG + n for n in "12345"] + ["small", "tiny"])
    assert len(files(app)) == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_follow_up_with_a_large_body_is_committed_with_the_ack(app: App, kind: str) -> None:
    got = taking(app)

    if kind == "async":

        @app.task(name="first")
        async def first(fail: bool) -> None:
            context().enqueue(app.tasks["take"], BIG)
            if fail:
                raise Reject("no")

    else:

        @app.task(name="first")
        def first_sync(fail: bool) -> None:
            context().enqueue(app.tasks["take_sync"], BIG)
            if fail:
                raise Reject("no")

    app.tasks["first"].enqueue(True)
    app.run_worker(burst=True)
    assert not got and app.counts().ready == 0 and not files(app)
    app.tasks["first"].enqueue(False)
    app.run_worker(burst=True)
    assert got == [BIG] and not files(app)


def test_transactional_put_writes_the_blob_before_and_a_rollback_leaves_it_to_be_collected(
    tmp_path: Path, clock: ManualClock
) -> None:
    seen: list[object] = []

    class Transactional(MemoryStore):
        def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: object = None) -> list[object]:  # type: ignore[override]
            seen.append(tx)
            raise Conflict("rolled back") if tx == "refused" else EOFError

    app = App(store=Transactional(clock), blobs=f"file://{tmp_path}/blobs")  # type: ignore[arg-type]
    draft = Draft(task="t", body=body_of(3000))
    with pytest.raises(EOFError):
        app.store.put([draft], tx="mine")  # type: ignore[call-arg]
    assert seen == ["mine"] and len(files(app)) == 1
    with pytest.raises(Conflict):
        app.store.put([draft], tx="refused")  # type: ignore[call-arg]
    assert len(files(app)) == 1, "what was refused for certain is removed at once"
    assert app.collect_blobs() == 0
    clock.advance("1h")
    assert app.collect_blobs() == 1 and not files(app)


def test_enqueue_in_a_transaction_holds_with_it_and_leaves_an_orphan_where_it_is_rolled_back(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/db", blobs=f"file://{tmp_path}/blobs")
    got = taking(app)
    take = app.tasks["take"]
    app.collect_blobs()  # or a worker, once
    connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
    connection.execute("begin immediate")
    rolled_back = take.using(tx=connection).enqueue(BIG + "1")
    connection.execute("rollback")
    connection.execute("begin immediate")
    refs = [take.using(tx=connection).enqueue(BIG + n) for n in "23"]
    assert [app.job(ref.id) for ref in refs] == [None, None]
    connection.execute("commit")
    connection.close()
    assert app.job(rolled_back.id) is None and len(files(app)) == 3
    app.run_worker(burst=True)
    assert sorted(got) == [BIG + "2", BIG + "3"]
    assert app.collect_blobs() == 0 and app.collect_blobs(0) == 1 and not files(app)
    app.store.close()


def test_first_large_body_ever_in_a_transaction_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.file.BUSY_TIMEOUT_S", 0.05)
    app = App(f"sqlite:///{tmp_path}/db", blobs=f"file://{tmp_path}/blobs")
    taking(app)
    app.counts()
    connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
    connection.execute("begin immediate")
    with pytest.raises(BlobsUnavailable, match="redrive store sweep"):
        app.tasks["take"].using(tx=connection).enqueue(BIG)
    connection.execute("rollback")
    connection.close()
    app.store.close()


def test_old_body_is_lifted_to_the_version_of_its_task(app: App) -> None:
    got: list[str] = []

    @app.task(name="new", version=2)
    async def new(words: str) -> None:
        got.append(words)

    @new.upcast(1)
    def lift(body: dict[str, str]) -> dict[str, str]:
        return {"words": body["text"]}

    app.store.put([Draft(task="new", body=msgspec.json.encode({"text": BIG}), version=1)])
    app.run_worker(burst=True)
    assert got == [BIG] and not files(app)


def test_message_kept_with_its_result_keeps_its_blob_until_the_row_is_gone(app: App, clock: ManualClock) -> None:
    @app.task(name="answer", keep_result="1h")
    async def answer(text: str) -> int:
        return len(text)

    ref = answer.enqueue(BIG)
    app.run_worker(burst=True)
    assert ref.wait(1) == len(BIG) and names(app) == keys(app, ref.id)
    clock.advance("2h")
    app.store.exchange([], [])  # sweeps what is kept no longer
    assert app.job(ref.id) is None
    app.run_worker(burst=True)
    assert not files(app)


def test_message_that_is_parked_for_a_newer_worker_is_not_read(app: App, tmp_path: Path, clock: ManualClock) -> None:
    got = taking(app)
    id = app.store.put([Draft(task="later", body=msgspec.json.encode({"text": BIG}))])[0].id
    (tmp_path / "blobs").rename(tmp_path / "unmounted")
    app.run_worker(burst=True)
    assert stored(app, id).state_at(clock()) == "scheduled" and stored(app, id).faults[-1].kind == "unroutable"
    (tmp_path / "unmounted").rename(tmp_path / "blobs")
    app.tasks["later"] = app.tasks["take"]
    clock.advance("10m")
    app.run_worker(burst=True)
    assert got == [BIG] and not files(app)


def test_retry_and_death_keep_the_blob_a_redrive_runs_with_it_and_the_ack_removes_it(app: App) -> None:
    fails, got = [1, 2, 3], []

    @app.task(name="flaky", retry=AT_ONCE)
    async def flaky(text: str) -> None:
        got.append(text)
        if fails:
            raise ConnectionError(fails.pop())

    ref = flaky.enqueue(BIG)
    app.run_worker(burst=True)
    assert stored(app, ref.id).reason == "exhausted" and got == [BIG] * 3
    assert names(app) == keys(app, ref.id)
    assert app.collect_blobs(0) == 0
    app.dlq.retry([ref.id])
    assert names(app) == keys(app, ref.id)
    app.run_worker(burst=True)
    assert got == [BIG] * 4 and app.job(ref.id) is None and not files(app)


def test_discard_removes_the_blob_of_what_it_discarded_only(app: App) -> None:
    taking(app)

    @app.task(name="no")
    async def no(text: str) -> None:
        raise Reject("no")

    gone, kept = no.enqueue(BIG), no.enqueue(BIG)
    app.run_worker(burst=True)
    handles = [Handle(gone.id, 0, Lane.DEAD), Handle(kept.id, 7, Lane.DEAD)]
    assert app.store.triage(handles, Discard("tidy")) == [True, False]
    assert names(app) == keys(app, kept.id)


def dead(app: App, size: int = 3000, **fields: str) -> Handle:
    """A message of this size, dead."""
    id = put(app, size, **fields)
    (delivery,) = app.store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
    app.store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    return Handle(id, 0, Lane.DEAD)


def test_a_message_on_its_way_there_and_back_keeps_its_blob(app: App) -> None:
    seen = dead(app)
    for verdict, lane in ((Redrive(run="r"), Lane.READY), (Return("r"), Lane.DEAD), (Isolate("x"), Lane.QUARANTINE)):
        assert app.store.triage([seen], verdict) == [True]
        message = stored(app, seen.id)
        assert message.lane is lane and names(app) == keys(app, seen.id)
        seen = Handle(message.id, message.redrives, message.lane)
    assert app.store.triage([seen], Readmit("y")) == [True]
    assert app.collect_blobs(0) == 0 and whole_body(app.store, stored(app, seen.id)) == body_of(3000)


@pytest.mark.parametrize("size", [10, 4000])
def test_what_replaces_a_message_has_a_blob_of_its_own(app: App, size: int) -> None:
    old, new = dead(app), new_id(app.store.now_ms())
    assert app.store.triage([old], Replace(Draft(task="t", id=new, body=body_of(size)), "a typo")) == [True]
    assert whole_body(app.store, stored(app, new)) == body_of(size)
    assert names(app) == (keys(app, new) if size > THRESHOLD else [])


def test_a_body_handed_on_to_what_replaces_it_is_copied(app: App) -> None:
    old, new = dead(app), new_id(app.store.now_ms())
    body = stored(app, old.id).body
    assert app.store.triage([old], Replace(Draft(task="t", id=new, body=body, content=BLOB), "headers")) == [True]
    assert whole_body(app.store, stored(app, new)) == body_of(3000) and names(app) == keys(app, new)


def test_a_replacement_that_is_not_written_leaves_no_blob(app: App) -> None:
    old, other = dead(app, key="k"), put(app, key="l")
    mended = Draft(task="t", id=new_id(app.store.now_ms()), body=body_of(4000))
    assert app.store.triage([old._replace(redrives=7)], Replace(mended, "no")) == [False]
    with pytest.raises(Conflict):
        app.store.triage([old], Replace(mended, "no"), swaps=[Swap("cell", 3, b"")])
    with pytest.raises(EnqueueError):
        app.store.triage([old], Replace(replace(mended, key="l"), "no"))
    assert names(app) == keys(app, old.id, other)


def test_restored_messages_get_blobs_where_they_are_large(app: App) -> None:
    old = stored(app, dead(app).id)
    exported = replace(old, body=whole_body(app.store, old), content="raw")
    assert app.store.restore([exported]) == [False]  # it is there
    assert names(app) == keys(app, old.id)
    small = replace(exported, id=new_id(app.store.now_ms()), body=b"1")
    app.store.triage([Handle(old.id, 0, Lane.DEAD)], Discard("carried"))
    assert not files(app) and app.store.restore([exported, small]) == [True, True]
    assert names(app) == keys(app, old.id)
    assert whole_body(app.store, stored(app, old.id)) == body_of(3000) and stored(app, small.id).body == b"1"
    assert app.collect_blobs(0) == 0


def test_duplicate_of_a_key_leaves_no_blob(app: App) -> None:
    taking(app)
    first = app.tasks["take"].using(key="k").enqueue(BIG)
    again = app.tasks["take"].using(key="k").enqueue(BIG + "!")
    assert again.duplicate and again.id == first.id
    assert names(app) == keys(app, first.id)


def test_draft_that_the_store_refuses_leaves_no_blob_and_harms_no_other(app: App) -> None:
    id = put(app)
    before = files(app)[0].read_bytes()
    with pytest.raises(EnqueueError, match="already stored"):
        app.store.put([Draft(task="t", id=id, body=body_of(4000), content="raw")])
    assert names(app) == keys(app, id) and files(app)[0].read_bytes() == before
    with pytest.raises(EnqueueError, match="priority"):
        app.store.put([Draft(task="t", body=body_of(4000), priority=9)])
    with pytest.raises(Conflict):
        app.store.put([Draft(task="t", body=body_of(4000))], swaps=[Swap("cell", 3, b"")])
    assert names(app) == keys(app, id)


def test_cancelled_message_keeps_its_blob_as_long_as_it_can_be_looked_up(app: App) -> None:
    id = put(app)
    assert app.cancel(id) == "cancelled"
    assert app.collect_blobs(0) == 0 and names(app) == keys(app, id)


def test_message_kept_when_done_keeps_its_blob(app: App) -> None:
    id = put(app)
    checked(app).remove([stored(app, id)])  # as after an ack that kept it
    assert names(app) == keys(app, id)


# -- the compensation's copy


def test_compensation_gets_a_blob_of_its_own(app: App) -> None:
    got = taking(app)

    @app.task(name="doomed", on_dead="take")
    async def doomed(text: str) -> None:
        raise Reject("no")

    ref = doomed.enqueue(BIG)
    worker_queue = app.tasks["take"].queue = "later"
    app.run_worker(["default"], burst=True)
    [copy] = [m for m in app.store.peek(Lane.READY).messages if m.queue == worker_queue]
    assert names(app) == sorted(keys(app, ref.id) + keys(app, copy.id)) and len(files(app)) == 2
    app.store.triage([Handle(ref.id, 0, Lane.DEAD)], Discard("tidy"))
    app.collect_blobs(0)
    app.run_worker([worker_queue], burst=True)
    assert got == [BIG] and not files(app)


def test_message_that_dies_unread_hands_its_body_on(app: App, clock: ManualClock) -> None:
    got = taking(app)

    @app.task(name="late", on_dead="take")
    async def late(text: str) -> None: ...

    from datetime import UTC, datetime, timedelta

    soon = datetime.fromtimestamp(clock() / 1000, UTC) + timedelta(seconds=1)
    ref = late.using(deadline=soon).enqueue(BIG)
    clock.advance("2s")
    app.run_worker(burst=True)
    assert stored(app, ref.id).reason == "deadline" and got == [BIG]
    assert names(app) == keys(app, ref.id)


def test_copy_without_links_is_a_copy_too(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object, **options: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    message = stored(app, put(app))
    other = app.store.put([Draft(task="t", body=message.body, content=message.content)])[0].id
    assert whole_body(app.store, stored(app, other)) == body_of(3000)
    assert names(app) == sorted(keys(app, message.id) + keys(app, other))


# -- missing, damaged, out of reach


def lose(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    bytes = path.read_bytes()
    path.write_bytes(bytes[:-10] + b"!" + bytes[-9:])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("task", ["take", "take_sync"])
@pytest.mark.parametrize(
    ("harm", "why"),
    [(lose, "is gone"), (flip, "SHA-256"), (cut, "it has only"), (lengthen, "it has more"), (empty, "it has only 0")],
)
def test_message_whose_blob_is_missing_or_damaged_is_dead_unreadable_with_its_reference_intact(
    app: App, task: str, harm: object, why: str
) -> None:
    got = taking(app)
    ref = app.tasks[task].enqueue(BIG)
    before = stored(app, ref.id).body
    harm(files(app)[0])  # type: ignore[operator]
    app.tasks[task].enqueue("other")
    app.run_worker(burst=True)
    dead = stored(app, ref.id)
    assert (dead.lane, dead.reason, dead.attempt, dead.body) == (Lane.DEAD, "unreadable", 0, before)
    assert (dead.faults[-1].kind, why in dead.faults[-1].text) == ("unreadable", True)
    assert got == ["other"]


def test_blob_that_was_mended_runs_after_a_redrive(app: App) -> None:
    got = taking(app)
    ref = app.tasks["take"].enqueue(BIG)
    [path] = files(app)
    saved = path.read_bytes()
    path.unlink()
    app.run_worker(burst=True)
    path.write_bytes(saved)
    app.dlq.retry([ref.id])
    app.run_worker(burst=True)
    assert got == [BIG] and not files(app)


@pytest.mark.parametrize("task", ["take", "take_sync"])
def test_storage_out_of_reach_holds_messages_free_until_it_is_back(
    app: App, task: str, clock: ManualClock, tmp_path: Path
) -> None:
    got, heard = taking(app), Heard(app)
    refs = [app.tasks[task].enqueue(BIG) for _ in range(3)]
    app.tasks[task].enqueue("other")
    (tmp_path / "blobs").rename(tmp_path / "unmounted")
    app.run_worker(burst=True)
    assert got == ["other"]
    for ref in refs:
        held = stored(app, ref.id)
        assert (held.lane, held.attempt, held.crashes, held.faults) == (Lane.READY, 0, 0, ())
        assert held.due_ms is not None and 15_000 <= held.due_ms - clock() <= 45_000
    assert sorted(heard.outcomes) == ["done", "held", "held", "held"]
    assert heard.notices.count("blobs_unavailable") == 1
    (tmp_path / "unmounted").rename(tmp_path / "blobs")
    clock.advance("45s")
    app.run_worker(burst=True)
    assert got == ["other", BIG, BIG, BIG] and not files(app)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_blob_that_cannot_be_read_just_now_holds_its_message(
    app: App, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, opened = taking(app), os.open

    def refuse(path: Path, *args: int, **options: int) -> int:
        if is_key(Path(path).name):
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **options)

    ref = app.tasks["take"].enqueue(BIG)
    monkeypatch.setattr(os, "open", refuse)
    app.run_worker(burst=True)
    held = stored(app, ref.id)
    assert not got and (held.state_at(app.store.now_ms()), held.attempt) == ("scheduled", 0)


def test_worker_that_knows_no_storage_holds_what_lies_there(tmp_path: Path) -> None:
    producer = App(f"sqlite:///{tmp_path}/db", blobs=f"file://{tmp_path}/blobs")
    taking(producer)
    ref = producer.tasks["take"].enqueue(BIG)
    worker = App(f"sqlite:///{tmp_path}/db")
    got, heard = taking(worker), Heard(worker)
    worker.run_worker(burst=True)
    assert not got and stored(producer, ref.id).state_at(producer.store.now_ms()) == "scheduled"
    assert heard.outcomes == ["held"] and "blobs_unavailable" in heard.notices
    with pytest.raises(BlobsUnavailable, match="REDRIVE_BLOBS"):
        whole_body(worker.store, stored(worker, ref.id))
    producer.store.close()
    worker.store.close()


def test_producer_whose_storage_is_out_of_reach_is_refused_and_writes_nowhere_else(app: App, tmp_path: Path) -> None:
    put(app)
    (tmp_path / "blobs").rename(tmp_path / "unmounted")
    (tmp_path / "blobs").mkdir()  # the bare mount point
    with pytest.raises(BlobsUnavailable, match="cannot write a blob into"):
        put(app)
    assert put(app, 10) and not [*(tmp_path / "blobs").iterdir()]
    assert app.counts().ready == 2


def test_storage_that_is_out_of_reach_refuses_no_small_message_that_shares_the_batch(app: App, tmp_path: Path) -> None:
    taking(app)
    put(app)
    (tmp_path / "blobs").rename(tmp_path / "unmounted")

    async def both() -> list[object]:
        take = app.tasks["take"]
        return await asyncio.gather(take.aenqueue(BIG), take.aenqueue("small"), return_exceptions=True)

    large, small = asyncio.run(both())
    assert isinstance(large, BlobsUnavailable) and stored(app, small.id).task == "take"  # type: ignore[attr-defined]


def test_run_whose_follow_up_finds_no_storage_fails_alone(app: App, tmp_path: Path) -> None:
    got = taking(app)
    put(app, queue="other")

    @app.task(name="first", retry=SOON)
    async def first() -> None:
        context().enqueue(app.tasks["take"], BIG)

    ref = first.enqueue()
    app.tasks["take"].enqueue("other")
    (tmp_path / "blobs").rename(tmp_path / "unmounted")
    app.run_worker(["default"], burst=True)
    failed = stored(app, ref.id)
    assert got == ["other"] and (failed.attempt, failed.faults[-1].error) == (1, "redrive.errors.BlobsUnavailable")


def test_death_waits_for_the_storage_its_compensation_needs(app: App, tmp_path: Path, clock: ManualClock) -> None:
    got, runs = taking(app), []

    @app.task(name="doomed", on_dead="take")
    async def doomed(text: str) -> None:
        runs.append(text)
        if len(runs) == 1:
            (tmp_path / "blobs").rename(tmp_path / "unmounted")
        raise Reject("no")

    ref = doomed.enqueue(BIG)
    app.run_worker(burst=True)
    waits = stored(app, ref.id)
    assert (waits.state_at(clock()), waits.attempt, got) == ("scheduled", 0, [])
    (tmp_path / "unmounted").rename(tmp_path / "blobs")
    clock.advance("30s")
    app.run_worker(burst=True)
    assert stored(app, ref.id).reason == "rejected" and got == [BIG] and runs == [BIG, BIG]
    assert names(app) == keys(app, ref.id)


class Stuck(FileBlobs):
    """Storage that hangs on reading until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go = threading.Event()

    def get(self, key: str, bytes_max: int) -> bytes | None:
        self.go.wait(30)
        return super().get(key, bytes_max)


def test_storage_that_hangs_holds_up_neither_the_loop_nor_spends_the_attempt(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/db", blobs=f"file://{tmp_path}/blobs")
    got: list[str] = []

    @app.task(name="take", timeout="300ms")
    async def take(text: str) -> None:
        got.append(text)

    ref = take.enqueue(BIG)
    stuck = Stuck(checked(app).blobs.folder)  # type: ignore[attr-defined]
    checked(app)._opened = stuck
    take.enqueue("small")
    app.run_worker(burst=True)
    stuck.go.set()
    held = stored(app, ref.id)
    assert got == ["small"] and (held.lane, held.attempt) == (Lane.READY, 0)
    app.store.close()


class Keyed:
    """An app whose keys and costs are computed from large bodies, on storage that hangs or fails."""

    def __init__(self, folder: Path) -> None:
        self.store = Watched(folder)
        self.app = app = App(store=self.store, blobs=f"file://{folder}/blobs")
        self.got: list[str] = []
        app.dependency("api", rate=Rate("100k/s", cost=lambda text: len(text) / 1000))

        @app.task(name="once", retry=SOON, idempotency=Idempotency(key=lambda text: text[:9]))
        async def once(text: str) -> None:
            self.got.append(text)

        @app.task(name="weighs", retry=SOON, dependency="api")
        async def weighs(text: str) -> None:
            self.got.append(text)

        @app.task(name="plain")
        async def plain(text: str) -> None:
            self.got.append(text)

    def on(self, storage: type[FileBlobs]) -> Any:
        """Put its bodies into that storage."""
        put = storage(checked(self.app).blobs.folder)  # type: ignore[attr-defined]
        checked(self.app)._opened = put
        return put


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    made = Keyed(tmp_path)
    yield made
    made.app.store.close()


@pytest.mark.parametrize("task", ["once", "weighs"])
def test_while_a_body_is_read_for_a_key_or_a_cost_leases_are_renewed_and_others_run(keyed: Keyed, task: str) -> None:
    keyed.app.tasks[task].enqueue(BIG)
    stuck = keyed.on(Stuck)

    async def main() -> None:
        async with keyed.app.worker(lease="1s", grace="30s"):
            await until(lambda: len(keyed.store.extended) >= 3 and keyed.app.counts().leased == 1)
            await keyed.app.tasks["plain"].aenqueue("small")
            await until(lambda: keyed.got == ["small"])
            stuck.go.set()
            await until(lambda: keyed.got == ["small", BIG] and not keyed.app.counts().leased)

    try:
        asyncio.run(main())
    finally:
        stuck.go.set()
    assert keyed.app.counts().ready == 0


def test_a_body_whose_read_never_ends_is_put_off_and_others_run(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LATE_S", 0.2)
    ref = keyed.app.tasks["once"].enqueue(BIG)
    stuck, heard = keyed.on(Stuck), Heard(keyed.app)

    async def main() -> None:
        async with keyed.app.worker(concurrency=1, lease="1s"):
            await until(lambda: "held" in heard.outcomes)
            await keyed.app.tasks["plain"].aenqueue("small")
            await until(lambda: keyed.got == ["small"])

    try:
        asyncio.run(main())
    finally:
        stuck.go.set()
    left = stored(keyed.app, ref.id)
    assert (left.lane, left.attempt, left.crashes) == (Lane.READY, 0, 0)


def test_messages_whose_keys_and_costs_need_their_bodies_run_once_each(keyed: Keyed) -> None:
    bodies = [f"{n:04}{BIG}" for n in range(3 * READ_MAX)]
    keyed.app.enqueue_many([keyed.app.tasks[task].draft(body) for body in bodies for task in ("once", "weighs")])
    keyed.app.run_worker(drain=True)  # waits for tokens, too
    assert sorted(keyed.got) == sorted(bodies * 2) and not keyed.app.counts().leased


def test_a_worker_ends_without_the_bodies_that_it_still_reads(keyed: Keyed) -> None:
    ref = keyed.app.tasks["once"].enqueue(BIG)
    stuck, heard = keyed.on(Stuck), Heard(keyed.app)

    async def main() -> None:
        async with keyed.app.worker(grace="1h"):
            await until(lambda: keyed.app.counts().leased == 1)

    try:
        asyncio.run(asyncio.wait_for(main(), PATIENCE_S / 2))
    finally:
        stuck.go.set()
    left = stored(keyed.app, ref.id)
    assert (left.lane, left.attempt, left.crashes) == (Lane.READY, 0, 0) and heard.outcomes == ["released"]


class Down(FileBlobs):
    """Storage that fails on reading."""

    reads = 0

    def get(self, key: str, bytes_max: int) -> bytes | None:
        self.reads += 1
        raise BlobsUnavailable("down")


def test_where_storage_is_unavailable_one_body_of_a_batch_is_read_and_all_are_put_off(keyed: Keyed) -> None:
    keyed.app.enqueue_many([keyed.app.tasks["once"].draft(f"{n}{BIG}") for n in range(6)])
    down, heard = keyed.on(Down), Heard(keyed.app)
    keyed.app.run_worker(burst=True)
    assert heard.outcomes == ["held"] * 6 and down.reads == 1
    assert keyed.app.counts().scheduled == 6 and keyed.got == []


# -- what a crash leaves


def test_collecting_removes_exactly_what_no_message_refers_to(app: App, clock: ManualClock) -> None:
    taking(app)

    @app.task(name="no")
    async def no(text: str) -> None:
        raise Reject("no")

    dead = no.enqueue(BIG).id
    app.run_worker(burst=True)
    live = [put(app), app.tasks["take"].using(delay="1d").enqueue(BIG).id, dead]
    app.cancel(live[0])
    blobs = checked(app).blobs
    now_ms = app.store.now_ms()
    orphans = [new_key(new_id(now_ms), now_ms), new_key(live[1], now_ms)]  # of no message; of another put of it
    blobs.put(dict.fromkeys(orphans, b"orphan"))
    folder = blobs.folder  # type: ignore[attr-defined]
    part, foreign = folder / (new_key(new_id(now_ms), now_ms) + ".part"), folder / "README"
    part.write_bytes(b"half")
    foreign.write_bytes(b"not ours")
    assert app.collect_blobs("1h") == 0 and len(files(app)) == 7
    clock.advance("59m")
    assert app.collect_blobs() == 0
    clock.advance("1m")
    fresh = new_key(new_id(now_ms), app.store.now_ms())  # a put that is under way
    blobs.put({fresh: b"soon"})
    assert app.collect_blobs() == 3
    assert names(app) == sorted([*keys(app, *live), "README", fresh])


def test_many_blobs_are_looked_up_in_batches(app: App) -> None:
    ids = [app.store.put([Draft(task="t", body=body_of(1001)) for _ in range(300)]) for _ in range(3)]
    now_ms = app.store.now_ms()
    checked(app).blobs.put({new_key(new_id(now_ms), now_ms): b"" for _ in range(600)})
    assert app.collect_blobs(0) == 600
    assert names(app) == keys(app, *(p.id for puts in ids for p in puts))


def test_blob_of_a_message_whose_reference_is_broken_is_kept(app: App) -> None:
    now_ms = app.store.now_ms()
    id = app.store.put([Draft(task="t", body=b"{broken", content=BLOB)])[0].id
    checked(app).blobs.put({new_key(id, now_ms): b"its body"})
    assert app.collect_blobs(0) == 0


def test_collecting_before_any_blob_was_written_makes_the_place(app: App, tmp_path: Path) -> None:
    assert app.collect_blobs(0) == 0 and len([*(tmp_path / "blobs").iterdir()]) == 1


def test_collecting_without_blobs_is_a_mistake_that_is_told() -> None:
    with pytest.raises(ConfigError, match="REDRIVE_BLOBS"):
        App("memory://").collect_blobs()


def test_one_worker_an_hour_collects(app: App, clock: ManualClock) -> None:
    taking(app)
    heard = Heard(app)

    def orphan() -> None:
        now_ms = app.store.now_ms()
        checked(app).blobs.put({new_key(new_id(now_ms), now_ms - SWEEP_EVERY_MS): b"orphan"})

    orphan()
    app.run_worker(burst=True)
    assert not files(app) and heard.notices.count("collected_blobs") == 1
    orphan()
    clock.advance("59m")
    app.run_worker(burst=True)
    assert len(files(app)) == 1, "another worker collected less than an hour ago"
    clock.advance("1m")
    app.run_worker(burst=True)
    assert not files(app)


def test_of_two_that_would_collect_at_once_one_does(app: App) -> None:
    put(app)
    assert checked(app).collect_if_due() == 0
    assert checked(app).collect_if_due() is None


def test_a_clock_that_was_ahead_once_does_not_put_off_what_is_collected(app: App, clock: ManualClock) -> None:
    put(app)
    ahead_ms = clock() + 400 * 86_400_000
    assert app.store.cells.swap([Swap(SWEPT_CELL, 0, str(ahead_ms).encode())]) == [True]
    assert checked(app).collect_if_due() == 0


def test_a_cleaner_ends_though_its_last_removal_fails(app: App) -> None:
    def fails(settled: Sequence[Message]) -> None:
        raise BlobsUnavailable("the disk is gone")

    message = stored(app, put(app))
    cleaner = Cleaner(checked(app), lambda name, text: None)
    cleaner.close()
    checked(app).remove = fails  # type: ignore[method-assign]
    cleaner.settled([message])
    cleaner._settled.put(None)  # so both are one batch
    again = threading.Thread(target=cleaner._work, daemon=True)
    again.start()
    again.join(10)
    assert not again.is_alive()


def test_checkpoints_and_results_are_bounded_by_the_store_as_they_go_to_no_blob(app: App) -> None:
    assert app.store.traits.state_bytes_max == INLINE_MAX  # and not MAX
    checked(app).traits = replace(app.store.traits, inline_bytes_max=100)

    @app.task(ctx=True, keep_result="1h")
    def take(ctx: Context) -> str:
        with pytest.raises(TooLarge, match="this store takes 100"):
            ctx.checkpoint(BIG)
        return BIG

    ref = take.enqueue()
    app.run_worker(burst=True)
    assert stored(app, ref.id).result is None


# -- nothing in a message leads out of the storage


@pytest.mark.parametrize(
    "key",
    [
        "../../../../etc/passwd",
        "/etc/passwd",
        "{id}",
        "{id}.{id}/../../x",
        "{id}./etc/passwd",
        "{id}.{id}\n",
        "{id}.{id}\0",
        "..",
        "",
        "{ID}.{id}",
    ],
)
def test_forged_reference_reads_nothing(app: App, tmp_path: Path, key: str) -> None:
    got = taking(app)
    put(app, queue="other")
    id = new_id(app.store.now_ms())
    forged = {"blob": key.format(id=id, ID=id.upper()), "bytes": 10, "sha256": "", "content": "json"}
    [ref] = app.store.put([Draft(task="take", id=id, body=msgspec.json.encode(forged), content=BLOB)])
    app.run_worker(["default"], burst=True)
    dead = stored(app, ref.id)
    assert (dead.reason, dead.body) == ("unreadable", msgspec.json.encode(forged)) and not got
    assert "names no blob" in dead.faults[-1].text
    assert not is_key(forged["blob"])
    with pytest.raises(ValueError):
        FileBlobs(tmp_path).get(str(forged["blob"]), 10)


def test_reference_to_the_blob_of_another_message_is_not_followed(app: App) -> None:
    got = taking(app)
    other = app.tasks["take"].using(delay="1d").enqueue(BIG)
    inner = checked(app).inner  # past the claim check, which would have made a copy
    [forged] = inner.put([Draft(task="take", body=stored(app, other.id).body, content=BLOB)])
    app.run_worker(burst=True)
    dead = stored(app, forged.id)
    assert dead.reason == "unreadable" and "belongs to another message" in dead.faults[-1].text
    assert not got and app.collect_blobs(0) == 0 and names(app) == keys(app, other.id)


def test_links_in_the_folder_are_not_followed(app: App, tmp_path: Path) -> None:
    got = taking(app)
    ref = app.tasks["take"].enqueue(BIG)
    [path] = files(app)
    (tmp_path / "secret").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    app.run_worker(burst=True)
    assert not got and stored(app, ref.id).attempt == 0


def test_pipe_in_place_of_a_blob_does_not_hang_its_reader(app: App) -> None:
    taking(app)
    ref = app.tasks["take"].enqueue(BIG)
    [path] = files(app)
    path.unlink()
    os.mkfifo(path)
    app.run_worker(burst=True)
    assert stored(app, ref.id).attempt == 0


def test_reference_that_claims_a_huge_length_costs_no_memory(app: App) -> None:
    id = put(app)
    message = stored(app, id)
    huge = replace(read_reference(message.body), bytes=2**60)
    with pytest.raises(Unreadable, match="damaged"):
        checked(app).body(replace(message, body=msgspec.json.encode(huge)))


def test_key_tells_its_owner_and_when_it_was_written() -> None:
    id = new_id(5)
    key = new_key(id, 1_750_000_000_123)
    assert is_key(key) and owner(key) == id and written_ms(key) == 1_750_000_000_123
    assert new_key(id, 7) != new_key(id, 7)


# -- files


def blobs_in(folder: Path) -> Blobs:
    blobs = open_blobs(f"file://{folder}", "place")
    blobs.make()
    return blobs


def test_blob_is_under_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, key = blobs_in(tmp_path), new_key(new_id(1), 1)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BlobsUnavailable, match="Input/output error"):
        blobs.put({key: b"body"})
    assert not [*(tmp_path / "place").iterdir()]


@pytest.mark.linux
def test_order_of_writing_is_body_sync_name_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, key, seen = blobs_in(tmp_path), new_key(new_id(1), 1), []
    sync = os.fsync

    def noted(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        seen.append((path.name, sorted(p.name for p in (tmp_path / "place").iterdir())))
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    blobs.put({key: b"body"})
    assert seen == [(f"{key}.part", [f"{key}.part"]), ("place", [key])]


def test_unknown_blob_is_none_and_can_be_deleted(tmp_path: Path) -> None:
    blobs, key = blobs_in(tmp_path), new_key(new_id(1), 1)
    assert blobs.get(key, 10) is None and not blobs.copy(key, new_key(new_id(1), 1))
    blobs.delete([key])
    blobs.put({key: b"body"})
    assert (blobs.get(key, 2), blobs.get(key, 10), [*blobs.listed()]) == (b"bo", b"body", [key])


def test_place_with_odd_characters_is_meant_as_it_is_written(tmp_path: Path) -> None:
    app = App("memory://", blobs=f"file://{tmp_path}/with%20space%23")
    put(app)
    assert (tmp_path / "with space#").is_dir()


# -- the command line


def cli(folder: Path, *words: str, stdin: bytes = b"", **extra: str) -> subprocess.CompletedProcess[bytes]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("REDRIVE_")}
    env |= {"REDRIVE_URL": "sqlite:///db", "REDRIVE_BLOBS": f"file://{folder}/blobs", **extra}
    return subprocess.run(
        [sys.executable, "-m", "redrive", *words], cwd=folder, env=env, input=stdin, capture_output=True, timeout=60
    )


def test_commands_put_show_and_sweep_blobs(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\xff" * 200_001)
    id = cli(tmp_path, "enqueue", "t", "--raw", "body").stdout.decode().strip()
    shown = json.loads(cli(tmp_path, "job", "show", id, "-o", "json").stdout)
    assert (shown["content"], shown["bytes"]) == ("raw", 200_001)
    key = shown["body"]["blob"]
    assert shown["body_in"] == f"blob {key}"
    whole = json.loads(cli(tmp_path, "job", "show", id, "--body", "-o", "json").stdout)
    assert len(whole["body"]["base64"]) > 200_001
    without = cli(tmp_path, "job", "show", id, "--body", REDRIVE_BLOBS="")
    assert without.returncode == 3 and b"REDRIVE_BLOBS" in without.stderr
    assert b" bytes in blob " in cli(tmp_path, "job", "show", id, "-o", "table").stdout
    [folder] = (tmp_path / "blobs").iterdir()
    orphan = new_key(new_id(1), 1)
    (folder / orphan).write_bytes(b"orphan")
    assert json.loads(cli(tmp_path, "store", "sweep", "-o", "json").stdout) == {"removed": 1}
    assert [path.name for path in folder.iterdir()] == [key]
    none = cli(tmp_path, "store", "sweep", REDRIVE_BLOBS="")
    assert none.returncode == 2 and b"REDRIVE_BLOBS" in none.stderr


def test_small_body_is_shown_as_inline(tmp_path: Path) -> None:
    id = cli(tmp_path, "enqueue", "t", "{}").stdout.decode().strip()
    shown = json.loads(cli(tmp_path, "job", "show", id, "-o", "json").stdout)
    assert (shown["content"], shown["bytes"], shown["body_in"], shown["body"]) == ("json", 2, "inline", {})
