"""What people come to the pages for, from the overview on: by mouse, and by keyboard alone. Each test prints how many
clicks or keys it took and how many seconds; of clicks there must never be more than said here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.support.browsing.chromium import tab
from tests.support.browsing.room import PATIENCE_S, Room, room, until
from tests.support.browsing.seeding import Seeded, seed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-tasks")]
expect.set_options(timeout=PATIENCE_S * 1000)
TABS_MOST = 150  # presses of Tab to one place


class Mouse:
    """A hand on a mouse. `made` counts its clicks; what is typed is not counted."""

    def __init__(self, page: Page) -> None:
        self.page, self.made, self.began_s = page, 0, time.monotonic()

    def go(self, target: Locator) -> None:
        """Open a link, press a button, tick a box."""
        target.click()
        self.made += 1

    def row(self, target: Locator) -> None:
        """Open a row of a table."""
        self.go(target.locator("a").first)

    def tick(self, target: Locator) -> None:
        """Tick a row of a table."""
        self.go(target.locator("input"))

    def write(self, target: Locator, text: str) -> None:
        """Put the text into a field."""
        self.go(target)
        target.fill(text)

    def page_of(self, key: str, link: Locator) -> None:
        """Go to a row that the overview and a page of the menu, with this key, both have."""
        self.go(link)

    def send(self, target: Locator, text: str) -> None:
        """Put the text into a field, and press Enter, which does what the form's first button does."""
        self.write(target, text)
        self.page.keyboard.press("Enter")

    def find(self, text: str) -> None:
        """Search for the text."""
        self.write(self.page.locator("#find"), text)
        self.page.keyboard.press("Enter")


class Keys(Mouse):
    """Two hands on a keyboard. `made` counts keys, but for those that type a text."""

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)
        self.made += 1

    def reach(self, target: Locator) -> None:
        expect(target).to_be_visible()
        if target.evaluate("each => each.closest('header') !== null"):
            self.press("/")  # the search box is there
        elif self.page.evaluate("document.activeElement === document.body"):
            self.press("Tab")  # the link that skips the menu
            self.press("Enter")
        for _ in range(TABS_MOST):
            if target.evaluate("each => each === document.activeElement"):
                return
            self.press("Tab")
        raise AssertionError(f"Tab does not reach {target}")

    def go(self, target: Locator) -> None:
        self.reach(target)
        self.press("Space" if target.get_attribute("type") == "checkbox" else "Enter")

    def row(self, target: Locator) -> None:
        self.down(target)
        self.press("Enter")

    def tick(self, target: Locator) -> None:
        self.down(target)
        self.press("x")

    def down(self, target: Locator) -> None:
        expect(target).to_be_visible()
        for _ in range(TABS_MOST):
            if target.evaluate("each => each === document.activeElement"):
                return
            self.press("j")
        raise AssertionError(f"j does not reach {target}")

    def write(self, target: Locator, text: str) -> None:
        self.reach(target)
        target.fill(text)

    def page_of(self, key: str, link: Locator) -> None:
        address = (link.get_attribute("href") or "").rpartition("/")[2]
        self.press("g")
        self.press(key)
        self.row(self.page.locator("main tbody tr", has=self.page.locator(f"a[href$='{address}']")))

    def find(self, text: str) -> None:
        self.press("/")
        self.page.keyboard.type(text)
        self.press("Enter")


class Scene(NamedTuple):
    home: Room
    seeded: Seeded
    page: Page


def what_broke(hand: Mouse, at: Scene) -> None:
    """What broke in the last hour."""
    for text in ("messages are dead", "ConnectionError"):
        expect(hand.page.get_by_text(text).first).to_be_in_viewport()
    expect(hand.page.locator("[data-part=past] .plot").first).to_be_in_viewport()


def cause(hand: Mouse, at: Scene) -> None:
    """The cause, with its traceback."""
    hand.row(group(hand.page))
    expect(hand.page.locator("[data-part=frames] .source").first).to_be_in_viewport()


def part_with_a_canary(hand: Mouse, at: Scene) -> None:
    """A part of a cause, with a canary."""
    hand.row(group(hand.page))
    hand.go(hand.page.locator("[data-part=shared] .shares a").first)
    assert int(hand.page.get_by_label("Canary").input_value()) > 0
    hand.go(hand.page.get_by_role("button", name="Freeze the plan"))
    hand.send(hand.page.get_by_label("Reason, for the audit log"), "they are back, CRM-77")
    hand.page.wait_for_url("**/runs/*")
    run = at.home.app.dlq.runs()[0]
    assert at.home.app.dlq.plan(run.id).plan.settings.canary > 0
    at.home.app.dlq.run(run.id).cancel(actor="ann")


