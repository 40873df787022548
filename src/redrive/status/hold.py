"""A hold: one reason why messages do not run now, with its texts."""

from __future__ import annotations

import shlex

from msgspec import Struct

from ..duration import show

# By kind of hold, the name of what happens at `until_ms`; for other kinds, only the wait ends.
_ENDS = {
    "breaker": "next probe",
    "rate": "next slot",
    "budget": "next try",
    "ramp": "next slot",
    "retry": "next attempt",
    "no_task": "next look",
}


FORCED_MS = 15 * 60_000  # ms after which what a person forced without an end needs a person


def is_forgotten(since_ms: int | None, until_ms: int | None, now_ms: int) -> bool:
    """Return True if a person forced something so long ago that it may be forgotten, and it does not end by itself."""
    return until_ms is None and (since_ms is None or now_ms - since_ms >= FORCED_MS)


class Hold(Struct, frozen=True, kw_only=True):
    """One reason why messages do not run now.

    `kind`: pause, task_pause, no_task, release, no_key, group, breaker, cool-down, budget, rate, ramp, concurrency,
    idempotency, retry, spread, delay, turn, outbox or no_worker. `by` names the dependency, queue, task, pattern of
    tasks, or group that holds them.
    `until_ms` is when it ends by itself, if known. `next` is the command to type next, without the program's name.
    `count` is how many of the messages that were read it holds; `queue` is their queue, if all are in one. `since_ms`
    is when it began, if known; `actor` and `reason` are set if a person caused it.
    """

    kind: str
    by: str
    text: str
    until_ms: int | None = None
    next: str = ""
    needs_person: bool = False
    queue: str = ""
    count: int = 0
    since_ms: int | None = None
    actor: str = ""
    reason: str = ""

    def line(self, now_ms: int) -> str:
        """Return the reason as a sentence, with the time that is left until it ends."""
        if self.until_ms is None:
            return self.text
        return f"{self.text}; {self._end(now_ms)}"

    def short(self, now_ms: int) -> str:
        """Return the reason in a few words, for a column of a table."""
        words = {"pause": "paused", "no_task": "unroutable"}.get(self.kind, self.kind.replace("_", " "))
        if self.kind not in ("pause", "no_worker", "retry", "delay", "turn"):
            words += f" {self.by}"
        return words if self.until_ms is None else f"{words}, {self._end(now_ms)}"

    def _end(self, now_ms: int) -> str:
        word = _ENDS.get(self.kind)
        left_ms = (self.until_ms or 0) - now_ms
        if left_ms <= 0:
            return f"{word or 'over'} now"
        left = show(left_ms / 1000 if left_ms < 10_000 else left_ms // 1000)
        return f"{word or 'ends'} in {left}"


def words(*given: str) -> str:
    """Return words of a command quoted for a shell."""
    return shlex.join(given)
