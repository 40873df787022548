"""Durable background work whose heart is the failure path."""

from ._version import __version__
from .app import App
from .context import Context, context
from .errors import Quarantine, Reject, RetryAfter, Snooze
from .message import Draft
from .policy import Backoff, Retry, presets
