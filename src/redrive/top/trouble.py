"""Describe an error in one line."""

from __future__ import annotations

from ..present.failure import failure_of
from .texts import line


def trouble_text(error: Exception) -> str:
    failure = failure_of(error)
    return line(" ".join(f"{failure.what}: {failure.why}".split()))
