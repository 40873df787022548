"""Retention: how many done and dead messages a queue keeps, and for how long."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from ..duration import Duration, milliseconds
from ..errors import ConfigError
from ..message import Ack, Keep


class Retention(Struct, frozen=True, kw_only=True):
    """The done and dead messages that a queue keeps: `app.queue("mail", retention=Retention(keep_done=100))`.

    `keep_done` keeps that many of the newest done messages, `keep_done_for` those that are younger than that; where
    both are given, both bounds hold, also for messages kept for their result. With neither, a done message is deleted
    at its ack. `keep_dead` and `keep_dead_for` bound the dead lane in the same way; with neither, dead messages are
    never removed. Quarantined messages are never removed. Workers of the queue remove messages beyond the bounds once a
    minute, and report it by the notice `removed`. Raises ConfigError for values that make no sense.

    Presets: `Retention.emails` keeps the last 100 done and 500 dead, `.webhooks` 500 and 1,000, `.payments` 1,000 and
    5,000.

    >>> Retention.emails
    Retention(keep_done=100, keep_dead=500)
    """

    keep_done: int | None = None
    keep_done_for: Duration | None = None
    keep_dead: int | None = None
    keep_dead_for: Duration | None = None

    emails: ClassVar[Retention]
    webhooks: ClassVar[Retention]
    payments: ClassVar[Retention]

    def __post_init__(self) -> None:
        _check_count("keep_done", self.keep_done)
        _check_count("keep_dead", self.keep_dead)
        for name, keep in (("keep_done_for", self.done), ("keep_dead_for", self.dead)):
            if keep.age_ms is not None and keep.age_ms <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected a duration above 0, or None")

    def __repr__(self) -> str:
        given = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return f"Retention({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"

    @property
    def done(self) -> Keep:
        return Keep(self.keep_done, _ms(self.keep_done_for, "keep_done_for"))

    @property
    def dead(self) -> Keep:
        return Keep(self.keep_dead, _ms(self.keep_dead_for, "keep_dead_for"))

    @property
    def ack(self) -> Ack:
        """The Ack for done messages. With a count, they stay until retention removes them; an age applies at once."""
        done = self.done
        return Ack(keep_ms=None if done.count is not None else done.age_ms or 0)


def _ms(age: Duration | None, what: str) -> int | None:
    return None if age is None else milliseconds(age, what)


def _check_count(name: str, count: object) -> None:
    if count is not None and (type(count) is not int or count < 1):
        raise ConfigError(f"{name} is {count!r}; expected a whole number from 1 up, or None")


Retention.emails = Retention(keep_done=100, keep_dead=500)
Retention.webhooks = Retention(keep_done=500, keep_dead=1_000)
Retention.payments = Retention(keep_done=1_000, keep_dead=5_000)
