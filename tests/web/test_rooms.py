"""Ranges, completion, selection and saved views in Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.browsing.chromium import Tab, tab
from tests.support.browsing.room import PATIENCE_S, Room, room
from tests.support.browsing.seeding import seed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-rooms")]
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with room(tmp_path_factory.mktemp("web-rooms")) as made:
        seed(made)
        yield made


@pytest.fixture(scope="module")
def site(home: Room) -> Iterator[str]:
    with home.site("--base-path", "/jobs") as url:
        yield url


@pytest.fixture
def opened(browser: Browser, site: str) -> Iterator[Tab]:
    with tab(browser, site) as made:
        yield made


@pytest.fixture
def page(opened: Tab) -> Page:
    return opened.open("/")


def test_range_dragged_over_the_chart_is_in_the_address(page: Page, site: str) -> None:
    page.goto(f"{site}/?since=6h&against=yesterday")
    page.locator("#live-pause").click()  # so that no news moves the chart between looking and pressing
    plot = page.locator(".plot svg[data-begin]")
    width = plot.evaluate("each => each.getBoundingClientRect().width")
    plot.hover(position={"x": width * 0.25, "y": 60})
    page.mouse.down()
    plot.hover(position={"x": width * 0.5, "y": 60})
    expect(page.locator(".plot .drag")).to_have_count(1)
    page.mouse.up()
    page.wait_for_url("**from=*")
    assert "since=" not in page.url and "against=yesterday" in page.url
    begin, end = (
        int(page.locator(".plot svg[data-begin]").get_attribute(f"data-{name}") or 0) for name in ("begin", "end")
    )
    assert 80 * 60 <= end - begin <= 100 * 60, "a quarter of six hours"


@pytest.mark.parametrize("size", [(1440, 900), (1280, 800)])
def test_overview_shows_needs_figures_chart_groups_and_queues_in_one_screen(
    page: Page, site: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{site}/")
    for part in ("needs", "past", "groups", "queues"):
        assert page.locator(f"[data-part={part}]").evaluate("each => each.getBoundingClientRect().top") < size[1] - 120
    row = page.locator("[data-part=groups] tbody tr").first
    expect(row).to_be_in_viewport()
    page.get_by_role("link", name="crm", exact=False).first.click()
    expect(page.locator("h1")).to_have_text("Queue crm")


def test_last_term_of_the_box_is_completed(page: Page, site: str) -> None:
    page.goto(f"{site}/messages")
    page.locator("main input[list=terms]").fill("queue:crm args.rec")
    offered = page.locator("#terms option").evaluate_all("all => all.map(each => each.value)")
    assert offered and all(each.startswith("queue:crm args.record") for each in offered)


def test_bar_comes_with_the_first_tick_and_discarding_asks_with_the_number(opened: Tab, page: Page, site: str) -> None:
    page.goto(f"{site}/messages?q=queue%3Acrm")
    expect(page.locator("#picked")).to_be_hidden()
    for n in range(3):
        page.locator("tbody input[name=id]").nth(n).check()
    expect(page.locator("#picked")).to_be_visible()
    page.locator("#picked summary", has_text="Discard").click()
    asked = page.locator("#picked details[open] .ticked").evaluate("each => getComputedStyle(each, '::before').content")
    assert "counter(ticked)" in asked
    page.locator("#picked details[open] button").click()
    expect(page.locator("main [role=alert]")).to_contain_text("reason is missing")
    assert page.locator("tbody input[name=id]:checked").count() == 3
    assert page.locator("nav[aria-label=Pages] a").count() > 5
    assert all("422" in each for each in opened.errors), "the browser tells of the refusal"
    opened.errors.clear()


def test_view_is_saved_from_the_page_and_opened_from_another(page: Page, site: str) -> None:
    page.goto(f"{site}/messages?q=queue%3Acrm")
    page.locator(".views > summary").click()
    page.locator(".views input[name=name]").fill("Dead of the CRM")
    page.locator(".views button").click()
    page.wait_for_url("**/jobs/views")
    page.goto(f"{site}/tasks")
    page.locator(".views > summary").click()
    page.locator(".views a", has_text="Dead of the CRM").click()
    page.wait_for_url("**/jobs/messages?q=queue%3Acrm")
