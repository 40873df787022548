"""The options of batches on every engine that counts members."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from redrive import App, Context, Retry, previous
from redrive.errors import ConfigError
from redrive.message import ClaimRequest, Message, RetryAt, Settlement

ENGINES = ["memory", "sqlite", "postgres", "redis"]


@pytest.fixture(params=ENGINES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/work.db"}.get(request.param)
    if url is None:
        own = "schema" if request.param == "postgres" else "namespace"
        url = f"{request.getfixturevalue(f'{request.param}_server').url}?{own}=batch_{secrets.token_hex(4)}"
    app = App(url)

    @app.task(name="square", retry=Retry(max_attempts=1))
    def square(n: int) -> int:
        if n < 0:
            raise ValueError("no square")
        return n * n

    yield app
    app.store.close()


def values(results: Iterator[tuple[Any, Any]]) -> list[Any]:
    return sorted(value for _, value in results)


# -- results


def test_results_are_read_page_by_page_by_a_ref_and_in_a_callback(app: App) -> None:
    heard: list[Any] = []

    @app.task(name="tell", ctx=True)
    def tell(ctx: Context, word: str) -> None:
        batch = ctx.batch
        assert batch is not None
        heard.append((word, batch.state, batch.episode, values(batch.results())))

    square = app.tasks["square"]
    drafts = [square.draft(n) for n in (*range(600), -1)]
    callbacks: Any = {f"on_{word}": tell.draft(word) for word in ("success", "complete")}
    ref = app.batch(drafts, name="sum", results=True, **callbacks).enqueue()
    app.run_worker(drain=True)
    squares = [n * n for n in range(600)]
    assert heard == [("complete", "partial", 1, squares)] and values(ref.results()) == squares
    [dead] = ref.members("dead")
    app.dlq.edit(dead.id, body={"n": 600}, reason="wrong sign")
    app.run_worker(drain=True)
    both = [(word, "done", 2, [*squares, 360_000]) for word in ("complete", "success")]
    assert sorted(heard[1:]) == both
    assert {member.task for member, _ in ref.results()} == {"square"}
    assert values(app.batch_ref(ref.id).results()) == [*squares, 360_000]


def test_what_a_member_adds_and_the_last_step_of_a_chain_keep_their_results_too(app: App) -> None:
    square = app.tasks["square"]

    @app.task(name="grow", ctx=True)
    def grow(ctx: Context, n: int) -> str:
        assert ctx.batch is not None and (ctx.batch.state, ctx.batch.episode) == ("running", 1)
        ctx.batch.add(square.draft(n))
        return "grown"

    chain = app.chain(square.draft(2), square.draft(previous), square.draft(previous))
    ref = app.batch([grow.draft(7), chain.draft()], name="sum", results="1h").enqueue()
    app.run_worker(drain=True)
    assert ref.counts.done == 5 and sorted(str(value) for _, value in ref.results()) == ["256", "49", "grown"]
    assert {member.keep_ms for member, _ in ref.results()} == {3_600_000}


def test_without_results_only_what_a_message_keeps_itself_is_there(app: App) -> None:
    square = app.tasks["square"]
    ref = app.batch([square.draft(2), square.using(keep_result="1h").draft(3)], name="sum").enqueue()
    app.run_worker(drain=True)
    assert ref.counts.done == 2 and values(ref.results()) == [9]
    long = app.batch([square.using(keep_result="30d").draft(3)], name="sum", results=True).enqueue()
    assert [member.keep_ms for member in long.members(None)] == [30 * 86_400_000]
    long.cancel()
    assert list(long.results()) == []


@pytest.mark.parametrize("wrong", [0, "", "never", -1, None])
def test_results_that_are_no_time_are_refused(wrong: Any) -> None:
    with pytest.raises((ConfigError, ValueError, TypeError), match="results"):
        App("memory://").batch(name="sum", results=wrong)


# -- labels


def test_a_batch_labels_its_members_and_what_they_add_and_selectors_find_them(app: App) -> None:
    square = app.tasks["square"]

    @app.task(name="grow", ctx=True)
    def grow(ctx: Context, n: int) -> None:
        assert ctx.batch is not None and ctx.message.labels == {"customer": "7", "region": "eu"}
        ctx.batch.add(square.draft(n))

    chain = app.chain(square.draft(2), app.tasks["square"].using(labels={"customer": "9"}).draft(-9))
    drafts = [square.draft(-1), square.using(labels={"customer": "8"}).draft(-8), grow.draft(-7), chain.draft()]
    ref = app.batch(drafts, name="sum", labels={"customer": "7", "region": "eu"}).enqueue()
    square.using(labels={"customer": "7"}).enqueue(-5)
    square.enqueue(-6)
    app.run_worker(drain=True)

    def found(selector: str) -> list[int]:
        return sorted(json.decode(message.body)["n"] for message in app.dlq.select(selector))

    assert found("label:region=eu") == [-9, -8, -7, -1] and found("label:customer=7") == [-7, -5, -1]
    assert found("label:(customer=8,customer=9)") == [-9, -8]
    assert found(f"batch:{ref.id} -label:customer=7") == [-9, -8] and found("-label:customer=*") == [-6]
    assert found('label:region="e"*') == [-9, -8, -7, -1] and found("label:Region=eu") == []
    assert app.dlq.select('label:"customer=8" label:region=*').count() == 1
    plan = app.dlq.select("label:customer=7").plan(canary=0)
    assert plan.total == 3


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"": "7"}, "expected a name"),
        ({"a=b": "7"}, "expected a name"),
        ({"n" * 64: "7"}, "at most 63 letters"),
        ({"a*": "7"}, "expected a name"),
        ({"customer": ""}, "1 to 255 printable"),
        ({"customer": "v" * 256}, "1 to 255 printable"),
        ({"customer": "a\nb"}, "1 to 255 printable"),
        ({"customer": 7}, "1 to 255 printable"),
        ({str(n): "7" for n in range(17)}, "at most 16 names"),
        (["customer"], "names with values"),
    ],
)
def test_labels_that_none_has_are_refused(labels: Any, why: str) -> None:
    app = App("memory://")
    task = app.task(name="square")(lambda n: None)
    for label in (lambda: app.batch(name="sum", labels=labels), lambda: task.using(labels=labels)):
        with pytest.raises(ConfigError, match=why):
            label()
    at_most = {"n" * 63: "v" * 255, **{str(n): "Grüße, 7" for n in range(15)}}
    assert Message("", "t", "q", b"", "", headers=task.using(labels=at_most).draft(1).headers or {}).labels == at_most


# -- stop_if


def test_a_batch_of_which_too_many_are_dead_cancels_those_that_wait(app: App) -> None:
    square = app.tasks["square"]
    heard: list[str] = []

    @app.task(name="tell", ctx=True)
    def tell(ctx: Context) -> None:
        assert ctx.batch is not None
        heard.append(f"{ctx.batch.state} {ctx.batch.counts.cancelled}")

    waiting = [square.using(delay="1h").draft(n) for n in range(1200)]
    bad = [square.draft(-n - 1) for n in range(25)]
    stopped, other = (
        app.batch([*bad, *waiting], name=name, stop_if=rule, on_complete=tell.draft()).enqueue()
        for name, rule in (("stopped", "dead>2%"), ("other", "dead>10%"))
    )
    app.run_worker(burst=True)
    app.run_worker(burst=True)
    assert (stopped.counts.open, stopped.counts.cancelled, stopped.counts.dead) == (0, 1200, 25)
    assert (other.counts.open, other.counts.cancelled) == (1200, 0)
    assert heard == ["partial 1200"] and (stopped.state, other.state) == ("partial", "running")
    [entry] = [entry for entry in app.audit if entry.about == f"batch/{stopped.id}"]
    assert (entry.action, entry.claimed, entry.count) == ("cancel", "redrive", 1200)
    assert entry.reason == "stop_if=dead>2%: 25 of 1,225 members are dead"
    app.dlq.retry(select=f"batch:{stopped.id}", delay="1h")  # what a person redrives is not cancelled
    app.run_worker(burst=True)
    assert (stopped.counts.open, stopped.counts.cancelled) == (25, 1200)
    assert [entry.action for entry in app.audit if entry.claimed == "redrive"] == ["cancel"]


# -- width


def groups_of(app: App) -> dict[tuple[str, str], int]:
    return {
        (group.queue, group.name): group.width for queue in ("default", "bulk") for group in app.store.groups(queue)
    }


def test_a_width_bounds_how_many_members_run_at_once_until_the_batch_has_ended(app: App) -> None:
    square, claim = app.tasks["square"], ClaimRequest("default", 10, 60_000)

    @app.task(name="grow", ctx=True)
    def grow(ctx: Context, n: int) -> None:
        assert ctx.batch is not None
        ctx.batch.add(square.draft(n), square.using(queue="bulk").draft(n), square.using(group="mine").draft(n))

    drafts = [grow.draft(0), *(square.draft(n) for n in range(5)), square.using(group="mine").draft(5)]
    drafts += [square.using(queue="bulk").draft(6), app.chain(square.draft(7), square.draft(previous)).draft()]
    ref = app.batch(drafts, name="sum", width=2).enqueue()
    name = f"batch/{ref.id}"
    assert groups_of(app)[("default", name)] == groups_of(app)[("bulk", name)] == 2
    first = app.store.exchange([], [claim]).deliveries
    assert sorted(str(each.message.group) for each in first) == sorted([name, name, "mine"])
    assert app.store.exchange([], [claim]).deliveries == []
    app.store.exchange([Settlement(each.receipt, RetryAt(app.store.now_ms())) for each in first], [])
    app.run_worker(["default", "bulk"], drain=True)
    assert ref.state == "done" and ref.counts.done == 13
    assert not [key for key in groups_of(app) if key[1] == name]


def test_what_a_wide_member_adds_is_in_its_group_and_what_is_dead_keeps_the_width(app: App) -> None:
    square, seen = app.tasks["square"], list[Any]()

    @app.task(name="look", ctx=True)
    def look(ctx: Context, more: int, sum: Any = None) -> None:
        assert ctx.batch is not None
        seen.append((ctx.message.queue, ctx.message.group == f"batch/{ctx.batch.id}"))
        if more:
            ctx.batch.add(look.draft(0), look.using(queue="bulk").draft(0))

    chain = app.chain(square.draft(1), look.draft(0, previous))
    ref = app.batch([look.draft(1), chain.draft(), square.draft(-1)], name="sum", width=3).enqueue()
    app.run_worker(["default", "bulk"], drain=True)
    assert sorted(seen) == [("bulk", False), ("default", True), ("default", True), ("default", True)]
    assert ref.state == "partial" and groups_of(app)[("default", f"batch/{ref.id}")] == 3
    app.dlq.discard(select=f"batch:{ref.id}", reason="no such number")
    app.run_worker(["default"], drain=True)
    assert not [key for key in groups_of(app) if key[1] == f"batch/{ref.id}"]


@pytest.mark.parametrize("wrong", [0, -1, 100_001])
def test_a_width_that_none_has_is_refused(wrong: int) -> None:
    with pytest.raises(ConfigError, match="width"):
        App("memory://").batch(name="sum", width=wrong)


def test_a_width_is_refused_in_a_queue_of_strict_groups_and_in_a_transaction(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/work.db")
    app.queue("default", group_order="strict")
    square = app.task(name="square")(lambda n: None)
    batch = app.batch([square.draft(1)], name="sum", width=2)
    with pytest.raises(ConfigError, match="strict groups run one message at a time"):
        batch.enqueue()
    with pytest.raises(ConfigError, match="with tx= it has no width="):
        batch.enqueue(tx=object())
    assert app.counts().ready == 0 and not app.store.groups("default")
    app.store.close()
