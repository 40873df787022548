"""The reasons of dead and quarantined messages: the list of the code, and the table that explains them."""

from __future__ import annotations

import re
from pathlib import Path

from redrive.message import REASONS

ROOT = Path(__file__).parents[2]


def test_the_guide_explains_every_reason() -> None:
    page = (ROOT / "docs/howto/dead-letters.md").read_text()
    table = page.partition("| reason | what happened |\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(REASONS)


def test_every_reason_that_a_decision_gives_is_in_the_list() -> None:
    code = (ROOT / "src/redrive/decide.py").read_text()
    given = re.findall(r'(?:DeadLetter\((?:_used_up\(chosen, )?|reason=)"(\w+)"', code)
    assert len(given) > 3 and set(given) <= {*REASONS}
