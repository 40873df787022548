"""Cells on one table of DynamoDB, for messages that are stored in SQS.

An item is a cell: `k` its key, `v` its value, `n` its version, `e` when it expires (ms), `w` a mark of the write that
made the item, `ttl` when DynamoDB may remove it (s). DynamoDB removes items up to days late, so expiry is checked here.
A deleted cell remains as an item without `v`.

A key never reuses a version, even after its item is removed. A new cell gets the time of this machine in µs, or one
more than its expired item has, if that is higher; each swap after that is one more than the last. No cell is swapped
every µs, so a version never exceeds the highest clock that wrote it. An item may be removed a day after its expiry: the
next version is still higher, if clocks of machines differ by less than a day.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

from msgspec import Struct

from ...errors import ConfigError, StoreError, StoreUnavailable
from ...message import Cell, Swap
from ...urls import option_shown, shown
from ..clock import wall_ms
from .client import TRIES, DynamoCalls, Unmet, wall_us
from .items import Item, cell, check, conflict, is_over, key_of, merged, unkey, was_it_mine

READ_MAX = 100  # most keys in one BatchGetItem
ALL_MAX = 100  # most writes in one TransactWriteItems
KEEP_S = 86_400  # an expired item stays at least this long
READY_WITHIN_S = 60.0
THREADS = 16
_OPTIONS = ("region", "endpoint", "create", "threads")


class DynamoUrl(Struct, frozen=True):
    """The parts of a URL `dynamodb://TABLE?region=&endpoint=&create=true&threads=16`."""

    table: str
    region: str | None = None
    endpoint: str | None = None
    create: bool = False
    threads: int = THREADS

    @classmethod
    def parse(cls, url: str) -> DynamoUrl:
        """Parse the URL. Raises ConfigError if it is invalid."""
        table, _, query = url.partition("://")[2].partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise _refused(url, f"unknown option {option_shown(unknown[0])}; known: {', '.join(_OPTIONS)}")
        if not table.rstrip("/") or "/" in table.rstrip("/"):
            raise _refused(url, "expected dynamodb://TABLE?region=REGION")
        create, threads = options.get("create", "false"), options.get("threads", str(THREADS))
        if create not in ("true", "false"):
            raise _refused(url, f"create={create!r}: expected true or false")
        if not threads.isdecimal() or not 1 <= int(threads) <= 256:
            raise _refused(url, f"threads={threads!r}: expected 1 to 256")
        return cls(
            table.rstrip("/"),
            options.get("region") or None,
            options.get("endpoint") or None,
            create == "true",
            int(threads),
        )


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(f"cells URL {shown(url)!r}: {why}")


class DynamoCells:
    """Cells on the DynamoDB table that the URL names. Thread-safe.

    Reads are strongly consistent, a hundred at once; swaps are independent conditional writes, up to `threads` at once.
    `requests` counts calls by action, including retries. `clock_ms` is the clock for expiry (default: the machine's).
    boto3 determines region and credentials. Raises ConfigError for an invalid URL.
    """

    def __init__(
        self, url: str, *, clock_ms: Callable[[], int] | None = None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._url = parts = DynamoUrl.parse(url)
        self._table, self._clock_ms = parts.table, clock_ms or wall_ms
        self._calls = DynamoCalls(
            parts.region, parts.endpoint, f"cells dynamodb://{parts.table}", pool=parts.threads + 8, sleep=sleep
        )
        self._lock = threading.Lock()
        self._to_make = parts.create
        self._threads: ThreadPoolExecutor | None = None

    @property
    def requests(self) -> Counter[str]:
        return self._calls.requests

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        self._made()
        once = list(dict.fromkeys(keys))
        pages = [once[n : n + READ_MAX] for n in range(0, len(once), READ_MAX)]
        items = {key: item for page in self._each(self._page, pages) for key, item in page.items()}
        now_ms = self._clock_ms()
        return [cell(items.get(key), now_ms) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        self._made()
        check(swaps)
        by_key: dict[str, list[int]] = {}
        for n, swap in enumerate(swaps):
            by_key.setdefault(swap.key, []).append(n)
        words = [False] * len(swaps)

        def one_key(places: list[int]) -> None:
            for n in places:
                words[n] = self._swap(swaps[n])

        self._each(one_key, list(by_key.values()))
        return words

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        """Apply all swaps in one commit, or none: raises Conflict if one does not apply, StoreError for more than a
        hundred keys."""
        self._made()
        check(swaps)
        writes = merged(swaps)
        if not writes:
            return
        if len(writes) > ALL_MAX:
            raise StoreError(f"{len(writes)} cells in one commit: DynamoDB takes {ALL_MAX}; nothing was written")
        if len(writes) == 1:
            if not self._swap(writes[0]):
                raise conflict(writes[0])
            return
        above = [0] * len(writes)
        for _ in range(TRIES):
            puts = [self._put(swap, least, uuid4().bytes) for swap, least in zip(writes, above, strict=True)]
            try:
                self._calls.call(
                    "TransactWriteItems",
                    TransactItems=[{"Put": put} for put in puts],
                    ClientRequestToken=str(uuid4()),  # lets DynamoDB recognise a repeated call
                )
                return
            except Unmet as unmet:
                above = self._higher(writes, above, unmet.met)
        raise StoreUnavailable(f"cells of table {self._table!r} are being written by others all the time")

    def connect(self) -> None:
        """Do nothing: HTTP needs no connection before the first call."""

    def doctor(self) -> list[str]:
        """Find unsafe or expensive settings of the table; returns one line per setting with the remedy."""
        self._made()
        table = self._calls.call("DescribeTable", TableName=self._table)["Table"]
        if [(part["AttributeName"], part["KeyType"]) for part in table["KeySchema"]] != [("k", "HASH")]:
            return [f"table {self._table!r} has another key than the string `k`: use one of `redrive aws template`"]
        if not self._is_tidied():
            return [
                f"table {self._table!r} keeps expired cells for ever: enable time to live on attribute `ttl` (aws "
                f"dynamodb update-time-to-live --table-name {self._table} --time-to-live-specification "
                "Enabled=true,AttributeName=ttl)"
            ]
        return []

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        self._calls.close()

    # -- one swap

    def _swap(self, swap: Swap) -> bool:
        above = 0
        for _ in range(TRIES):
            mark = uuid4().bytes
            put = self._put(swap, above, mark)
            try:
                self._calls.call("PutItem", **put)
                return True
            except Unmet as unmet:
                item = unmet.met[0]
                if unmet.unsure and item:
                    mine = was_it_mine(item, put["Item"], mark)
                    if mine is None:
                        raise StoreUnavailable(
                            f"cell {swap.key!r} of table {self._table!r}: it is not known whether it was written: an "
                            "answer was lost, and others have written it since; read it again"
                        ) from unmet
                    if mine:
                        return True
                if swap.version or not item or not is_over(item, self._clock_ms()):
                    return False
                above = int(item["n"]["N"])
        raise StoreUnavailable(f"cell {swap.key!r} of table {self._table!r} is being written by others all the time")

    def _put(self, swap: Swap, above: int, mark: bytes) -> dict[str, Any]:
        """The parameters of PutItem for a swap. A new cell gets a version above `above` and overwrites no live cell."""
        now_ms = self._clock_ms()
        version = swap.version + 1 if swap.version else max(above + 1, wall_us())
        item: Item = {"k": key_of(swap.key), "n": {"N": str(version)}, "w": {"B": mark}}
        left_ms = swap.ttl_ms
        if swap.value is None:
            item["e"], left_ms = {"N": "0"}, 0
        else:
            item["v"] = {"B": swap.value}
            if left_ms is not None:
                item["e"] = {"N": str(now_ms + left_ms)}
        if left_ms is not None:  # `ttl` is wall-clock time, as DynamoDB removes items by it
            item["ttl"] = {"N": str(wall_us() // 1_000_000 + left_ms // 1000 + 1 + KEEP_S)}
        values = {":now": {"N": str(now_ms)}}
        if swap.version:
            values[":old"] = {"N": str(swap.version)}
            condition = "n = :old AND (attribute_not_exists(e) OR e > :now)"
        else:
            values[":new"] = item["n"]
            condition = "attribute_not_exists(k) OR (e <= :now AND n < :new)"
        return {
            "TableName": self._table,
            "Item": item,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _higher(self, writes: Sequence[Swap], above: Sequence[int], met: Mapping[int, Item]) -> list[int]:
        """Return for each write the version above which to retry. Raises Conflict if a retry would fail too."""
        now_ms, higher = self._clock_ms(), list(above)
        for n, item in met.items():
            if writes[n].version or not item or not is_over(item, now_ms):
                raise conflict(writes[n])
            higher[n] = int(item["n"]["N"])
        return higher

    # -- several calls

    def _page(self, keys: list[str]) -> dict[str, Item]:
        asked: dict[str, Any] = {
            self._table: {
                "Keys": [{"k": key_of(key)} for key in keys],
                "ConsistentRead": True,
                "ProjectionExpression": "k, v, n, e",
            }
        }
        by_key: dict[str, Item] = {}
        tries = 0
        while asked:
            answer = self._calls.call("BatchGetItem", RequestItems=asked)
            items = answer.get("Responses", {}).get(self._table, ())
            by_key |= {unkey(item["k"]["S"]): item for item in items}
            asked = answer.get("UnprocessedKeys") or {}
            tries = 0 if items else tries + 1
            if asked and tries == TRIES:
                raise StoreUnavailable(f"cells of table {self._table!r}: throttled, {TRIES} times in a row")
            if asked:
                self._calls.pause(tries)
        return by_key

    def _each(self, work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
        """Return `work(part)` for each part, up to `threads` at once. All calls end before an error is raised."""
        if len(parts) < 2:
            return [work(part) for part in parts]
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._url.threads, "redrive-dynamodb")
            doing = [self._threads.submit(work, part) for part in parts]
        errors = [error for error in (future.exception() for future in doing) if error is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in doing]

    # -- the table

    def _made(self) -> None:
        if not self._to_make:
            return
        with self._lock:
            if self._to_make:
                self._make()
                self._to_make = False

    def _make(self) -> None:
        name = self._table
        self._calls.call_unless(
            "ResourceInUseException",  # the table already exists
            "CreateTable",
            TableName=name,
            KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        end_s = time.monotonic() + READY_WITHIN_S
        while self._calls.call("DescribeTable", TableName=name)["Table"]["TableStatus"] != "ACTIVE":
            if time.monotonic() > end_s:
                raise StoreUnavailable(f"table {name!r} is being made, for more than {READY_WITHIN_S:.0f} s now")
            self._calls.pause(5)
        if not self._is_tidied():
            self._calls.call_unless(
                "ValidationException",  # another process has enabled TTL
                "UpdateTimeToLive",
                TableName=name,
                TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"},
            )

    def _is_tidied(self) -> bool:
        answer = self._calls.call("DescribeTimeToLive", TableName=self._table).get("TimeToLiveDescription", {})
        return answer.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and answer.get("AttributeName") == "ttl"
