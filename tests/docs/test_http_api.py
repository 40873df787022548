"""The reference of the HTTP API is made from the table, and says of each page and action what it is."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from tests.docs.pages import ROOT

from redrive.web.table import ACTIONS, PAGES


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("http_api", ROOT / "scripts" / "http_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_takes_both_tables_from_the_program() -> None:
    page = (ROOT / "docs" / "reference" / "http-api.md").read_text()
    assert "<!-- made: http_pages -->" in page and "<!-- made: http_actions -->" in page


def test_every_page_and_action_has_a_line_that_says_what_it_does(made: ModuleType) -> None:
    for lines, expected in ((made.pages(), PAGES), (made.actions(), ACTIONS)):
        rows = "\n".join(lines).splitlines()[2:]
        assert len(rows) == len(expected)
        for row, each in zip(rows, expected, strict=True):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
            assert cells[-1] == f"`{each.permission}`" and len(cells[1].split()) >= 3 and cells[1].endswith(".")


def test_fields_are_found_in_functions_that_an_action_calls(made: ModuleType) -> None:
    by_name = {action.name: made.fields_of(action.act) for action in ACTIONS}
    assert by_name["pause-queue"] == ["queue", "reason", "for"]
    assert by_name["purge-queue"] == ["queue", "count", "reason"]
    assert {"id", "count", "reason"} <= {*by_name["retry"]}


def test_the_permissions_of_the_guide_are_those_of_the_program() -> None:
    page = (ROOT / "docs" / "operate" / "control-room.md").read_text()
    listed = re.findall(
        r"^\| `(\w+)` \| [a-z]", page.partition("## Permissions")[2].partition("\n## ")[0], re.MULTILINE
    )
    from redrive.web import Permission

    assert listed == [str(permission) for permission in Permission]
