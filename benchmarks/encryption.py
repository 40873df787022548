"""What encryption costs: the same messages with `encrypt=` and without it, put and worked in one process."""

from __future__ import annotations

import time
from collections.abc import Callable

from redrive import App, Backoff, Keys, Retry
from redrive.crypto import Box

from .harness import Broken, Options, Reading, fresh, interleaved, ratio

BATCH = 500
BODY = "x" * 1000
KEYS = Keys({"new": bytes(range(32)), "old": bytes(32)})
SEALS = 20_000


def encryption(options: Options) -> list[Reading]:
    """Processor time of a message with a body of 1 KB, put and worked off; of one that fails once; of an envelope
    alone."""
    sorts: dict[str, Callable[[], float]] = {}
    for kind in ("done", "fails once"):
        for name, keys in (("plain", None), ("encrypted", KEYS)):
            sorts[f"{kind}, {name}"] = lambda kind=kind, keys=keys: _run(options, kind, keys)  # type: ignore[misc]
    runs = interleaved(options.rounds, sorts)
    readings = [Reading(name, "µs/message", values) for name, values in runs.items()]
    for kind in ("done", "fails once"):
        name = f"{kind}, encrypted / plain"
        readings.append(ratio(name, runs[f"{kind}, encrypted"], runs[f"{kind}, plain"]))
    boxes = interleaved(options.rounds, {name: lambda name=name: _sealed(name) for name in ("seal", "open")})  # type: ignore[misc]
    return readings + [Reading(f"{name} 1 KB", "µs", values) for name, values in boxes.items()]


def _run(options: Options, kind: str, keys: Keys | None) -> float:
    place = fresh(options, "encryption")
    app, ran = App(place.url, encrypt=keys), set[int]()

    @app.task(name="done", retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    async def done(n: int, text: str) -> None:
        if kind != "done" and n not in ran:
            ran.add(n)
            raise ValueError("once")
        ran.add(n)

    drafts = [done.draft(n, BODY) for n in range(options.messages)]
    from_s = time.process_time()
    for at in range(0, len(drafts), BATCH):
        app.enqueue_many(drafts[at : at + BATCH])
    app.run_worker(drain=True, concurrency=100)
    cpu_s = time.process_time() - from_s
    counts = app.store.counts()
    app.store.close()
    if len(ran) != options.messages or counts.dead or counts.ready:
        raise Broken(f"{len(ran)} of {options.messages} messages ran; {counts}")
    return cpu_s / options.messages * 1e6


def _sealed(name: str) -> float:
    box, body = Box(KEYS), BODY.encode()
    place = ("body", "json", "0192f0c1-0000-7000-8000-000000000000", "done")
    sealed = box.seal(body, *place)
    from_s = time.process_time()
    for _ in range(SEALS):
        if name == "seal":
            box.seal(body, *place)
        else:
            box.open(sealed, *place)
    return (time.process_time() - from_s) / SEALS * 1e6
