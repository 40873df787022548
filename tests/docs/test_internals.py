"""The pages about the inside can be read in one sitting: short, without tables, in plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

PAGES = sorted((ROOT / "docs" / "internals").glob("*.md"))
LINES_MAX = 150
NOT_PLAIN = re.compile(
    r"\b(what is of|shall|is told of|of which|nobody|whoever|anew|dear|lest|hears? of)\b", re.IGNORECASE
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_has_no_table(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX
    assert [line for line in lines if line.lstrip().startswith("|")] == []


def test_the_pages_are_in_plain_words() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    assert texts
    assert {name: NOT_PLAIN.findall(text) for name, text in texts.items() if NOT_PLAIN.search(text)} == {}


def test_every_page_is_named_in_the_reading_order() -> None:
    index = (ROOT / "docs" / "internals" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name != "index.md" and f"]({page.name})" not in index] == []
