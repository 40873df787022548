"""The machines that redrive automatically: their stored state, and how people pause and resume them.

A machine has a scope: `queue/NAME`, as the app declares it, or `fingerprint/FP`, by a standing rule. Its state is in
the cell `auto/SCOPE`. Every action swaps this cell in the same commit, so that of two processes that work on one scope
only one succeeds. The cell `auto-story/SCOPE` records what it did; `autos` names all machines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...audit import Audit, signed
from ...config.resolve import near_miss
from ...errors import ConfigError
from ...flow.auto_redrive import AutoRedrive
from ...message import Cell, Swap, decoded, required, version_of
from ...store import Store
from ..redrive.records import Line

INDEX = "autos"
STORY_MAX = 200  # most lines of a story; the oldest are dropped
KEPT_MS = 400 * 86_400_000  # ms that the cells of a machine are kept after the last write
READ_AT_ONCE = 200
QUEUE, FINGERPRINT = "queue/", "fingerprint/"

Phase = Literal["new", "looking", "asleep", "waiting", "redriving", "paused", "ended"]


class Machine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A machine that redrives the dead messages of a scope automatically, or discards them. Times are ms of the store's
    clock.

    `phase` and `why` describe its state: looking for messages, asleep until `next_ms` (or until a message dies),
    waiting for a gate, redriving by the run `run`, paused by a person, or ended, as its rule was removed. Counts of
    messages: `redriven` by its runs, `done` and `failed` by the outcomes of these, `changed` by others before they were
    moved, `isolated` as poison, `discarded`. `slot_ms`: when its rate allows the next run. `auto`: its parameters;
    None: it discards messages. The worker `owner` has its lease until `until_ms`.
    """

    scope: str
    phase: Phase = "new"
    why: str = ""
    run: str = ""
    next_ms: int = 0
    began_ms: int = 0
    redriven: int = 0
    done: int = 0
    failed: int = 0
    changed: int = 0
    isolated: int = 0
    discarded: int = 0
    slot_ms: int = 0
    auto: AutoRedrive | None = None
    owner: str = ""
    until_ms: int = 0
    story: tuple[Line, ...] = ()  # set by `machines`

    def worked(self, now_ms: int) -> bool:
        """True if some worker has the machine's lease at `now_ms`."""
        return now_ms < self.until_ms


_decode = msgspec.json.Decoder(Machine).decode
_lines = msgspec.json.Decoder(tuple[Line, ...]).decode
_names = msgspec.json.Decoder(list[str]).decode
_encode = msgspec.json.Encoder().encode


def state_cell(scope: str) -> str:
    return f"auto/{scope}"


def story_cell(scope: str) -> str:
    return f"auto-story/{scope}"


def decode(cell: Cell | None, scope: str) -> Machine:
    """Return the machine in the cell; a new one for the scope without a cell. Raises Unreadable."""
    return required(state_cell(scope), cell, _decode, Machine(scope=scope))


def swaps(store: Store, cell: Cell | None, after: Machine, lines: list[Line]) -> list[Swap]:
    """Return the swaps that store `after` in place of `cell`, and add the lines to its story. Raises StoreError."""
    scope = after.scope
    kept = [Swap(state_cell(scope), version_of(cell), _encode(replace(after, story=())), KEPT_MS)]
    if lines:
        (stored,) = store.cells.read([story_cell(scope)])
        story = decoded(stored, _lines, ())
        kept.append(Swap(story_cell(scope), version_of(stored), _encode((*story, *lines)[-STORY_MAX:]), KEPT_MS))
    if cell is None:
        (named,) = store.cells.read([INDEX])
        scopes = _scopes(named)
        if scope not in scopes:
            kept.append(Swap(INDEX, version_of(named), _encode(sorted([*scopes, scope]))))
    return kept


def machines(store: Store, scope: str | None = None) -> list[Machine]:
    """Return all machines, or the one of this scope, each with its story. Raises ConfigError for an unknown scope,
    StoreError."""
    known = all_scopes(store)
    scopes = known if scope is None else [_known(scope, known)]
    result: list[Machine] = []
    for at in range(0, len(scopes), READ_AT_ONCE):
        some = scopes[at : at + READ_AT_ONCE]
        cells = store.cells.read([*map(state_cell, some), *map(story_cell, some)])
        for cell, stored in zip(cells, cells[len(some) :], strict=False):
            machine = decoded(cell, _decode, None)
            if machine is not None:  # the cell may have expired, or be unreadable
                result.append(replace(machine, story=decoded(stored, _lines, ())))
    return result


def pause(store: Store, scope: str, *, reason: str, actor: str | None = None) -> Machine:
    """Let the machine of this scope start no more runs; an open run continues. One commit with its audit entry.

    Raises ConfigError for an unknown scope or without a reason, StoreError.
    """

    def act(machine: Machine) -> Machine:
        return machine if machine.phase == "paused" else replace(machine, phase="paused", why=reason.strip())

    return _change(store, scope, act, "auto-pause", "paused", actor, reason)


def resume(store: Store, scope: str, *, reason: str, actor: str | None = None) -> Machine:
    """Let a paused machine continue. Raises ConfigError, StoreError as `pause`."""

    def act(machine: Machine) -> Machine:
        if machine.phase != "paused":
            return machine
        return replace(machine, phase="redriving" if machine.run else "looking", why="")

    return _change(store, scope, act, "auto-resume", "resumed", actor, reason)


def _change(
    store: Store,
    scope: str,
    act: Callable[[Machine], Machine],
    action: str,
    word: str,
    actor: str | None,
    reason: str,
) -> Machine:
    scope = _known(scope, all_scopes(store))
    who, why = signed(actor, reason, f"{action} {scope}")
    audit = Audit(store)
    entry = audit.entry(action, who, why, about=scope)

    def write(audited: list[Swap]) -> None:
        (cell,) = store.cells.read([state_cell(scope)])
        before = decode(cell, scope)
        after = act(before)
        if after is not before:
            changes = swaps(store, cell, after, [Line(entry.at_ms, f"{word} by {who}: {why}")])
            store.put([], swaps=[*changes, *audited])

    audit.commit(entry, write)
    return machines(store, scope)[0]


def _known(scope: str, known: list[str]) -> str:
    """Return the full scope of a known machine, given the scope or its name alone. Raises ConfigError."""
    for name in (scope, QUEUE + scope, FINGERPRINT + scope):
        if name in known:
            return name
    near = near_miss(scope, [*known, *(name.partition("/")[2] for name in known)])
    meant = f"did you mean {near!r}? " if near else ""
    raise ConfigError(f"no machine redrives {scope!r}; {meant}known: {', '.join(known[:20]) or 'none'}")


def all_scopes(store: Store) -> list[str]:
    """Return the scopes of all machines in the store. Raises StoreError."""
    return _scopes(store.cells.read([INDEX])[0])


def _scopes(cell: Cell | None) -> list[str]:
    return decoded(cell, _names, [])
