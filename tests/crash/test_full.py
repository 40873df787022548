"""A server without room: a typed error, nothing acknowledged, nothing half-written; what is there is worked off."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from tests.support.crash.children import Child, balanced, fill, records, run, until
from tests.support.crash.ledger import Journal, Ledger, handled, produced
from tests.support.crash.mounts import mounted
from tests.support.crash.programs import Plan, acknowledge, announce, drafts_of, make_app
from tests.support.servers import PostgresServer, RedisServer, memory_disk

from redrive.errors import StoreFull, StoreUnavailable
from redrive.message import Draft

pytestmark = pytest.mark.slow
MOST = 5_000  # puts until a small server is full, at the most


@pytest.fixture
def redis_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place in a Redis that may take 12 MB."""
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))
    with RedisServer(appendonly=True, maxmemory="12mb", folder=memory_disk()) as server:
        (tmp_path / "url").write_text(f"{server.url}?namespace=crash_{secrets.token_hex(6)}")
        yield tmp_path


@pytest.fixture
def postgres_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A place in a PostgreSQL whose tables lie on a file system of 12 MB, and that file system. Its log has room: a
    server that cannot write its log stops, and is another test's."""
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))
    settings = {"default_tablespace": "small", "autovacuum": "off"}
    with PostgresServer(settings=settings, folder=memory_disk()) as server:
        disk = server.data.parent / "disk"
        with mounted(disk, "12m"):
            small = disk / "small"
            small.mkdir()
            owner = server.data.stat()
            os.chown(small, owner.st_uid, owner.st_gid)
            with contextlib.closing(psycopg.connect(server.url, autocommit=True)) as connection:
                connection.execute(f"create tablespace small location '{small}'")  # type: ignore[call-overload]
            (tmp_path / "url").write_text(f"{server.url}?schema=crash_{secrets.token_hex(6)}")
            yield tmp_path, disk


def fill_up(place: Path) -> int:
    """Enqueue one at a time until the store refuses for want of room, and once more; how many it took."""
    journal, other = Journal(produced(place)), Journal(handled(place))
    app = make_app(place, other)
    taken = 0
    with contextlib.closing(app.store), contextlib.closing(journal), contextlib.closing(other):
        for n, kind in enumerate(["quick", "blocking"] * (MOST // 2)):
            draft = large(drafts_of(app, [kind], n)[0])
            announce(journal, [draft], draft.id or "")
            try:
                app.enqueue_many([draft])
            except StoreFull:
                break
            acknowledge(journal, [draft])
            taken += 1
        else:
            pytest.fail("the store was never full")
        batch = [large(draft) for draft in drafts_of(app, ["quick"] * 3)]
        announce(journal, batch, "refused")
        with pytest.raises(StoreFull):
            app.enqueue_many(batch)
        assert app.store.find([d.id or "" for d in (draft, *batch)]) == [None] * 4, "a refused message is stored"
    return taken


def large(draft: Draft) -> Draft:
    return msgspec.structs.replace(draft, headers={"pad": secrets.token_hex(10_000)})


def went_on(place: Path) -> Ledger:
    assert run("worker", Plan(place=str(place), concurrency=8, prefetch=8)) == 0
    fill(place, 20)
    assert run("worker", Plan(place=str(place), concurrency=8, prefetch=8)) == 0
    return balanced(place)


@pytest.mark.fault("no room left: Redis at maxmemory", store="redis")
def test_redis_at_maxmemory_refuses_an_enqueue_whole_and_works_off_what_it_has(redis_place: Path) -> None:
    fill(redis_place, 30)
    assert fill_up(redis_place) > 50
    assert not went_on(redis_place).killed


@pytest.mark.linux
@pytest.mark.fault("no room left: the disk of PostgreSQL's tables is full", store="postgres")
def test_postgres_without_room_for_its_tables_refuses_an_enqueue_whole_and_goes_on_when_there_is_room(
    postgres_place: tuple[Path, Path],
) -> None:
    place, disk = postgres_place
    fill(place, 30)
    fill_up(place)
    with Child("worker", Plan(place=str(place), told=True)) as worker:
        until("it works or waits", lambda: bool(worker.starts() or records(place, "notice", "store_unavailable")))
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        worker.ends_well()
    assert not went_on(place).killed


@pytest.mark.linux
@pytest.mark.fault("no room left: PostgreSQL stops because its log has no room, and is restarted", store="postgres")
def test_postgres_that_stopped_without_room_for_its_log_has_what_it_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))
    disk = Path(f"/tmp/redrive-small-{secrets.token_hex(6)}")  # where another user may go
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, disk, ignore_errors=True)
        stack.enter_context(mounted(disk, "120m"))
        disk.chmod(0o755)
        server = stack.enter_context(PostgresServer(folder=disk))
        (tmp_path / "url").write_text(f"{server.url}?schema=crash_{secrets.token_hex(6)}")
        fill(tmp_path, 30)
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        _until_refused(tmp_path)
        ballast.unlink()
        server.restart()
        assert not went_on(tmp_path).killed


def _until_refused(place: Path) -> None:
    journal, other = Journal(produced(place)), Journal(handled(place))
    app = make_app(place, other)
    with contextlib.closing(app.store), contextlib.closing(journal), contextlib.closing(other):
        for n in range(0, MOST, 50):
            batch = [large(draft) for draft in drafts_of(app, ["quick"] * 50, n)]
            announce(journal, batch, batch[0].id or "")
            try:
                app.enqueue_many(batch)
            except StoreUnavailable:
                return
            acknowledge(journal, batch)
    pytest.fail("the disk was never full")
