"""Durable background work whose heart is the failure path."""

from ._version import __version__
from .app import App
from .context import Context, context
from .errors import Quarantine, RedriveError, Reject, RetryAfter, Snooze
from .message import Draft
from .policy import Backoff, Retry, presets

__all__ = [
    "App",
    "Backoff",
    "Context",
    "Draft",
    "Quarantine",
    "RedriveError",
    "Reject",
    "Retry",
    "RetryAfter",
    "Snooze",
    "__version__",
    "context",
    "presets",
]
