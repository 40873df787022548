"""One ministack, and one LocalStack, for all tests of a process that need it."""

import functools
import threading
import time
from collections.abc import Iterator
from types import FunctionType

import pytest
from botocore import hooks
from botocore.hooks import EventAliaser
from tests.support.aws.places import Localstack, Ministack


@pytest.fixture(scope="session", autouse=True)
def _clients_are_made_quickly() -> None:
    """botocore works a hundred and thirty hooks out for each client, always the same: half of the time."""
    plain, accepts, known = EventAliaser._alias_event_name, hooks.accepts_kwargs, dict[str, str]()

    def alias(self: EventAliaser, name: str) -> str:
        return known[name] if name in known else known.setdefault(name, plain(self, name))

    of_functions = functools.cache(accepts)
    EventAliaser._alias_event_name = alias
    hooks.accepts_kwargs = lambda f: of_functions(f) if isinstance(f, FunctionType) else accepts(f)


@pytest.fixture(autouse=True)
def _no_store_stays_open() -> Iterator[None]:
    """A thread that a test leaves behind polls on: it takes the time of the tests that follow, and what they count."""

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in before and t.name.startswith("redrive-sqs")]

    before = set(threading.enumerate())
    yield
    end_s = time.monotonic() + 30
    while left() and time.monotonic() < end_s:  # a poll goes on to its end
        time.sleep(0.002)
    assert not left(), "close the store"


@pytest.fixture(scope="session")
def localstack() -> Iterator[Localstack]:
    if not Localstack.is_here():
        pytest.skip("LocalStack needs Python 3.12 or 3.13; scripts/setup-localstack")
    with Localstack() as server:
        yield server


@pytest.fixture(scope="session")
def ministack() -> Iterator[Ministack]:
    with Ministack() as server:
        yield server
