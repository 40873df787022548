"""Versions and unknown tasks: what a worker cannot take yet waits for one that can, and is never lost."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import App, Draft, Retry
from redrive.errors import ConfigError
from redrive.message import Lane
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock

from .working import SOON, Heard, stored


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


@pytest.mark.parametrize("newer", ["another task", "a newer version"])
def test_what_is_unknown_here_waits_for_a_newer_worker(app: App, newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.decide.PARK_LOOK_MS", 20)
    old, new, ran = another(app, park_for="1h"), app, []
    heard = Heard(old)
    if newer == "a newer version":
        version_of(old, 1, [])
    ref = version_of(new, 2, ran).enqueue(42)
    body = stored(app, ref.id).body
    for _ in range(3):
        old.run_worker(["default"], burst=True)
    parked = stored(app, ref.id)
    assert (parked.lane, parked.attempt, parked.body, parked.reason) == (Lane.READY, 0, body, None)
    assert [fault.kind for fault in parked.faults] == ["unroutable"], "one fault, of when it was first seen"
    assert ("no task 'push'" if newer == "another task" else "version 2 of task 'push'") in parked.faults[0].text
    assert set(heard.outcomes) == {"held"} and {fate.attempt for fate in heard.fates} == {0}
    new.run_worker(drain=True)
    assert ran == [42]


def test_nobody_came_so_it_is_dead_with_its_bytes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock_ms=clock.now_ms), park_for="25s")
    [put] = app.store.put([Draft(task="push", body=b"\xff", content="raw")])
    looked = []
    for _ in range(3):
        app.run_worker(["default"], burst=True)
        looked.append((stored(app, put.id).due_ms or 0) - clock.now_ms())
        clock.advance("10s")
    assert looked == [10_000, 10_000, 5_000]
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
    puts = app.store.put([Draft(task="nobody"), Draft(task="push", version=2, body=b"[")])
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
    assert App("memory://").worker()._park_ms == 7_000
    assert App("memory://", park_for="8s").worker()._park_ms == 8_000
    with pytest.raises(ValueError, match="park_for"):
        App("memory://", park_for=-1)
