"""Convert cells to items of DynamoDB and back, and check DynamoDB's limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import Conflict, StoreError
from ...message import Cell, Swap

KEY_BYTES_MAX = 2048
ITEM_BYTES_MAX = 400 * 1024
_OVERHEAD_BYTES = 128  # upper bound for the attribute names and numbers in an item

Item = dict[str, Any]


def key_of(key: str) -> Item:
    """Return a cell's key as an attribute of an item. Marks an empty key with NUL, as DynamoDB accepts no empty one."""
    return {"S": key if key and key[0] != "\0" else "\0" + key}


def unkey(text: str) -> str:
    return text.removeprefix("\0")


def is_over(item: Item, now_ms: int) -> bool:
    return "e" in item and int(item["e"]["N"]) <= now_ms


def cell(item: Item | None, now_ms: int) -> Cell | None:
    if item is None or is_over(item, now_ms):
        return None
    return Cell(int(item["n"]["N"]), item["v"]["B"])


def was_it_mine(item: Item, put: Item, mark: bytes) -> bool | None:
    """True if the existing item shows that the write `put` succeeded, False if it failed, None if neither."""
    if item["w"]["B"] == mark:
        return True
    # Versions only rise: if this write succeeded, a later version has replaced the one it wrote.
    return None if int(item["n"]["N"]) > int(put["n"]["N"]) else False


def check(swaps: Sequence[Swap]) -> None:
    """Raise StoreError if DynamoDB cannot hold the cell of one of the swaps. Call it before any write."""
    for swap in swaps:
        key, size = len(swap.key.encode()), len(swap.value or b"")
        if key >= KEY_BYTES_MAX:
            raise StoreError(f"cell {swap.key[:80]!r}…: its key has {key} bytes, DynamoDB takes {KEY_BYTES_MAX - 1}")
        if key + size + _OVERHEAD_BYTES > ITEM_BYTES_MAX:
            raise StoreError(
                f"cell {swap.key!r}: its value has {size} bytes, and DynamoDB takes "
                f"{ITEM_BYTES_MAX - _OVERHEAD_BYTES} with its key; keep less in it, or keep cells in Redis, PostgreSQL "
                "or SQLite"
            )


def merged(swaps: Sequence[Swap]) -> list[Swap]:
    """Return the swaps with those of one key merged, as DynamoDB needs. Raises Conflict if two cannot both apply."""
    by_key: dict[str, Swap] = {}
    for swap in swaps:
        before = by_key.get(swap.key)
        if before is None:
            by_key[swap.key] = swap
        elif before.value is None and swap.version == 0:
            by_key[swap.key] = Swap(swap.key, before.version, swap.value, swap.ttl_ms)
        else:
            raise conflict(swap)
    return list(by_key.values())


def conflict(swap: Swap) -> Conflict:
    return Conflict(f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again")
