"""The seven screens of `redrive top`, each with the screens that it leads to."""

from __future__ import annotations

from ..screen import Screen
from .flow import FlowScreen
from .groups import GroupsScreen
from .help import HelpScreen
from .messages import MessagesScreen
from .overview import OverviewScreen
from .plan import PlanScreen
from .queues import QueuesScreen
from .runs import RunsScreen
from .workers import WorkersScreen

__all__ = ["HelpScreen", "PlanScreen", "seven"]


def seven() -> list[Screen]:
    """Return new screens, in the order of their keys 1 to 7."""
    return [
        OverviewScreen(),
        QueuesScreen(),
        GroupsScreen(),
        RunsScreen(),
        MessagesScreen(),
        WorkersScreen(),
        FlowScreen(),
    ]
