"""Roll-outs: messages of a newer release while old and new workers share a queue. How many die, how many wait at the
end, and how long they wait from `enqueue`, or from the start of the only worker that knows them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redrive import App
from redrive.presence import read_workers
from redrive.testing.sqs import SqsServer

from .harness import Broken, Child, Options, Place, Reading, fresh, percentile
from .sqs_roles import KEYS, REGION
from .tasks import Records

NEWER = ("unknown task", "newer version", "unknown argument")
BACK = "back and forth"
PER_S = 50.0
PATIENCE_S = 60.0  # after the last enqueue
AWAY_S = 4.0  # how long nobody knows them, back and forth
WANTED = {0.5: "≤ 1", 0.99: "≤ 5"}


def app_of(url: str, release: str, records: Path | None = None) -> App:
    """The app of a release: `old`, or `new` in one of the ways of NEWER."""
    app, add = App(url), (lambda i: None) if records is None else Records(records).add
    made: Any

    if release == "newer version":

        @app.task(name="push", version=2)
        async def push_2(i: int) -> None:
            add(i)

        made = push_2
        made.upcast(1)(lambda body: body)
    elif release == "unknown argument":

        @app.task(name="push")
        async def push_with(i: int, color: str = "red") -> None:
            add(i)
    else:

        @app.task(name="push")
        async def push(i: int) -> None:
            add(i)

        if release == "unknown task":

            @app.task(name="pull")
            async def pull(i: int) -> None:
                add(i)

    return app


def send(app: App, release: str, i: int) -> None:
    """A message that only the new release can run."""
    if release == "unknown argument":
        app.tasks["push"].enqueue(i, "blue")
    else:
        app.tasks["pull" if release == "unknown task" else "push"].enqueue(i)


def rolling(url: str, release: str, records: str) -> None:
    """A worker of that release, until SIGTERM."""
    app_of(url, release, Path(records)).run_worker(queues={"default": 20})


def rollout(options: Options) -> list[Reading]:
    """Messages of a newer release beside old workers: dead, still waiting, and how long the others waited."""
    found: list[Reading] = []
    for kind in NEWER:
        found += _measured(options, kind, fresh(options, "rollout"))
    return found + _measured(options, NEWER[1], fresh(options, "rollout"), back=True)


def rollout_sqs(options: Options) -> list[Reading]:
    """The same on a stand-in SQS, with cells beside it and without."""
    found: list[Reading] = []
    os.environ |= {name.upper(): value for name, value in KEYS.items()}
    for kind in NEWER:
        for cells in (True, False):
            place = fresh(options, "rollout-sqs")
            with SqsServer() as server:
                url = f"sqs://{REGION}/{place.folder.name}?endpoint={server.url}&create=true"
                url += f"&cells=sqlite:///{place.folder / 'cells.db'}" if cells else ""
                name = kind if cells else f"{kind}, no cells"
                at = Place(place.folder, url, place.engine)
                found += _measured(options, kind, at, name=f"SQS, {name}", wanted=cells)
                asked = server.requests["ReceiveMessage"] + server.requests["ChangeMessageVisibilityBatch"]
                found.append(Reading(f"SQS, {name}: receives and returns", "requests", [asked / options.messages]))
    return found


def _measured(
    options: Options, kind: str, place: Place, *, name: str = "", back: bool = False, wanted: bool = True
) -> list[Reading]:
    app, messages = app_of(place.url, kind), options.messages
    sent_s, since_s = [0.0] * messages, 0.0
    with ExitStack() as running:
        old = [running.enter_context(_child(place, n, "old")) for n in range(options.old)]
        new = [running.enter_context(_child(place, options.old + n, kind)) for n in range(options.new)]
        for child in (*old, *new):
            child.await_records(0)
        _at_work(app, options.old + options.new)
        begin_s = time.monotonic()
        for i in range(messages):
            time.sleep(max(0.0, begin_s + i / PER_S - time.monotonic()))
            if back and i == messages // 2:
                for child in new:
                    child.stop()
                back_s = time.monotonic() + AWAY_S
            if back and i >= messages // 2 and since_s == 0.0 and time.monotonic() >= back_s:
                since_s = _again(app, running, place, kind, options, new)
            sent_s[i] = time.time()
            send(app, kind, i)
        if back and since_s == 0.0:
            time.sleep(max(0.0, back_s - time.monotonic()))
            since_s = _again(app, running, place, kind, options, new)
        ran = _awaited(new, messages)
        for child in (*old, *new[-options.new :]):
            if child.process.poll() is not None:
                raise Broken(f"a worker ended; {child.last_words()}")
        app.store.close()
    known_s = [since_s if back and i >= messages // 2 else 0.0 for i in range(messages)]
    waits = [max(0.0, at_s - max(sent_s[i], known_s[i])) for i, at_s in ran.items()]
    dead = app_of(place.url, kind)
    counts = dead.store.counts("default")
    dead.store.close()
    label = f"{options.old} + {options.new}, {name or kind}" + (f", {BACK}" if back else "")
    bounds = WANTED if wanted else {}
    return [
        Reading(f"{label}: dead", "messages", [float(counts.dead)], "≤ 0"),
        Reading(f"{label}: still waiting", "messages", [float(messages - len(ran) - counts.dead)], "≤ 0"),
        *(
            Reading(f"{label}: wait p{share * 100:g}", "s", [percentile(waits or [0.0], share)], bounds.get(share))
            for share in (0.5, 0.9, 0.99)
        ),
    ]


def _at_work(app: App, workers: int) -> None:
    """Return once all workers have started, as far as they tell."""
    end_s = time.monotonic() + PATIENCE_S
    while app.store.traits.cells and len(read_workers(app.store)) < workers and time.monotonic() < end_s:
        time.sleep(0.1)
    time.sleep(1.0 if app.store.traits.cells else 5.0)


def _child(place: Place, n: int, release: str) -> Child:
    folder = place.folder / str(n)
    folder.mkdir()
    return Child(folder, "rolling", place.url, release, folder / "rolling.records")


def _again(app: App, running: ExitStack, place: Place, kind: str, options: Options, new: list[Child]) -> float:
    """Start the new workers again; when the first of them tells that it has started."""
    earlier = {(info.pid, info.started_ms) for info in read_workers(app.store)}
    first = 100 + len(new)
    fresh_ones = [running.enter_context(_child(place, first + n, kind)) for n in range(options.new)]
    new += fresh_ones
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        here = [info for info in read_workers(app.store) if (info.pid, info.started_ms) not in earlier]
        if here:
            return min(info.started_ms for info in here) / 1000
        time.sleep(0.05)
    raise Broken("none of the new workers has started again")


def _awaited(new: Sequence[Child], messages: int) -> dict[int, float]:
    """When each message ran, once all have or patience is over."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        ran = {i: at_s for child in new for i, at_s in reversed(child.read())}
        if len(ran) >= messages or time.monotonic() > end_s:
            return ran
        time.sleep(0.1)
