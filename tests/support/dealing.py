"""How the tests of a run are dealt to its processes."""

from __future__ import annotations

import pytest
from tests.support.turns import dear, test_of
from xdist.scheduler import LoadGroupScheduling

BY_FILE = ("tests/attack/", "tests/contract/", "tests/stores/", "tests/unit/", "src/")  # they wait for little
FIRST = ("tests/web/", "tests/test_")  # groups of browsers, and checks of the whole tree


def begins_late(item: pytest.Item) -> bool:
    """False for what takes longest in one process, so that no other waits for it at the end."""
    return not item.nodeid.startswith(FIRST)


class ByFile(LoadGroupScheduling):
    """A group of tests, or a file of cheap ones, to one process; a dear test, or one that waits, by itself.

    A file's fixtures are then made in one process, and one exchange hands out hundreds of tests. xdist's own scheduler
    deals each test by itself, and counts all that it ever dealt whenever one ends.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        if scope != nodeid or not nodeid.startswith(BY_FILE) or test_of(nodeid) in dear():
            return scope
        return nodeid.partition("::")[0]
