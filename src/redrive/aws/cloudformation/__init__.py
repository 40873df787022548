"""The infrastructure of a deployment as a CloudFormation template: `redrive aws template` writes it."""

from __future__ import annotations

from .template import Settings, template, text

__all__ = ["Settings", "template", "text"]
