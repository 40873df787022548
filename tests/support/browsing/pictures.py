"""Pictures of the pages for the documentation: what the tests see, small."""

from __future__ import annotations

import io
import socket
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page
from tests.support.browsing.chromium import tab
from tests.support.browsing.room import Room
from tests.support.browsing.seeding import Seeded, seed

from redrive.audit.actor import user
from redrive.web.table import PAGES

WIDE, HIGH_MOST = 1280, 1300  # of a picture, in pixels
BYTES_MOST = 60 * 1024
COLOURS = (128, 64, 32)
DARK = "overview"  # the page that the site's home shows: in the dark theme, too


def make(browser: Browser, home: Room, folder: Path) -> dict[str, Path]:
    """A picture of each page of the table on a seeded store with a worker, by the page's name; of one a dark one."""
    seeded = seed(home)
    made: dict[str, Path] = {}
    with home.site_beside_a_worker() as site:
        for scheme, names, ending in (("light", [page.name for page in PAGES], ""), ("dark", [DARK], "-dark")):
            with tab(browser, site, color_scheme=scheme) as at:
                at.context.add_init_script(_HIDDEN)
                for name in names:
                    shown = at.open(address(name, seeded))
                    shown.evaluate(_REPLACE, list(_private(home).items()))
                    path = made[f"{name}{ending}"] = folder / f"{name}{ending}.webp"
                    path.write_bytes(small(picture(shown)))
    return made


def address(name: str, seeded: Seeded) -> str:
    """The address of the page; of a page that asks first, with an answer."""
    more = {"planning": f"?q=fingerprint:{seeded.group}", "messages": "?q=task:crm.push", "policies": "?task=crm.push"}
    return seeded.address(name) + more.get(name, "")


def picture(page: Page) -> bytes:
    """The page from its top, as PNG."""
    page.set_viewport_size({"width": WIDE, "height": 400})
    high: int = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": WIDE, "height": min(high, HIGH_MOST)})
    return page.screenshot()


def small(png: bytes) -> bytes:
    """The picture as WebP without loss, in as many colours as leave it few bytes: text stays sharp."""
    with Image.open(io.BytesIO(png)) as image:
        for colours in COLOURS:
            file = io.BytesIO()
            few = image.convert("RGB").quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.convert("RGB").save(file, "WEBP", lossless=True, quality=80, method=5)
            if file.tell() <= BYTES_MOST:
                return file.getvalue()
    raise AssertionError(
        f"the picture has {file.tell()} bytes in {COLOURS[-1]} colours; at most {BYTES_MOST} are wanted"
    )


def _private(home: Room) -> Mapping[str, str]:
    """What a picture must not tell of the machine that it was made on, and what it shows instead."""
    return {str(home.folder): "/srv/shop", user(): "ops@web-1", socket.gethostname(): "web-1"}


# A page that is hidden fetches nothing: a live update would undo what was replaced.
_HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => true})"
_REPLACE = """(pairs) => {
  const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const replaced = (text) => pairs.reduce((found, [from, to]) => found.replaceAll(from, to), text);
  while (all.nextNode()) all.currentNode.nodeValue = replaced(all.currentNode.nodeValue);
}"""
