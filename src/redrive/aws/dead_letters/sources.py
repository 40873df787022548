"""Find the dead-letter queues of an sqs:// store."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import ConfigError, StoreError, StoreUnavailable, Unsupported
from ...events import Notify
from ...store import Store
from ...store.sqs import SqsEngine, sqs_engine
from .ingest import DeadLetterIngest, DeadLetterSource, Ingesting

__all__ = ["SqsEngine", "ingest_of", "ingesting", "source_of", "sources", "sources_served", "sqs_of"]


def sqs_of(store: Store) -> SqsEngine:
    """Return the SQS store below encryption and blob storage. Raises Unsupported for another engine."""
    engine = sqs_engine(store)
    if engine is None:
        raise Unsupported(
            f"this store is {store.traits.name}, and the dead lie in it already; only an sqs:// store has dead-letter "
            "queues"
        )
    return engine


def ingest_of(store: SqsEngine) -> DeadLetterIngest:
    """Return a `DeadLetterIngest` into this store's triage store. Raises Unsupported if there is no triage store."""
    if store.triage_store is None:
        raise Unsupported(
            "there is no store to take dead letters; name one in the URL, a PostgreSQL, a Redis or a file: "
            "sqs://REGION/PREFIX?triage=sqlite:///dead.db"
        )
    store.own_triage()
    return DeadLetterIngest(store.sqs, store.triage_store, store.routes, store.cells, store.count_dead)


def ingesting(store: Store, queues: Iterable[str], worker: str, notice: Notify) -> Ingesting:
    """Return a service that ingests these queues' dead letters. Raises Unsupported, ConfigError, StoreUnavailable."""
    sqs = sqs_of(store)
    return Ingesting(ingest_of(sqs), sources(sqs, queues), notice)


def sources(store: SqsEngine, queues: Iterable[str]) -> list[DeadLetterSource]:
    """Return the SQS queues with the dead letters of these queues: their dead-letter queues, as named by the app, the
    redrive policy or convention, and their poison queues. Raises ConfigError for a missing queue, StoreUnavailable."""
    by_url: dict[str, DeadLetterSource] = {}
    for queue in queues:
        for rests, lane in store.sqs_queues.all_resting(queue):
            by_url.setdefault(rests.url, DeadLetterSource(queue, rests.url, lane))
    return [*by_url.values()]


def source_of(store: SqsEngine, name_or_url: str, queue: str | None) -> DeadLetterSource:
    """Return the source for a dead-letter queue, given by its own name or URL. `queue`: the redrive queue of its
    messages; None: the only queue under the store's prefix that uses it. Raises ConfigError."""
    url = name_or_url if "://" in name_or_url else url_of(store, name_or_url)
    if queue is not None:
        store.sqs_queues.of(queue)
        return DeadLetterSource(queue, url)
    names = sources_served(store, url)
    mine = [name for n in names if (name := store.sqs_queues.name_of(n))]
    if len(mine) != 1:
        served = ", ".join(names) or "none"
        raise ConfigError(
            f"whose dead letters are in {url.rpartition('/')[2]}? It serves {served}, and "
            f"{'none of them is' if not mine else 'several of them are'} under {store.prefix}-; say it by --queue"
        )
    return DeadLetterSource(mine[0], url)


def sources_served(store: SqsEngine, url: str) -> list[str]:
    """Return the SQS names of the queues whose redrive policy names the dead-letter queue with this URL."""
    names, more = list[str](), dict[str, str]()
    while True:
        try:
            answer = store.sqs.call("ListDeadLetterSourceQueues", QueueUrl=url, MaxResults=1000, **more)
        except (StoreError, ConfigError) as error:
            if isinstance(error, StoreUnavailable):
                raise
            name = url.rpartition("/")[2]
            raise ConfigError(
                f"SQS does not say whose dead letters are in {name} ({error}); say it by --queue"
            ) from error
        names += [each.rpartition("/")[2] for each in answer.get("queueUrls") or ()]
        if not answer.get("NextToken"):
            return sorted(names)
        more = {"NextToken": answer["NextToken"]}


def url_of(store: SqsEngine, name: str) -> str:
    """Return the URL of the SQS queue with this name. Raises ConfigError if no queue has it."""
    try:
        return str(store.sqs.call("GetQueueUrl", QueueName=name)["QueueUrl"])
    except ConfigError as error:
        raise ConfigError(f"SQS gives no queue {name!r} in {store.region}; {error}") from error
