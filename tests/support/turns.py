"""What is much alike is tested in turn."""

from __future__ import annotations

import os

import pytest


def in_turn(n: int, of: int) -> pytest.MarkDecorator:
    """The mark of the n-th of so many: one is in every run, turning with the seed, and all are in `make soak`."""
    return pytest.mark.slow if int(os.environ.get("TEST_SEED", "0")) % of == n else pytest.mark.soak
