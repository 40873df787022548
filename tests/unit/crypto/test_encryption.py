"""Apps that encrypt: what a handler sees, what is said without the key, and what a key that comes later changes."""

from __future__ import annotations

import io
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import SOON, store_in

from redrive import App, Context, Idempotency, Retry
from redrive.batch import batch_cells
from redrive.crypto import Keys, key_uses
from redrive.decide import LOCKED
from redrive.errors import ConfigError, KeyMissing, KeyReused, SelectorError
from redrive.message import ClaimRequest, Draft, Lane
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock

OLD, NEW = Keys({"old": bytes(32)}), Keys({"new": bytes(range(32))})
BOTH = Keys({"new": bytes(range(32)), "old": bytes(32)})
CANARY = "canary-4111-1111"


@pytest.fixture(params=["memory", "sqlite"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = store_in(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    made = SqliteStore(tmp_path / "work.db")
    yield made
    made.close()


def an_app(inner: Any, keys: Any, ran: list[Any], **options: Any) -> Any:
    app = App(store=inner, encrypt=keys, **options)

    @app.task(name="push", retry=SOON, keep_result="1h")
    def push(card: str) -> dict[str, str]:
        ran.append(card)
        if card.startswith("bad"):
            raise ValueError(f"declined {card}")
        return {"charged": card}

    return app


# -- with the key


def test_a_handler_sees_what_was_enqueued_and_the_store_does_not(inner: Any) -> None:
    ran: list[Any] = []
    app = an_app(inner, BOTH, ran)
    ref = app.tasks["push"].enqueue(CANARY)
    stored = inner.find([ref.id])[0]
    assert stored.content == "sealed+json" and CANARY.encode() not in stored.body
    app.run_worker(burst=True)
    assert ran == [CANARY] and ref.wait("1s") == {"charged": CANARY}
    assert inner.find([ref.id])[0].result.startswith(b"\xd7rd1")


def test_faults_keep_class_and_fingerprint_in_the_clear_and_nothing_of_their_text(inner: Any) -> None:
    app = an_app(inner, BOTH, [])
    app.tasks["push"].enqueue(f"bad {CANARY}")
    app.run_worker(drain=True)
    (stored,) = inner.peek(Lane.DEAD).messages
    (opened,) = app.store.peek(Lane.DEAD).messages
    assert [f.error for f in stored.faults] == ["ValueError"] * 3
    assert [f.fingerprint for f in stored.faults] == [f.fingerprint for f in opened.faults]
    assert all(CANARY not in f.text + f.traceback for f in stored.faults)
    assert all(f.text == f"declined bad {CANARY}" and CANARY in f.traceback for f in opened.faults)
    assert app.store.failure_groups()[0].text == f"declined bad {CANARY}"
    assert CANARY not in inner.failure_groups()[0].text
    assert [m.id for m in app.dlq.select(f'args.card:"bad {CANARY}"')] == [opened.id]
    assert [m.id for m in app.dlq.select("text:*declined*")] == [opened.id]


def test_a_checkpoint_is_encrypted_and_comes_back(inner: Any) -> None:
    app, seen = App(store=inner, encrypt=BOTH), []

    @app.task(ctx=True, retry=SOON)
    def walk(ctx: Context) -> None:
        seen.append(ctx.progress)
        if ctx.progress is None:
            ctx.checkpoint({"at": CANARY})
            raise ValueError("again")

    ref = walk.enqueue()
    app.run_worker(burst=True)
    stored = inner.find([ref.id])[0]
    assert stored is None or CANARY.encode() not in (stored.progress or b"")
    app.run_worker(drain=True)
    assert seen == [None, {"at": CANARY}]


def test_the_task_of_a_death_gets_the_arguments_and_the_error(inner: Any) -> None:
    app, told = App(store=inner, encrypt=BOTH), []

    @app.task(ctx=True)
    def undo(ctx: Context, card: str) -> None:
        told.append((card, ctx.message.headers["redrive-dead-error"]))

    @app.task(on_dead=undo, retry=Retry(max_attempts=1))
    def push(card: str) -> None:
        raise ValueError(f"declined {card}")

    push.enqueue(CANARY)
    for _ in range(2):
        for m in inner.peek(None).messages:
            assert CANARY not in repr(m)
        app.run_worker(burst=True)
    assert told == [(CANARY, f"ValueError: declined {CANARY}")]


def test_the_stored_result_of_an_idempotency_key_is_encrypted(inner: Any) -> None:
    app, ran = App(store=inner, encrypt=BOTH), []

    @app.task(idempotency=Idempotency(key=lambda order, card: f"{order}"))
    def charge(order: int, card: str) -> str:
        ran.append(order)
        return f"charged {card}"

    swapped: list[bytes] = []
    swap = inner.cells.swap
    inner.cells.swap = lambda swaps, **rest: swapped.extend(s.value or b"" for s in swaps) or swap(swaps, **rest)
    assert charge(1, CANARY) == f"charged {CANARY}" == charge(1, CANARY)
    assert ran == [1] and swapped and not any(b"charged" in value or b"Y2hhcmdlZC" in value for value in swapped)


def test_a_reused_idempotency_key_is_known_by_a_hash_that_nobody_can_guess(inner: Any) -> None:
    from redrive.flow.idempotency import HASH_BYTES, cell_of, payload_of, read

    def charging(keys: Any) -> Any:
        app = App(store=inner, encrypt=keys)

        @app.task(name="charge", idempotency=Idempotency(key=lambda pin: "one"))
        def charge(pin: str) -> str:
            return "charged"

        return charge

    charge = charging(OLD)
    assert charge("1234") == "charged"
    (cell,) = inner.cells.read([cell_of("charge", "one")])
    record = read(cell.value)
    assert record is not None
    guesses = [payload_of(charge.codec.canonical((f"{n:04}",), {})) for n in range(10_000)]
    assert record.payload[:HASH_BYTES] not in guesses
    with pytest.raises(KeyReused):
        charge("9999")
    assert charging(BOTH)("9999") == "charged", "across a rotation arguments cannot be compared"


def test_batches_are_encrypted(inner: Any) -> None:
    app, ran = App(store=inner, encrypt=BOTH), []

    @app.task(name="push")
    def push(card: str) -> None:
        ran.append(card)

    app.enqueue_many([push.draft(f"{CANARY}-{n}") for n in range(3)])
    assert not any(CANARY.encode() in m.body for m in inner.peek(None).messages)
    app.run_worker(burst=True)
    assert sorted(ran) == [f"{CANARY}-{n}" for n in range(3)]


def test_large_bodies_are_encrypted_in_their_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: Any) -> None:
    monkeypatch.setenv("REDRIVE_BLOB_THRESHOLD", "1000")
    ran = list[Any]()
    app = an_app(inner, BOTH, ran, blobs=f"file://{tmp_path}/blobs")
    text = CANARY * 1000
    app.tasks["push"].enqueue(text)
    (blob,) = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert blob.read_bytes().startswith(b"\xd7rd1") and CANARY.encode() not in blob.read_bytes()
    assert inner.peek(None).messages[0].content == "sealed+blob+json"
    (found,), _ = key_uses(app.store)[0][:1], None
    assert (found.key, found.parts["bodies"], found.parts["blobs"]) == ("new", 1, 1)
    app.run_worker(burst=True)
    assert ran == [text]


def test_a_changed_blob_sets_its_message_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: Any) -> None:
    monkeypatch.setenv("REDRIVE_BLOB_THRESHOLD", "1000")
    ran = list[Any]()
    app = an_app(inner, BOTH, ran, blobs=f"file://{tmp_path}/blobs")
    app.tasks["push"].enqueue(CANARY * 1000)
    (blob,) = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    *rest, last = blob.read_bytes()
    blob.write_bytes(bytes([*rest, last ^ 1]))
    app.run_worker(burst=True)
    (message,) = app.store.peek(Lane.QUARANTINE).messages
    assert (ran, message.reason, message.faults[-1].error) == ([], "tampered", "redrive.errors.Tampered")


# -- without the key


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def timed(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Any:
    """A store on a manual clock."""
    made = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "work.db", clock_ms=clock)
    yield made
    made.close()


@pytest.mark.parametrize("keys", [None, OLD])
def test_without_its_key_a_message_waits_and_runs_when_the_key_comes(timed: Any, clock: ManualClock, keys: Any) -> None:
    ran: list[Any] = []
    ref = an_app(timed, NEW, ran).tasks["push"].enqueue(CANARY)
    without = an_app(timed, keys, ran, park_for=0)
    for _ in range(30):
        without.run_worker(burst=True)
        clock.advance("1m")
    stored = timed.find([ref.id])[0]
    assert (ran, stored.lane, stored.attempt, stored.reason) == ([], Lane.READY, 0, None)
    assert [f.error for f in stored.faults] == [LOCKED], "it is said once"
    an_app(timed, BOTH, ran).run_worker(burst=True)
    assert ran == [CANARY]


def test_neither_deadline_nor_crashes_end_what_cannot_be_read(timed: Any, clock: ManualClock) -> None:
    ran: list[Any] = []
    app = an_app(timed, NEW, ran)
    app.tasks["push"].using(deadline=datetime.fromtimestamp(timed.now_ms() / 1000 + 60, UTC)).enqueue(CANARY)
    ask = ClaimRequest("default", 1, 1000)
    for _ in range(5):
        app.store.exchange([], [ask])
        clock.advance("2s")
    clock.advance("10m")
    an_app(timed, OLD, ran).run_worker(burst=True)
    assert timed.counts().scheduled == 1
    clock.advance("2m")
    app.run_worker(burst=True)
    assert ran == [] and timed.counts().dead == 1, "with its key it meets its deadline as any other"


def test_a_cancel_ends_it_all_the_same(timed: Any) -> None:
    ref = an_app(timed, NEW, []).tasks["push"].enqueue(CANARY)
    timed.cancel([ref.id])
    an_app(timed, OLD, []).run_worker(burst=True)
    assert timed.counts().ready + timed.counts().scheduled == 0


def test_a_wait_for_its_key_is_no_part_of_the_wait_for_its_task(timed: Any, clock: ManualClock) -> None:
    ref = an_app(timed, NEW, []).tasks["push"].enqueue(CANARY)
    an_app(timed, OLD, []).run_worker(burst=True)
    clock.advance("1h")
    App(store=timed, encrypt=NEW, park_for="1m").run_worker(["default"], burst=True)
    assert timed.find([ref.id])[0].lane is Lane.READY


def test_a_checkpoint_without_its_key_waits_too(timed: Any, clock: ManualClock) -> None:
    app, seen = App(store=timed, encrypt=NEW), list[Any]()

    @app.task(ctx=True, name="walk", retry=SOON)
    def walk(ctx: Context) -> None:
        seen.append(ctx.progress)
        ctx.checkpoint({"at": CANARY})
        raise ValueError("again")

    timed.put([Draft(task="walk")])  # of a producer that does not encrypt yet
    app.run_worker(burst=True)
    clock.advance("1m")
    other = App(store=timed, encrypt=OLD)
    other.task(ctx=True, name="walk")(walk.handler)
    other.run_worker(burst=True)
    assert seen == [None]
    clock.advance("2m")
    app.run_worker(burst=True)
    assert seen == [None, {"at": CANARY}]


def test_what_was_put_before_there_were_keys_still_runs(inner: Any) -> None:
    ran: list[Any] = []
    an_app(inner, None, ran).tasks["push"].enqueue("plain")
    an_app(inner, NEW, ran).run_worker(burst=True)
    assert ran == ["plain"]


# -- changed in the store


@pytest.mark.parametrize("how", ["bit", "cut", "swapped", "empty"])
def test_a_body_that_was_changed_is_set_aside_with_a_clear_reason(disk: SqliteStore, how: str) -> None:
    inner, ran = disk, list[Any]()
    app = an_app(inner, BOTH, ran)
    first, other = (app.tasks["push"].enqueue(text) for text in (CANARY, "another"))
    found, swapped = (m.body for m in inner.find([first.id, other.id]))
    body = {"bit": found[:-1] + bytes([found[-1] ^ 1]), "cut": found[:50], "swapped": swapped, "empty": b""}[how]
    with sqlite3.connect(inner.path) as c:
        assert c.execute("update message set body = ? where body = ?", (body, found)).rowcount == 1
    app.run_worker(burst=True)
    message = app.store.find([first.id])[0]
    assert message is not None
    assert (ran, message.lane, message.reason) == (["another"], Lane.QUARANTINE, "tampered")
    assert "in the store" in message.faults[-1].text and message.faults[-1].error == "redrive.errors.Tampered"


# -- dead letters


def a_dead_one(inner: Any, keys: Any = NEW) -> tuple[Any, Any]:
    app = an_app(inner, keys, [])
    app.tasks["push"].enqueue(f"bad {CANARY}")
    app.run_worker(drain=True)
    (message,) = app.store.peek(Lane.DEAD).messages
    return app, message


def test_a_dead_letter_is_edited_under_a_new_envelope_and_its_audit_tells_no_body(inner: Any) -> None:
    app, dead = a_dead_one(inner)
    edited = app.dlq.edit(dead.id, args={"card": f"good {CANARY}"}, reason="mended", actor="ann")
    (stored,) = inner.find([edited.id])
    assert stored.content == "sealed+json" and stored.id != dead.id
    assert app.store.find([edited.id])[0].body == b'{"card":"good %s"}' % CANARY.encode()
    assert not any(CANARY in (entry.text or "") for entry in app.dlq.audit())


@pytest.mark.parametrize("keys", [None, OLD])
def test_without_the_key_an_edit_is_refused_and_a_redrive_goes(inner: Any, keys: Any) -> None:
    _, dead = a_dead_one(inner)
    app = an_app(inner, keys, [])
    for given in ({"args": {"card": "x"}}, {"body": b'{"card":"x"}'}):
        with pytest.raises(KeyMissing, match="encrypted"):
            app.dlq.edit(dead.id, reason="mended", actor="ann", **given)
    app.dlq.retry([dead.id])
    assert inner.find([dead.id])[0].lane is Lane.READY and inner.find([dead.id])[0].body == dead_body(inner, dead.id)


def dead_body(inner: Any, id: str) -> bytes:
    body: bytes = inner.find([id])[0].body
    return body


@pytest.mark.parametrize("keys", [None, OLD])
def test_selecting_arguments_or_texts_without_the_key_says_why_not(inner: Any, keys: Any) -> None:
    a_dead_one(inner)
    app = an_app(inner, keys, [])
    with pytest.raises(SelectorError, match=r"cannot select by args: .* encrypted with key 'new'"):
        app.dlq.select("args.card:x").count()
    with pytest.raises(SelectorError, match=r"cannot select by text"):
        app.dlq.select("text:*declined*").count()
    assert app.dlq.select("error:ValueError task:push").count() == 1


def test_an_export_without_the_key_carries_the_envelope_to_another_store(inner: Any) -> None:
    _, dead = a_dead_one(inner)
    file = io.BytesIO()
    keyless = an_app(inner, None, [])
    keyless.dlq.export("", file)
    assert CANARY.encode() not in file.getvalue()
    there, ran = MemoryStore(), list[Any]()
    an_app(there, None, []).dlq.import_(io.BytesIO(file.getvalue()), reason="moved", actor="ann")
    app = an_app(there, BOTH, ran)
    (found,) = app.store.find([dead.id])
    assert found.body == dead.body and found.faults[-1].text == f"declined bad {CANARY}"
    app.dlq.retry([dead.id])
    app.run_worker(drain=True)
    assert ran == [f"bad {CANARY}"] * 3


def test_an_export_with_the_key_is_in_the_clear_and_an_import_encrypts_it_again(inner: Any) -> None:
    app, dead = a_dead_one(inner)
    file = io.BytesIO()
    app.dlq.export("", file)
    assert CANARY.encode() in file.getvalue()
    there = MemoryStore()
    an_app(there, OLD, []).dlq.import_(io.BytesIO(file.getvalue()), reason="moved", actor="ann")
    (stored,) = there.find([dead.id])
    assert stored.content == "sealed+json" and CANARY not in repr(stored)


# -- what is used


def test_the_keys_that_are_used_are_counted_by_part(inner: Any) -> None:
    a_dead_one(inner, OLD)
    app = an_app(inner, BOTH, [])
    app.tasks["push"].enqueue("x")
    found, unseen = key_uses(app.store)
    told = {use.key: (use.writes, use.here, use.parts["bodies"], use.parts["texts"]) for use in found}
    assert told == {"new": (True, True, 1, 0), "old": (False, True, 1, 6)} and unseen == []
    app.dlq.discard([m.id for m in inner.peek(Lane.DEAD).messages], reason="gone", actor="ann")
    assert [use.key for use in key_uses(app.store)[0] if use.used] == ["new"]


def test_the_keys_of_batches_are_counted_also_where_they_are_missing(inner: Any) -> None:
    app = an_app(inner, OLD, [])
    push = app.tasks["push"]
    w = app.workflow(name="steps")
    w.all([push.draft(CANARY)] * 300, name="later").after(w.step(push, "first"))
    ref = w.enqueue()
    app.batch([], name="empty", on_success=push.draft("x")).enqueue()
    for keys, here in ((BOTH, True), (NEW, False)):
        store = an_app(inner, keys, []).store
        uses = {use.key: use for use in key_uses(store, batch_cells(store))[0]}
        assert uses["old"].parts["batches"] == (3 if here else 1) and uses["old"].here is here
    assert CANARY.encode() not in b"".join(cell.value for cell in inner.cells.read([f"batch/{ref.id}"]) if cell)


def test_a_store_without_keys_says_which_it_would_need(inner: Any) -> None:
    an_app(inner, NEW, []).tasks["push"].enqueue("x")
    (use,), _ = key_uses(inner)
    assert (use.key, use.here, use.used) == ("new", False, True)


# -- a key service


class KeyService:
    """Plays AWS KMS: it makes data keys and gives each with its ciphertext, which only it can open."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._made: dict[bytes, bytes] = {}

    def generate_data_key(self, *, KeyId: str, KeySpec: str) -> dict[str, bytes]:
        self.calls.append("GenerateDataKey")
        blob, plain = b"wrapped" + bytes([len(self._made)]) * 100, bytes([len(self._made)]) * 32
        self._made[blob] = plain
        return {"CiphertextBlob": blob, "Plaintext": plain}

    def decrypt(self, *, KeyId: str, CiphertextBlob: bytes) -> dict[str, bytes]:
        self.calls.append("Decrypt")
        return {"Plaintext": self._made[CiphertextBlob]}


def test_data_keys_of_a_key_service_travel_with_what_they_encrypt(inner: Any) -> None:
    from redrive.crypto.kms import KmsKeys

    service, ran = KeyService(), list[Any]()
    producer = an_app(inner, KmsKeys("alias/redrive", client=service), ran)
    for n in range(20):
        producer.tasks["push"].enqueue(f"{n}")
    assert service.calls == ["GenerateDataKey"]
    worker = an_app(inner, KmsKeys("alias/redrive", client=service), ran)
    worker.run_worker(burst=True)
    assert len(ran) == 20 and service.calls.count("Decrypt") == 1


# -- declaring


@pytest.mark.parametrize("given", ["secret", {"k": bytes(32)}, 7])
def test_what_can_be_no_keys_is_refused_when_the_app_is_made(given: Any) -> None:
    with pytest.raises(ConfigError, match="expected Keys"):
        App("memory://", encrypt=given)


def test_without_encrypt_nothing_stands_before_the_store(inner: Any) -> None:
    app = App(store=inner)
    assert app.store is inner and app.store.box is None