def undo(hand: Mouse, at: Scene) -> None:
    """Undo a redrive."""
    app = at.home.app
    dead = app.counts("billing").dead
    run = app.dlq.select("task:billing.charge").plan(canary=0).start(reason="too early", actor="ann")
    until(lambda: run.counts["moved"] == dead > 0, "what is to be undone")
    hand.began_s = time.monotonic()
    link = hand.page.locator(f"[data-part=runs] a[href$='{run.id}']")
    expect(link).to_be_visible()
    hand.page_of("r", link)
    hand.go(hand.page.locator("summary", has_text="Undo"))
    form = hand.page.locator("details[open].do")
    hand.send(form.get_by_label("Reason"), "the bank is down still")
    until(lambda: app.counts("billing").dead == dead, "what the undo takes back")


def repair(hand: Mouse, at: Scene) -> None:
    """Repair one body."""
    hand.row(group(hand.page, "mail.send"))
    hand.go(hand.page.locator("[data-part=sample] a.mono"))
    hand.go(hand.page.get_by_role("link", name="Edit"))
    hand.send(hand.page.locator("input[name='arg.to']"), "bob@example.net")
    expect(hand.page.locator("ins").first).to_contain_text("bob@example.net")
    hand.send(hand.page.get_by_label("Reason"), "he meant that")
    expect(hand.page.locator(".said")).to_contain_text("takes the place of")


def find(hand: Mouse, at: Scene) -> None:
    """Find a message by a value in it, in any lane."""
    hand.find("later3@example.net")
    hand.go(hand.page.get_by_role("link", name="Search every lane"))
    expect(hand.page.locator("main tbody tr")).to_have_count(1)
    expect(hand.page.locator("main tbody")).to_contain_text("scheduled")


def why_it_waits(hand: Mouse, at: Scene) -> None:
    """Why a message waits."""
    expect(hand.page.locator("[data-part=queues] tr[data-row=reports]")).to_contain_text("paused")


def who_holds_it(hand: Mouse, at: Scene) -> None:
    """Who holds it, and why."""
    hand.page_of("l", hand.page.locator("[data-part=dependencies] a", has_text="crm-api"))
    expect(hand.page.locator("main")).to_contain_text("their maintenance, until 14:00")
    expect(hand.page.locator("main")).to_contain_text("ann")


def hurry(hand: Mouse, at: Scene) -> None:
    """Hurry what waits for its time."""
    scheduled = at.home.app.counts("mail").scheduled
    hand.go(hand.page.locator("[data-part=counts] a", has_text="Scheduled"))
    hand.tick(hand.page.locator("tbody tr").first)
    hand.send(hand.page.locator("#picked").get_by_label("Reason"), "they wait at the door")
    until(lambda: at.home.app.counts("mail").scheduled == scheduled - 1, "what is hurried")
    expect(hand.page.locator("[role=status].said")).to_be_visible()


def against_yesterday(hand: Mouse, at: Scene) -> None:
    """Today against yesterday."""
    hand.go(hand.page.locator(".times summary"))
    hand.go(hand.page.get_by_role("group", name="Against").get_by_role("link", name="yesterday"))
    hand.page.wait_for_url("**against=yesterday*")
    expect(hand.page.locator(".figures").first).to_contain_text("yesterday")


def share(hand: Mouse, at: Scene) -> None:
    """Keep this view, for everybody."""
    hand.go(hand.page.locator(".views > summary"))
    hand.send(hand.page.locator(".views input[name=name]"), f"View of {type(hand).__name__}")
    hand.page.wait_for_url("**/views")
    expect(hand.page.locator("main")).to_contain_text(f"View of {type(hand).__name__}")


def group(page: Page, task: str = "crm.push") -> Locator:
    return page.locator(f"[data-part=groups] tr[data-row$='/{task}']")


# By task of a person: the most clicks, and the most keys beside what is typed.
TASKS: dict[Callable[[Mouse, Scene], None], tuple[int, int]] = {
    what_broke: (0, 0),
    cause: (1, 4),
    part_with_a_canary: (4, 60),
    undo: (3, 16),
    repair: (5, 60),
    find: (2, 14),
    why_it_waits: (0, 0),
    who_holds_it: (1, 5),
    hurry: (3, 52),
    against_yesterday: (2, 12),
    share: (2, 16),
}


@pytest.fixture(scope="module")
def scene(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with room(tmp_path_factory.mktemp("web-tasks")) as home:
        seeded = seed(home)
        with (
            home.site_beside_a_worker() as site,
            tab(browser, site, viewport={"width": 1440, "height": 900}) as at,
        ):
            yield Scene(home, seeded, at.open("/"))
            at.errors.clear()  # a message that is done is gone


@pytest.mark.parametrize("hand", [Mouse, Keys])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_task_takes_no_more_clicks(
    task: Callable[[Mouse, Scene], None], hand: type[Mouse], scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.page.goto("/".join(scene.page.url.split("/")[:3]))
    expect(scene.page.locator("#live-state")).to_have_text("live")
    made = hand(scene.page)
    task(made, scene)
    took_s = time.monotonic() - made.began_s
    with capsys.disabled():
        print(f"\n{task.__doc__ or '':46} {hand.__name__:6} {made.made:3} in {took_s:4.1f} s", end="")
    assert made.made <= TASKS[task][hand is Keys]
