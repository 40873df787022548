"""Cache sums over many messages: to count a million takes longer than a page may take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
FRESH_S = 1.0  # seconds: a younger sum is always returned as it is
SHARE = 40  # a sum is made again after so many times the seconds that it took: 1 s, then again after 40 s
QUICK_S = 0.05  # seconds: an old sum that took less is made again before it is returned
KEPT_MAX = 500  # the most sums in the cache
OLD_S = 5.0  # seconds: an older sum is shown with its age
AGAIN_S = 3.0  # but a sum is made again after so many seconds at most, so that pages show within OLD_S what changed,
LEAST_SHARE = 4  # unless it takes more than this part (a quarter) of the time
WAITED_S = 0.03  # seconds that a page waits for a count that it can omit


@dataclass(frozen=True, slots=True)
class KeptValue(Generic[T]):
    """A sum, and its age in seconds."""

    value: T
    age_s: float


@dataclass(slots=True)
class _Sum:
    value: Any
    made: float
    cost_s: float
    stale: bool = False


def _rest_s(cost_s: float) -> float:
    """Return for how many seconds a sum that took `cost_s` is returned before it is made again."""
    return max(FRESH_S, min(SHARE * cost_s, max(AGAIN_S, LEAST_SHARE * cost_s)))


class Sums:
    """Sums by key, shared by all users. An old sum is returned with its age while a thread makes it again; if the sum
    is older than OLD_S, the caller first waits a moment for the new one. A sum that a change made stale is made again
    before it is returned, unless that takes more than a second. If making a sum fails, the old one is dropped, so that
    the next page shows the error and not old numbers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sums: dict[str, _Sum] = {}
        self._making: dict[str, Future[Any]] = {}
        self._spoilt = -1.0

    def get(self, key: str, read: Callable[[], T], patience_s: float = 0.0) -> KeptValue[T]:
        """Return the sum of this key, which `read` makes. If the sum is older than OLD_S and is made again now, wait
        `patience_s` seconds for the new one. Without an old sum, raises the errors of `read`."""
        begun = self._begin(key, read, aside=False)
        if isinstance(begun, KeptValue):
            return begun
        kept, making = begun
        if kept is not None and (not patience_s or kept.age_s < OLD_S):
            return kept
        began = self._clock()
        if kept is None or wait([making], patience_s).done:
            return KeptValue(making.result(), 0.0)
        return KeptValue(kept.value, kept.age_s + self._clock() - began)

    def within(self, seconds: float, key: str, read: Callable[[], T]) -> KeptValue[T] | None:
        """Return the sum of this key, or None if it is not made within `seconds`; a thread then finishes it for later
        requests."""
        begun = self._begin(key, read, aside=True)
        if isinstance(begun, KeptValue):
            return begun
        kept, making = begun
        if kept is None and not wait([making], seconds).done:
            return None
        return kept or KeptValue(making.result(), 0.0)

    def peek(self, key: str) -> Any | None:
        """Return the sum of this key as it was made last, however old it is; None if there is none."""
        with self._lock:
            known = self._sums.get(key)
        return None if known is None else known.value

    def _begin(
        self, key: str, read: Callable[[], T], *, aside: bool
    ) -> KeptValue[T] | tuple[KeptValue[T] | None, Future[T]]:
        """Return the cached sum if it is not to be made again yet; else the cached sum to return at once, if any, and
        the future of the new sum, which is made here or, with `aside`, by a thread."""
        with self._lock:
            known, making = self._sums.get(key), self._making.get(key)
            now = self._clock()
            if known is not None and not known.stale and now - known.made < _rest_s(known.cost_s):
                return KeptValue(known.value, now - known.made)
            mine = making is None
            if making is None:
                making = self._making[key] = Future()
        in_background = known is not None and known.cost_s >= (1 if known.stale else QUICK_S)
        if mine and (in_background or aside):
            threading.Thread(target=self._make, args=(key, read, making), daemon=True, name="redrive-sums").start()
        elif mine:
            self._make(key, read, making)
        old = KeptValue(known.value, self._clock() - known.made) if known is not None and in_background else None
        return old, making

    def spoil(self) -> None:
        """Mark all sums as stale, after a change of the store."""
        with self._lock:
            self._spoilt = self._clock()
            for known in self._sums.values():
                known.stale = True

    def _make(self, key: str, read: Callable[[], Any], making: Future[Any]) -> None:
        began = self._clock()
        try:
            value = read()
        except BaseException as error:
            with self._lock:
                del self._making[key]
                self._sums.pop(key, None)
            making.set_exception(error)
            return
        made = self._clock()
        with self._lock:
            del self._making[key]
            self._sums.pop(key, None)
            self._sums[key] = _Sum(value, made, made - began, stale=began <= self._spoilt)
            while len(self._sums) > KEPT_MAX:
                del self._sums[next(iter(self._sums))]
        making.set_result(value)
