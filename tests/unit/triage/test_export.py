"""Dead letters as JSON lines: nothing is lost on the way, and what cannot be read is named."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive import App, Draft
from redrive.errors import ConfigError, Refused
from redrive.fault import Crash, Fault, Kind, classify
from redrive.message import BLOB, ClaimRequest, DeadLetter, Lane, Message, Quarantine, RetryAt, Settlement
from redrive.stores.memory.store import MemoryStore
from redrive.triage.export import Damaged, Importer, read_line, write_line

ID = "0199f3a1-0000-7000-8000-000000000001"
WHY = "to find out why"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
bodies = st.binary(max_size=60) | st.builds(lambda value: json.dumps(value, indent=1).encode(), json_values)
bodies |= st.builds(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(), json_values)
bodies |= texts.map(str.encode)
faults = st.builds(
    Fault,
    st.sampled_from(Kind),
    texts,
    texts,
    traceback=texts,
    errors=st.lists(texts, max_size=2).map(tuple),
    retry_after_s=st.none() | st.floats(0, 1e6),
    at_ms=st.integers(0, 2**53),
    delay_ms=st.none() | st.integers(0, 2**53),
    crash=st.none() | st.builds(Crash),
)
messages = st.builds(
    Message,
    st.just(ID),
    texts,
    texts,
    bodies,
    texts,
    lane=st.sampled_from([Lane.DEAD, Lane.QUARANTINE]),
    attempt=st.integers(0, 2**53),
    progress=st.none() | bodies,
    headers=st.dictionaries(texts, texts, max_size=3),
    key=st.none() | texts,
    rested_ms=st.none() | st.integers(0, 2**53),
    faults=st.lists(faults, max_size=3).map(tuple),
    content=st.sampled_from(["json", "raw", "odd codec"]),
)


@given(messages)
def test_a_line_says_all_of_a_message_byte_by_byte(message: Message) -> None:
    line = write_line(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert read_line(line) == message


@pytest.mark.parametrize(
    "body, field",
    [
        (b'{"b":1,  "a":1.50,"a":2}', "body"),
        (b'{"n":123456789012345678901234567890}', "body"),
        (b'{\n"a": 1}', "body_text"),
        (b' {"a":1}', "body_text"),
        (b"plain words", "body_text"),
        (b"", "body_text"),
        (b"[" * 9999, "body_text"),
        (b'{"a":"\xff"}', "body_base64"),
        (b"\x80\x04\x95pickle", "body_base64"),
    ],
    ids=["json", "digits", "lines", "space", "text", "empty", "deep", "latin", "bytes"],
)
def test_a_body_stands_in_its_line_as_plainly_as_it_can(body: bytes, field: str) -> None:
    line = write_line(Message(ID, "t", "q", body, ID, lane=Lane.DEAD))
    (found,) = [name for name in msgspec.json.decode(line, type=dict[str, msgspec.Raw]) if name.startswith("body")]
    assert found == field and read_line(line).body == body


def test_a_line_edited_by_hand_or_by_another_program_is_read() -> None:
    line = write_line(Message(ID, "t", "q", b'{"record_id":"x"}', ID, lane=Lane.DEAD))
    mended = json.loads(line)
    mended["body"]["record_id"] = 7
    assert json.loads(read_line(json.dumps(mended, indent=None).encode()).body) == {"record_id": 7}


@pytest.mark.parametrize(
    "line, why",
    [
        (b"{", "it is not JSON"),
        (b'{"format":1,"body":{},"id":"' + b"\xff" + b'"}', "id: 'utf-8' codec"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "its format is 0; expected 1"),
        (b'{"format":2}', "its format is 2; expected 1"),
        (b'{"format":1}', "missing required field `id`"),
        (b'{"format":1,"id":"1","task":"t","queue":"q","correlation_id":"1"}', "missing required field `body`"),
        (b'{"format":1,"body":1,"body_text":"x"}', "it has both body and body_text"),
        (b'{"format":1,"body_base64":"?"}', "body_base64: "),
        (b'{"format":1,"body_text":7}', "body_text: Expected `str`"),
        (b'{"format":1,"bdoy":7}', "there is no field 'bdoy'"),
        (
            b'{"format":1,"id":"1","task":"t","queue":"q","body":{},"correlation_id":"1","attempt":"1"}',
            "Expected `int`",
        ),
    ],
)
def test_a_line_that_is_no_message_says_why(line: bytes, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_line(line)
    assert why in str(caught.value)


# -- from store to store


def put_dead(app: App) -> list[Message]:
    """Three messages as dead as can be: with a history, of odd bytes, in quarantine."""
    ids = [
        put.id
        for put in app.store.put(
            [
                Draft(
                    task="push", body=b'{"record_id":7}', key="k", group="g", priority=1, headers={"a": "1"}, version=3
                ),
                Draft(task="odd", body=b"\x80\xff\n", content="raw"),
                Draft(task="poison", body=b"{\n}"),
            ]
        )
    ]
    for turn in range(3):
        for each in app.store.exchange([], [ClaimRequest("default", 9, 30_000, worker="w")]).deliveries:
            try:
                raise ConnectionError(f"run {turn}")
            except ConnectionError as error:
                fault = replace(classify(error), at_ms=app.store.now_ms(), attempt=turn + 1, worker="w")
            last = Quarantine("poison") if each.message.task == "poison" else DeadLetter("exhausted")
            app.store.exchange([Settlement(each.receipt, RetryAt(0) if turn < 2 else last, fault)], [])
    return [message for message in app.store.find(ids) if message is not None]


def test_what_is_carried_to_another_store_is_there_as_it_was_and_runs_there(app: App, tmp_path: Path) -> None:
    before = put_dead(app)
    out = tmp_path / "dead.jsonl"
    assert app.dlq.export("lane:(dead,quarantine)", out).count == 3
    laptop = App(f"sqlite:///{tmp_path / 'laptop.db'}")
    ran: list[int] = []

    @laptop.task(name="push", version=3)
    def push(record_id: int) -> None:
        ran.append(record_id)

    done = laptop.dlq.import_(out, reason=WHY, actor="ann")
    assert set(done.ids) == {message.id for message in before} and done.held == ()
    assert laptop.store.find([message.id for message in before]) == before == app.store.find([m.id for m in before])
    assert [(g.task, g.count) for g in laptop.dlq.groups()] == [(g.task, g.count) for g in app.dlq.groups()]
    (entry,) = laptop.dlq.audit()
    assert (entry.action, entry.claimed, entry.count, entry.about) == ("import", "ann", 3, str(out))
    laptop.dlq.retry([before[0].id])
    laptop.run_worker(burst=True)
    assert ran == [7]
    assert set(laptop.dlq.import_(out, reason=WHY).held) == {before[1].id, before[2].id}
    laptop.store.close()


def test_a_held_unique_key_keeps_a_message_out(app: App) -> None:
    (push, *_) = put_dead(app)
    out = io.BytesIO()
    app.dlq.export(f"id:{push.id}", out)
    other = App("memory://")
    other.store.put([Draft(task="push", key="k")])
    done = other.dlq.import_(io.BytesIO(out.getvalue()), reason=WHY)
    assert (done.ids, done.held) == ((), (push.id,)) and list(other.dlq.audit()) == []
    other.store.close()


def test_a_line_with_the_lane_of_a_newer_version_is_not_imported(app: App) -> None:
    put_dead(app)
    out = io.BytesIO()
    app.dlq.export("", out)
    line = out.getvalue().splitlines()[0].replace(b'"lane":"dead"', b'"lane":"deda"')
    other = App("memory://")
    with pytest.raises(Refused, match="its lane is 'deda'; expected 'dead' or 'quarantine'"):
        other.dlq.import_(io.BytesIO(line), reason=WHY)
    other.store.close()


def test_nothing_is_imported_where_a_line_is_damaged_unless_that_is_said(app: App) -> None:
    put_dead(app)
    out = io.BytesIO()
    app.dlq.export("", out)
    first, second = out.getvalue().splitlines()
    running = write_line(replace(read_line(first), lane=Lane.READY))
    damaged = b"\xef\xbb\xbf" + b"\r\n".join([first, b"", first[:-1], running.strip(), second, b'{"id": "x"}'])
    other = App("memory://")
    with pytest.raises(Refused) as caught:
        other.dlq.import_(io.BytesIO(damaged), reason=WHY)
    assert "3 of 5 lines cannot be read (line 3: it is not JSON" in str(caught.value)
    assert "line 4: its lane is 'ready'; expected 'dead' or 'quarantine'" in str(caught.value)
    assert other.store.counts().dead == 0 and list(other.dlq.audit()) == []
    done = other.dlq.import_(io.BytesIO(damaged), reason=WHY, skip_damaged=True)
    assert len(done) == 2 and [each.line for each in done.damaged] == [3, 4, 6]
    other.store.close()


def test_a_line_that_the_store_would_refuse_is_named(app: App) -> None:
    (message, *_) = put_dead(app)
    export = [write_line(message), write_line(replace(message, id="7")), write_line(replace(message, priority=9))]
    with Importer(MemoryStore(), io.BytesIO(b"".join(export))) as importer:
        looked = importer.inspect()
    assert looked.count == 1 and [each.line for each in looked.damaged] == [2, 3]
    assert "is not a UUIDv7" in looked.damaged[0].why and "priority is 9" in looked.damaged[1].why
    assert isinstance(looked.damaged[0], Damaged)


def test_large_files_go_in_batches(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.triage import export

    monkeypatch.setattr(export, "BATCH", 2)
    put_dead(app)
    out = io.BytesIO()
    app.dlq.export("lane:(dead,quarantine)", out)
    other = App("memory://")
    assert len(other.dlq.import_(io.BytesIO(out.getvalue()), reason=WHY)) == 3
    assert [entry.count for entry in other.dlq.audit()] == [1, 2]
    other.store.close()


def test_an_import_needs_a_reason(app: App) -> None:
    with pytest.raises(ConfigError, match="no reason"):
        app.dlq.import_(io.BytesIO(), reason="")


def test_an_export_that_fails_leaves_the_file_that_was_there(app: App, tmp_path: Path) -> None:
    put_dead(app)
    out = tmp_path / "dead.jsonl"
    out.write_text("precious")

    class Broken(Exception): ...

    selection = app.dlq.select("")

    def breaks() -> None:
        raise Broken

    selection.__class__ = type("Half", (type(selection),), {"__iter__": lambda self: breaks()})
    with pytest.raises(Broken):
        app.dlq.export(selection, out)
    assert out.read_text() == "precious" and [path.name for path in tmp_path.glob("*dead*")] == ["dead.jsonl"]


def test_a_large_body_travels_whole_and_goes_to_a_blob_again(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'a.db'}", blobs=f"file://{tmp_path / 'blobs'}")
    app.store.put([Draft(task="t", body=b'{"x":"' + b"x" * 300_000 + b'"}'), Draft(task="t", body=b"y" * 300_000)])
    for each in app.store.exchange([], [ClaimRequest("default", 9, 30_000)]).deliveries:
        app.store.exchange([Settlement(each.receipt, DeadLetter("rejected"))], [])
    out = tmp_path / "dead.jsonl"
    app.dlq.export("", out)
    assert out.stat().st_size > 600_000
    for url, blobs in ((f"sqlite:///{tmp_path / 'b.db'}", f"file://{tmp_path / 'others'}"), ("memory://", None)):
        other = App(url, blobs=blobs)
        ids = other.dlq.import_(out, reason=WHY).ids
        found = [message for message in other.store.find(ids) if message is not None]
        assert [message.content == BLOB for message in found] == [blobs is not None] * 2
        again = tmp_path / "again.jsonl"
        other.dlq.export("", again)
        assert again.read_bytes() == out.read_bytes()
        other.store.close()
    blob = next(path for path in (tmp_path / "blobs").rglob("*") if path.is_file())
    blob.unlink()
    done = app.dlq.export("", out)
    assert (done.count, len(done.unread)) == (2, 1)
    app.store.close()
