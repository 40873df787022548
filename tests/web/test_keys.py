"""The keys of the pages: to find, to go, and for help."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.browsing.chromium import tab
from tests.support.browsing.room import PATIENCE_S, room

from redrive.web.table import MENU

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-keys"), pytest.mark.timeout(180)]
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
    page.keyboard.press("?")
    expect(page.locator("h1")).to_have_text("Keys and help")
    shown = page.locator("main code").all_inner_texts()
    assert {"/", "?", "Esc", *(f"g {each.key}" for each in MENU)} <= set(shown)


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
