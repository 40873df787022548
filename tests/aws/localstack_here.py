"""Starts LocalStack on 127.0.0.1 alone, by the interpreter of its own environment: its server listens everywhere,
whatever GATEWAY_LISTEN says of the host."""

import functools
import sys

from twisted.internet import endpoints

endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")

from localstack.runtime.main import main  # noqa: E402

sys.exit(main())
