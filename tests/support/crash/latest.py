"""The programs that test_latest starts and kills, `python -m tests.support.crash.latest indexer|editor PLAN`: a worker,
and a producer that replaces what waits."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, handled, produced, url_of
from tests.support.crash.programs import Plan

import redrive

KEYS = ("a", "b", "c", "d")


def make_app(place: Path, journal: Journal) -> redrive.App:
    app = redrive.App(url_of(place))
    soon = redrive.Retry(max_attempts=20, backoff=redrive.Backoff.fixed("30ms"))

    @app.task(name="index", queue="index", ctx=True, retry=soon, poison=redrive.Poison(10))
    def index(c: redrive.Context, key: str, n: int) -> None:
        journal.write("start", c.message_id, note=f"{key}#{n}", attempt=c.attempt, crashes=c.crashes)
        time.sleep(n % 20 / 1000)
        if n % 7 == 0 and c.attempt == 1:
            raise ConnectionError("the first attempt fails")

    return app


def put(app: redrive.App, journal: Journal, rng: random.Random, key: str) -> None:
    """Put one message that replaces, or that waits for itself, and write down the try and its end."""
    n, replaces = time.monotonic_ns(), rng.random() < 0.8
    delay_s = rng.choice([0.0, 0.0, 0.01, 0.05])
    waits = None if replaces else "waiting"
    bound = app.tasks["index"].using(key=key, delay=delay_s, replace=replaces, unique=waits)  # type: ignore[attr-defined]
    journal.write("try", note=f"{key}#{n}")
    bound.enqueue(key, n)
    journal.write("replaced" if replaces else "waits", note=f"{key}#{n}")


def main() -> None:
    role, plan = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Plan)
    place = Path(plan.place)
    if role == "indexer":
        app = make_app(place, Journal(handled(place)))
        queue = app.queue("index", concurrency=plan.concurrency)
        app.run_worker([queue.name], drain=plan.drain, lease=plan.lease)
        return
    app, journal, rng = make_app(place, Journal(handled(place))), Journal(produced(place)), random.Random(plan.count)
    while not (place / "stop").exists():
        put(app, journal, rng, rng.choice(KEYS))
        time.sleep(rng.uniform(0, 0.01))


if __name__ == "__main__":
    main()
