"""Topics of SNS: publish events, subscribe queues with a filter."""

from __future__ import annotations

from .subscriptions import filter_policy
from .topic import Event, Topic

__all__ = ["Event", "Topic", "filter_policy"]
