"""Messages of SQS in a Lambda function: one event at a time, claimed, run and settled as a worker does."""

from __future__ import annotations

from .batch import Batches

__all__ = ["Batches"]
