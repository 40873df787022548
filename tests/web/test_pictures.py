"""The pictures of the documentation can be made, are small, and each page has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser
from tests.support.browsing.pictures import BYTES_MOST, DARK, WIDE, make
from tests.support.browsing.room import room

from redrive.web.table import PAGES

NAMES = [*(page.name for page in PAGES), f"{DARK}-dark"]
PICTURES = Path(__file__).parents[2] / "docs" / "images" / "web"


@pytest.mark.soak
@pytest.mark.xdist_group("web-pictures")
def test_pictures_of_all_pages_are_made_small(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    with room(tmp_path / "room") as home:
        made = make(browser, home, tmp_path)
    assert list(made) == NAMES
    for path in made.values():
        assert path.stat().st_size <= BYTES_MOST, path
        with Image.open(path) as picture:
            assert (picture.format, picture.width) == ("WEBP", WIDE)


def test_docs_have_a_picture_of_every_page_and_no_other() -> None:
    assert {path.stem for path in PICTURES.glob("*.webp")} == {*NAMES}
    assert all(path.stat().st_size <= BYTES_MOST for path in PICTURES.iterdir())
