"""Settings of a process: flag > `REDRIVE_…` variable > file > default, field by field."""

from __future__ import annotations

from .resolve import Settings, settings

__all__ = ["Settings", "settings"]
