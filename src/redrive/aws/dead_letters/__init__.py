"""Dead-letter queues of SQS: find them, ingest them into a triage store, or let SQS itself move their messages back."""

from __future__ import annotations

from .ingest import DeadLetterIngest, DeadLetterSource, IngestCounts, Ingesting
from .move_tasks import RUNNING, DeadQueue, MoveTask
from .sources import ingest_of, source_of, sources, sqs_of

__all__ = [
    "RUNNING",
    "DeadLetterIngest",
    "DeadLetterSource",
    "DeadQueue",
    "IngestCounts",
    "Ingesting",
    "MoveTask",
    "ingest_of",
    "source_of",
    "sources",
    "sqs_of",
]  # fmt: skip
