"""Each alert has a runbook page, and each page has what a person on call looks for."""

from __future__ import annotations

import re

import pytest
from tests.docs.pages import ROOT, blocks

from redrive.config import RUNBOOKS

FOLDER = ROOT / "docs/runbooks"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
SECTIONS = ["What it means", "Impact", "Look", "Do", "When it is over", "Tune or mute"]
LINES_MAX = 85  # a screen and a half with its output


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text()


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert sorted(set(RUNBOOKS.values())) == PAGES


def test_the_index_leads_to_each_page() -> None:
    assert sorted(set(re.findall(r"\(([\w-]+)\.md\)", text_of("index")))) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_it_is_for_and_what_to_do(page: str) -> None:
    text = text_of(page)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert text.startswith("# ") and text.count("\n") <= LINES_MAX
    head, index = text.partition("## ")[0], re.search(rf"^.*\({page}\.md\).*$", text_of("index"), re.MULTILINE)
    assert index is not None
    for alert in (alert for alert, of in RUNBOOKS.items() if of == page):
        in_aws = f"`PREFIX-QUEUE.{dashed(alert)}`" in head
        assert in_aws or (f"`{alert}`" in head and f"`{alert}`" in index[0]), alert


@pytest.mark.parametrize("page", PAGES)
def test_a_page_looks_with_commands_that_show_their_output(page: str) -> None:
    shown = [block for block in blocks(f"docs/runbooks/{page}.md") if block.language == "console"]
    assert sum(block.text.count("$ redrive ") for block in shown) >= 2
    assert all(block.why_not is None for block in shown)


def dashed(name: str) -> str:
    """
    >>> dashed("ManyDead")
    'many-dead'
    """
    return re.sub(r"(?<!^)([A-Z])", r"-\1", name).lower()
