"""What people see where SQS promises less than other stores: each refusal says what, why and what to do, loses nothing,
and ends a command with 4."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import REGION

from redrive import App, Context, Retry
from redrive.errors import Refused, Unsupported
from redrive.program.main import run as run_command
from redrive.testing.sqs import SqsServer


@pytest.fixture(scope="module")
def server() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server


@pytest.fixture
def url(server: SqsServer, tmp_path: Path) -> str:
    prefix = f"p{abs(hash(tmp_path)):x}"[:12]
    bare = f"sqs://{REGION}/{prefix}?create=true&poll=0&endpoint={server.url}"
    return f"{bare}&triage=sqlite:///{tmp_path / 'dead.db'}"


@pytest.fixture
def bare(url: str) -> str:
    return url.partition("&triage=")[0]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    for app in OPEN:
        if app._store is not None:
            app._store.close()
    OPEN.clear()


OPEN: list[App] = []


def open_app(url: str) -> App:
    OPEN.append(App(url))
    return OPEN[-1]


def app_on(url: str) -> App:
    app = open_app(url)

    @app.task(name="crm.push", queue="crm", retry=Retry(max_attempts=1))
    def push(n: int) -> int:
        if n < 0:
            raise ValueError("never")
        return n

    return app


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of a command, and its standard error as one text."""
    code = run_command([*words])
    return code, capsys.readouterr().err


LISTING = ("error: SQS can look at no message that waits or runs in it", "next: ")


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["job", "list"], LISTING),
        (["job", "list", "--state", "done"], LISTING),
        (["job", "cancel", "ID"], ("so none can be cancelled", "whether its work is still wanted")),
        (["queue", "purge", "crm", "--yes", "--reason", "r"], ("cannot list what waits", "aws sqs purge-queue")),
        (["group", "list", "crm"], ("does not say which groups a queue holds",)),
        (["group", "width", "crm", "3"], ("SQS has no widths of groups",)),
        (["group", "resume", "crm", "g"], ("does not say which groups",)),
        (
            ["enqueue", "crm.push", "-q", "crm", "--key", "k", '{"n": 1}'],
            ("keeps no unique keys", "let the task be idempotent"),
        ),
    ],
    ids=lambda part: "-".join(part[:2]) if isinstance(part, list) else "",
)
def test_a_command_that_sqs_cannot_do_is_refused_and_changes_nothing(
    url: str, capsys: pytest.CaptureFixture[str], words: list[str], texts: tuple[str, ...]
) -> None:
    app = app_on(url)
    id = app.tasks["crm.push"].enqueue(1).id
    code, err = said(capsys, *[word.replace("ID", id) for word in words], "--url", url)
    assert code == 4, err
    for text in texts:
        assert text in " ".join(err.split())
    counts = app.counts("crm")
    assert (counts.ready, counts.done) == (1, 0)
    app.run_worker(queues=["crm"], burst=True)
    assert app.counts("crm").ready == 0


def test_what_is_shared_needs_cells_and_what_rests_a_triage_store(
    bare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = app_on(bare)
    app.tasks["crm.push"].enqueue(1)
    for words, text in (
        (["queue", "pause", "crm", "--reason", "r"], "cells="),
        (["dlq", "list"], "triage="),
        (["dlq", "retry", "--all"], "triage="),
    ):
        code, err = said(capsys, *words, "--url", bare)
        assert (code, text in err, "next: " in err) == (4, True, True), err
    assert app.counts("crm").ready == 1


def test_a_pause_holds_where_there_are_cells(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = app_on(url)
    app.tasks["crm.push"].enqueue(1)
    assert said(capsys, "queue", "pause", "crm", "--reason", "r", "--url", url)[0] == 0
    app.run_worker(queues=["crm"], burst=True)
    assert app.counts("crm").ready == 1
    assert said(capsys, "queue", "resume", "crm", "--url", url)[0] == 0
    app_on(url).run_worker(queues=["crm"], burst=True)
    assert app.counts("crm").ready == 0


def test_a_message_is_shown_where_it_rests_and_not_where_it_waits(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = app_on(url)
    push = app.tasks["crm.push"]
    dies, waits = push.enqueue(-1), push.using(delay="15m").enqueue(1)
    app.run_worker(queues=["crm"], burst=True)
    code, err = said(capsys, "job", "show", waits.id, "--url", url)
    assert code == 1 and "SQS can look up nothing that waits or runs" in err
    assert run_command(["job", "show", dies.id, "--url", url, "-o", "json"]) == 0
    assert '"state":"dead"' in capsys.readouterr().out.replace(" ", "")
    assert (app.job(waits.id), app.counts("crm").scheduled) == (None, 1)


def test_a_ref_does_not_call_done_what_nobody_can_see(url: str) -> None:
    app = app_on(url)
    push = app.tasks["crm.push"]
    dies, waits = push.enqueue(-1), push.using(delay="15m").enqueue(1)
    for look in (lambda: waits.state, lambda: waits.progress, lambda: waits.wait(timeout="1s")):
        with pytest.raises(Unsupported, match="cannot tell whether this is done"):
            look()
    with pytest.raises(Unsupported, match="cannot tell whether this is done"):
        asyncio.run(waits.await_(timeout="1s"))
    with pytest.raises(Unsupported, match="cancelled"):
        app.cancel(waits.id)
    app.run_worker(queues=["crm"], burst=True)
    assert dies.state == "dead"


def test_a_follow_up_with_a_key_is_refused_in_the_handler_and_the_worker_goes_on(url: str) -> None:
    app = app_on(url)
    push = app.tasks["crm.push"]
    told: list[str] = []

    @app.task(name="crm.plan", queue="crm", ctx=True, retry=Retry(max_attempts=1))
    def plan(ctx: Context[Any], n: int) -> None:
        try:
            ctx.enqueue(push.using(key="k"), n)
        except Unsupported as error:
            told.append(str(error))
        ctx.enqueue(push, n)

    plan.enqueue(1)
    app.run_worker(queues=["crm"], burst=True)
    assert len(told) == 1 and "keeps no unique keys" in told[0]
    counts = app.counts("crm")
    assert (counts.ready, counts.leased, counts.dead) == (0, 0, 0)


def test_a_worker_does_not_start_with_a_width_that_sqs_does_not_have(url: str) -> None:
    app = app_on(url)
    app.queue("crm", group_width=3)
    with pytest.raises((Unsupported, Refused), match=r"queue 'crm'.*FIFO"):
        app.run_worker(queues=["crm"], burst=True)


def test_a_result_is_not_kept_and_a_drain_ends(url: str) -> None:
    app = open_app(url)

    @app.task(name="sum", queue="crm", keep_result="1h")
    def add(a: int, b: int) -> int:
        return a + b

    ref = add.enqueue(1, 2)
    app.run_worker(queues=["crm"], drain=True)
    assert app.counts("crm").done == 0 and app.job(ref.id) is None


def test_lines_are_not_delivered_over_a_store_that_cannot_find_them(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("{}\n")
    code, err = said(capsys, "deliver", str(lines), "--to", "http://127.0.0.1:9/", "--url", url)
    assert code == 4 and "cannot look up what waits" in err and "sqlite:///" in err
