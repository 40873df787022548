"""The built site in Chromium: search from the disk and from a server, accessibility, and code that is not cut.

Part of `make soak`. It needs Chromium (on Debian: `apt-get install chromium`), and Node's npm for axe-core.
"""

from __future__ import annotations

import fcntl
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

# What people type, and the page that must come first: the first of these that the site has.
SEARCHES = {
    "celery": ("migrate/celery.html",),
    "sentry": ("howto/logging.html",),
    "kubernetes": ("operate/kubernetes.html",),
    "rate limit": ("howto/rate-limits.html", "howto/flow-control.html"),
    "dead letter queue": ("howto/dead-letters.html",),
    "exactly once": ("why/at-least-once.html",),
    "dashboard": ("howto/control-room.html",),
    "cancel a job": ("howto/cancel.html",),
    "celery flower": ("migrate/celery.html",),
    "stuck": ("runbooks/worker-stuck.html",),
    "upgrade": ("operate/upgrade.html",),
    "rate limit per customer": ("howto/rate-limits.html",),
    "long running task": ("howto/long-work.html",),
    "hung task": ("howto/long-work.html",),
}
PAGES = ("index.html", "tutorial.html", "howto/dead-letters.html", "operate/kubernetes.html", "reference/settings.html")
WIDTHS = {1280: 900, 390: 844}


class Browser:
    """One tab of a headless Chromium, over its DevTools protocol on a pair of pipes."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program is not None, "Chromium is missing: apt-get install chromium"
        (its_in, self.out), (self.into, its_out) = self._pipe(), self._pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        started = ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", program, *flags]
        self.process = subprocess.Popen(
            [*started, f"--user-data-dir={profile}"], stderr=subprocess.DEVNULL, pass_fds=(its_in, its_out)
        )
        os.close(its_in)
        os.close(its_out)
        self.calls, self.unread, self.session = 0, b"", ""
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]

    def _pipe(self) -> tuple[int, ...]:
        """A pipe whose numbers are none of those that Chromium reads and writes."""
        return tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in os.pipe())

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.calls += 1
        asked = {"id": self.calls, "method": method, "params": parameters}
        text = json.dumps(asked | ({"sessionId": self.session} if self.session else {})).encode() + b"\0"
        while text:
            text = text[os.write(self.out, text) :]
        while True:
            answer: dict[str, Any] = json.loads(self._answer())
            if answer.get("id") == self.calls:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _answer(self) -> bytes:
        while b"\0" not in self.unread:
            read = os.read(self.into, 1 << 20)
            assert read, "Chromium has ended"
            self.unread += read
        answer, _, self.unread = self.unread.partition(b"\0")
        return answer

    def run(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, address: str, width: int = 1280, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.until(lambda: self.run("location.protocol != 'about:' && document.readyState == 'complete'"))

    def until(self, holds: Any, within_s: float = 60) -> Any:
        end = time.monotonic() + within_s
        while not (found := holds()):
            assert time.monotonic() < end, "the browser does not get there"
            time.sleep(0.05)
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("axe")
    done = subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(folder), "axe-core@4.14.1"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"axe-core cannot be installed: {done.stderr}"
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


def first_found(browser: Browser, words: str) -> str:
    """Type the words into the page's search; the address of the first page in the list."""
    typed = json.dumps(words)
    browser.run(
        "document.querySelector('#__search').click();"
        "(() => { const box = document.querySelector('.md-search__input'); box.focus();"
        f"box.value = {typed}; box.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}})); }})()"
    )
    first = "document.querySelector('.md-search-result__item a.md-search-result__link')?.href"
    address: str = browser.until(lambda: browser.run(first))
    return address.partition("?")[0].partition("#")[0]


@pytest.mark.parametrize("place", ["disk", "server"])
@pytest.mark.parametrize("words", SEARCHES)
def test_search_finds_the_page_for(words: str, place: str, browser: Browser, site: Path, served: str) -> None:
    root = site.as_uri() if place == "disk" else served
    browser.open(f"{root}/index.html")
    expected = next(page for page in SEARCHES[words] if (site / page).exists())
    assert first_found(browser, words).removeprefix(f"{root}/") == expected


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_accessible_and_cuts_no_code(page: str, width: int, browser: Browser, served: str, axe: str) -> None:
    browser.open(f"{served}/{page}", width, WIDTHS[width])
    cut = "[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
    assert browser.run(cut) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.run(axe)
    found = "axe.run().then(r => r.violations.map(v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html)]))"
    assert browser.run(found) == []
