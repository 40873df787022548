"""Cells on DynamoDB, for messages in SQS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..first_use import from_store

if TYPE_CHECKING:
    from .store import DynamoCells

__all__ = ["DynamoCells"]
__getattr__ = from_store(__name__, __all__)
