"""Each command that a page or a text of redrive names exists."""

from __future__ import annotations

import re

import click
from tests.docs.pages import ROOT, pages

from redrive.program.main import cli

_NAMED = re.compile(r"`redrive\s(?P<span>[^`]+)`|^\$ redrive (?P<typed>.+)$", re.M)
_COMMAND = re.compile(r"[a-z][a-z-]*")  # options, arguments and placeholders are not small letters alone
TEXTS = [path for path in sorted((ROOT / "src" / "redrive").glob("**/*")) if path.suffix in (".py", ".html", ".toml")]


def missing(text: str) -> set[str]:
    """The commands that a text names and that do not exist."""
    return {found for match in _NAMED.finditer(text) if (found := unknown((match["span"] or match["typed"]).split()))}


def unknown(words: list[str]) -> str:
    """The words up to the one that its group has no command for; empty if all have."""
    group: click.Command = cli
    for at, word in enumerate(words):
        if not _COMMAND.fullmatch(word) or not isinstance(group, click.Group):
            return ""
        found = group.get_command(click.Context(group), word)
        if found is None:
            return " ".join(words[: at + 1])
        group = found
    return ""


def test_each_command_on_a_page_exists() -> None:
    assert {page: wrong for page in pages() if (wrong := missing((ROOT / page).read_text()))} == {}


def test_each_command_in_a_text_of_the_program_exists() -> None:
    found = {path.relative_to(ROOT).as_posix(): missing(path.read_text()) for path in TEXTS}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_a_command_that_is_missing_is_found() -> None:
    assert missing("`redrive workers hung` and `redrive workers -v`, `redrive dlq plan 'x'`\n$ redrive wrk\n") == {
        "workers hung",
        "wrk",
    }
    assert missing("`redrive store\nsql` and `redrive store\nseal`, `redrive GROUP`") == {"store seal"}
