"""Places for blobs: a directory and a bucket of S3 behave the same, under their protocol and below an app."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import REGION, Ministack, client

from redrive import App, Retry
from redrive.blobs import Blobs, ClaimCheck, open_blobs
from redrive.blobs.place import new_key, owner
from redrive.blobs.s3 import DELETES_MAX, S3Blobs
from redrive.errors import BlobsUnavailable, Unsupported
from redrive.ids import new_id
from redrive.message import BLOB
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock

NOW_MS = 1_800_000_000_000


class Filter:
    """A place by its URL, and what lies there by another way."""

    def __init__(self, kind: str, folder: Path, ministack: Ministack) -> None:
        self.kind, self._folder = kind, folder
        if kind == "files":
            self.url = f"file://{folder}/blobs"
            return
        self.bucket, self.prefix = f"b{uuid.uuid4().hex}", "some/prefix"
        self._s3 = client("s3", ministack.url)
        self._s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        self.url = f"s3://{self.bucket}/{self.prefix}?region={REGION}&endpoint={ministack.url}"

    def names(self) -> list[str]:
        if self.kind == "files":
            return sorted(str(path.relative_to(self._folder / "blobs")) for path in self._files())
        found = self._s3.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return sorted(each["Key"].removeprefix(f"{self.prefix}/") for each in found)

    def _files(self) -> list[Path]:
        return [path for path in (self._folder / "blobs").rglob("*") if path.is_file()]

    def write(self, name: str, body: bytes) -> None:
        if self.kind == "files":
            (self._folder / "blobs" / name).write_bytes(body)
        else:
            self._s3.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}", Body=body)

    def lose(self) -> None:
        """The disk is gone, the bucket is not there."""
        if self.kind == "files":
            (self._folder / "blobs").rename(self._folder / "gone")
        else:
            for name in self.names():
                self._s3.delete_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}")
            self._s3.delete_bucket(Bucket=self.bucket)


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield


@pytest.fixture(params=["files", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path, ministack: Ministack) -> Filter:
    return Filter(request.param, tmp_path, ministack)


@pytest.fixture
def blobs(where: Filter) -> Blobs:
    made = open_blobs(where.url, "place")
    made.make()
    return made


def key(at_ms: int = NOW_MS) -> str:
    return new_key(new_id(NOW_MS), at_ms)


# -- the protocol


def test_what_was_put_is_read_byte_for_byte(blobs: Blobs) -> None:
    bodies = {key(): bytes(range(256)) * 20, key(): b"x", key(): b'{"a": 1}' * 200_000}
    blobs.put(bodies)
    assert {name: blobs.get(name, 10_000_000) for name in bodies} == bodies


def test_no_more_is_read_than_was_asked_for(blobs: Blobs) -> None:
    blobs.put({(name := key()): b"0123456789"})
    assert blobs.get(name, 4) == b"0123"
    assert blobs.get(name, 10) == blobs.get(name, 11) == b"0123456789"


def test_what_is_not_there_is_none_and_can_be_removed(blobs: Blobs) -> None:
    assert blobs.get(key(), 10) is None
    assert blobs.copy(key(), key()) is False
    blobs.delete([key(), key()])


def test_an_empty_blob_is_there_and_empty(where: Filter, blobs: Blobs) -> None:
    where.write(f"place/{(name := key())}", b"")
    assert blobs.get(name, 10) == b""


def test_a_copy_is_a_blob_of_its_own(blobs: Blobs) -> None:
    one, other = key(), key()
    blobs.put({one: b"body"})
    assert blobs.copy(one, other)
    blobs.delete([one])
    assert (blobs.get(one, 10), blobs.get(other, 10)) == (None, b"body")


def test_a_listing_has_every_blob_of_the_place_and_nothing_else(where: Filter, blobs: Blobs) -> None:
    mine = {key(): b"x" for _ in range(12)}
    blobs.put(mine)
    other = open_blobs(where.url, "other")
    other.make()
    other.put({key(): b"x"})
    where.write("place/notes.txt", b"x")
    assert set(blobs.listed()) == set(mine)
    blobs.delete(mine)
    assert list(blobs.listed()) == []
    assert len(where.names()) == 2


@pytest.mark.parametrize(
    "name",
    ["", "x", "../etc/passwd", "a/b", "0191f3a0-1c2b-7d3e-8f40-5a6b7c8d9e0f.0191f3a0-1c2b-7d3e-8f40-5a6b7c8d9e0f/"],
)
def test_nothing_but_a_key_becomes_part_of_a_name(blobs: Blobs, name: str) -> None:
    for act in (lambda: blobs.get(name, 1), lambda: blobs.put({name: b""}), lambda: blobs.delete([name])):
        with pytest.raises(ValueError, match="not a blob's key"):
            act()


def test_a_place_that_is_gone_is_told_and_no_blob_is_taken_for_lost(where: Filter, blobs: Blobs) -> None:
    blobs.put({(name := key()): b"body"})
    where.lose()
    acts: list[Any] = [
        lambda: blobs.get(name, 10), lambda: blobs.put({key(): b"x"}), lambda: blobs.copy(name, key()),
        lambda: list(blobs.listed()),
    ]  # fmt: skip
    for act in acts:
        with pytest.raises(BlobsUnavailable):
            act()


# -- below an app


@pytest.fixture
def app(where: Filter, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("REDRIVE_BLOB_THRESHOLD", "2000")
    app = App(store=MemoryStore(ManualClock()), blobs=where.url)

    @app.task(name="report.mail", retry=Retry(max_attempts=1))
    def mail(text: str, fail: bool = False) -> None:
        if fail:
            raise RuntimeError("refused")

    return app


def put(app: App, **arguments: Any) -> str:
    return app.tasks["report.mail"].enqueue("x" * 3000, **arguments).id


def test_a_large_body_lies_there_until_its_message_is_done(app: App, where: Filter) -> None:
    id = put(app)
    app.tasks["report.mail"].enqueue("small")
    message = app.job(id)
    assert message is not None
    assert message.content == BLOB
    (name,) = where.names()
    assert owner(name.rpartition("/")[2]) == id
    app.run_worker(burst=True)
    assert where.names() == []


def test_a_dead_message_keeps_its_blob_and_a_discard_removes_it(app: App, where: Filter) -> None:
    id = put(app, fail=True)
    app.run_worker(burst=True)
    (dead,) = app.dlq.list().messages
    assert (dead.id, len(where.names())) == (id, 1)
    app.dlq.discard([id], reason="over", actor="me")
    assert where.names() == []


def test_a_blob_that_was_damaged_makes_its_message_unreadable(app: App, where: Filter) -> None:
    id = put(app)
    where.write(where.names()[0], b"y" * 3013)
    app.run_worker(burst=True)
    (dead,) = app.dlq.list().messages
    assert (dead.id, dead.reason) == (id, "unreadable")
    assert "damaged" in dead.faults[-1].text


def test_what_no_message_refers_to_is_collected(app: App, where: Filter) -> None:
    put(app)
    store = app.store
    assert isinstance(store, ClaimCheck)
    orphan = new_key(new_id(1), 1)
    store.blobs.put({orphan: b"x"})
    assert app.collect_blobs() == 1
    assert len(where.names()) == 1


# -- S3 only


def test_more_keys_are_removed_than_go_into_one_call(ministack: Ministack, tmp_path: Path) -> None:
    where = Filter("s3", tmp_path, ministack)
    blobs = open_blobs(where.url, "place")
    calls: list[int] = []
    assert isinstance(blobs, S3Blobs)
    blobs._client.meta.events.register(
        "provide-client-params.s3.DeleteObjects", lambda params, **_: calls.append(len(params["Delete"]["Objects"]))
    )
    blobs.delete(key() for _ in range(DELETES_MAX + 1))
    assert calls == [DELETES_MAX, 1]


def test_a_bucket_that_answers_not_at_all_is_told() -> None:
    blobs = open_blobs(f"s3://bucket/x?region={REGION}&endpoint=http://127.0.0.1:9", "place")
    with pytest.raises(BlobsUnavailable, match="s3://bucket/x/place/"):
        blobs.get(key(), 1)


def test_messages_in_sqs_carry_a_reference_to_what_is_too_large_for_it(ministack: Ministack, tmp_path: Path) -> None:
    where = Filter("s3", tmp_path, ministack)
    prefix = f"t{uuid.uuid4().hex[:8]}"
    url = f"sqs://{REGION}/{prefix}?endpoint={ministack.url}&create=true&poll=0&triage=sqlite:///{tmp_path}/triage.db"
    app = App(url, blobs=where.url)
    got: list[int] = []

    @app.task(name="report.mail", retry=Retry(max_attempts=1))
    def mail(text: str) -> None:
        got.append(len(text))
        if len(got) == 1:
            raise RuntimeError("refused")

    mail.enqueue("x" * 2_000_000)
    app.run_worker(burst=True)
    (name,) = where.names()
    assert name.startswith(f"sqs-{REGION}-{prefix}/")
    (dead,) = app.dlq.list().messages
    assert len(app.body(dead)) > 2_000_000
    with pytest.raises(Unsupported, match="lifecycle rule"):
        app.collect_blobs()
    mail.enqueue("x" * 2_000_000)
    app.run_worker(burst=True)
    assert got == [2_000_000, 2_000_000]
    assert where.names() == [name]
    app.dlq.discard([dead.id], reason="over", actor="me")
    assert where.names() == []
    app.store.close()
