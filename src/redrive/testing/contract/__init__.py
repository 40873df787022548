"""The contract suite that every store passes, by subject.

Begin with `contracts`, which puts the rules together, and `base`, with the fixtures and helpers of all rules.
"""

from __future__ import annotations

from .contracts import CellsContract, StoreContract

__all__ = ["CellsContract", "StoreContract"]
