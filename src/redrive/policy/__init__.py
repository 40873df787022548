"""Policies as values: when and how often to retry a failed message, and how long to keep a finished one.

Begin with `retry`: a Retry chooses for each fault whether there is a next attempt, and which Backoff (`backoff`) gives
its delay. `preset_policies` has the named ones, `previews` shows a policy's delays beforehand, `poison` bounds crashes,
`retention` what a queue
keeps, and `slo` says what share of messages is to succeed, how soon.
"""

from __future__ import annotations

from .backoff import CENTURY_S, YEAR_S, Backoff, Jitter, draw
from .poison import CRASHES_MAX, Poison
from .preset_policies import PresetName, presets
from .previews import Preview, PreviewStep, preview
from .retention import Retention
from .retry import KINDS, Chosen, Retry
from .slo import SLO

__all__ = [
    "CENTURY_S",
    "CRASHES_MAX",
    "KINDS",
    "SLO",
    "YEAR_S",
    "Backoff",
    "Chosen",
    "Jitter",
    "Poison",
    "PresetName",
    "Preview",
    "PreviewStep",
    "Retention",
    "Retry",
    "draw",
    "presets",
    "preview",
]
