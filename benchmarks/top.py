"""What `redrive top` costs beside a busy store."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.tmux import Terminal

from redrive.stores import open_store

from .dead import fill
from .harness import Broken, Options, Place, Reading, fresh, put, warm_up, worker
from .processes import cpu_s
from .tasks import make_app

SCREENS = ("overview", "queues", "groups", "runs", "messages", "workers", "flow")
PER_S, AT_ONCE = 1000, 100
COLUMNS, LINES = 120, 40
WARM_S = 3.0  # the first look at a screen, which is not what a minute costs


def top(options: Options) -> list[Reading]:
    """Processor time of `redrive top` on each screen, while 1,000 messages a second run and many are dead."""
    place = fresh(options, "top")
    store = open_store(place.url)
    fill(store, options.dead)
    store.close()
    environment = {name: text for name, text in os.environ.items() if not name.startswith("REDRIVE_")}
    words = [sys.executable, "-m", "redrive", "top", "--url", place.url]
    with worker(place) as child:
        warm_up(child, place.url)
        with _stream(place), Terminal(place.folder, words, COLUMNS, LINES, environment) as terminal:
            terminal.sees("dead")
            before = child.count()
            shares = {name: _shares(options, terminal, n) for n, name in enumerate(SCREENS, 1)}
            if child.count() == before:
                raise Broken("no message ran meanwhile")
    dead = f"{options.dead:,} dead"
    return [Reading(f"{name}, {dead}", "% of a core", values, "≤ 2") for name, values in shares.items()]


def _shares(options: Options, terminal: Terminal, screen: int) -> list[float]:
    """The share of a core on one screen, once for each round."""
    terminal.press(str(screen))
    terminal.sees(f"[{screen} ")
    time.sleep(min(WARM_S, options.idle_s))
    return [_share(terminal.pid, options.idle_s) for _ in range(options.rounds)]


def _share(pid: int, wall_s: float) -> float:
    before_s, from_s = cpu_s(pid), time.monotonic()
    time.sleep(wall_s)
    return (cpu_s(pid) - before_s) / (time.monotonic() - from_s) * 100


@contextmanager
def _stream(place: Place) -> Iterator[None]:
    """Enqueue no-op messages at a fixed rate meanwhile."""
    ended = threading.Event()
    thread = threading.Thread(target=_put, args=(place.url, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _put(url: str, ended: threading.Event) -> None:
    app = make_app(url)
    start_s, count = time.monotonic(), 0
    while not ended.wait(max(0.0, start_s + count / PER_S - time.monotonic())):
        put(app, "noop", range(count, count + AT_ONCE))
        count += AT_ONCE
    app.store.close()
