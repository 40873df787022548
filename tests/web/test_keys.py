"""The keys of the pages: to find, to go, and for help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.browsing.chromium import tab
from tests.support.browsing.room import PATIENCE_S, room
from tests.support.browsing.seeding import past

from redrive.web.table import MENU

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-keys")]
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with (
        room(tmp_path_factory.mktemp("web-keys")) as home,
        home.site("--base-path", "/jobs") as site,
        tab(browser, site) as made,
    ):
        yield made.open("/")


def test_slash_goes_to_the_search_and_escape_leaves_it(page: Page) -> None:
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type("g q")
    assert page.locator("#find").input_value() == "g q", "a key acted while somebody typed"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "find"
    page.locator("#find").evaluate("each => { each.value = ''; }")


@pytest.mark.parametrize("key", [each.key for each in MENU])
def test_g_and_a_letter_go_to_the_page_of_the_menu(page: Page, key: str) -> None:
    shown = next(each for each in MENU if each.key == key)
    page.keyboard.press("g")
    page.keyboard.press(key)
    expect(page.locator("nav [aria-current=page]")).to_contain_text(shown.title)
    assert page.url.partition("/jobs")[2] == shown.path


def test_question_mark_shows_every_key(page: Page) -> None:
    url = page.url
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    shown = page.locator("dialog code").all_inner_texts()
    assert {"/", "?", "Esc", "j", "x", "Enter", *(f"g {each.key}" for each in MENU)} <= set(shown)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    assert page.url == url, "the reader stays where they were"


def test_letter_after_a_while_or_with_a_modifier_goes_nowhere(page: Page) -> None:
    url = page.url
    page.clock.install()
    page.keyboard.press("g")
    page.clock.fast_forward(5000)
    page.keyboard.press("q")
    page.keyboard.press("g")
    page.keyboard.press("Control+q")
    page.keyboard.press("Escape")
    assert page.url == url


def test_j_and_k_go_through_rows_x_ticks_and_enter_opens(browser: Browser, tmp_path: Path) -> None:
    with room(tmp_path) as home:
        with past(home, 0) as now:
            now.put("mail.send", ["user0", "user1", "user2"])
        home.work("mail", "--burst")
        with home.site() as site, tab(browser, site) as made:
            page = made.open("/messages")
            focused = "document.activeElement.dataset.row"
            rows = page.locator("tbody tr").evaluate_all("all => all.map(each => each.dataset.row)")
            assert len(rows) == 3
            for key, row in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
                page.keyboard.press(key)
                assert page.evaluate(focused) == rows[row], key
            expect(page.locator("#picked")).to_be_hidden()
            page.keyboard.press("x")
            expect(page.locator("#picked")).to_be_visible()
            assert page.locator("input[name=id]:checked").get_attribute("value") == rows[1]
            page.keyboard.press("Enter")
            expect(page.locator("h1")).to_contain_text(rows[1])


def test_the_theme_and_the_zone_of_the_reader_are_kept(browser: Browser, tmp_path: Path) -> None:
    with room(tmp_path) as home:
        with past(home, 0) as now:
            now.put("mail.send", ["user1"])
        home.work("mail", "--burst")
        with home.site() as site, tab(browser, site, timezone_id="Asia/Kolkata") as made:
            page = made.open("/messages")
            clock = "document.querySelector('main time span').textContent"
            utc = page.evaluate(clock)
            page.click("#zone")
            page.click("#theme")
            local = page.evaluate(clock)
            assert local != utc
            page = made.open("/messages")
            assert (page.evaluate(clock), page.evaluate("document.documentElement.dataset.theme")) == (local, "dark")
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 20, 28)"


def test_the_name_of_the_environment_is_on_the_page_and_in_its_title(browser: Browser, tmp_path: Path) -> None:
    with room(tmp_path) as home:
        (home.folder / "redrive.toml").write_text('environment = "production"\n')
        with home.site() as site, tab(browser, site) as made:
            page = made.open("/")
            assert page.title().startswith("production: Overview")
            expect(page.locator(".where.production")).to_have_text("production")
