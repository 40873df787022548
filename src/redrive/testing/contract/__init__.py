"""The contract that every store keeps, by subject; contracts.py puts the rules together."""

from __future__ import annotations

from .contracts import CellsContract, StoreContract

__all__ = ["CellsContract", "StoreContract"]
