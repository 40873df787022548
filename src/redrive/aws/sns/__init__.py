"""Topics of SNS: publish events, and subscribe queues with a filter."""

from __future__ import annotations

from .subscriptions import SCOPES, filter_policy
from .topic import Event, Topic, topic_of

__all__ = ["SCOPES", "Event", "Topic", "filter_policy", "topic_of"]
