"""Namespaces on a Redis server, one for each test."""

from __future__ import annotations

import zlib
from pathlib import Path

from tests.support.servers import RedisServer


def redis_url(place: Path, server: RedisServer) -> str:
    """A namespace of its own for a test's directory."""
    return f"{server.url}?namespace={zlib.crc32(str(place).encode()):08x}"
