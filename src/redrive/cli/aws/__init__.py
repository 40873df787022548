"""The commands `redrive aws` and `redrive cost`. Begin with `commands`."""

from __future__ import annotations

from .commands import aws
from .cost import cost

__all__ = ["aws", "cost"]
