"""Chains end to end: each step gets what the one before returned, and a step that died resumes the chain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Context, Idempotency, Keys, Retry, previous
from redrive.chain import NEXT_HEADER, STEPS_MAX
from redrive.errors import ConfigError, EncodeError, EnqueueError
from redrive.message import BatchCounts

ONCE = Retry(max_attempts=1)


class Mill:
    """Tasks of a chain that write down what they get, and fail while `down` is set."""

    def __init__(self, url: str, **options: Any) -> None:
        self.app = app = App(url, **options)
        self.saved: list[tuple[int, str, str]] = []
        self.fetched: list[str] = []
        self.down = False

        @app.task(name="fetch")
        async def fetch(url: str) -> dict[str, int]:
            self.fetched.append(url)
            return {"size": len(url)}

        @app.task(name="parse", retry=ONCE)
        def parse(page: dict[str, int], factor: int = 1) -> int:
            if self.down:
                raise ConnectionError("the parser is down")
            return page["size"] * factor

        @app.task(name="save", ctx=True)
        def save(ctx: Context, size: int, to: str) -> None:
            self.saved.append((size, to, ctx.correlation_id))

        self.fetch, self.parse, self.save = fetch, parse, save

    def chain(self, url: str = "http://a") -> Any:
        return self.app.chain(
            self.fetch.draft(url), self.parse.draft(previous, factor=2), self.save.draft(previous, to="disk")
        )

    def work(self) -> None:
        self.app.run_worker(drain=True)


@pytest.fixture(params=["memory", "sqlite", "encrypted"])
def mill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mill]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"
    made = Mill(url, encrypt=Keys({"k": b"1" * 32}) if request.param == "encrypted" else None)
    yield made
    made.app.store.close()


def test_each_step_gets_what_the_one_before_returned(mill: Mill) -> None:
    ref = mill.chain().enqueue()
    mill.work()
    assert mill.saved == [(16, "disk", ref.id)]


def test_a_dead_step_is_redriven_and_the_chain_goes_on_without_the_steps_before(mill: Mill) -> None:
    mill.down = True
    for n in range(20):
        mill.chain(f"http://{n}").enqueue()
    mill.work()
    assert len(mill.fetched) == 20 and mill.saved == []
    (group,) = mill.app.dlq.groups()
    assert (group.task, group.count) == ("parse", 20)
    mill.down = False
    mill.app.dlq.retry(select=f"fingerprint:{group.fingerprint}")
    mill.work()
    assert len(mill.saved) == 20 and len(mill.fetched) == 20


def test_the_steps_of_a_chain_in_a_batch_are_members(mill: Mill) -> None:
    ref = mill.app.batch([mill.chain().draft() for _ in range(3)], name="chains").enqueue()
    mill.work()
    assert ref.counts == BatchCounts(done=9, opened=9) and ref.state == "done"


def test_an_edited_step_keeps_the_rest_of_its_chain(mill: Mill) -> None:
    mill.down = True
    mill.chain().enqueue()
    mill.work()
    (dead,) = mill.app.dlq.select("task:parse")
    mill.down = False
    mill.app.dlq.edit(dead.id, body={"page": {"size": 5}, "factor": 3}, reason="mended")
    mill.work()
    assert [saved[0] for saved in mill.saved] == [15]


def test_the_later_steps_are_not_readable_in_an_encrypted_store(tmp_path: Path) -> None:
    mill = Mill(f"sqlite:///{tmp_path}/work.db", encrypt=Keys({"k": b"1" * 32}))
    ref = mill.app.chain(mill.fetch.draft("u"), mill.save.draft(previous, to="secret place")).enqueue()
    (stored,) = mill.app.store.engine.find([ref.id])
    assert stored is not None and stored.headers[NEXT_HEADER].startswith("sealed:")
    mill.app.store.close()
    assert b"secret place" not in (tmp_path / "work.db").read_bytes()


def test_what_follows_a_death_takes_no_part_in_the_chain(mill: Mill) -> None:
    heard = []

    @mill.app.task(name="undo", ctx=True)
    def undo(ctx: Context, n: int) -> None:
        heard.append(ctx.message.headers)

    @mill.app.task(name="doomed", retry=ONCE, on_dead=undo)
    def doomed(n: int) -> None:
        raise ValueError("never")

    mill.app.chain(doomed.draft(1), mill.save.draft(1, to="x")).enqueue()
    mill.work()
    assert len(heard) == 1 and NEXT_HEADER not in heard[0] and mill.saved == []


def test_a_result_that_cannot_be_passed_on_fails_the_step(mill: Mill) -> None:
    @mill.app.task(name="odd")
    def odd() -> Any:
        return object()

    mill.app.chain(odd.draft(), mill.save.draft(previous, to="x")).enqueue()
    mill.work()
    (dead,) = mill.app.dlq.select("task:odd")
    assert dead.reason == "rejected" and "cannot get its result" in dead.faults[-1].text and mill.saved == []


def test_a_result_of_the_wrong_type_kills_the_next_step_and_not_this_one(mill: Mill) -> None:
    mill.app.chain(mill.fetch.draft("u"), mill.save.draft(previous, to="x")).enqueue()
    mill.work()
    (dead,) = mill.app.dlq.select("task:save")
    assert dead.reason == "unreadable" and len(mill.fetched) == 1


def test_a_header_that_no_chain_wrote_fails_the_run(mill: Mill) -> None:
    mill.fetch.using(headers={NEXT_HEADER: '[{"task": 7}]'}).enqueue("u")
    mill.work()
    (dead,) = mill.app.dlq.select("task:fetch")
    assert "cannot be read" in dead.faults[-1].text


def test_chains_that_cannot_be_are_refused(mill: Mill) -> None:
    @mill.app.task(name="keyed", idempotency=Idempotency(key=lambda n: str(n)))
    def keyed(n: int) -> None: ...

    first = mill.fetch.draft("u")
    with pytest.raises(ConfigError, match="first step"):
        mill.app.chain(mill.save.draft(previous, to="x"), first)
    with pytest.raises(ConfigError, match="expected 2 to 100"):
        mill.app.chain(first)
    with pytest.raises(ConfigError, match="expected 2 to 100"):
        mill.app.chain(*[first] * (STEPS_MAX + 1))
    with pytest.raises(ConfigError, match="idempotency="):
        mill.app.chain(first, keyed.draft(1))
    with pytest.raises(EnqueueError, match="previous"):
        mill.app.enqueue_many([mill.save.draft(previous, to="x")])
    with pytest.raises(TypeError):
        mill.save.draft(previous, wrong="x")  # type: ignore[call-arg]
    with pytest.raises(EncodeError, match="nan"):
        mill.parse.draft(previous, factor=math.nan)  # type: ignore[arg-type]
    with pytest.raises(EnqueueError, match="headers"):
        mill.app.chain(*[mill.fetch.draft("u" * 2_000)] * 60).enqueue()
    mill.work()
    assert mill.fetched == []
