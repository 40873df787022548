"""Cells on DynamoDB, played by ministack: the contract of cells, and what a table does that databases do not."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.aws.places import REGION, Ministack, client

from redrive.errors import ConfigError, Conflict, StoreError, StoreUnavailable
from redrive.message import Swap
from redrive.store import OpenCells
from redrive.stores import open_cells
from redrive.stores.dynamodb.store import KEEP_S, DynamoCells
from redrive.testing import CellsContract, ManualClock


def url_of(server: Ministack, name: str) -> str:
    return f"dynamodb://{name}?region={REGION}&endpoint={server.url}&create=true"


class TestDynamoCells(CellsContract):
    increments = 4

    @pytest.fixture(autouse=True)
    def server(self, ministack: Ministack) -> None:
        self._server = ministack

    def make_cells(self, clock: ManualClock, place: Path) -> OpenCells:
        name = f"cells-{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"
        return DynamoCells(url_of(self._server, name), clock_ms=clock)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{place}/cells.db"])
class TestCellsOfStores:
    def test_cells_are_opened_by_the_url_of_a_store(self, url: str, tmp_path: Path) -> None:
        cells = open_cells(url.format(place=tmp_path))
        assert cells.swap([Swap("a", 0, b"1")]) == [True]
        (a,) = cells.read(["a"])
        assert a is not None
        with pytest.raises(Conflict):
            cells.swap_all([Swap("b", 0, b"2"), Swap("a", 0, b"2")])
        assert cells.read(["b"]) == [None]
        cells.swap_all([Swap("b", 0, b"2"), Swap("a", a.version, b"2")])
        cells.close()


@pytest.fixture
def table(ministack: Ministack) -> str:
    return url_of(ministack, f"cells-{uuid4().hex}")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cells(table: str, clock: ManualClock) -> Iterator[DynamoCells]:
    cells = DynamoCells(table, clock_ms=clock, sleep=lambda _: None)
    yield cells
    cells.close()


def test_a_table_is_made_once_with_a_time_to_live(table: str, ministack: Ministack) -> None:
    opened = [DynamoCells(table) for _ in range(4)]
    together = threading.Barrier(4)

    def read(cells: DynamoCells) -> None:
        together.wait(10)
        assert cells.read(["a"]) == [None]

    threads = [threading.Thread(target=read, args=(cells,)) for cells in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert opened[0].doctor() == []
    told = client("dynamodb", ministack.url).describe_table(TableName=opened[0]._table)["Table"]
    assert told["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    for cells in opened:
        assert cells.swap([Swap("n", 0, b"")]) == [cells is opened[0]]
        cells.close()


def test_the_doctor_names_a_table_that_keeps_expired_cells(ministack: Ministack) -> None:
    name = f"plain-{uuid4().hex}"
    client("dynamodb", ministack.url).create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    cells = DynamoCells(url_of(ministack, name).removesuffix("&create=true"))
    assert ["for ever" in line for line in cells.doctor()] == [True]
    cells.close()


def test_a_table_that_is_not_there_is_a_wrong_setting(table: str) -> None:
    cells = DynamoCells(table.removesuffix("&create=true"))
    with pytest.raises(ConfigError, match="create=true"):
        cells.read(["a"])
    with pytest.raises(ConfigError, match="aws template"):
        cells.swap([Swap("a", 0, b"")])
    cells.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("dynamodb://?region=x", "expected dynamodb://TABLE"),
        ("dynamodb://a/b", "expected dynamodb://TABLE"),
        ("dynamodb://a?reigon=x", "unknown option 'reigon'"),
        ("dynamodb://a?region=x&threads=0", "threads=0"),
        ("dynamodb://a?region=x&create=yes", "create=yes"),
        ("dynamo://a", "unknown scheme 'dynamo'"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_cells(url)


def test_what_is_too_large_is_refused_before_anything_is_written(cells: DynamoCells) -> None:
    for swap, why in ((Swap("a", 0, bytes(400 * 1024)), "409600 bytes"), (Swap("ä" * 1024, 0, b""), "2048 bytes")):
        for write in (cells.swap, cells.swap_all):
            with pytest.raises(StoreError, match=why):
                write([Swap("fine", 0, b""), swap])
    assert cells.read(["fine"]) == [None]
    assert cells.swap([Swap("k" * 2047, 0, bytes(400 * 1024 - 2047 - 128))]) == [True]
    with pytest.raises(StoreError, match="101 cells"):
        cells.swap_all([Swap(str(n), 0, b"") for n in range(101)])
    cells.swap_all([Swap(str(n), 0, b"") for n in range(100)])


def test_keys_that_begin_with_a_zero_are_told_from_the_empty_one(cells: DynamoCells) -> None:
    keys = ["", "\0", "\0\0", "\0a", "a"]
    assert cells.swap([Swap(key, 0, key.encode()) for key in keys]) == [True] * 5
    assert [cell and cell.value for cell in cells.read(keys)] == [key.encode() for key in keys]


def test_many_are_read_by_hundreds(cells: DynamoCells) -> None:
    keys = [str(n) for n in range(250)]
    assert cells.swap([Swap(key, 0, key.encode()) for key in keys]) == [True] * 250
    cells.requests.clear()
    assert [cell and cell.value for cell in cells.read([*keys, *keys])] == [key.encode() for key in keys] * 2
    assert cells.requests == {"BatchGetItem": 3}


def test_an_item_lives_a_day_longer_than_its_cell(cells: DynamoCells, table: str, ministack: Ministack) -> None:
    """So that the versions of the next cell of its key are above its own on any clock."""
    cells.swap([Swap("short", 0, b"1", ttl_ms=60_000), Swap("ever", 0, b"2"), Swap("gone", 0, b"3")])
    (gone,) = cells.read(["gone"])
    assert gone is not None and cells.swap([Swap("gone", gone.version, None)]) == [True]
    items = client("dynamodb", ministack.url).scan(TableName=cells._table)["Items"]
    left = {item["k"]["S"]: int(item["ttl"]["N"]) - time.time() for item in items if "ttl" in item}
    assert left.keys() == {"short", "gone"}
    assert left["short"] + 30 >= KEEP_S + 60 and left["gone"] + 30 >= KEEP_S
    versions = [int(item["n"]["N"]) for item in items]
    assert all(abs(version / 1e6 - time.time()) < 60 for version in versions)


# -- errors: what the network and the service do


class Trouble:
    """Stands between the cells and the service: makes calls fail before they are made, or loses their answers."""

    def __init__(self, cells: DynamoCells) -> None:
        self.todo: list[Callable[[Callable[[], Any]], Any]] = []
        self._client = cells._calls._client
        cells._calls._client = self

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def made(**parameters: Any) -> Any:
            if self.todo and name != "close":
                return self.todo.pop(0)(lambda: call(**parameters))
            return call(**parameters)

        return made


@pytest.fixture
def trouble(cells: DynamoCells) -> Trouble:
    cells.read([])
    return Trouble(cells)


def throttled(call: Callable[[], Any]) -> Any:
    from botocore.exceptions import ClientError

    raise ClientError(
        {"Error": {"Code": "ThrottlingException", "Message": "slow down"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        "PutItem",
    )


def lost_before(call: Callable[[], Any]) -> Any:
    from botocore.exceptions import ConnectionClosedError

    raise ConnectionClosedError(endpoint_url="there")


def lost_after(call: Callable[[], Any]) -> Any:
    call()
    lost_before(call)


def test_throttled_calls_are_made_again_and_end_as_unavailable(cells: DynamoCells, trouble: Trouble) -> None:
    trouble.todo = [throttled] * 3
    assert cells.swap([Swap("a", 0, b"1")]) == [True]
    assert cells.requests["PutItem"] == 4
    trouble.todo = [throttled] * 8
    with pytest.raises(StoreUnavailable, match="throttled, 8 times in a row"):
        cells.read(["a"])
    assert trouble.todo == []


def test_keys_left_undone_are_read_again(cells: DynamoCells, trouble: Trouble) -> None:
    cells.swap([Swap("a", 0, b"1"), Swap("b", 0, b"2")])

    def in_part(call: Callable[[], Any]) -> Any:
        answer = call()
        [(table, items)] = answer["Responses"].items()
        left = [{"k": item["k"]} for item in items if item["k"]["S"] == "b"]
        answer["Responses"] = {table: [item for item in items if item["k"]["S"] != "b"]}
        answer["UnprocessedKeys"] = {table: {"Keys": left, "ConsistentRead": True}}
        return answer

    trouble.todo = [in_part]
    assert [cell and cell.value for cell in cells.read(["a", "b", "c"])] == [b"1", b"2", None]
    assert cells.requests["BatchGetItem"] == 2
    trouble.todo = [in_part] * 20
    with pytest.raises(StoreUnavailable, match="throttled"):
        cells.read(["b"])


def test_who_wrote_it_and_lost_the_answer_has_won(cells: DynamoCells, trouble: Trouble) -> None:
    for lose in (lost_before, lost_after):
        for value in (b"1", None):
            (found,) = cells.read(["a"])
            trouble.todo = [lose]
            assert cells.swap([Swap("a", found.version if found else 0, value)]) == [True]
            trouble.todo = [lose]
            assert cells.swap([Swap("a", found.version if found else 0, b"2")]) == [False]
    for lose in (lost_before, lost_after):
        trouble.todo = [lose]
        cells.swap_all([Swap(f"x {lose.__name__}", 0, b"1"), Swap(f"y {lose.__name__}", 0, b"1")])
        trouble.todo = [lose]
        with pytest.raises(Conflict):
            cells.swap_all([Swap(f"x {lose.__name__}", 0, b"1"), Swap("z", 0, b"1")])


def test_another_who_won_meanwhile_is_not_taken_for_oneself(
    cells: DynamoCells, trouble: Trouble, table: str, clock: ManualClock
) -> None:
    other = DynamoCells(table, clock_ms=clock)
    cells.swap([Swap("a", 0, b"1")])
    (first,) = cells.read(["a"])
    assert first is not None

    def overtaken(call: Callable[[], Any]) -> Any:
        assert other.swap([Swap("a", first.version, b"same")]) == [True]
        lost_before(call)

    def followed(call: Callable[[], Any]) -> Any:
        call()
        (mine,) = other.read(["a"])
        assert mine is not None and other.swap([Swap("a", mine.version, b"3")]) == [True]
        lost_before(call)

    trouble.todo = [overtaken]
    assert cells.swap([Swap("a", first.version, b"same")]) == [False]
    (now,) = cells.read(["a"])
    assert now is not None
    trouble.todo = [followed]
    with pytest.raises(StoreUnavailable, match="nobody knows"):
        cells.swap([Swap("a", now.version, b"mine")])
    other.close()


def test_a_service_that_is_away_is_unavailable() -> None:
    cells = DynamoCells(f"dynamodb://t?region={REGION}&endpoint=http://127.0.0.1:9", sleep=lambda _: None)
    with pytest.raises(StoreUnavailable, match="dynamodb://t"):
        cells.read(["a"])
    cells.close()
