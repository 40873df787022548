"""Alert when a figure of the fleet rises above a threshold, and when it is below the threshold again.

`rule.py` defines what can be watched, `measure.py` reads the figures, `grouping.py` groups the effects of one outage,
`machine.py` decides, and `watch.py` checks every five seconds, in one process of the fleet. `on.py` is `app.on`.
"""

from __future__ import annotations

from .on import on, post, rules_of
from .rule import KINDS, AlertRule, rule
from .watch import Watched, Watching, WatchService, watching

__all__ = ["KINDS", "AlertRule", "WatchService", "Watched", "Watching", "on", "post", "rule", "rules_of", "watching"]
