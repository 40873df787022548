"""Policies as values: when and how often to retry a failed message, and how long to keep a finished one."""

from __future__ import annotations

from .policies import Backoff, Chosen, Poison, Preview, Retry, Step, draw, presets, preview
from .retention import Retention

__all__ = ["Backoff", "Chosen", "Poison", "Preview", "Retention", "Retry", "Step", "draw", "presets", "preview"]
