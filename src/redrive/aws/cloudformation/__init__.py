"""The infrastructure of a deployment as a CloudFormation template: `redrive aws template` writes it."""

from __future__ import annotations

from .template import INLINE_MAX, PARTITIONS, PROFILES, Settings, template, text

__all__ = ["INLINE_MAX", "PARTITIONS", "PROFILES", "Settings", "template", "text"]
