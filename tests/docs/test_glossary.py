"""A guide explains its special words, or links them at their first use: readers come to it from a search."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def unexplained(page: str, words: Mapping[str, str]) -> dict[str, str]:
    """The words whose first use has no link, no emphasis and no meaning in brackets, with what stands around it."""
    prose = _NOT_PROSE.sub(" ", page)
    explained = [span.span() for pattern in (_LINK, _TERM) for span in pattern.finditer(prose)]
    found = {}
    for word, form in words.items():
        used = re.search(rf"(?P<meant>\((?:the |a )?)?\b(?:{form})\b(?P<means> \()?", prose, re.I)
        if used is None or used["meant"] or used["means"]:
            continue
        if not any(start <= used.start() < end for start, end in explained):
            found[word] = re.sub(r"\s+", " ", prose[max(0, used.start() - 60) : used.end() + 60])
    return found


def test_every_word_is_in_the_glossary_and_the_glossary_is_in_order() -> None:
    words = list(entries())

    assert words == sorted(words, key=str.lower)
    assert set(WORDS) <= set(words)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.relative_to(ROOT).as_posix())
def test_a_special_word_is_explained_or_linked_at_its_first_use(guide: Path) -> None:
    known = entries()
    elsewhere = {word: form for word, form in WORDS.items() if guide not in homes(known[word])}

    assert unexplained(guide.read_text(), elsewhere) == {}


LANE = {"Lane": "lanes?"}


def test_a_word_in_code_is_not_a_use() -> None:
    assert unexplained("`lane:dead`\n```console\n$ lane\n```\n", LANE) == {}


def test_a_later_link_is_too_late() -> None:
    assert unexplained("The lane. A [lane](x.md).", LANE) == {"Lane": "The lane. A [lane](x.md)."}
    assert unexplained("A [lane](x.md). The lane.", LANE) == {}


def test_a_meaning_beside_the_word_explains_it() -> None:
    assert unexplained("The **lane** of a message.", LANE) == {}
    assert unexplained("Its lane (the stage of its life) is dead.", LANE) == {}
    assert unexplained("The stage of its life (the lane).", LANE) == {}
    assert unexplained("Its lane is dead (it failed).", LANE) != {}
