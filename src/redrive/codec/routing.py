"""Choose the task of a message that redrive did not write: by its queue, its attributes or its body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError
from .foreign import storable

Route = Callable[[Any, Mapping[str, str]], "str | None"]
RouteTarget = (
    str | tuple[str, ...] | Route
)  # one task for all messages, several that senders choose from, or a function
TASK = "task"  # the message attribute by which any sender may name the task
UNROUTED = "redrive-unrouted"  # the header with the reason why a routing function chose no task


class Routes:
    """The routes of an app: at most one for each queue.

    A message without a route has the task "", which no worker knows: it dies as `unroutable`, with its whole content.
    """

    def __init__(self) -> None:
        self._routes: dict[str, RouteTarget] = {}

    def add(self, queue: str, route: RouteTarget) -> None:
        """Route messages of `queue` to the task of that name, to one of several, or to the one that the function
        returns.

        A name is final: a sender cannot choose another task. Of several, the message attribute `task` or the type of an
        event chooses one; messages that name none of them go to the first. Raises ConfigError unless `route` is a name,
        a tuple of names, or a function.
        """
        check_route(queue, route)
        self._routes[queue] = route

    def task_of(
        self, queue: str, body: Any, attributes: Mapping[str, str], otherwise: str = ""
    ) -> tuple[str, str | None]:
        """Return the task name for a message, and the reason if a routing function failed to choose one. Never raises.

        `otherwise` is the event type in the message's body.
        """
        route, why = self._routes.get(queue), None
        named = attributes.get(TASK) or otherwise
        if isinstance(route, str):
            return storable(route), None
        if isinstance(route, tuple):
            return next((name for name in (named, otherwise) if name in route), route[0]), None
        if route is not None:
            try:
                chosen = route(body, attributes)
            except Exception as error:  # a foreign message may contain anything, and must not stop the next ones
                chosen, why = None, f"{type(error).__name__}: {_text(error)}"
            if isinstance(chosen, str) and chosen:
                return storable(chosen), None
            if chosen is not None and why is None:
                why = f"the route of queue {queue!r} returned {type(chosen).__name__}, expected a task's name or None"
        return storable(named), None if named else why

    def refusal(self, queue: str, task: str) -> str | None:
        """Return why a message in redrive's own format may not name this task in this queue, or None. Any sender can
        write that format, so it may choose only among the tasks that `foreign=` names."""
        route = self._routes.get(queue)
        if route is None or callable(route):
            return None
        names = (route,) if isinstance(route, str) else route
        if not task or task in names:
            return None
        only = ", ".join(map(repr, names))
        return f"queue {queue!r} takes {only} only, as its foreign= says, and this message names {task!r}"


def check_route(queue: str, route: object) -> None:
    """Raise ConfigError unless the route is a name, a tuple of names, or a function."""
    names = route if isinstance(route, tuple) else (route,)
    if not callable(route) and not (names and all(isinstance(name, str) and name for name in names)):
        raise ConfigError(
            f"queue {queue!r}: foreign={route!r}; expected a task or its name, a tuple of them, or a function of a "
            "body and its attributes that returns a name"
        )


def _text(error: Exception) -> str:
    try:
        return storable(str(error)[:300])
    except Exception:  # the error's own __str__ raised
        return ""
