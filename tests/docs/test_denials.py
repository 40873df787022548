"""Pages do not deny what there is: a thing that a page says is missing has no command, module or page of its name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import click
import pytest
from tests.docs.pages import ROOT, pages

from redrive import App
from redrive.program.main import cli

# "redrive has no X", "There are no X, no Y", "**You want X.**" as a reason against it, "| X | none |" of a guide.
_SENTENCE = re.compile(r"\b(?:redrive (?:has|offers|knows|comes with)|There (?:is|are)) no (?P<things>[^.:;|]+)")
_MORE = re.compile(r",? (?:and|or|and no|or no|no) |, ")
_WANTED = re.compile(r"\*\*You (?:want|need) (?P<things>[^*]+?)[.,]")
_ROW = re.compile(r"^\| (?P<things>`[^|]+) \| (?:none|no) \|$", re.M)
_BEHIND = re.compile(r" (?:to|that|which|in|for|with|by|on|at|per|as|from|below|but|where|until)\b.*", re.S)
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
_CODE = re.compile(r"```.*?```", re.S)

# What is missing, in words that name something else there than what we have.
OTHER = {
    "replay of code": "howto/replay.md runs messages again; a workflow engine runs code again",
    "a workflow engine": "an engine of workflows; ours are stores",
    "results": "howto/sqs.md says so of SQS alone",
    "schema": "Redis has none; `redrive schema` is of bodies",
    "backup": "operate/backup.md says so of SQS alone",
}


def denials(text: str) -> Iterator[str]:
    """The things that a page says are missing, each in its words and lower case."""
    text = _CODE.sub("", text)
    for pattern in (_SENTENCE, _WANTED, _ROW):
        for found in pattern.finditer(text):
            for thing in _MORE.split(re.sub(r"\s+", " ", found["things"])):
                if words := _BEHIND.sub("", f" {thing}").strip().lower():
                    yield words


def names() -> dict[str, str]:
    """What we have, by its name: commands, packages and modules that users meet, pages of the site, methods of App."""
    found = {path.stem: f"docs/{path.parent.name}/{path.name}" for path in (ROOT / "docs").glob("*/*.md")}
    found |= {path.name: f"src/redrive/{path.name}" for path in (ROOT / "src/redrive").iterdir() if path.is_dir()}
    found |= {name: f"app.{name}" for name in dir(App) if not name.startswith("_")}
    found |= {name: f"`redrive {name}`" for name in commands(cli)}
    return {name.replace("_", "-"): what for name, what in found.items()}


def commands(group: click.Group) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        yield name
        if isinstance(found := group.get_command(context, name), click.Group):
            yield from commands(found)


def denied_wrongly(text: str, ours: dict[str, str]) -> list[str]:
    return [
        f"{thing!r}, and there is {ours[name]}"
        for thing in denials(text)
        if thing not in OTHER
        for word in _WORD.findall(thing)
        for name in (word, f"{word}s", f"{word[:-1]}ing")
        if name in ours
    ]


@pytest.mark.parametrize("page", [page for page in pages() if not page.startswith("docs/internals")])
def test_a_page_does_not_say_that_something_is_missing_which_there_is(page: str) -> None:
    assert denied_wrongly((ROOT / page).read_text(), names()) == []


@pytest.mark.parametrize(
    "text",
    [
        "redrive has no web dashboard and no fan-in of several tasks into one.",
        "- **You want a web dashboard.** There is a command line, Prometheus metrics and webhooks for alerts.",
        "There are no graphs, no web pages.",
        "| `--autoscale` | none |",
    ],
)
def test_the_denials_that_there_were_are_found(text: str) -> None:
    assert denied_wrongly(text, names()) != []


@pytest.mark.parametrize("page", [*pages(), "CHANGELOG.md"])
def test_no_section_or_entry_stands_twice_on_a_page(page: str) -> None:
    text = _CODE.sub("", (ROOT / page).read_text())
    entries = re.findall(r"^- .{40,}\n(?:  .*\n)*", text, re.M)
    sections = [each for each in re.split(r"^(?=#+ )", text, flags=re.M) if len(each) > 120]
    assert [each for each, count in Counter(entries + sections).items() if count > 1] == []


def test_each_entry_of_the_changelog_is_under_a_heading_and_follows_the_one_before() -> None:
    """Entries that stand apart, between blank lines at the top or end of a list, were put there in a hurry."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    for number, (before, line) in enumerate(pairwise(lines), 2):
        if line.startswith("- ") and not before:
            heading = lines[number - 3]
            assert heading.startswith(("**", "### ")), f"CHANGELOG.md:{number}: {line[:60]}"
