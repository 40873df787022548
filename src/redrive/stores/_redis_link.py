"""The Redis store's connections, and how its scripts are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import redis
from redis.exceptions import RedisError

from ..errors import ConfigError, StoreError, StoreUnavailable

Arg = bytes | int | str
_NAMESPACE = "redrive"


class RedisUrl(NamedTuple):
    """What a URL says: the server without options of ours, and those."""

    server: str
    namespace: str = _NAMESPACE

    @classmethod
    def parse(cls, url: str) -> RedisUrl:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        namespace = options.pop("namespace", _NAMESPACE)
        if options:
            raise ConfigError(f"store URL: unknown option {sorted(options)[0]!r}; known: namespace")
        return cls(urlunsplit(parts._replace(query="")), namespace)


def script_text(name: str) -> str:
    """The script of that name, with the shared pieces before it that its first line names."""
    folder = files("redrive.stores") / "redis_scripts"
    own = (folder / f"{name}.lua").read_text()
    first = own.partition("\n")[0]
    shared = first.removeprefix("-- needs: ").split() if first.startswith("-- needs: ") else []
    return "\n".join([(folder / f"_{piece}.lua").read_text() for piece in ["base", *shared]] + [own])


class Link:
    """Calls scripts by name. Safe for many threads."""

    def __init__(self, url: RedisUrl, *, seam: Callable[[str], None]) -> None:
        self.namespace = url.namespace
        self.root = b"{" + url.namespace.encode() + b"}:"
        self._seam = seam
        self._client = redis.Redis.from_url(url.server)
        self._scripts: dict[str, Any] = {}
        self._closed = False

    def call(self, script: str, args: Sequence[Arg], *, again: bool = True) -> Any:
        """What the script answers; KEYS[1] is the root of all its keys."""
        if self._closed:
            raise StoreError("this Redis store is closed; open another")
        if script not in self._scripts:
            self._scripts[script] = self._client.register_script(script_text(script))
        try:
            return self._scripts[script](keys=[self.root], args=args)
        except RedisError as error:
            raise StoreUnavailable(f"Redis could not do {script}: {error}") from error

    def now_ms(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def saw_clock(self, server_ms: int, sent_s: float) -> None:
        """A reply to what was sent at `sent_s` (monotonic) said that the server's clock showed this."""

    def connection(self) -> redis.Redis:
        """For a blocking read of one's own."""
        return self._client

    def close(self) -> None:
        self._closed = True
        self._client.close()
