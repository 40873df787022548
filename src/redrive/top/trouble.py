"""Say in a line what went wrong."""

from __future__ import annotations

from ..present.failure import failure_of
from .texts import line


def trouble_text(error: Exception) -> str:
    """What failed, and why."""
    failure = failure_of(error)
    return line(" ".join(f"{failure.what}: {failure.why}".split()))
