"""A Redis server that was started in the locale of its machine, as services of Debian are: there Lua compares texts by
dictionary, and members are bytes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from tests.support.namespaces import redis_url
from tests.support.servers import RedisServer

from redrive.message import Draft, Filter, Lane
from redrive.store import Store
from redrive.stores.redis.store import RedisStore
from redrive.testing import ManualClock
from redrive.testing.contract.claiming import ClaimRules
from redrive.testing.contract.looking import LookRules
from redrive.testing.contract.mending import ListRules
from redrive.testing.contract.strict_groups import StrictRules

LOCALE = "en_US.UTF-8"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system builds a locale from its source")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    place = tmp_path_factory.mktemp("locale")
    subprocess.run(["localedef", "-i", "en_US", "-f", "UTF-8", place / LOCALE], check=True)
    with RedisServer(under=("env", f"LOCPATH={place}", f"LC_ALL={LOCALE}")) as server:
        with closing(redis.Redis(port=server.port)) as client:
            assert client.eval("return {tostring('B' < 'a')}", 0) == [b"false"], "the server goes by bytes"
        yield server


class TestRedisOfALocale(LookRules, ListRules, StrictRules, ClaimRules):
    @pytest.fixture(autouse=True)
    def _server(self, server: RedisServer) -> None:
        self.server = server

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return RedisStore(redis_url(place, self.server), clock_ms=clock)


@pytest.mark.parametrize("lane", [Lane.READY, None])
def test_a_large_queue_is_listed_whole_and_in_order(server: RedisServer, tmp_path: Path, lane: Lane | None) -> None:
    with closing(RedisStore(redis_url(tmp_path, server))) as store:
        ids = [put.id for _ in range(3) for put in store.put([Draft(task="t") for _ in range(1000)])]
        found, cursor = list[str](), None
        while True:
            page = store.peek(lane, where=Filter(queue="default"), limit=400, cursor=cursor)
            found += [message.id for message in page.messages]
            if (cursor := page.cursor) is None:
                break
        assert found == ids
