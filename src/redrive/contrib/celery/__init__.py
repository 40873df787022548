"""Run what Celery's producers send: a bridge from Celery's broker, Redis or SQS, to the queues of an app.

    app = App("postgresql://db.example.com/app")
    celery = CeleryBridge(app, "redis://cache.example.com/0", queues=["celery"])

`redrive celery tasks:app` moves messages from the broker to the app's store, in batches, and
`redrive worker tasks:app` runs them. Each becomes a message of the task with Celery's name for it. The package needs no
Celery. Begin with `bridge`; `envelope` reads Celery's messages, `translation` makes ours of them, `redis_queue` and
`sqs_queue` are the brokers.
"""

from .bridge import CeleryBridge, Moved
from .envelope import CeleryUnsupported

__all__ = ["CeleryBridge", "CeleryUnsupported", "Moved"]
