"""The store on AWS SQS; `wire` encodes messages for SQS.

Nothing is imported until it is used: the Lambda function that redrives dead messages starts with `wire` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..first_use import from_store

if TYPE_CHECKING:
    from .store import SqsStore

__all__ = ["SqsStore"]
__getattr__ = from_store(__name__, __all__)
