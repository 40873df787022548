"""The commands `redrive dlq` and `redrive run`.

Begin with `commands`; plans and runs are in `plan` and `run`.
"""

from __future__ import annotations

from .commands import dlq
from .run import run

__all__ = ["dlq", "run"]
