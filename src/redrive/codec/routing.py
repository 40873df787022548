"""Choose the task of a message that redrive did not write: by its queue, its attributes or its body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError

Route = Callable[[Any, Mapping[str, str]], "str | None"]
TASK = "task"  # the message attribute by which any sender may name the task
UNROUTED = "redrive-unrouted"  # the header that says why a routing function found no task


class Routes:
    """The routes of an app: at most one for each queue.

    A message without a route has the task "", which no worker knows: it dies as `unroutable`, with its whole content.
    """

    def __init__(self) -> None:
        self._routes: dict[str, str | Route] = {}

    def add(self, queue: str, route: str | Route) -> None:
        """Route messages of `queue` to the task of that name, or to the one that the function returns.

        If the route is a name, a sender may choose another task by the message attribute `task`. Raises ConfigError
        unless `route` is a name or a function.
        """
        check_route(queue, route)
        self._routes[queue] = route

    def task_of(
        self, queue: str, body: Any, attributes: Mapping[str, str], otherwise: str = ""
    ) -> tuple[str, str | None]:
        """Return the task, and why there is none if a routing function failed. Never raises.

        `otherwise` is the kind that the message itself names.
        """
        route, why = self._routes.get(queue), None
        if callable(route):
            try:
                found = route(body, attributes)
            except Exception as error:  # a foreign message may be anything: it must not stop those behind it
                found, why = None, f"{type(error).__name__}: {_text(error)}"
            if isinstance(found, str) and found:
                return _storable(found), None
            if found is not None and why is None:
                why = f"the route of queue {queue!r} returned {type(found).__name__}, expected a task's name or None"
        named = attributes.get(TASK) or (route if isinstance(route, str) else "") or otherwise
        return _storable(named), None if named else why


def check_route(queue: str, route: object) -> None:
    """Raise ConfigError unless the route is a name or a function."""
    if not (isinstance(route, str) and route) and not callable(route):
        raise ConfigError(
            f"queue {queue!r}: foreign={route!r}; expected a task, its name, or a function of a body and its "
            "attributes that returns a name"
        )


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\0", "?")


def _text(error: Exception) -> str:
    try:
        return _storable(str(error)[:300])
    except Exception:  # its own code fails too
        return ""
