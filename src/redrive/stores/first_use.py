"""Import the module `store` of a package at first use, as the package's other modules need no driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def from_store(package: str, names: Sequence[str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose public names are defined in its module `store`."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        return getattr(import_module(".store", package), name)

    return get
