"""One ministack, and one LocalStack, for all tests of a process that need it."""

from collections.abc import Iterator

import pytest

from .places import Localstack, Ministack


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
