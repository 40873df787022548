"""What people come to the pages for, from beginning to end, in Chromium with a real worker, on each engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.support.browsing.chromium import Tab, clicks, tab
from tests.support.browsing.room import PATIENCE_S, Room, room, until
from tests.support.browsing.seeding import past
from tests.support.servers import PostgresServer, RedisServer

pytestmark = [pytest.mark.xdist_group("web-journeys")]
expect.set_options(timeout=PATIENCE_S * 1000)

DEAD = 12
CLICKS_MOST = 6
on_each_engine = pytest.mark.parametrize("home", ["sqlite", "postgres", "redis"], indirect=True)


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Room]:
    """A room whose bank is down: its charges are dead."""
    engine: str = getattr(request, "param", "sqlite")
    url = None
    if engine != "sqlite":
        server: PostgresServer | RedisServer = request.getfixturevalue(f"{engine}_server")
        own = "schema" if engine == "postgres" else "namespace"
        url = f"{server.url}?{own}=web_{os.urandom(4).hex()}"
    with room(tmp_path, url) as made:
        with past(made, 0) as at:
            at.die("billing.charge", range(DEAD))
            at.die("mail.send", ["bob"])
        yield made


@pytest.fixture
def at(browser: Browser, site: str) -> Iterator[Tab]:
    with tab(browser, site) as made:
        yield made


def group_of(home: Room, task: str) -> str:
    return next(group.fingerprint for group in home.app.dlq.groups() if group.task == task)


def plan_all(page: Page, canary: int) -> None:
    """From the page of a group to a plan of all its messages."""
    page.get_by_role("link", name="Plan a redrive of all").click()
    page.get_by_label("Canary").fill(str(canary))
    page.get_by_role("button", name="Freeze the plan").click()
    expect(page.get_by_text("Nothing was moved").first).to_be_visible()


def redrive(page: Page, reason: str) -> None:
    page.get_by_label("Reason, for the audit log").fill(reason)
    page.get_by_role("button", name="Redrive").click()


def count(page: Page, name: str) -> str:
    """A card of a run's page."""
    return page.locator('[data-part="counts"] div', has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


@pytest.mark.turns(3)
@on_each_engine
def test_failed_canary_stops_the_run_and_after_the_mend_the_next_one_redrives_all(home: Room, at: Tab) -> None:
    with home.worker():
        page = at.open("/groups")
        page.get_by_role("link", name="TimeoutError").click()
        plan_all(page, canary=3)
        redrive(page, "they say the bank is up")
        state = page.locator('[data-part="state"] p').first
        expect(state).to_contain_text("stopped")
        assert (count(page, "Failed"), count(page, "Skipped")) == ("3", str(DEAD - 3))
        expect(page.locator('[data-part="failures"]')).to_contain_text("the bank did not answer")
        assert home.app.counts("billing").dead == DEAD

        home.mend("bank-is-up")
        at.open(f"/groups/{group_of(home, 'billing.charge')}")
        plan_all(page, canary=3)
        redrive(page, "the bank is up, PAY-12")
        expect(state).to_contain_text("done")
        assert (count(page, "Done"), count(page, "Failed")) == (str(DEAD), "0")
    counts = home.app.counts("billing")
    assert (counts.dead, counts.ready, counts.scheduled, counts.leased) == (0, 0, 0, 0)
    assert [run.reason for run in home.app.dlq.runs()] == ["the bank is up, PAY-12", "they say the bank is up"]


@pytest.mark.turns(3)
@on_each_engine
def test_undo_makes_dead_again_what_has_not_begun_to_run(home: Room, at: Tab) -> None:
    with home.worker("--queues", "media"):  # it carries runs, and works none of their messages
        page = at.open(f"/groups/{group_of(home, 'billing.charge')}")
        plan_all(page, canary=0)
        redrive(page, "too early")
        expect(page.locator('[data-part="counts"]')).to_contain_text("Waiting")
        until(lambda: home.app.counts("billing").ready == DEAD, "what the run moves")
        page.locator("summary", has_text="Undo").click()
        form = page.locator("details[open].do")
        form.get_by_label("Reason").fill("the bank is down still")
        form.get_by_role("button", name="Undo").click()
        expect(page.locator('[data-part="counts"]')).to_contain_text("Taken back")
        until(lambda: home.app.counts("billing").dead == DEAD, "what the undo takes back")
        expect(page.locator('[data-part="story"]')).to_contain_text("undo")
    assert home.app.counts("billing").ready == 0


@pytest.mark.turns(3)
@on_each_engine
def test_edit_is_held_to_the_schema_shown_as_a_difference_and_then_sent(home: Room, at: Tab) -> None:
    home.mend("bank-is-up")
    with home.worker("--queues", "billing"):
        (first, *_) = (message.id for message in home.app.dlq.select("task:billing.charge"))
        page = at.open(f"/messages/{first}")
        page.get_by_role("link", name="Edit").click()
        page.locator("input[name='arg.order']").fill("seven")
        page.get_by_role("button", name="Show the difference").click()
        expect(page.get_by_role("alert")).to_contain_text("order")
        assert home.app.counts("billing").dead == DEAD
        assert all("422" in error for error in at.errors), at.errors
        at.errors.clear()

        page.locator("input[name='arg.order']").fill("7")
        page.get_by_role("button", name="Show the difference").click()
        expect(page.locator("ins").first).to_contain_text("7")
        assert home.app.counts("billing").dead == DEAD
        page.get_by_label("Reason").fill("order 7 is meant")
        page.get_by_role("button", name="Replace the message").click()
        expect(page.locator(".said")).to_contain_text("takes the place of")
        until(lambda: home.app.counts("billing").dead == DEAD - 1, "the edited message")
        assert all("404" in error for error in at.errors), at.errors  # of a message that is done already
        at.errors.clear()
        until(lambda: home.app.counts("billing").ready + home.app.counts("billing").leased == 0, "its run")
    assert home.app.counts("billing").dead == DEAD - 1


@pytest.mark.slow
def test_from_an_alert_to_a_canaried_redrive_it_takes_six_clicks_at_most(
    home: Room, browser: Browser, site: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The person on call has opened the alert's link, which is the page of the group."""
    home.mend("bank-is-up")
    with home.worker(), tab(browser, site) as at:
        clicks(at.context)
        page = at.open(f"/groups/{group_of(home, 'billing.charge')}")
        page.get_by_role("link", name="Plan a redrive of all").click()
        assert int(page.get_by_label("Canary").input_value()) > 0, "a canary is not offered"
        page.get_by_role("button", name="Freeze the plan").click()
        page.get_by_label("Reason, for the audit log").click()
        page.keyboard.type("the bank is up, PAY-12")
        page.get_by_role("button", name="Redrive").click()
        expect(page.locator('[data-part="state"] p').first).to_contain_text("done")
        made = clicks(at.context)
    (run,) = home.app.dlq.runs()
    assert home.app.dlq.plan(run.id).plan.settings.canary > 0
    assert home.app.counts("billing").dead == 0
    assert 0 < made <= CLICKS_MOST
    with capsys.disabled():
        print(f" {made} clicks", end="")


@pytest.mark.slow
def test_queue_is_paused_resumed_and_purged_without_scripts(home: Room, browser: Browser, site: str) -> None:
    with past(home, 0) as then:
        then.put("mail.send", [f"user{n}@example.net" for n in range(101)])
    with tab(browser, site, java_script_enabled=False) as at:
        page = at.open("/queues/mail")
        for word, paused in (("Pause", {"mail"}), ("Resume", set())):
            page.locator("summary", has_text=word).click()
            page.locator("details[open].do").get_by_label("Reason").fill("a change of the mail server")
            page.locator("details[open].do").get_by_role("button", name=word).click()
            expect(page.locator(".said")).to_be_visible()
            assert set(home.app.store.paused()) == paused

        purge(page, "100")
        expect(page.locator("#refused")).to_contain_text("Nothing was done: type the number of messages")
        assert home.app.counts("mail").ready == 101
        assert all("409" in error for error in at.errors), at.errors
        at.errors.clear()

        at.open("/queues/mail")
        purge(page, "101")
        expect(page.locator(".said")).to_contain_text("101 messages of queue mail are cancelled")
    assert home.app.counts("mail").ready == 0


def purge(page: Page, typed: str) -> None:
    page.locator("summary", has_text="Purge").click()
    form = page.locator("details[open].do")
    form.get_by_label("Reason").fill("sent by another way")
    form.get_by_label("Type the number").fill(typed)
    form.get_by_role("button", name="Purge").click()
