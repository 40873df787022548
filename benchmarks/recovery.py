"""How long it takes until everything runs again after kill -9: of the worker, and of the store's server."""

from __future__ import annotations

import time

from .harness import PUT_AT_ONCE, Broken, Child, Options, Place, Reading, fresh, worker
from .tasks import drafts, make_app

MESSAGES, KILLED_AT = 1000, 300
CONCURRENCY = 10
WORKER_WANTED, SERVER_WANTED = "≤ 3", "≤ 10"


def recovery(options: Options) -> list[Reading]:
    """1,000 messages of 10 ms, ten at once; kill -9 and restart after the first 300."""
    killed = [_worker_killed(options) for _ in range(options.rounds)]
    readings = [  # what ran when it was killed runs again, and what had ended in the turn before
        Reading("worker killed: from its restart to the end of all", "s", [s for s, _ in killed], WORKER_WANTED),
        Reading("worker killed: run twice", "messages", [float(twice) for _, twice in killed], f"≤ {2 * CONCURRENCY}"),
    ]
    if options.engine.server is not None:
        back = [_server_killed(options) for _ in range(options.rounds)]
        readings += [
            Reading("server killed: from its return to the next run", "s", [s for s, _ in back], SERVER_WANTED),
            Reading("server killed: run twice", "messages", [float(twice) for _, twice in back]),
        ]
    return readings


def _worker_killed(options: Options) -> tuple[float, int]:
    place = _filled(options)
    with worker(place, concurrency=CONCURRENCY) as child:
        child.await_records(KILLED_AT)
        child.kill()
    from_s = time.time()
    with worker(place, concurrency=CONCURRENCY) as child:
        twice = _until_all(child)
        return max(at_s for _, at_s in child.read()) - from_s, twice


def _server_killed(options: Options) -> tuple[float, int]:
    """The worker is not touched: it must find its way back by itself."""
    server = options.engine.server
    assert server is not None
    place = _filled(options)
    with worker(place, concurrency=CONCURRENCY) as child:
        child.await_records(KILLED_AT)
        server.kill()
        time.sleep(1.0)  # long enough for the worker to notice, and for what it holds to end
        server.restart()
        from_s = time.time()
        twice = _until_all(child)
        return min(at_s for _, at_s in child.read() if at_s > from_s) - from_s, twice


def _filled(options: Options) -> Place:
    place = fresh(options, "recovery")
    app = make_app(place.url)
    for at in range(0, MESSAGES, PUT_AT_ONCE):
        app.enqueue_many(drafts(app, "brief", range(at, min(MESSAGES, at + PUT_AT_ONCE))))
    app.store.close()
    return place


def _until_all(child: Child) -> int:
    """Return once each message ran; how many ran more than once."""
    while True:
        count = child.count()
        ran = [index for index, _ in child.read()]
        if len(set(ran)) == MESSAGES:
            return len(ran) - MESSAGES
        if len(ran) > 2 * MESSAGES:
            raise Broken(f"{len(ran)} runs of {len(set(ran))} messages")
        child.await_records(count + 1)
