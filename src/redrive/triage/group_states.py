"""States of failure groups, by fingerprint: resolved, regressed, muted until they grow, merged into another.

All of them are in one cell, so one read gets them. Messages are not changed: a merged group keeps its fingerprint, and
readers join the groups. Whether a group died again, or outgrew its mute, is computed from its dead messages; a worker
writes it down, so that it holds when they are gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError
from ..message import HELD, FailureGroup, Filter, Lane, Swap, decoded, required, version_of
from ..store import Store, pages
from ..stores.failure_groups import joined

CELL, RELEASES = "rules/groups", "rules/releases"
STATES_MAX, RELEASES_MAX = 1000, 64
READ_MAX = 1000  # most dead messages of a group that are read to find a later release, or to reach a rate
HELD_MAX = 100_000  # most dead messages that a store without an index of reasons reads to count those held
_RATE = re.compile(r"([1-9]\d{0,3})/([smhd])")
_SPANS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class GroupState(Struct, frozen=True, omit_defaults=True):
    """The state of a failure group. Times are ms of the store's clock, 0 for never.

    `resolved_ms`: a person resolved it, in `release` if that is set; `regressed_ms`: it died again after that. A mute
    ends early at `until_rate`, such as 10/m, or once it has `until_total` dead messages: at `grown_ms`. `into`: the
    group that it is merged into. `by` is who resolved it.
    """

    resolved_ms: int = 0
    release: str = ""
    by: str = ""
    regressed_ms: int = 0
    until_rate: str = ""
    until_total: int = 0
    grown_ms: int = 0
    into: str = ""

    @property
    def word(self) -> str:
        """`regressed`, `resolved`, or empty."""
        return "regressed" if self.regressed_ms else "resolved" if self.resolved_ms else ""

    @property
    def story(self) -> str:
        """What became of a resolved group, as the end of a sentence."""
        of = f"resolved{f' in release {self.release}' * bool(self.release)} by {self.by}"
        return f"died again after it was {of}" if self.regressed_ms else f"was {of}"


States = dict[str, GroupState]
NO_STATE = GroupState()
_decode = msgspec.json.Decoder(States).decode
_decode_times = msgspec.json.Decoder(dict[str, int]).decode
_encode = msgspec.json.Encoder().encode


def read_states(store: Store) -> States:
    """Read the states of all groups; none if the cell is unreadable. Raises StoreError."""
    return decoded(store.cells.read([CELL])[0], _decode, {}) if store.traits.cells else {}


def above(states: Mapping[str, GroupState], fingerprint: str) -> list[str]:
    """Return the groups that this one is merged into, the nearest first."""
    found: list[str] = []
    while (fingerprint := states.get(fingerprint, NO_STATE).into) and fingerprint not in found:
        found.append(fingerprint)
    return found


def root(states: Mapping[str, GroupState], fingerprint: str) -> str:
    """Return the group that shows and counts this one: the last that it is merged into, or itself."""
    return next(reversed(above(states, fingerprint)), fingerprint)


def family(states: Mapping[str, GroupState], fingerprint: str) -> tuple[str, ...]:
    """Return the fingerprint, and those that are merged into it."""
    found = {fingerprint: None}
    while more := [each for each, of in states.items() if of.into in found and each not in found]:
        found |= dict.fromkeys(more)
    return tuple(found)


def combined(states: Mapping[str, GroupState], groups: Sequence[FailureGroup]) -> Sequence[FailureGroup]:
    """Return the groups with merged ones as one for each task, the largest first."""
    if not any(of.into for of in states.values()):
        return groups
    by_name: dict[tuple[str, str], FailureGroup] = {}
    for each in groups:
        one = replace(each, fingerprint=root(states, each.fingerprint))
        name = one.fingerprint, one.task
        by_name[name] = joined(by_name[name], one) if name in by_name else one
    return sorted(by_name.values(), key=lambda group: (-group.count, group.fingerprint, group.task))


def rate_of(text: str) -> tuple[int, int]:
    """Return a rate such as "10/m" as a number and a span in ms. Raises ConfigError."""
    match = _RATE.fullmatch(text)
    if match is None or int(match[1]) > READ_MAX:
        raise ConfigError(f"until_rate {text!r}: expected up to {READ_MAX:,} deaths in s, m, h or d, such as '10/m'")
    return int(match[1]), _SPANS_MS[match[2]]


def now_true(store: Store, states: Mapping[str, GroupState], fingerprint: str) -> GroupState:
    """Return the state of a group that its dead messages show: it may have regressed, or grown too large for its mute,
    without being written yet. Raises StoreError."""
    state, now_ms = states.get(fingerprint, NO_STATE), store.now_ms()
    where = Filter(fingerprint=family(states, fingerprint))
    if state.resolved_ms and not state.regressed_ms:
        state = replace(state, regressed_ms=_regressed_ms(store, state, where))
    if (state.until_rate or state.until_total) and not state.grown_ms and _has_grown(store, state, where, now_ms):
        state = replace(state, grown_ms=now_ms)
    return state


def _regressed_ms(store: Store, state: GroupState, where: Filter) -> int:
    """Return when the first message died that makes the group regressed; 0 if none did. Of a group that is resolved in
    a release, only deaths in that release count, and in releases whose first worker started later."""
    since = replace(where, since_ms=state.resolved_ms + 1)
    if not state.release:
        return next((m.rested_ms or 0 for m in store.peek(Lane.DEAD, where=since, limit=1).messages), 0)
    began = read_releases(store)
    first_ms = began.get(state.release)
    later = {name for name, at_ms in began.items() if first_ms is not None and at_ms > first_ms} | {state.release}
    dead = islice(chain.from_iterable(pages(store, Lane.DEAD, since)), READ_MAX)
    return next((m.rested_ms or 0 for m in dead if m.faults and m.faults[-1].release in later), 0)


def _has_grown(store: Store, state: GroupState, where: Filter, now_ms: int) -> bool:
    if state.until_total and sum(g.count for g in store.failure_groups(where=where)) >= state.until_total:
        return True
    if not state.until_rate:
        return False
    count, span_ms = rate_of(state.until_rate)
    recent = chain.from_iterable(pages(store, Lane.DEAD, replace(where, since_ms=now_ms - span_ms + 1)))
    return sum(1 for _ in islice(recent, count)) == count


def read_releases(store: Store) -> dict[str, int]:
    """Return when the first worker of each release started, in ms. Raises StoreError."""
    return decoded(store.cells.read([RELEASES])[0], _decode_times, {})


def begin_release(store: Store, release: str) -> None:
    """Remember when the first worker of this release started: now, if none did before. Raises StoreError."""
    (cell,) = store.cells.read([RELEASES])
    began = decoded(cell, _decode_times, {})
    if release not in began:
        newest = sorted((began | {release: store.now_ms()}).items(), key=lambda item: -item[1])[:RELEASES_MAX]
        if not store.cells.swap([Swap(RELEASES, version_of(cell), _encode(dict(newest)))])[0]:
            begin_release(store, release)  # another worker wrote


def changing(store: Store, fingerprint: str, fields: Mapping[str, Any], known: GroupState | None = None) -> list[Swap]:
    """Return the swap that changes these fields of a group's state: none if that changes nothing, or if the state is
    not `known` any more. Among too many, the group that was resolved first, and has no other state, is forgotten.
    Raises ConfigError, StoreError, Unreadable."""
    (cell,) = store.cells.read([CELL])
    before = required(CELL, cell, _decode, {})
    state = before.get(fingerprint, NO_STATE)
    if known is not None and state != known:
        return []
    state = replace(state, **fields)
    states = {name: of for name, of in (before | {fingerprint: state}).items() if of != NO_STATE}
    if len(states) > STATES_MAX:
        bare = [(of.resolved_ms, name) for name, of in states.items()
                if of == GroupState(of.resolved_ms, of.release, of.by)]  # fmt: skip
        if not bare:
            raise ConfigError(f"{STATES_MAX:,} failure groups are muted or merged, which is the most; end one first")
        del states[min(bare)[1]]
    return [] if states == before else [Swap(CELL, version_of(cell), _encode(states) if states else None)]


def held_counts(store: Store, states: Mapping[str, GroupState]) -> dict[tuple[str, str], int]:
    """Count the dead messages that are held for a person, by fingerprint and task. Empty on a store that would have to
    read too many messages for it. Raises StoreError."""
    by = store.traits.groups_by
    if not store.traits.triages or (by is not None and "reason" not in by and store.counts().dead > HELD_MAX):
        return {}
    groups = combined(states, store.failure_groups(where=Filter(reason=HELD)))
    return {(group.fingerprint, group.task): group.count for group in groups}
