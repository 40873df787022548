"""Mending dead letters on every store: what tests/unit/triage/test_actions.py shows in full on those
that need no server."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive import App, Draft
from redrive.errors import Refused
from redrive.message import ClaimRequest, DeadLetter, Isolate, Lane, Settlement

WHY = "by hand"


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    own = {"postgres": "schema", "redis": "namespace"}.get(request.param)
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'work.db'}"}.get(request.param)
    if own is not None:
        url = f"{request.getfixturevalue(f'{request.param}_server').url}?{own}=mend_{secrets.token_hex(4)}"
    made = App(url)

    @made.task(name="push")
    def push(record_id: int) -> None: ...

    yield made
    made.store.close()


def put_dead(app: App, *drafts: Draft) -> list[str]:
    ids = [put.id for put in app.store.put(drafts)]
    taken = app.store.exchange([], [ClaimRequest("default", len(drafts), 30_000)]).deliveries
    app.store.exchange([Settlement(each.receipt, DeadLetter("exhausted")) for each in taken], [])
    return ids


def test_what_is_mended_is_noted_and_what_moved_meanwhile_is_not(app: App) -> None:
    a, b, c, d = put_dead(app, Draft(task="push", key="k", group="g"), *[Draft(task="push") for _ in range(3)])
    new = app.dlq.edit(a, args={"record_id": 7}, reason=WHY).id
    with pytest.raises(Refused, match="there is no message"):
        app.dlq.edit(a, args={"record_id": 8}, reason=WHY)
    message = app.job(new)
    assert message is not None and (message.body, message.key, message.group) == (b'{"record_id":7}', "k", "g")
    assert app.store.put([Draft(task="push", key="k")])[0].id == new
    app.dlq.retry([b], reason=WHY)
    assert app.dlq.discard([b, c], reason=WHY).ids == (c,)
    assert app.dlq.quarantine([d], reason=WHY).ids == (d,)
    assert app.dlq.readmit(select="lane:quarantine", reason=WHY).ids == (d,)
    said = app.dlq.rule("ab" * 8, "hold", reason=WHY)
    assert said.rule is not None and app.dlq.rules().keys() == {"ab" * 8}
    log = [(entry.action, entry.ids) for entry in app.dlq.audit()]
    assert log == [
        ("rule", ()), ("readmit", (d,)), ("quarantine", (d,)), ("discard", (c,)), ("retry", (b,)), ("edit", (a, new)),
    ]  # fmt: skip
    assert [m.id for m in app.store.peek(Lane.DEAD).messages] == [d]
    assert app.store.check() == []


@pytest.mark.parametrize("app", ["postgres", "redis"], indirect=True)
def test_what_was_just_moved_is_selected_next_however_late_the_clock_was_told(app: App) -> None:
    ids = put_dead(app, *[Draft(task="push") for _ in range(3)])
    handles = [message.handle for message in app.store.find(ids) if message is not None]
    clock = app.store._link._clock  # type: ignore[attr-defined]
    clock._offset_ms -= 60_000  # as if every reply so far had come late
    assert app.store.triage(handles, Isolate(WHY)) == [True] * 3
    assert app.dlq.readmit(select="lane:quarantine", reason=WHY).ids == tuple(ids)


def test_a_message_is_carried_there_and_back(app: App) -> None:
    (id, odd) = put_dead(app, Draft(task="push", body=b'{"record_id":1}'), Draft(task="push", body=b"\xff\n\x00"))
    before = app.store.find([id, odd])
    file = io.BytesIO()
    assert app.dlq.export("", file).count == 2
    app.dlq.discard([id, odd], reason=WHY)
    assert set(app.dlq.import_(io.BytesIO(file.getvalue()), reason=WHY).ids) == {id, odd}
    assert app.store.find([id, odd]) == before
    assert len(app.dlq.retry([id])) == 1 and app.store.check() == []
