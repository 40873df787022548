"""A stand-in SQS for tests: queues on the test's clock, served on loopback over the JSON protocol.

Begin with `server`; `actions` are the calls of the API, `queues` the queues themselves, `faults` failures on demand.
"""

from .event_source import EventSource
from .server import Request, SqsServer

__all__ = ["EventSource", "Request", "SqsServer"]
