"""`redrive dlq ingest` and `redrive dlq move`: the dead-letter queues of SQS."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ...errors import ConfigError, StoreError
from ...present.commands import onward
from ...present.failure import DONE, PARTIAL, USAGE, Failure
from ...present.formats import timestamp
from ...triage.pauses import tell
from ..opening import OpenedStore, at_store
from ..selecting import signature
from ..terminal.output import Column, Output, bar
from ..terminal.stderr import note

if TYPE_CHECKING:
    from ...aws.dead_letters import DeadLetterIngest, DeadLetterSource, DeadQueue, IngestCounts, MoveTask
    from ...store.sqs import SqsEngine

WATCH_S = 1.0
AT_ONCE = 8  # the most queues that are drained at the same time
_INGESTED = (
    Column("queue", shrinks=True),
    Column("from", shrinks=True),
    Column("received"),
    Column("written"),
    Column("known"),
    Column("left"),
)


def note_outside(opened: OpenedStore) -> None:
    """Note on stderr how many messages are in dead-letter queues of SQS and not ingested, if SQS reports the counts."""
    if opened.store.traits.name != "sqs":
        return
    from ...aws.dead_letters import sources, sqs_of

    store = sqs_of(opened.store)
    with suppress(StoreError, ConfigError):
        names = sorted(opened.declared_queues) or store.sqs_queues.names()
        count = sum(sum(store.sqs_queues.counts(source.url)) for source in sources(store, names))
        if count:
            way = f"take them in: {onward('dlq ingest')}"
            if not store.traits.triages:
                way = "to look at them name a store in the URL, triage=sqlite:///dead.db"
            note(f"about {count:,} lie in dead-letter queues of SQS; {way}")


@click.command()
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="Q",
    help="only this queue's dead letters (default: all queues of the app)",
)
@click.option(
    "--from",
    "origin",
    metavar="URL|NAME",
    help="read this SQS queue; --queue names the queue that its messages belong to",
)
@click.option("--once", is_flag=True, help="end when they are empty (the default)")
@click.option("--follow", is_flag=True, help="continue until Ctrl-C")
@signature(required=False)
@at_store(create=True)
def ingest(
    opened: OpenedStore, out: Output, queues: tuple[str, ...], origin: str | None, once: bool, follow: bool, **who: Any
) -> int:
    """Move dead letters from SQS into the store that triage= names.

    Drains the dead-letter queue and the poison queue of each queue. Deletes a message from SQS once it is written, and
    writes none twice. So any number may run at once, also beside workers with --ingest.

    Exit 5 if some were left in SQS, 3 if SQS or the store could not be reached.
    """
    from ...aws.dead_letters import ingest_of, source_of, sources, sqs_of

    if once and follow:
        raise click.UsageError("give --once or --follow, not both")
    if origin is not None and len(queues) > 1:
        raise Failure("whose dead letters are these?", "--from is one queue's", onward("dlq ingest --help"), USAGE)
    store = sqs_of(opened.store)
    work = ingest_of(store)
    if origin is not None:
        queues_of_sqs = [source_of(store, origin, queues[0] if queues else None)]
    else:
        queues_of_sqs = sources(store, queues) if queues else _of_all(opened, store)
    if not queues_of_sqs:
        note(f"no queue under {opened.url} has a dead-letter queue")
        return DONE
    return _followed(work, queues_of_sqs) if follow else _drained(store, work, queues_of_sqs, out, who)


def _of_all(opened: OpenedStore, store: SqsEngine) -> list[DeadLetterSource]:
    """Return the dead-letter sources of the app's queues; without declared ones, of all queues under the prefix, if SQS
    allows listing them."""
    from ...aws.dead_letters import sources

    declared = sorted(opened.declared_queues)
    known: list[DeadLetterSource] = []
    for queue in declared:
        try:
            known += sources(store, [queue])
        except ConfigError as error:
            note(f"queue {queue!r} is left out: {error}")
    if declared:
        return known
    names = store.sqs_queues.names()
    if not names:
        raise ConfigError(f"SQS has no queue whose name begins with {store.prefix}-; is the prefix right?")
    return sources(store, names)


def _total(store: SqsEngine, some: Sequence[DeadLetterSource]) -> int:
    """Return about how many messages wait in these dead-letter queues; 0 if SQS does not report the counts."""
    try:
        return sum(store.sqs_queues.counts(source.url)[0] for source in some)
    except ConfigError:
        return 0


def _drained(
    store: SqsEngine,
    work: DeadLetterIngest,
    some_sources: Sequence[DeadLetterSource],
    out: Output,
    who: Mapping[str, Any],
) -> int:
    from concurrent.futures import ThreadPoolExecutor, wait

    from ...aws.dead_letters import IngestCounts

    total = _total(store, some_sources) if sys.stderr.isatty() else 0
    counts_by_source = {source: IngestCounts() for source in some_sources}
    with bar(total, "ingesting") as moved, ThreadPoolExecutor(min(len(some_sources), AT_ONCE)) as pool:

        def drained(source: DeadLetterSource) -> None:
            def said(some: IngestCounts) -> None:
                counts_by_source[source].add(some)
                moved(some.received)

            work.drain(source, said)

        ends = [pool.submit(drained, source) for source in some_sources]
        wait(ends)
    rows = [_row(source, counts) for source, counts in counts_by_source.items()]
    for row in rows:
        if row["written"]:
            tell(store, "ingest", f"queue/{row['queue']}", text=f"from {row['from']}", count=row["written"], **who)
    out.rows(rows, _INGESTED, id="queue")  # written even if some queues failed
    for end in ends:
        end.result()
    left = sum(row["left"] for row in rows)
    written, known = (sum(row[name] for row in rows) for name in ("written", "known"))
    note(f"{written:,} written" + (f", {known:,} known already" if known else ""))
    if left:
        note(f"{left:,} stay in SQS: the triage store does not take them now; they can be received again in a while")
    return PARTIAL if left else DONE


def _row(source: DeadLetterSource, counts: IngestCounts) -> dict[str, Any]:
    return {
        "queue": source.queue,
        "from": source.name,
        "received": counts.received,
        "written": counts.written,
        "known": counts.known,
        "left": counts.left,
    }


def _followed(work: DeadLetterIngest, some: Sequence[DeadLetterSource]) -> int:
    from ...aws.dead_letters import Ingesting

    def tell(name: str, text: str, about: str = "", /, count: int = 1) -> None:
        note(f"{name.replace('_', ' ')}: {text}")

    ingesting = Ingesting(work, some, tell)
    note(f"draining {', '.join(source.name for source in some)}; Ctrl-C ends it")
    ingesting.begin()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return DONE
    finally:
        ingesting.close()
    return DONE


@click.command()
@click.argument("queue")
@click.option(
    "--rate", type=click.IntRange(1, 500), metavar="N", help="messages a second, at most 500 (default: SQS's)"
)
@click.option("--watch", is_flag=True, help="show the task until it is over; start one if none runs")
@click.option("--cancel", is_flag=True, help="cancel the running task; messages that it has moved stay moved")
@signature(required=False)
@at_store(create=True)
def move(opened: OpenedStore, out: Output, queue: str, rate: int | None, watch: bool, cancel: bool, **who: Any) -> int:
    """Move all of QUEUE's dead-letter queue back by a move task of SQS.

    It moves all messages, in no order, at a fixed rate, without a canary and without outcomes. To choose messages, use
    `dlq ingest` and `dlq plan`. Needs no triage=; messages in the triage store are not moved.
    """
    from ...aws.dead_letters import RUNNING, DeadQueue, sqs_of

    if cancel and (watch or rate is not None):
        raise click.UsageError("give --cancel alone")
    dead = DeadQueue(sqs_of(opened.store), queue)
    if cancel:
        ended = dead.cancel()
        tell(opened.store, "move cancel", f"queue/{queue}", text=f"from {ended.source}", count=ended.moved, **who)
        return _shown(out, ended)
    task = next((task for task in dead.tasks() if task.status == RUNNING), None) if watch else None
    if task is None:
        task = dead.begin(rate)
        tell(opened.store, "move", f"queue/{queue}", text=f"from {task.source}", count=task.to_move or 0, **who)
    return _shown(out, _watched(dead, task) if watch else task)


def _watched(dead: DeadQueue, task: MoveTask) -> MoveTask:
    from ...aws.dead_letters import RUNNING

    done = 0
    with bar(task.to_move or 0, f"moving {task.source}") as moved:
        while True:
            moved(task.moved - done)
            done = task.moved
            if task.status not in (RUNNING, "CANCELLING"):
                return task
            time.sleep(WATCH_S)
            task = next((t for t in dead.tasks() if t.started_ms == task.started_ms), task)


def _shown(out: Output, task: MoveTask) -> int:
    record = {
        "queue": task.queue,
        "from": task.source,
        "to": task.to,
        "status": task.status.lower(),
        "moved": task.moved,
        "to_move": task.to_move,
        "per_s": task.per_s,
        "started_at": timestamp(task.started_ms) if task.started_ms else None,
        "why": task.why or None,
    }
    out.record(record, id="queue")
    return 1 if task.status == "FAILED" else DONE


COMMANDS = (ingest, move)
