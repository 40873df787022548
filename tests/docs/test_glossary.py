"""A guide explains its special words, or links them at their first use: readers come to it from a search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
GUIDES = [
    ROOT / "README.md",
    *(page for folder in ("howto", "learn", "operate") for page in sorted((ROOT / "docs" / folder).glob("*.md"))),
]
# The words that mean nothing to an engineer who has not read their page, and the forms in which guides use them.
WORDS = {
    "Breaker": r"breakers?",
    "Canary": r"canary|canaries",
    "Cell": r"cells?",
    "Cool-down": r"cool-downs?",
    "Failure group": r"failure groups?",
    "Fingerprint": r"fingerprints?",
    "Lane": r"lanes?",
    "Lease": r"leases?",
    "Poison message": r"poison messages?",
    "Probe": r"(?<!readiness )(?<!liveness )(?<!startup )probes?",
    "Quarantine": r"quarantined?|quarantines",
    "Requeue mode": r"requeue mode",
    "Sealed": r"sealed",
    "Slow start": r"slow start",
    "Triage store": r"triage stores?",
    "Visibility mode": r"visibility mode",
}
_NOT_PROSE = re.compile(
    r"^( *)```.*?^\1```[^\n]*$|<!--.*?-->|!\[[^\]]*\]\([^)]*\)|`[^`]*`|^#.*?$|^\|[^\n]*\n\|[-:| ]+$", re.S | re.M
)
_ENTRY = re.compile(r"^## (?P<word>[^\n]+)\n(?P<text>.*?)(?=^## |\Z)", re.S | re.M)
_TERM = re.compile(r"(?<![*\w])(\*{1,2})[^*\n]+\1")
_LINK = re.compile(r"\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>[^)]*)\)")


def entries() -> dict[str, str]:
    return {entry["word"]: entry["text"] for entry in _ENTRY.finditer(GLOSSARY.read_text())}


def homes(text: str) -> set[Path]:
    """The pages that an entry of the glossary names: they explain its word."""
    return {(GLOSSARY.parent / link["to"].partition("#")[0]).resolve() for link in _LINK.finditer(text)}


def first_use(page: str, word: str) -> str | None:
    """What stands around the first use of a word, if it has no link, no emphasis and no meaning in brackets."""
    prose = _NOT_PROSE.sub(" ", page)
    explained = [span.span() for pattern in (_LINK, _TERM) for span in pattern.finditer(prose)]
    used = re.search(rf"(?P<meant>\((?:the |a )?)?\b(?:{word})\b(?P<means> \()?", prose, re.I)
    if used is None or used["meant"] or used["means"] or any(start <= used.start() < end for start, end in explained):
        return None
    return re.sub(r"\s+", " ", prose[max(0, used.start() - 60) : used.end() + 60])


def test_every_word_is_in_the_glossary_and_the_glossary_is_in_order() -> None:
    words = list(entries())

    assert words == sorted(words, key=str.lower)
    assert set(WORDS) <= set(words)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.relative_to(ROOT).as_posix())
def test_a_special_word_is_explained_or_linked_at_its_first_use(guide: Path) -> None:
    known = entries()
    unexplained = {
        word: around
        for word, form in WORDS.items()
        if guide not in homes(known[word]) and (around := first_use(guide.read_text(), form))
    }

    assert not unexplained


def test_a_word_in_code_is_not_a_use() -> None:
    assert first_use("`lane:dead`\n```console\n$ lane\n```\n", "lane") is None


def test_a_later_link_is_too_late() -> None:
    assert first_use("The lane. A [lane](x.md).", "lane") == "The lane. A [lane](x.md)."
    assert first_use("A [lane](x.md). The lane.", "lane") is None


def test_a_meaning_beside_the_word_explains_it() -> None:
    assert first_use("The **lane** of a message.", "lane") is None
    assert first_use("Its lane (the stage of its life) is dead.", "lane") is None
    assert first_use("The stage of its life (the lane).", "lane") is None
    assert first_use("Its lane is dead (it failed).", "lane") is not None
