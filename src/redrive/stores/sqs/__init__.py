"""The store on AWS SQS; `wire` encodes messages for SQS.

A module is imported only when a name is used: the Lambda function that redrives dead messages needs `wire` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..first_use import from_store

if TYPE_CHECKING:
    from .store import SqsStore

__all__ = ["SqsStore"]
__getattr__: Callable[[str], Any] = from_store(__name__, __all__)
