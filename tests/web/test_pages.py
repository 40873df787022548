"""Every page in Chromium: accessible in both themes, at every width, by keyboard alone, and without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from tests.support.browsing.chromium import WIDTHS, Tab, tab
from tests.support.browsing.room import Room, room
from tests.support.browsing.seeding import Seeded

from redrive.web.table import PAGES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-pages")]
NAMES = [page.name for page in PAGES]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with room(tmp_path_factory.mktemp("web-pages")) as made:
        yield made


@pytest.fixture(scope="module")
def site(home: Room, seeded: Seeded) -> Iterator[str]:
    with home.site_beside_a_worker() as url:
        yield url


@pytest.fixture(scope="module")
def opened(browser: Browser, site: str) -> Iterator[Tab]:
    with tab(browser, site) as made:
        yield made


@pytest.fixture
def plain(opened: Tab) -> Iterator[Tab]:
    """A page as most people have it. What went wrong in it is told by the test in which it did."""
    yield opened
    errors, opened.errors = opened.errors, []
    assert errors == []


@pytest.fixture(scope="module")
def still(browser: Browser, site: str) -> Iterator[Tab]:
    """A page that scripts act on, but that does not change meanwhile."""
    with tab(browser, site) as made:
        made.context.add_init_script("delete window.EventSource")
        yield made


@pytest.fixture(scope="module")
def bare(browser: Browser, site: str) -> Iterator[Tab]:
    with tab(browser, site, java_script_enabled=False) as made:
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_page_is_accessible_in_both_themes_and_asks_nothing_of_elsewhere(name: str, plain: Tab, seeded: Seeded) -> None:
    page = plain.open(seeded.address(name))
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        assert plain.violations() == [], theme


@pytest.mark.parametrize("name", NAMES)
def test_page_needs_no_scrolling_sideways_from_320_px_to_4k(name: str, plain: Tab, seeded: Seeded) -> None:
    plain.open(seeded.address(name))
    found = {width: plain.sideways(width) for width in WIDTHS}
    plain.page.set_viewport_size({"width": 1280, "height": 900})
    assert not any(found.values()), found


@pytest.mark.parametrize("name", NAMES)
def test_everything_on_a_page_is_reached_by_tab_and_its_focus_is_seen(name: str, plain: Tab, seeded: Seeded) -> None:
    plain.open(seeded.address(name))
    assert plain.unreached() == []


@pytest.mark.parametrize("name", NAMES)
def test_page_reads_the_same_without_scripts(name: str, still: Tab, bare: Tab, seeded: Seeded) -> None:
    path = seeded.address(name)
    answer = still.page.request.get(still.site + path)
    assert answer.ok, answer.status
    html = answer.text()
    bare.page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"), times=1)
    without = text(bare.open(path))
    assert "<h1" in html and len(without) > len(bare.page.locator("main h1").inner_text())
    still.page.route("**/*", lambda route: route.fulfill(body=html, content_type="text/html"), times=1)
    assert text(still.open(path)) == without


def text(page: Page) -> str:
    """What the main part of a page reads, but for how long ago something was, as time goes on meanwhile."""
    return re.sub(r"· (now|in [\dhmsd]+|[\dhmsd]+ ago)", "· …", page.locator("main").inner_text())
