"""redrive as one of the peers: `benchlib` and `peerkit` are the harness's, found through the PYTHONPATH it sets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import benchlib
import peerkit as k

from redrive import App, Backoff, Retry, context
from redrive.fault import TRACEBACK_MAX

URLS = {"sqlite": f"sqlite:///{Path(k.SQLITE).absolute()}", "redis": k.REDIS, "pg": k.PG}

FAILING = benchlib.MODE == "fail"

app = App(URLS[k.VARIANT])


@app.task(name="job", retry=Retry(max_attempts=5, backoff=Backoff.fixed(0)))
async def job(i: int) -> None:
    if FAILING and i % 5 == 0:
        need_evidence()
    await benchlib.ajob(i)


def need_evidence() -> None:
    """A retry that was claimed without all that is to be known of the failure fails again, so its run never completes:
    what S2 measures includes storing it."""
    ctx = context()
    faults = ctx.message.faults
    if len(faults) != ctx.attempt - 1:
        raise LookupError(f"attempt {ctx.attempt}, and {len(faults)} faults are stored")
    for number, fault in enumerate(faults, 1):
        traceback = "raise Boom" in fault.traceback and len(fault.traceback) <= TRACEBACK_MAX
        said = fault.error.endswith("Boom") and fault.text and len(fault.fingerprint) == 16
        if not (traceback and said and fault.attempt == number and fault.at_ms > 0):
            raise LookupError(f"fault {number} is stored without its evidence: {fault}")


class P(k.Peer):
    def init(self) -> None:
        app.store.close()  # opening it made the schema

    def open(self) -> None:
        app.store.queues()  # connects: the first enqueue shall not

    def close(self) -> None:
        app.store.close()

    def one(self, i: int) -> None:
        job.enqueue(i)

    def bulk(self, ids: range) -> None:
        app.enqueue_many([job.draft(i) for i in ids])

    def delayed(self, items: list[tuple[int, float]]) -> None:
        app.enqueue_many([job.using(at=datetime.fromtimestamp(due, UTC)).draft(i) for i, due in items])

    def worker(self) -> None:
        options = {"lease": "2s"} if k.RELIABLE else {}
        concurrency = k.CONC or 500
        # Exchanges of a thousand: the sync of each is shared by more messages.
        app.run_worker(queues={"default": concurrency}, prefetch=3 * concurrency, **options)


if __name__ == "__main__":
    k.main(P)
