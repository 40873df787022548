"""Drain one worker."""

from __future__ import annotations

from ...presence import RENEW_S
from ..ask import Done, PageRequest


def drain(ask: PageRequest) -> Done:
    """Ask a worker to drain, as SIGTERM does."""
    name = ask.needed("worker")
    ask.app.drain_worker(name, reason=ask.reason, actor=ask.actor)
    text = f"Worker {name} is asked to drain; it reads that within {RENEW_S:g} s, and ends once what it runs has."
    return Done(text, ("workers",), {"worker": name, "drain_asked": True})
