"""Shared by the tests of commands: what one said, and how one is called. The fixture `redrive` calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Said(NamedTuple):
    """Exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def refusal(self) -> tuple[str, str, str]:
        """The three lines of one that was refused."""
        assert (self.code, self.out) == (4, ""), self.err
        what, why, next = (line.partition(": ")[2] for line in self.err.splitlines()[-3:])
        return what, why, next


Call = Callable[..., Said]
