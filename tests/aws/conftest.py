"""One ministack for all tests of a process that need it."""

from collections.abc import Iterator

import pytest

from .places import Ministack


@pytest.fixture(scope="session")
def ministack() -> Iterator[Ministack]:
    with Ministack() as server:
        yield server
