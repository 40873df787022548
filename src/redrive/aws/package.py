"""The old name of `redrive.aws.bundle`: it warns, and goes with 1.0."""

from __future__ import annotations

from typing import Any
from warnings import warn

from . import bundle


def __getattr__(name: str) -> Any:
    value = getattr(bundle, name)
    warn("redrive.aws.package is now redrive.aws.bundle", DeprecationWarning, stacklevel=2)
    return value
