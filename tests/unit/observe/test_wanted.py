"""How many workers a queue wants."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from redrive import App
from redrive.observe.wanted import Load, _concurrency, _declared, read_wanted, wanted_workers
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

loads = st.builds(
    Load,
    arrivals_per_s=st.floats(0, 1e4),
    service_s=st.floats(0, 1e3),
    due=st.integers(0, 10**6),
    concurrency=st.integers(1, 1000),
)


@given(loads, st.floats(1, 3600))
def test_so_many_keep_up_and_one_fewer_would_not(load: Load, catch_up_s: float) -> None:
    wanted = wanted_workers(load, catch_up_s)
    in_service = (load.arrivals_per_s + load.due / catch_up_s) * load.service_s
    assert wanted * load.concurrency >= in_service * (1 - 1e-9)
    assert wanted <= 1 or (wanted - 1) * load.concurrency < in_service * (1 + 1e-9)


@given(loads)
def test_none_without_work_and_more_work_never_wants_fewer(load: Load) -> None:
    idle = Load(arrivals_per_s=0, service_s=load.service_s, due=0, concurrency=load.concurrency)
    more = Load(
        arrivals_per_s=load.arrivals_per_s * 2, service_s=load.service_s, due=load.due * 2, concurrency=load.concurrency
    )
    assert wanted_workers(idle) == 0
    assert wanted_workers(more) >= wanted_workers(load)


def test_it_reads_arrivals_and_service_time_from_the_history_and_room_from_the_app() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock))
    app.queue("crm", concurrency=2)

    @app.task(name="push", queue="crm")
    async def push() -> None: ...

    async def work() -> None:
        await app.aenqueue_many([push.draft() for _ in range(900)])
        async with app.worker(["crm"], burst=True) as worker:
            await worker.wait()

    asyncio.run(work())
    assert app.flusher is not None
    app.flusher.flush()
    app.enqueue_many([push.draft() for _ in range(6000)])
    # One message a second arrived; 6,000 are due: 101 a second, of no time each.
    assert read_wanted(app.store, app, app.store.counts_by_queue(), ()) == {"crm": 1}
    clock.advance("1h")
    assert read_wanted(app.store, app, {}, ()) == {"crm": 0}


def test_without_a_worker_the_room_is_what_a_worker_would_report() -> None:
    app = App(store=MemoryStore())
    app.queue("crm", concurrency=2)

    @app.task(name="push", queue="crm", gather=25)
    async def push(records: list[int]) -> None: ...

    @app.task(name="pull", queue="crm", gather=5)
    async def pull(records: list[int]) -> None: ...

    assert _concurrency("crm", _declared(app), ()) == 50
    assert _concurrency("mail", _declared(app), ()) == _concurrency("mail", _declared(None), ()) == 10

    async def reported() -> int:
        async with app.worker(["crm"]):
            while not (living := app.workers()):  # noqa: ASYNC110 - another thread reports it
                await asyncio.sleep(0.01)
            return _concurrency("crm", _declared(None), living)

    assert asyncio.run(reported()) == 50
