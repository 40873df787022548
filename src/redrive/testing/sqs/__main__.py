"""Serve the stand-in SQS on loopback: `python -m redrive.testing.sqs --port 9324`, and AWS_ENDPOINT_URL names it.

Its queues are lost when it ends. A GET of its URL returns the number of requests by action.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence

from .server import SqsServer


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, and print the URL once the server listens. Returns the exit code."""
    p = argparse.ArgumentParser(prog="python -m redrive.testing.sqs", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--port", type=int, default=9324, help="on 127.0.0.1 [9324]; 0: a free one")
    p.add_argument("--region", default="eu-central-1", help="[eu-central-1]")
    p.add_argument("--receive-max", type=int, default=10, help="messages that a receive gives at most [10]")
    chosen = p.parse_args(argv)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        with SqsServer(port=chosen.port, region=chosen.region, receive_max=chosen.receive_max) as server:
            print(server.url, flush=True)
            over.wait()
    except OSError as error:
        print(f"port {chosen.port} of 127.0.0.1 cannot be listened on: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
