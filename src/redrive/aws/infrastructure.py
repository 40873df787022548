"""The old name of `redrive.aws.cloudformation`: it warns, and goes with 1.0."""

from __future__ import annotations

from typing import Any
from warnings import warn

from . import cloudformation


def __getattr__(name: str) -> Any:
    value = getattr(cloudformation, name)
    warn("redrive.aws.infrastructure is now redrive.aws.cloudformation", DeprecationWarning, stacklevel=2)
    return value
