"""The seven screens of `redrive top`, each with the screens that it leads to."""

from __future__ import annotations

from ..screen import Screen
from .flow import Flow
from .groups import Groups
from .help import Help
from .messages import Messages
from .overview import Overview
from .plan import Plan
from .queues import Queues
from .runs import Runs
from .workers import Workers

__all__ = ["Help", "Plan", "seven"]


def seven() -> list[Screen]:
    """The screens, in the order of their keys 1 to 7."""
    return [Overview(), Queues(), Groups(), Runs(), Messages(), Workers(), Flow()]
