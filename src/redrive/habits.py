"""What users of other queues type out of habit, and what it is called here: hints for error messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from .errors import near_miss

Call = TypeVar("Call", bound=Callable[..., Any])

ATTRIBUTES = {
    "delay": "enqueue(…)",
    "apply_async": 'enqueue(…), or using(delay="30s").enqueue(…)',
    "send": "enqueue(…)",
    "s": "draft(…)",
}
USING = {"countdown": 'delay="30s"', "eta": "at=…", "expires": "deadline=…"}
TASK = {
    "bind": "ctx=True",
    "max_retries": "retry=Retry(max_attempts=…), which counts the first run too",
    "max_attempts": "retry=Retry(max_attempts=…)",
    "autoretry_for": "retry=Retry(only=[…])",
    "time_limit": 'timeout="5m"',
    "rate_limit": 'rate="10/s"',
}


def with_hints(named: str, habits: Mapping[str, str]) -> Callable[[Call], Call]:
    """Let a function with keywords only answer an unknown one with its name here, or the near miss, in a TypeError."""

    def decorate(call: Call) -> Call:
        known: Mapping[str, object] = getattr(call, "__kwdefaults__", {})

        @functools.wraps(call)
        def checked(*args: Any, **options: Any) -> Any:
            for word in options.keys() - known.keys():
                near = habits.get(word) or f"{near_miss(word, known) or '|'.join(known)}=…"
                raise TypeError(f"{named} has no option {word}=; write {near}")
            return call(*args, **options)

        return cast(Call, checked)

    return decorate
