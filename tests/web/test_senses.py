"""Pages in forced colours and at 200 %; and those that a page of the table is only in some state: messages that wait or
are done, the form that edits what waits, another sample of a cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.support.browsing.chromium import Tab, tab
from tests.support.browsing.room import Room, room, until
from tests.support.browsing.seeding import Seeded, past

from redrive.web.table import PAGES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-senses")]
NAMES = [page.name for page in PAGES]
STATES = ["done", "done-message", "waiting", "scheduled", "plan-waiting", "samples", "empty-search"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with room(tmp_path_factory.mktemp("web-senses"), more=MORE) as made:
        yield made


MORE = """

@app.task(name="note.keep", queue="media", keep_result="1h")
def keep(text: str, tags: list[str] | None = None) -> str:
    return text
"""


@pytest.fixture(scope="module")
def site(home: Room, seeded: Seeded) -> Iterator[str]:
    with home.site_beside_a_worker() as url:
        yield url


@pytest.fixture(scope="module")
def addresses(home: Room, seeded: Seeded, site: str) -> dict[str, str]:
    """The address of each state."""
    with past(home, 0) as now:
        (done,) = now.put("note.keep", ["a note"])
        (waiting,) = now.put("note.keep", ["a later note"], delay="7d")
    until(lambda: home.app.counts("media").done, "what is done")
    return {
        "waiting": f"/messages/{waiting}",
        "done": "/messages?q=lane:done",
        "done-message": f"/messages/{done}",
        "scheduled": "/messages?lane=scheduled",
        "plan-waiting": "/plans?q=lane:scheduled",
        "samples": f"/groups/{seeded.group}?sample=2",
        "empty-search": "/messages?q=nothing-has-this",
    }


@pytest.fixture(scope="module")
def plain(browser: Browser, site: str) -> Iterator[Tab]:
    with tab(browser, site) as made:
        yield made


@pytest.fixture(scope="module")
def forced(browser: Browser, site: str) -> Iterator[Tab]:
    """Windows' high contrast, where the system's few colours take the place of the page's."""
    with tab(browser, site, forced_colors="active") as made:
        yield made


@pytest.fixture(scope="module")
def doubled(browser: Browser, site: str) -> Iterator[Tab]:
    """A window of 1280 pixels at 200 %."""
    with tab(browser, site, viewport={"width": 640, "height": 450}, device_scale_factor=2) as made:
        yield made


@pytest.mark.parametrize("state", STATES)
def test_state_is_accessible_in_both_themes_by_tab_and_at_every_width(
    state: str, plain: Tab, addresses: dict[str, str]
) -> None:
    page = plain.open(addresses[state])
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        assert plain.violations() == [], theme
    assert plain.unreached() == []
    found = {width: plain.sideways(width) for width in (320, 1280)}
    assert not any(found.values()), found


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_told_by_colour_or_shade_alone(name: str, forced: Tab, seeded: Seeded) -> None:
    """In forced colours every mark of a state has words and a border, and the focus is seen."""
    page = forced.open(seeded.address(name))
    bare = page.locator(".state:visible, .chip:visible, .mark:visible").evaluate_all(BARE)
    assert bare == []
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "no focus is seen"


@pytest.mark.parametrize("name", NAMES)
def test_page_reads_at_200_percent(name: str, doubled: Tab, seeded: Seeded) -> None:
    page = doubled.open(seeded.address(name))
    assert doubled.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    cut = page.locator("main :is(h1, h2, button, .button, .state):visible").evaluate_all(CUT)
    assert cut == []


BARE = """all => all.filter(each => {
  const style = getComputedStyle(each);
  return !each.textContent.trim() || style.borderStyle === "none" || parseFloat(style.borderWidth) < 1;
}).map(each => each.outerHTML.slice(0, 120))"""
CUT = """all => all.filter(each => {
  const box = each.getBoundingClientRect();
  return (box.right > innerWidth + 1 && !each.closest(".wide, pre, .side")) || (each.scrollWidth > each.clientWidth + 1
    && getComputedStyle(each).overflowX === "hidden" && !each.closest(".hidden"));
}).map(each => each.outerHTML.slice(0, 120))"""
