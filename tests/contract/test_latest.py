"""`using(key=…, replace=True)` and `unique="waiting"`: options, refs, transactions, blobs and encryption."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.urls import url_of

from redrive import App, Keys
from redrive.errors import ConfigError, EnqueueError, Unsupported
from redrive.message import ClaimRequest
from redrive.testing import Kit

CLAIM = ClaimRequest("index", 10, 60_000)


def an_app(url: str, **options: Any) -> tuple[App, list[tuple[str, int]]]:
    app, ran = App(url, **options), []

    @app.task(name="build", queue="index")
    def build(record: str, n: int = 0) -> None:
        ran.append((record, n))

    return app, ran


@pytest.mark.parametrize(
    "options",
    [
        {"replace": True},
        {"unique": "waiting"},
        {"key": "k", "unique": "ever"},
        {"key": "k", "replace": True, "for_": "1h"},
        {"key": "k", "unique": "waiting", "for_": "1h"},
        {"key": "k", "replace": True, "group": "g"},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    app, _ = an_app("memory://")
    with pytest.raises(ConfigError):
        app.tasks["build"].using(**options)  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_the_last_call_is_the_one_that_runs(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    app, ran = an_app(url_of(engine, request, tmp_path))
    build: Any = app.tasks["build"]
    refs = [build.using(key="k", replace=True).enqueue("a", n) for n in range(4)]
    assert [(ref.duplicate, ref.replaced) for ref in refs] == [(False, False), *[(True, True)] * 3]
    drafts = [build.using(key="k", replace=True).draft("a", n) for n in (5, 6)]
    assert {ref.id for ref in [*refs, *app.enqueue_many(drafts)]} == {refs[0].id}
    app.run_worker(["index"], drain=True)
    assert ran == [("a", 6)]
    app.store.close()


def connect(url: str, path: Path) -> Any:
    return sqlite3.connect(path) if url.startswith("sqlite") else psycopg.connect(url.partition("?")[0])


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_transaction_replaces_when_it_commits(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    app, ran = an_app(url_of(engine, request, tmp_path))
    build: Any = app.tasks["build"]
    first = build.using(key="k").enqueue("a", 1)
    for commits, n in ((False, 2), (True, 3)):
        tx = connect(str(app.url), tmp_path / "work.db")
        assert build.using(key="k", replace=True, tx=tx).enqueue("a", n).id == first.id
        if commits:
            tx.commit()
        else:
            tx.rollback()
        tx.close()
    app.run_worker(["index"], drain=True)
    assert ran == [("a", 3)]
    app.store.close()


@pytest.mark.parametrize("options", [{"replace": True}, {"unique": "waiting"}])
def test_on_postgresql_no_worker_begins_what_an_open_transaction_relies_on(
    options: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    app, _ = an_app(url_of("postgres", request, tmp_path))
    build: Any = app.tasks["build"]
    first = build.using(key="k").enqueue("a", 1)
    with connect(str(app.url), tmp_path) as tx:
        assert build.using(key="k", tx=tx, **options).enqueue("a", 2).id == first.id
        assert app.store.exchange([], [CLAIM]).deliveries == []
    (delivery,) = app.store.exchange([], [CLAIM]).deliveries
    assert delivery.message.id == first.id
    with connect(str(app.url), tmp_path) as tx:
        assert build.using(key="k", tx=tx, **options).enqueue("a", 3).id != first.id  # that one runs already
    app.store.close()


def test_the_test_kit_shows_a_replaced_message_once_with_its_last_arguments() -> None:
    app, ran = an_app("memory://")
    build: Any = app.tasks["build"]
    with Kit(app) as kit:
        build.using(key="k", delay="1m").enqueue("a", 1)
        build.using(key="k", delay="2m", replace=True).enqueue("a", 2)
        kit.assert_enqueued(build, "a", 2, times=1, delay="2m")
        kit.assert_enqueued(build, "a", 1, times=0)
        kit.advance("1m")
        kit.run_due()
        assert ran == []
        kit.advance("1m")
        kit.run_due()
    assert ran == [("a", 2)]


def test_what_is_encrypted_is_not_replaced_and_may_wait_for_itself() -> None:
    app, ran = an_app("memory://", encrypt=Keys({"k": bytes(32)}))
    build: Any = app.tasks["build"]
    waiting = build.using(key="k", unique="waiting")
    assert waiting.enqueue("a").id == waiting.enqueue("b").id
    with pytest.raises(Unsupported):
        build.using(key="k", replace=True).enqueue("c")
    app.run_worker(["index"], drain=True)
    assert ran == [("a", 0)]


def test_a_large_body_is_refused_and_the_blob_of_one_that_was_replaced_is_collected(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    app, ran = an_app(f"sqlite:///{tmp_path}/work.db", blobs=f"file://{tmp_path}/blobs")
    build: Any = app.tasks["build"]
    large = "x" * 300_000
    ref = build.using(key="k", delay="1h").enqueue(large)
    with pytest.raises(EnqueueError, match="blob"):
        build.using(key="k", replace=True).enqueue(large)
    assert build.using(key="k", replace=True).enqueue("small").id == ref.id
    assert app.store.large_bodies is not None
    assert app.store.large_bodies.collect(0) == 1
    app.run_worker(["index"], drain=True)
    assert ran == [("small", 0)]
    app.store.close()
