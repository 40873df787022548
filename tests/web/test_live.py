"""Pages follow the store, and leave alone what somebody has in hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.support.browsing.chromium import tab
from tests.support.browsing.room import PATIENCE_S, Room, room
from tests.support.browsing.seeding import past
from tests.support.namespaces import redis_url
from tests.support.servers import PostgresServer, RedisServer

from redrive.triage import pauses

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-live")]
expect.set_options(timeout=PATIENCE_S * 1000)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Room]:
    with room(tmp_path) as made:
        put(made, "mail.send", 3)
        put(made, "crm.push", 2)
        yield made


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    with tab(browser, site) as made:
        yield made.open("/queues")


def put(home: Room, task: str, count: int) -> None:
    with past(home, 0) as at:
        at.put(task, [f"user{n}@example.net" if task == "mail.send" else n for n in range(count)])


def ready(page: Page, queue: str) -> Locator:
    return page.locator(f'tr[data-row="{queue}"] td').first


def live(page: Page) -> None:
    """Wait until the page hears of changes: one before that would be shown by chance."""
    expect(page.locator("#live-state")).to_have_text("live")


def test_rows_change_and_come_without_a_reload(home: Room, page: Page) -> None:
    live(page)
    expect(ready(page, "mail")).to_have_text("3")
    page.evaluate("window.same = document.querySelector('tr[data-row=crm]')")
    put(home, "mail.send", 4)
    put(home, "billing.charge", 1)
    expect(ready(page, "mail")).to_have_text("7")
    expect(ready(page, "billing")).to_have_text("1")
    assert page.evaluate("window.same === document.querySelector('tr[data-row=crm]')"), "a row that stayed was replaced"


def test_focus_and_selected_text_stay_while_rows_change_around_them(home: Room, page: Page) -> None:
    live(page)
    page.locator('tr[data-row="crm"] a').focus()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('tr[data-row=crm] th'))")
    put(home, "mail.send", 4)
    put(home, "crm.push", 5)
    expect(ready(page, "mail")).to_have_text("7")
    expect(ready(page, "crm")).to_have_text("7")
    assert page.evaluate("document.activeElement.textContent") == "crm"
    assert page.evaluate("getSelection().toString().trim()") == "crm"


def test_typed_text_and_an_open_form_stay_while_the_page_changes(home: Room, page: Page) -> None:
    page.goto(page.url + "/mail")
    live(page)
    form = page.locator("details.do", has_text="Purge").first
    form.locator("summary").click()
    form.get_by_label("Reason").fill("half a sen")
    form.get_by_label("Reason").press("ArrowLeft")
    waiting = page.locator('[data-part="counts"] dd').first
    expect(waiting).to_have_text("3")
    put(home, "mail.send", 4)
    pauses.pause(home.app.store, "mail", actor="ann")
    expect(waiting).to_have_text("7")
    expect(page.locator("summary", has_text="Resume")).to_be_visible()
    assert form.get_by_label("Reason").input_value() == "half a sen"
    assert page.evaluate("[document.activeElement.name, document.activeElement.selectionStart]") == ["reason", 9]
    assert form.evaluate("each => each.open")


def test_an_open_table_behind_a_chart_stays_open(home: Room, page: Page) -> None:
    with past(home, 0) as at:
        at.put("mail.send", ["a@example.net"], delay="5m")
    page.goto(page.url + "/mail")
    live(page)
    wave = page.locator('[data-part="wave"]')
    wave.locator("summary").first.click()
    heading = wave.locator("h3").first
    expect(heading).to_contain_text("1 comes due")
    with past(home, 0) as at:
        at.put("mail.send", ["b@example.net"], delay="6m")
    expect(heading).to_contain_text("2 come due")
    assert wave.locator("details").first.evaluate("each => each.open")


def test_ticked_boxes_stay_ticked_and_their_rows_stay(home: Room, browser: Browser, site: str) -> None:
    with past(home, 0) as at:
        first, second = at.die("billing.charge", [1, 2])
    with tab(browser, site) as made:
        page = made.open("/messages?q=task:billing.charge")
        live(page)
        page.locator(f'tr[data-row="{first}"] input[type=checkbox]').check()
        home.app.dlq.discard([second], reason="not needed", actor="ann")
        expect(page.locator(f'tr[data-row="{second}"]')).to_have_count(0)
        with past(home, 0) as at:
            (third,) = at.die("billing.charge", [3])
        expect(page.locator(f'tr[data-row="{third}"]')).to_have_count(1)
        assert page.locator(f'tr[data-row="{first}"] input[type=checkbox]').is_checked()
        assert not page.locator(f'tr[data-row="{third}"] input[type=checkbox]').is_checked()


def test_pause_button_holds_the_page_and_then_brings_it_up_to_date(home: Room, page: Page) -> None:
    live(page)
    page.get_by_role("button", name="Pause live updates").click()
    expect(page.locator("#live-state")).to_have_text("paused")
    with page.expect_event("console", lambda message: message.text == "heard") as _:
        page.evaluate(
            """() => {
              const source = new EventSource(document.body.dataset.live);
              let n = 0;
              source.addEventListener("version", () => { if (n++) { source.close(); console.log("heard"); } });
            }"""
        )
        put(home, "mail.send", 4)
    expect(ready(page, "mail")).to_have_text("3")
    page.get_by_role("button", name="Go on with live updates").click()
    expect(ready(page, "mail")).to_have_text("7")


def test_hidden_tab_asks_for_nothing_until_it_is_looked_at(home: Room, page: Page) -> None:
    live(page)
    page.evaluate(HIDE)
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    with page.expect_event("console", lambda message: message.text == "heard") as _:
        page.evaluate("new EventSource(document.body.dataset.live + '?').addEventListener('version', heard)")
        put(home, "mail.send", 4)
    assert [url for url in asked if "/live" not in url] == []
    page.evaluate(SHOW)
    expect(ready(page, "mail")).to_have_text("7")


HIDE = """() => {
  let n = 0;
  window.heard = () => { if (n++) console.log("heard"); };
  Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
}"""
SHOW = """() => {
  delete document.hidden;
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_one_browser_sees_what_another_does(home: Room, browser: Browser, site: str, page: Page) -> None:
    page.goto(page.url + "/mail")
    live(page)
    with tab(browser, site) as other:
        acting = other.open("/queues/mail")
        acting.locator("summary", has_text="Pause").click()
        acting.locator("details[open]").get_by_label("Reason").fill("a change of the mail server")
        acting.locator("details[open]").get_by_role("button", name="Pause").click()
        expect(acting.get_by_role("status").first).to_contain_text("paused")
        expect(page.locator('[data-part="counts"]')).to_contain_text("No worker claims from this queue")
        acting.locator("summary", has_text="Resume").click()
        acting.locator("details[open]").get_by_role("button", name="Resume").click()
        expect(page.locator('[data-part="counts"]')).not_to_contain_text("No worker claims")
    assert home.app.store.paused() == frozenset()


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_page_outlives_its_store_and_goes_on_when_it_is_back(engine: str, browser: Browser, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server: PostgresServer | RedisServer
        server = PostgresServer() if engine == "postgres" else RedisServer(appendonly=True)
        stack.enter_context(server)
        url = server.url if isinstance(server, PostgresServer) else redis_url(tmp_path, server)
        home = stack.enter_context(room(tmp_path, url))
        put(home, "mail.send", 3)
        site = stack.enter_context(home.site())
        at = stack.enter_context(tab(browser, site))
        page = at.open("/queues")
        live(page)
        server.stop()
        # A pool of connections waits for its server before it gives up, and the page waits with it.
        expect(page.locator("#live-state")).to_contain_text("the store cannot be read", timeout=90_000)
        expect(ready(page, "mail")).to_have_text("3")
        second = stack.enter_context(tab(browser, site))
        other = second.page
        answer = other.goto(f"{site}/queues")
        assert answer is not None and answer.status == 503
        assert "Traceback" not in other.content() and "redrive store check" in other.content()
        server.start()
        expect(other.locator("h1")).to_have_text("Queues")  # it asks again by itself
        live(page)
        put(home, "mail.send", 4)
        expect(ready(page, "mail")).to_have_text("7")
        assert all("503" in error for error in at.errors + second.errors), (at.errors, second.errors)
        at.errors.clear()
        second.errors.clear()
