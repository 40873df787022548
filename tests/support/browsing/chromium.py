"""The system's Chromium, driven by Playwright, and what every page must keep to in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import axe_playwright_python
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTHS = (320, 1280, 3840)
STOPS_MAX = 400  # presses of Tab on one page


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. Playwright keeps an event loop on this thread meanwhile, where no other can run: keep it short."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    assert program is not None, "Chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page in a context of its own, and what went wrong in it: errors on its console, and requests to elsewhere."""

    page: Page
    context: BrowserContext
    site: str
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.site).netloc and not request.url.startswith("data:"):
            self.errors.append(f"a request to {request.url}")

    def open(self, path: str) -> Page:
        """Go to an address below the site."""
        answer = self.page.goto(self.site + path)
        assert answer is not None and answer.status < 400, f"{path} answers {answer and answer.status}"
        return self.page

    # -- what every page keeps to

    def violations(self) -> list[str]:
        """What axe finds, in words."""
        self.page.evaluate(_PAUSE)  # so that nothing changes while it looks
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text())  # not as a <script>: the page's policy allows none inline
        options = {"runOnly": RULES, "resultTypes": ["violations"]}
        found: dict[str, Any] = self.page.evaluate("options => axe.run(document, options)", options)
        return [
            f"{each['id']}: {node['target']} {node['failureSummary']}"
            for each in found["violations"]
            for node in each["nodes"]
        ]

    def sideways(self, width: int) -> list[str]:
        """What stands out of a window that wide; nothing where it needs no scrolling sideways."""
        self.page.set_viewport_size({"width": width, "height": 900})
        found: list[str] = self.page.evaluate(_SIDEWAYS)
        return found

    def unreached(self) -> list[str]:
        """What the Tab key does not reach, or shows no focus on, though a mouse can use it."""
        self.page.evaluate(_PAUSE)  # a part made anew would lose its number
        self.page.evaluate(_NUMBER)
        reached, unseen = set[str](), list[str]()
        for _ in range(STOPS_MAX):
            self.page.keyboard.press("Tab")
            stop: dict[str, Any] = self.page.evaluate(_STOP)
            if stop["number"] is None or stop["number"] in reached:
                break
            reached.add(stop["number"])
            if not stop["seen"]:
                unseen.append(f"no focus is seen on {stop['text']}")
        wanted: dict[str, str] = self.page.evaluate(_WANTED)
        return unseen + [f"Tab does not reach {text}" for number, text in wanted.items() if number not in reached]


@contextmanager
def tab(browser: Browser, site: str, **options: Any) -> Iterator[Tab]:
    """A page in a new context; at its end its errors are asserted to be none."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        made = Tab(context.new_page(), context, site)
        yield made
        assert not made.errors, made.errors
    finally:
        context.close()


def clicks(context: BrowserContext) -> int:
    """How often a mouse has clicked on the pages of this context since the first call."""
    if not context.pages[0].evaluate("() => 'clicksMade' in window"):
        context.add_init_script(_CLICKS)
        return 0
    made: int = context.pages[0].evaluate("() => window.clicksMade()")
    return made


_CLICKS = """(() => {
  window.clicksMade = () => Number(sessionStorage.getItem("clicks"));
  const count = () => sessionStorage.setItem("clicks", window.clicksMade() + 1);
  addEventListener("click", (event) => { if (event.isTrusted && event.detail) count(); }, true);
})()"""
_SIDEWAYS = """() => {
  const root = document.documentElement;
  if (root.scrollWidth <= innerWidth) return [];
  const scrolls = ".wide, pre, .hidden, .side";
  const wide = (each) => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(scrolls);
  const out = [...document.querySelectorAll("body *")].filter(wide);
  return [`${root.scrollWidth} > ${innerWidth}`, ...out.slice(0, 5).map((each) => each.outerHTML.slice(0, 150))];
}"""
_PAUSE = "document.querySelector('#live-pause:not([hidden])[aria-pressed=false]')?.click()"
_NUMBER = """() => {
  const all = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
  let n = 0;
  for (const each of document.querySelectorAll(all)) each.dataset.stop = String(n++);
  document.activeElement.blur();
}"""
_STOP = """() => {
  const it = document.activeElement, style = getComputedStyle(it);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return { number: it.dataset.stop ?? null, seen, text: it.outerHTML.slice(0, 120) };
}"""
_WANTED = """() => Object.fromEntries([...document.querySelectorAll("[data-stop]")]
  .filter((each) => !each.disabled && each.checkVisibility({ visibilityProperty: true }) && each.type !== "radio")
  .map((each) => [each.dataset.stop, each.outerHTML.slice(0, 120)]))"""
