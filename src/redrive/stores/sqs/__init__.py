"""The store on AWS SQS; `wire` encodes messages for SQS.

Nothing is imported until it is used: the Lambda function that redrives dead messages starts with `wire` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import SqsStore

__all__ = ["SqsStore"]


def __getattr__(name: str) -> Any:
    """Import the store at first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(".store", __name__), name)
