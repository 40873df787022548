"""The browser of these tests. Each module has its own: while Playwright runs, no test of this process can have an event
loop, so a fixture of a wider scope would break those that come after."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.support.browsing.chromium import chromium
from tests.support.browsing.room import Room
from tests.support.browsing.seeding import Seeded, seed


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def seeded(home: Room) -> Seeded:
    """What the module's `home` holds: some of everything that pages show."""
    return seed(home)


@pytest.fixture
def site(home: Room) -> Iterator[str]:
    """Where the pages of the test's `home` are."""
    with home.site() as url:
        yield url
