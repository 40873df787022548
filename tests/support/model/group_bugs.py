"""Bugs of groups."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.model.bug import Bugs

from redrive.message import (
    GroupOrder,
    Lane,
    OnDead,
)
from redrive.stores.groups import PLACE
from redrive.stores.memory import tables
from redrive.stores.memory import writes as memory
from redrive.stores.memory.store import MemoryStore
from redrive.stores.memory.tables import Tables

BUGS = bug = Bugs()


# -- groups


@bug(tables, "free_places", "the width is ignored")
def _(right: Any, line: Any, width: Any) -> Any:
    return right(line, lambda: 100)


@bug(Tables, "width", "a group's own width is ignored")
def _(right: Any, tables: Tables, queue: str, group: str) -> Any:
    return tables.rules(queue).width


@bug(Tables, "rules", "a width for all groups is ignored")
def _(right: Any, tables: Tables, queue: str) -> Any:
    return tables.rules_said(queue)


@bug(tables, "admitted", "an admitted one is due when it was put")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), due_ms=message.enqueued_ms)


@bug(tables, "admitted", "the wait for a place counts as elapsed")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), held_ms=message.held_ms)


@bug(tables, "joined", "priority is ignored in line")
def _(right: Any, message: Any, settings: Any, number: int, *args: Any) -> Any:
    joined, turn = right(message, settings, number, *args)
    return joined, turn and number


@bug(tables, "joined", "the last in line goes first")
def _(right: Any, message: Any, settings: Any, number: int, *args: Any) -> Any:
    return right(message, settings, 1_000_000 - number, *args)


@bug(tables, "joined", "who is delayed stands in line")
def _(right: Any, message: Any, settings: Any, *args: Any) -> Any:
    return right(message, replace(settings, order=GroupOrder.STRICT), *args)


@bug(Tables, "_reorder", "the line stands as it stood when the order changes")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(memory, "settled", "who waits keeps his place though turns are taken")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return PLACE if message.lane is Lane.READY else right(message, settings, now)


@bug(memory, "settled", "a strict group's head gives its place up for a wait")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    turns = replace(settings, order=GroupOrder.TURNS)
    return right(message, turns if message.lane is Lane.READY else settings, now)


@bug(memory, "settled", "a wait of no length gives the place up")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return right(message, settings, -1)


@bug(memory, "settled", "a dead head does not block")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return right(message, settings, now) if message.lane is not Lane.DEAD else None


@bug(memory, "settled", "a dead head blocks though it is to be skipped")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return right(message, replace(settings, on_dead=OnDead.BLOCK), now)


@bug(Tables, "rejoin", "a redriven head joins at the tail of the line it blocked")
def _(right: Any, tables: Tables, seq: int, *args: Any) -> Any:
    tables.write(seq, tables.kept[seq]._replace(turn=None))
    return right(tables, seq, *args)


@bug(Tables, "wake", "whose time has come does not join")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(Tables, "wake", "who waits joins before his time")
def _(right: Any, tables: Tables, queue: str, limit: int, now: int) -> Any:
    return right(tables, queue, limit, now + 5)


@bug(MemoryStore, "cancel", "the place of a cancelled message stays empty")
def _(right: Any, store: MemoryStore, ids: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "admit", lambda *_: None)
        return right(store, ids)


@bug(MemoryStore, "triage", "the place of a discarded head stays empty")
def _(right: Any, store: MemoryStore, *args: Any, **parts: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "admit", lambda *_: None)
        return right(store, *args, **parts)


@bug(memory, "_returned", "a returned head blocks no more")
def _(right: Any, tables: Tables, kept: Any) -> Any:
    return right(tables, kept)._replace(turn=None)


@bug(memory, "_returned", "a returned message keeps its place")
def _(right: Any, tables: Tables, kept: Any) -> Any:
    same = kept.before is not None and kept.before.queue == kept.message.queue
    return right(tables, kept)._replace(turn=PLACE if same and kept.turn == PLACE else None)


@bug(MemoryStore, "configure_group", "resume does nothing")
def _(right: Any, store: MemoryStore, queue: str, group: Any, *, width: Any = None, resume: bool = False) -> Any:
    return right(store, queue, group, width=width)


@bug(MemoryStore, "configure_group", "resume lets go who runs")
def _(right: Any, store: MemoryStore, queue: str, group: Any, *, width: Any = None, resume: bool = False) -> Any:
    right(store, queue, group, width=width, resume=resume)
    with store._commit() as (tables, now):
        line = tables.groups.get((queue, group or "")) if resume else None
        for seq in [*line.taken] if line is not None else ():
            tables.write(seq, tables.kept[seq]._replace(turn=None))
        tables.admit(now)


@bug(tables, "refuse", "settings that contradict each other are taken")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(memory, "group", "nobody is told what blocks it")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), blocked_by=None)


@bug(MemoryStore, "groups", "a group in which nobody stands is forgotten though it has a width")
def _(right: Any, *args: Any) -> Any:
    return [group for group in right(*args) if group.taken or group.parked]
