"""Starts LocalStack on 127.0.0.1 alone, by the interpreter of its own environment: its server listens everywhere,
whatever GATEWAY_LISTEN says of the host."""

import functools
import sys


def serve() -> int:
    """Serve until told to end. What it needs is installed in LocalStack's environment only."""
    from twisted.internet import endpoints

    endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")
    from localstack.runtime.main import main

    return int(main() or 0)


if __name__ == "__main__":
    sys.exit(serve())
