"""Encode a handler's arguments to JSON and back, by its annotations.

Begin with `codec`. `pydantic` adds models and paths, `foreign` reads bodies that redrive did not write, and `routing`
chooses the task of such a message.
"""

from __future__ import annotations

from .codec import Codec, Upcast, is_json, to_json
from .foreign import value_of
from .pydantic import by_name, is_model
from .routing import TASK, UNROUTED, Route, Routes, RouteTarget, check_route

__all__ = [
    "TASK",
    "UNROUTED",
    "Codec",
    "Route",
    "RouteTarget",
    "Routes",
    "Upcast",
    "by_name",
    "check_route",
    "is_json",
    "is_model",
    "to_json",
    "value_of",
]
