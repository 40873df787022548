"""A stand-in SQS for tests: queues by a clock of the test's, served on loopback over the JSON protocol."""

from .event_source import EventSource
from .server import Request, SqsServer

__all__ = ["EventSource", "Request", "SqsServer"]
