"""Durable background work whose heart is the failure path.

Begin with `app`: an App has tasks, queues and a store, and `worker` runs its messages. Names are imported at their
first use, so that commands that only print help start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .app import App
    from .chain import previous
    from .crypto.keys import Key, Keys
    from .enqueue import Ref, Task
    from .errors import Quarantine, RedriveError, Reject, RetryAfter, Snooze
    from .flow.auto_redrive import AutoRedrive
    from .flow.breaker import Breaker
    from .flow.budget import Budget
    from .flow.gates import Gates
    from .flow.idempotency import Idempotency
    from .flow.limits import Aimd, Rate
    from .message import Draft, Job
    from .policy import SLO, Backoff, Poison, Retention, Retry, presets
    from .run_context import Context, Wrap, context

__all__ = [
    "SLO",
    "Aimd",
    "App",
    "AutoRedrive",
    "Backoff",
    "Breaker",
    "Budget",
    "Context",
    "Draft",
    "Gates",
    "Idempotency",
    "Job",
    "Key",
    "Keys",
    "Poison",
    "Quarantine",
    "Rate",
    "RedriveError",
    "Ref",
    "Reject",
    "Retention",
    "Retry",
    "RetryAfter",
    "Snooze",
    "Task",
    "Wrap",
    "__version__",
    "context",
    "presets",
    "previous",
]

_HOMES = {
    "app": ["App"],
    "chain": ["previous"],
    "run_context": ["Context", "Wrap", "context"],
    "crypto.keys": ["Key", "Keys"],
    "errors": ["Quarantine", "RedriveError", "Reject", "RetryAfter", "Snooze"],
    "flow.breaker": ["Breaker"],
    "flow.budget": ["Budget"],
    "flow.limits": ["Aimd", "Rate"],
    "flow.idempotency": ["Idempotency"],
    "enqueue": ["Ref", "Task"],
    "message": ["Draft", "Job"],
    "policy": ["SLO", "Backoff", "Poison", "Retention", "Retry", "presets"],
    "flow.auto_redrive": ["AutoRedrive"],
    "flow.gates": ["Gates"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = frozenset({"app", "crypto", "errors", "events", "fault", "message", "policy", "store", "stores", "testing"})


def __getattr__(name: str) -> Any:
    """Import a public name, or a public module such as `redrive.fault`, at its first use (PEP 562)."""
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
