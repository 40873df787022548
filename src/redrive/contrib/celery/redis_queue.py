"""Take messages from the lists in which kombu keeps a queue on Redis.

Kombu pushes at the left end of the list `QUEUE`, or `QUEUE\\x06\\x16N` for a priority N above 0, and Celery's workers
pop at the right end. `take` moves messages from there to the list `redrive:celery:QUEUE:taken` in one script, which is
atomic; `remove` deletes them from it once they are in the app's store. So, whenever a process is killed, each message
is in one of kombu's lists, in that list or in the store; the next `take` returns those in the list first. Messages that
the store refuses move to `redrive:celery:QUEUE:refused`.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError
from .source import Taken

PRIORITIES = range(10)  # all that kombu's `priority_steps` can have (0, 3, 6, 9 by default); 0 is served first
HELD, HELD_SINCE = "unacked", "unacked_index"  # kombu's keys for messages that a worker popped and has not acknowledged
HELD_MAX = 1000  # entries of that index that are read at once
BINDINGS = "_kombu.binding."  # with an exchange's name: kombu's key for the queues bound to it
NAMED_MAX = 20  # routing keys that a warning names
log: logging.Logger = logging.getLogger("redrive.celery")

_TAKE = """
local left = tonumber(ARGV[1]) - redis.call('LLEN', KEYS[1])
for i = 2, #KEYS do
  while left > 0 and redis.call('RPOPLPUSH', KEYS[i], KEYS[1]) do left = left - 1 end
end
return redis.call('LRANGE', KEYS[1], -tonumber(ARGV[1]), -1)
"""
_REMOVE = "for i = 1, #ARGV do redis.call('LREM', KEYS[1], -1, ARGV[i]) end"
_REFUSE = """
if redis.call('LREM', KEYS[1], -1, ARGV[1]) > 0 then redis.call('LPUSH', KEYS[2], ARGV[1]) end
"""
_TAKE_HELD = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('LPUSH', KEYS[3], ARGV[3])
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])
"""


class RedisQueues:
    """The queues of one Redis broker. `prefix` is kombu's `global_keyprefix`, `sep` what it has between a queue and a
    priority, and in a binding."""

    def __init__(self, url: str, *, prefix: str, sep: str) -> None:
        self._link, self._prefix, self._sep = session(url), prefix, sep
        self.where: Any = self._link.where

    def take(self, queue: str, most: int) -> list[Taken]:
        """Move messages of the queue to the list of taken ones; return the oldest of that list, at most `most`."""
        lists = [f"{queue}{self._sep}{n}" if n else queue for n in PRIORITIES]
        keys = [self._key(name) for name in (_taken_key(queue), *lists)]
        raws = self._link.command("EVAL", _TAKE, len(keys), *keys, most)
        return [Taken(raw, raw) for raw in reversed(raws)]

    def remove(self, queue: str, taken: Sequence[Taken]) -> None:
        """Delete messages that are in the app's store. If the bridge is killed before, they are taken again, with the
        same keys."""
        self._link.command("EVAL", _REMOVE, 1, self._key(_taken_key(queue)), *(each.handle for each in taken))

    def refuse(self, queue: str, taken: Taken) -> str:
        """Set aside a message that the app's store refuses; return where it is kept."""
        kept = self._key(f"redrive:celery:{queue}:refused")
        self._link.command("EVAL", _REFUSE, 2, self._key(_taken_key(queue)), kept, taken.handle)
        return f"the list {kept} of {self.where}"

    def take_held(self, queues: Sequence[str], older_s: float) -> int:
        """Take over messages that Celery's workers popped at least `older_s` seconds ago and have not acknowledged;
        return their number.

        Use it when workers were killed: a living one also has unacknowledged messages, running ones and those with an
        eta. One script per message moves it to the list of taken ones. Logs which messages are left, as they are of
        other queues.
        """
        count, begin, left = 0, 0, Counter[str]()
        bound: dict[str, list[list[str]]] = {}
        held, since = self._key(HELD), self._key(HELD_SINCE)
        seconds, micros = self._link.command("TIME")
        until = int(seconds) + int(micros) / 1e6 - older_s
        while tags := self._link.command("ZRANGEBYSCORE", since, "-inf", repr(until), "LIMIT", begin, HELD_MAX):
            for tag in tags:
                entry = self._link.command("HGET", held, tag)
                payload, exchange, route = _unpack(entry)
                if exchange not in bound:
                    bound[exchange] = self._bindings(exchange)
                moved, queue = 0, next((name for name in _routed(bound[exchange], route) if name in queues), None)
                if queue is not None:
                    keys = (held, since, self._key(_taken_key(queue)))
                    moved = self._link.command("EVAL", _TAKE_HELD, 3, *keys, tag, entry, payload)
                elif entry is not None:
                    left[route] += 1
                count, begin = count + moved, begin + (not moved)
        if left:
            named = ", ".join(repr(route) for route in sorted(left)[:NAMED_MAX])
            named += ", …" if len(left) > NAMED_MAX else ""
            log.warning("%d held messages of other queues are left; their routing keys: %s", left.total(), named)
        return count

    def _bindings(self, exchange: str) -> list[list[str]]:
        """Return the routing key, the pattern (on a topic exchange) and the queue of each binding of an exchange."""
        if not exchange:  # kombu's default one, where the routing key is the queue
            return []
        written = self._link.command("SMEMBERS", self._key(BINDINGS + exchange))
        parts = [each.decode(errors="replace").split(self._sep) for each in written]
        return [each for each in parts if len(each) == 3]

    def close(self) -> None:
        self._link.close()

    def _key(self, name: str) -> str:
        return self._prefix + name


def session(url: str) -> Any:
    """Return a session with Celery's broker or result backend on Redis. Raises ConfigError."""
    try:
        from ...stores.redis.session import Session
        from ...stores.redis.url import RedisUrl
    except ImportError as error:
        raise ConfigError(f"a broker on Redis needs its driver ({error}); pip install 'redrive[redis]'") from error
    # redis-py writes `none` for Celery's CERT_NONE.
    url = re.sub(r"(?<=ssl_cert_reqs=)CERT_(\w+)", lambda match: match[1].lower(), url)
    return Session(RedisUrl.parse(url))


def _taken_key(queue: str) -> str:
    return f"redrive:celery:{queue}:taken"


def _unpack(entry: bytes | None) -> tuple[str, str, str]:
    """Return the message in an entry of kombu's hash, its exchange and its routing key; three empty texts if the entry
    cannot be read."""
    try:
        payload, exchange, route = json.loads(entry or b"")
    except (ValueError, TypeError):
        return "", "", ""
    return json.dumps(payload), str(exchange or ""), str(route)


def _routed(bindings: Sequence[Sequence[str]], route: str) -> list[str]:
    """Return the queues to which kombu delivers a message with this routing key; without one, that of the same name."""
    found = [queue for key, pattern, queue in bindings if key == route or (pattern and re.match(pattern, route))]
    return found or [route]
