"""Register functions for alerts: on events of workers, and on thresholds."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..duration import Duration
from ..errors import ConfigError, near_miss
from ..observe import alerts
from ..observe.alert import Alert
from ..observe.webhook import Webhook, channel_of
from ..registry import Registry
from .rule import KINDS, rule
from .watch import Watched

_declared: weakref.WeakKeyDictionary[Registry, list[Watched]] = weakref.WeakKeyDictionary()


def on(
    app: Registry,
    name: str,
    fn: Callable[[Alert], Any],
    *,
    every: Duration = "10m",
    above: float | str | None = None,
    for_: Duration | None = None,
    queue: str | None = None,
    task: str | None = None,
) -> Callable[[], None]:
    """Register `fn` for alerts of this name: see `App.on`. Raises ConfigError."""
    if name not in KINDS and name not in alerts.NAMES:
        known = [*alerts.NAMES, *KINDS]
        near = near_miss(str(name), known)
        meant = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"there is no alert {name!r}; {meant}known: {', '.join(map(repr, known))}")
    if not callable(fn):
        raise ConfigError(f"on({name!r}, {fn!r}): expected a function that takes an Alert")
    given = {"above": above, "for_": for_, "queue": queue, "task": task}
    if name in KINDS:
        made = rule(name, every=every, **given)  # type: ignore[arg-type]
        watched = Watched(made, alerts.sync_call(fn), alerts.channel_of(app, name, fn))
        rules = _declared.setdefault(app, [])
        rules.append(watched)
        return lambda: rules.remove(watched)
    for what, value in given.items():
        if value is not None:
            raise ConfigError(f"app.on({name!r}, {what}={value!r}): this alert is on an event, and has no threshold")
    return alerts.on(app, name, fn, every)


def rules_of(app: Registry) -> list[Watched]:
    """Return the rules that `on` registered and that were not unregistered since."""
    return list(_declared.get(app, ()))


def post(app: Registry, url: str) -> None:
    """Post the alerts of the rules that are registered so far to the webhook at `url` too."""
    rules, hook = _declared.setdefault(app, []), Webhook(url)
    rules += [Watched(each, hook, channel_of(url)) for each in dict.fromkeys(watched.rule for watched in rules)]
