"""Discard, quarantine, readmit and edit: what moves, what is noted, and that both or neither happens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from redrive import App, Draft
from redrive.errors import ConfigError, EnqueueError, Refused, Unreadable
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Lane, Message, Quarantine, Settlement
from redrive.triage.actions import BATCH
from redrive.triage.edit import difference

WHY = "by hand"


def put_dead(app: App, *drafts: Draft, quarantine: bool = False) -> list[str]:
    """Put these and let them die of one fault each."""
    ids = [put.id for at in range(0, len(drafts), 500) for put in app.store.put(drafts[at : at + 500])]
    decision = Quarantine("poison") if quarantine else DeadLetter("exhausted")
    fault = Fault(Kind.TRANSIENT, "OSError", "down", "a1" * 8)
    while taken := app.store.exchange([], [ClaimRequest("default", 500, 30_000)]).deliveries:
        app.store.exchange([Settlement(each.receipt, decision, fault) for each in taken], [])
    return ids


def dead(app: App, id: str) -> Message:
    found = app.dlq.show(id)
    assert found is not None
    return found


@pytest.fixture
def push(app: App) -> App:
    @app.task(name="push")
    def push(record_id: int, *, note: str = "") -> None: ...

    return app


# -- discard, quarantine, readmit


def test_discarded_messages_are_gone_with_their_keys_and_the_log_names_them(app: App) -> None:
    a, b = put_dead(app, Draft(task="t", key="k"), Draft(task="t"))
    done = app.dlq.discard([a, b, a, "0199f3a1-0000-7000-8000-000000000001"], reason=WHY, actor="ann")
    assert (done.ids, done.changed, done.unknown) == ((a, b), (), ("0199f3a1-0000-7000-8000-000000000001",))
    assert app.store.find([a, b]) == [None, None] and not app.store.put([Draft(task="t", key="k")])[0].duplicate
    (entry,) = app.dlq.audit()
    assert (entry.action, entry.claimed, entry.reason, entry.ids, entry.count) == ("discard", "ann", WHY, (a, b), 2)


def test_a_selection_goes_in_batches_with_an_entry_each(app: App) -> None:
    put_dead(app, *[Draft(task="t") for _ in range(BATCH + 3)], Draft(task="other"))
    heard: list[int] = []
    done = app.dlq.discard(select="task:t", reason=WHY, tick=heard.append)
    assert len(done) == BATCH + 3 and heard == [BATCH, 3]
    assert [(e.count, len(e.ids), e.about) for e in app.dlq.audit()] == [(3, 3, "task:t"), (BATCH, BATCH, "task:t")]
    assert app.store.counts().dead == 1


def test_what_moved_meanwhile_is_left_and_not_in_the_log(app: App) -> None:
    a, b, c = put_dead(app, Draft(task="t"), Draft(task="t"), Draft(task="t"))
    old = app.dlq.select("task:t")
    app.dlq.retry([b])
    assert app.dlq.discard([a, b], reason=WHY).changed == (b,)
    assert app.dlq.discard(select=old, reason=WHY).ids == (c,)
    assert app.store.find([b])[0] is not None
    assert [(e.action, e.ids) for e in app.dlq.audit()] == [("discard", (c,)), ("discard", (a,)), ("retry", (b,))]


def test_a_message_goes_to_quarantine_and_back_as_it_was(app: App) -> None:
    (a,) = put_dead(app, Draft(task="t"))
    before = dead(app, a)
    assert app.dlq.quarantine([a], reason="it kills the printer").ids == (a,)
    assert dead(app, a).lane is Lane.QUARANTINE and app.dlq.retry(all=True).ids == ()
    assert app.dlq.quarantine([a], reason=WHY).changed == (a,)
    assert app.dlq.readmit([a], reason=WHY).ids == (a,)
    assert replace(dead(app, a), rested_ms=before.rested_ms) == before
    assert app.dlq.readmit([a], reason=WHY).changed == (a,)
    assert [g.count for g in app.dlq.groups()] == [1]
    assert [e.action for e in app.dlq.audit()] == ["readmit", "quarantine"]


def test_quarantined_messages_are_readmitted_and_discarded_only_where_they_are_named(app: App) -> None:
    put_dead(app, Draft(task="t"), quarantine=True)
    assert app.dlq.readmit(select="", reason=WHY).ids == () == app.dlq.discard(select="", reason=WHY).ids
    assert len(app.dlq.readmit(select="lane:quarantine", reason=WHY)) == 1
    assert len(app.dlq.discard(select="", reason=WHY)) == 1


def test_every_change_needs_a_reason_and_one_choice(app: App) -> None:
    (a,) = put_dead(app, Draft(task="t"))
    with pytest.raises(ConfigError, match="no reason"):
        app.dlq.discard([a], reason=" ")
    with pytest.raises(ConfigError, match="give one of them"):
        app.dlq.discard([a], select="task:t", reason=WHY)
    with pytest.raises(ConfigError, match="give one of them"):
        app.dlq.discard(a, reason=WHY)
    assert app.store.counts().dead == 1


# -- edit


def test_an_edit_puts_a_new_message_in_the_place_of_the_old(push: App) -> None:
    draft = Draft(task="push", body=b'{"record_id":"x","note":"n"}', key="k", group="g", priority=1, headers={"a": "1"})
    (old,) = put_dead(push, draft)
    done = push.dlq.edit(old, args={"record_id": 7}, headers={"b": "2", "a": None}, reason="wrong type", actor="ann")
    assert done.replaces == old and push.store.find([old]) == [None]
    new = push.job(done.id)
    assert new is not None and new.body == b'{"record_id":7,"note":"n"}'
    assert (new.lane, new.attempt, new.redrives, new.faults) == (Lane.READY, 0, 0, ())
    assert (new.causation_id, new.correlation_id, new.key, new.group, new.priority) == (old, old, "k", "g", 1)
    assert new.headers == {"b": "2", "redrive-replaces": old}
    assert push.store.put([Draft(task="push", key="k")])[0].id == new.id
    (entry,) = push.dlq.audit()
    assert (entry.action, entry.ids, entry.count) == ("edit", (old, new.id), 1)
    assert '-  "record_id": "x",' in entry.text and '+  "record_id": 7,' in entry.text and entry.text == done.diff


def test_an_edit_changes_a_part_of_an_argument_by_the_path_that_selectors_know(app: App) -> None:
    @app.task(name="sync")
    def sync(customer: str, order: dict[str, Any]) -> None: ...

    body = b'{"customer":"acme","order":{"to":{"country":"DE","zip":"8001"},"number":123456789012345678901234567890}}'
    (old,) = put_dead(app, Draft(task="sync", body=body))
    new = app.dlq.edit(old, args={"args.order.to.country": "FR", "order.to.zip": msgspec.UNSET}, reason=WHY).id
    changed = body.replace(b'"DE","zip":"8001"', b'"FR"')
    assert app.store.find([new])[0].body == changed  # type: ignore[union-attr]  # the number has all its digits
    (old,) = put_dead(app, Draft(task="sync", body=body))
    for path, why in {
        "ordr.to.country": r"no argument 'ordr.to.country'; did you mean 'order.to.country'\?",
        "order.too.country": r"no argument 'order.too.country'; did you mean 'order.to.country'\?",
        "custmer": r"no argument 'custmer'; did you mean 'customer'\?",
        "customer.name": "'customer' is no object, so it has no 'name'",
        "order.number.of": "'order.number' is no object",
        "nothing.like.it": "there is 'customer', 'order'",
    }.items():
        with pytest.raises(Refused, match=why):
            app.dlq.edit(old, args={path: "FR"}, reason=WHY)
    assert app.store.find([old])[0].body == body  # type: ignore[union-attr]


def test_a_body_that_does_not_fit_is_refused_and_nothing_changes(push: App) -> None:
    (old,) = put_dead(push, Draft(task="push", body=b'{"record_id":"x"}'))
    before = dead(push, old)
    for args in ({"record_id": "y"}, {"record_id": 1, "more": 2}, {"record_id": msgspec.UNSET}):
        with pytest.raises(Refused, match="does not fit push"):
            push.dlq.edit(old, args=args, reason=WHY)
    with pytest.raises(ConfigError, match="changes nothing"):
        push.dlq.edit(old, args={"record_id": "x"}, reason=WHY, unchecked=True)
    with pytest.raises(ConfigError, match="no reason"):
        push.dlq.edit(old, args={"record_id": 1}, reason="")
    assert dead(push, old) == before and list(push.dlq.audit()) == [] and push.store.counts().ready == 0


def test_without_its_task_a_body_goes_unchecked_only_where_that_is_said(push: App) -> None:
    from redrive.triage.dlq import DeadLetters

    (old, other) = put_dead(push, Draft(task="push", body=b"{}"), Draft(task="pusch", body=b"{}"))
    with pytest.raises(Refused, match="is not known without its app"):
        DeadLetters(push.store).edit(old, args={"record_id": 1}, reason=WHY)
    with pytest.raises(Refused, match=r"no task 'pusch' \(near: 'push'\)"):
        push.dlq.edit(other, args={"record_id": 1}, reason=WHY)
    assert DeadLetters(push.store).edit(old, args={"record_id": 1}, reason=WHY, unchecked=True).diff


def test_a_message_that_is_not_dead_or_has_moved_is_not_edited(push: App) -> None:
    from redrive.triage.edit import Editor

    (old,) = put_dead(push, Draft(task="push", body=b'{"record_id":1}'))
    editor = Editor(push.store, push)
    message = editor.find(old)
    prepared = editor.prepared(message, args={"record_id": 2})
    push.dlq.retry([old])
    with pytest.raises(Refused, match="has moved meanwhile"):
        editor.commit(message, prepared, reason=WHY, actor=None)
    with pytest.raises(Refused, match="is ready"):
        push.dlq.edit(old, args={"record_id": 2}, reason=WHY)
    with pytest.raises(Refused, match="no message"):
        push.dlq.edit("0199f3a1-0000-7000-8000-000000000001", args={}, reason=WHY)
    assert [e.action for e in push.dlq.audit()] == ["retry"] and push.store.counts().ready == 1


def test_a_store_that_refuses_the_new_message_keeps_the_old(push: App) -> None:
    (old,) = put_dead(push, Draft(task="push", body=b'{"record_id":1}'))
    with pytest.raises(EnqueueError):
        push.dlq.edit(old, headers={"a": "\0"}, reason=WHY)
    assert dead(push, old).headers == {} and list(push.dlq.audit()) == []


def test_an_older_body_is_lifted_and_written_as_of_now(app: App) -> None:
    @app.task(name="push", version=2)
    def push(record_id: int) -> None: ...

    @push.upcast(1)
    def _(old: dict[str, object]) -> dict[str, object]:
        return {"record_id": old["id"]}

    (old, broken) = put_dead(app, Draft(task="push", body=b'{"id":"x"}'), Draft(task="push", body=b'{"no":1}'))
    done = app.dlq.edit(old, args={"record_id": 7}, reason=WHY)
    new = app.job(done.id)
    assert new is not None and (new.version, new.body) == (2, b'{"record_id":7}')
    done = app.dlq.edit(broken, body={"record_id": 8}, reason=WHY)
    assert '-  "no": 1' in done.diff


@pytest.mark.parametrize(
    "body",
    [b"\xff\x00\x01", b"", b"[1]", b"no json", b"[" * 5000],
    ids=["bytes", "empty", "list", "text", "deep"],
)
def test_an_unreadable_body_is_replaced_by_a_whole_one(push: App, body: bytes) -> None:
    (old,) = put_dead(push, Draft(task="push", body=body, content="raw"))
    with pytest.raises(Refused, match="not a JSON object"):
        push.dlq.edit(old, args={"record_id": 7}, reason=WHY)
    done = push.dlq.edit(old, body='{"record_id": 7}', reason=WHY)
    new = push.job(done.id)
    assert new is not None and (new.body, new.content) == (b'{"record_id": 7}', "json")
    assert push.dlq.edit(put_dead(push, Draft(task="push", body=b"{}"))[0], body=b"\xff", reason=WHY, unchecked=True)


def test_a_large_body_is_edited_where_it_lies_in_a_blob(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("edit")
    app = App(f"sqlite:///{place / 'work.db'}", blobs=f"file://{place / 'blobs'}")

    @app.task(name="push")
    def push(record_id: int, text: str) -> None: ...

    large = "x" * 300_000
    (old,) = put_dead(app, Draft(task="push", body=msgspec.json.encode({"record_id": "1", "text": large})))
    done = app.dlq.edit(old, args={"record_id": 1}, reason=WHY)
    app.run_worker(burst=True)
    assert app.job(done.id) is None and not [p for p in (place / "blobs").rglob("*") if p.is_file()]
    (old,) = put_dead(app, Draft(task="push", body=msgspec.json.encode({"record_id": "1", "text": large})))
    for blob in (place / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    with pytest.raises(Unreadable, match="is gone"):
        app.dlq.edit(old, args={"record_id": 1}, reason=WHY)
    assert app.dlq.edit(old, body={"record_id": 1, "text": ""}, reason=WHY)
    app.store.close()


# -- what differs


def test_a_difference_hides_secrets_and_shows_that_they_changed() -> None:
    old = b'{"n":1,"password":"one two","at":"https://ann:s3cret@host/"}'
    new = b'{"n":2,"password":"three","at":"https://ann:0ther@host/"}'
    told = difference(old, new, {"Authorization": "Bearer abcdefgh"}, {"Authorization": "Bearer zyxwvut"})
    assert not any(word in told for word in ("one", "two", "three", "s3cret", "0ther", "abcdefgh", "zyxwvut"))
    assert '-  "n": 1' in told and '+  "n": 2' in told
    lines = [line for line in told.splitlines() if "***" in line]
    assert len(lines) == len(set(lines)) == 6


def test_a_difference_of_bytes_that_mean_the_same_is_told() -> None:
    assert difference(b'{"n":1}', b'{ "n": 1 }', {}, {}) == "the bytes of the body differ, but not their meaning"
    assert difference(b"{}", b"{}", {"a": "1"}, {"a": "1"}) == ""
    assert "+00000000  ff 00" in difference(b"{}", b"\xff\x00", {}, {})
