"""Versions and unknown tasks: what a worker cannot take yet waits for one that can, and is never lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import SOON, Heard, stored

from redrive import App, Draft, Idempotency, Retry
from redrive.errors import ConfigError
from redrive.message import Lane, Message
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock


def version_of(app: App, version: int, ran: list[Any], **options: Any) -> Any:
    """A task as it stood at that version of the program: its parameter was renamed, then split."""
    if version == 1:

        @app.task(name="push", **options)
        def push_1(id: int) -> None:
            ran.append(id)

        return push_1
    if version == 2:

        @app.task(name="push", version=2, **options)
        def push_2(record_id: int) -> None:
            ran.append(record_id)

        push_2.upcast(1)(renamed)
        return push_2

    @app.task(name="push", version=3, **options)
    def push_3(record_id: int, kind: str) -> None:
        ran.append((record_id, kind))

    push_3.upcast(1)(renamed)

    @push_3.upcast(2)
    def _(old: dict[str, Any]) -> dict[str, Any]:
        return {"record_id": old["record_id"] % 100, "kind": "new" if old["record_id"] > 100 else "old"}

    return push_3


def renamed(old: dict[str, Any]) -> dict[str, Any]:
    return {"record_id": old["id"]}


def another(app: App, **options: Any) -> App:
    """Another program on the same store."""
    return App(store=app.store, **options)


# -- old bodies


def test_upcast_without_its_version_is_refused() -> None:
    task = App("memory://").task(name="t", version=2)(lambda n: None)
    with pytest.raises(ConfigError, match=r"'t': write @task.upcast\(1\)"):
        task.upcast(lambda body: body)  # type: ignore[arg-type]


def test_an_old_body_is_lifted_step_by_step(app: App) -> None:
    ran: list[Any] = []
    for version, app_then in ((1, another(app)), (2, another(app)), (3, another(app))):
        version_of(app_then, version, []).enqueue(*((142,) if version < 3 else (42, "x")))
    assert sorted(m.version for m in app.store.peek(Lane.READY).messages) == [1, 2, 3]
    task = version_of(app, 3, ran)
    assert task.version == 3 and sorted(task.upcasts) == [1, 2] and task.upcasts[1] is renamed
    app.run_worker(burst=True)
    assert sorted(ran) == [(42, "new"), (42, "new"), (42, "x")]


def test_a_retry_of_an_old_body_is_lifted_again_and_its_bytes_stay(app: App) -> None:
    seen: list[int] = []

    @app.task(name="push", version=2, retry=SOON)
    async def push(record_id: int) -> None:
        seen.append(record_id)
        raise ConnectionError("down")

    push.upcast(1)(renamed)
    [put] = app.store.put([Draft(task="push", body=b'{"id": 7}')])
    app.run_worker(drain=True)
    assert seen == [7, 7, 7] and (stored(app, put.id).body, stored(app, put.id).version) == (b'{"id": 7}', 1)


def test_a_missing_step_is_unreadable_and_says_which(app: App) -> None:
    @app.task(name="push", version=3)
    def push(record_id: int) -> None: ...

    push.upcast(1)(renamed)
    [put] = app.store.put([Draft(task="push", body=b'{"id": 7}')])
    app.run_worker(burst=True)
    message = stored(app, put.id)
    assert (message.reason, message.attempt, message.body) == ("unreadable", 0, b'{"id": 7}')
    assert "@task.upcast(2)" in message.faults[0].text


def test_versions_are_declared_soundly() -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match="version=0"):
        app.task(version=0)(renamed)
    with pytest.raises(ConfigError, match="none, as the task has version=1"):
        version_of(app, 1, []).upcast(1)(renamed)
    refund = app.task(name="refund", version=2)(renamed)
    with pytest.raises(ConfigError, match=r"version=1 is 'refund' with version=2"):
        app.task(name="pay", on_dead=refund)(renamed)


# -- what is unknown here


def with_a_new_option(app: App, ran: list[Any], **options: Any) -> Any:
    """The task of version 1, whose newer release has one parameter more, with a default."""

    @app.task(name="push", **options)
    def push(id: int, color: str = "red") -> None:
        ran.append((id, color))

    return push


TOLD = {
    "another task": "no task 'push'",
    "a newer version": "version 2 of task 'push'",
    "another argument": "body does not fit push(id: 'int'): no argument 'color' is known here",
}


@pytest.mark.parametrize("newer", ["another task", "a newer version", "another argument"])
def test_what_is_unknown_here_waits_for_a_newer_worker(app: App, newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.decide.PARK_LOOK_MS", 20)
    monkeypatch.setattr("redrive.decide.PARK_LOOK_FIRST_MS", 20)
    old, new, ran = another(app, park_for="1h"), app, []
    heard = Heard(old)
    if newer != "another task":
        version_of(old, 1, [])
    ref = (
        with_a_new_option(new, ran).enqueue(42, "blue") if "argument" in newer else version_of(new, 2, ran).enqueue(42)
    )
    body = stored(app, ref.id).body
    for _ in range(3):
        old.run_worker(["default"], burst=True)
    parked = stored(app, ref.id)
    assert (parked.lane, parked.attempt, parked.body, parked.reason) == (Lane.READY, 0, body, None)
    assert [fault.kind for fault in parked.faults] == ["unroutable"], "one fault, of when it was first seen"
    assert TOLD[newer] in parked.faults[0].text
    assert set(heard.outcomes) == {"held"} and {fate.attempt for fate in heard.fates} == {0}
    assert all(TOLD[newer] in (fate.text or "") for fate in heard.fates), "each says why, also the second one"
    new.run_worker(drain=True)
    assert ran == [(42, "blue") if "argument" in newer else 42]


def test_nobody_came_so_it_is_dead_with_its_bytes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock_ms=clock.now_ms), park_for="25s")
    [put] = app.store.put([Draft(task="push", body=b"\xff", content="raw")])
    looked = []
    for _ in range(3):
        app.run_worker(["default"], burst=True)
        looked.append((stored(app, put.id).due_ms or 0) - clock.now_ms())
        clock.advance("10s")
    assert looked == [500, 5_000, 5_000]
    app.run_worker(["default"], burst=True)
    message = stored(app, put.id)
    assert (message.lane, message.reason, message.attempt, message.body) == (Lane.DEAD, "unroutable", 0, b"\xff")
    assert [fault.kind for fault in message.faults] == ["unroutable"] * 2
    app.dlq.retry([put.id])
    app.run_worker(["default"], burst=True)
    assert stored(app, put.id).lane is Lane.READY, "a redrive begins a new wait"


def test_with_no_time_to_wait_it_is_dead_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_PARK_FOR", "0")
    version_of(app, 1, [])
    newer = Draft(task="push", version=2, body=b"["), Draft(task="push", body=b'{"id":1,"color":"blue"}')
    puts = app.store.put([Draft(task="nobody"), *newer])
    app.run_worker(burst=True)
    for message in (stored(app, put.id) for put in puts):
        assert (message.lane, message.reason, message.attempt) == (Lane.DEAD, "unroutable", 0)


def test_the_wait_is_no_part_of_the_time_its_retries_may_take() -> None:
    clock = ManualClock()
    store = MemoryStore(clock_ms=clock.now_ms)
    old, new, ran = App(store=store, park_for="1h"), App(store=store), []

    @new.task(name="push", retry=Retry(max_attempts=2, max_elapsed="1m"))
    def push() -> None:
        ran.append(1)
        raise ConnectionError("down")

    ref = push.enqueue()
    for _ in range(30):
        old.run_worker(["default"], burst=True)
        clock.advance("10s")
    for _ in range(2):
        new.run_worker(burst=True)
        clock.advance("4s")
    assert len(ran) == 2 and stored(new, ref.id).reason == "exhausted"


def test_the_app_goes_before_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_PARK_FOR", "7s")
    for app, park_ms in ((App("memory://"), 7_000), (App("memory://", park_for="8s"), 8_000)):
        assert [queue.park_ms for queue in app.worker()._worker_queues.values()] == [park_ms]
    with pytest.raises(ValueError, match="park_for"):
        App("memory://", park_for=-1)


# -- arguments that are unknown here


def unknown(app: App, body: bytes, content: str = "json", version: int = 1) -> Message:
    """What became of a message with that body, where nothing waits for a newer worker."""
    [put] = app.store.put([Draft(task="push", body=body, content=content, version=version)])
    app.run_worker(["default"], burst=True)
    return stored(app, put.id)


BODIES = [
    (b'{"id":1,"color":"blue"}', "json", "unroutable"),
    (b'{"color":"blue","id":1}', "raw", "unroutable"),  # others' producers are newer too
    (b'{"id":"one","color":"blue"}', "json", "unroutable"),  # who knows what an id is there
    (b'{"color":"blue"}', "json", "unreadable"),  # the id is missing: no call of this task in any release
    (b'{"color":"blue"}', "raw", "unreadable"),
    (b'{"id":"one"}', "json", "unreadable"),
    (b'[1,"blue"]', "json", "unreadable"),
    (b'{"id":1,"color":', "json", "unreadable"),
    (b"\xff", "raw", "unreadable"),
]


@pytest.mark.parametrize(("body", "content", "reason"), BODIES)
def test_only_a_call_with_more_than_is_known_waits(body: bytes, content: str, reason: str) -> None:
    app, ran = App("memory://", park_for=0), []
    version_of(app, 1, ran)
    message = unknown(app, body, content)
    assert (message.lane, message.reason, message.attempt, message.body) == (Lane.DEAD, reason, 0, body)
    assert not ran


def test_a_lifted_body_waits_for_what_it_came_with_and_not_for_what_a_step_made() -> None:
    app = App("memory://", park_for=0)

    @app.task(name="push", version=2)
    def push(id: int) -> None: ...

    push.upcast(1)(lambda body: body if "color" in body else {**body, "made": True})
    assert unknown(app, b'{"id":1,"color":"blue"}').reason == "unroutable"
    message = unknown(app, b'{"id":1}')
    assert message.reason == "unreadable" and "`made`" in message.faults[0].text


def test_a_death_for_an_unknown_argument_makes_up_for_nothing() -> None:
    app, undone = App("memory://", park_for=0), []

    @app.task(name="undo")
    def undo(id: int) -> None:
        undone.append(id)

    version_of(app, 1, [], on_dead=undo)
    assert unknown(app, b'{"id":1,"color":"blue"}').reason == "unroutable"
    assert not undone, "a newer worker may run it yet"


def test_a_retry_that_comes_to_an_older_worker_waits_for_a_newer_one() -> None:
    clock = ManualClock()
    store = MemoryStore(clock_ms=clock.now_ms)
    old, new, ran = App(store=store, park_for="1h"), App(store=store), list[int]()
    version_of(old, 1, ran)

    @new.task(name="push", retry=Retry(max_attempts=2))
    def push(id: int, color: str = "red") -> None:
        ran.append(id)
        raise ConnectionError("down")

    ref = push.enqueue(1, "blue")
    new.run_worker(burst=True)
    clock.advance("1h")
    old.run_worker(burst=True)
    parked = stored(new, ref.id)
    assert (parked.lane, parked.attempt, [f.kind for f in parked.faults]) == (
        Lane.READY,
        1,
        ["transient", "unroutable"],
    )
    clock.advance("10s")
    new.run_worker(burst=True)
    assert ran == [1, 1] and stored(new, ref.id).reason == "exhausted"


@pytest.mark.parametrize("options", [{"idempotency": Idempotency(key=lambda id: str(id))}, {"dependency": "shop"}])
def test_what_a_task_shares_is_not_taken_for_a_message_that_waits(app: App, options: Any) -> None:
    old, ran = another(app, park_for="1h"), []
    version_of(old, 1, ran, **options)
    ref = with_a_new_option(app, ran).enqueue(1, "blue")
    old.run_worker(burst=True)
    parked = stored(app, ref.id)
    assert (parked.lane, parked.attempt, parked.faults[0].kind) == (Lane.READY, 0, "unroutable")
    version_of(another(app), 1, ran, **options).enqueue(1)
    old.run_worker(burst=True)
    assert ran == [1], "its key is free"


def test_a_body_in_blob_storage_waits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_BLOB_THRESHOLD", "100")

    def of(park_for: str) -> App:
        return App(f"sqlite:///{tmp_path}/work.db", blobs=f"file://{tmp_path}/blobs", park_for=park_for)

    old, new, ran = of("1h"), of("1h"), []

    @old.task(name="note")
    def note(text: str) -> None:
        ran.append(text)

    @new.task(name="note")
    async def newer(text: str, color: str = "red") -> None:
        ran.append(color)

    ref = newer.enqueue("x" * 1000, "blue")
    old.run_worker(burst=True)
    parked = stored(new, ref.id)
    assert (parked.lane, parked.attempt, parked.faults[0].kind, ran) == (Lane.READY, 0, "unroutable", [])
    for app in (old, new):
        app.store.close()
