"""Annotate failure groups, by fingerprint: a note, an owner, muted alerts, a standing rule, and a state.

Note, owner and mute of a group are in the cell `group/FINGERPRINT`, all standing rules in one cell (auto/rules.py),
and all states in another (group_states.py). They outlive the messages, so that they apply when the failure comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..audit import Audit, Entry, signed
from ..duration import Duration, milliseconds, rfc3339
from ..errors import ConfigError, near_miss
from ..flow.auto_redrive import AutoRedrive
from ..flow.rules import whole
from ..message import Swap, decoded, version_of
from ..store import Store
from .auto.rules import RULES, Rule, RuleKind, encode, read_rules, readable_rules, rules
from .group_states import NO_STATE, GroupState, changing, family, now_true, rate_of, read_states, root

RULES_MAX = 1000
TOTAL_MAX = 1_000_000_000  # dead messages at which a mute may end, at most
NOTE_MAX, OWNER_MAX = 2000, 200  # most characters of a note, and of an owner or a release
FINGERPRINT_MAX = 64
ONE_YEAR_MS = 366 * 86_400_000
READ_AT_ONCE = 500  # cells in one read


class Annotation(Struct, frozen=True, omit_defaults=True):
    """The annotation of a failure group. `by`, `at_ms` and `reason` are of the last change of note, owner or mute.
    `state` is that of the group, or of the group `into` which it is merged."""

    note: str = ""
    owner: str = ""
    muted_until_ms: int = 0
    rule: Rule | None = None
    by: str = ""
    at_ms: int = 0
    reason: str = ""
    state: GroupState = NO_STATE
    into: str = ""

    def muted(self, now_ms: int) -> bool:
        """True if alerts about the group are muted at `now_ms`."""
        return now_ms < self.muted_until_ms and not self.state.grown_ms


NOTHING = Annotation()
_decode = msgspec.json.Decoder(Annotation).decode


def read_annotations(store: Store, fingerprints: Sequence[str]) -> dict[str, Annotation]:
    """Return the annotations of these groups by fingerprint; groups without one are left out. A merged group has those
    of the group that it is merged into. Raises StoreError."""
    annotations: dict[str, Annotation] = {}
    standing, states = readable_rules(store), read_states(store)
    for at in range(0, len(fingerprints), READ_AT_ONCE):
        some = fingerprints[at : at + READ_AT_ONCE]
        roots = [root(states, each) for each in some]
        for fingerprint, top, cell in zip(some, roots, store.cells.read([*map(cell_of, roots)]), strict=True):
            about, into = decoded(cell, _decode, NOTHING), "" if top == fingerprint else top
            state = now_true(store, states, top) if top in states else NO_STATE
            about = replace(about, rule=standing.get(top), state=state, into=into)
            if about != NOTHING:
                annotations[fingerprint] = about
    return annotations


class Annotations:
    """Reads and changes annotations. Each change is one commit with its entry in the audit log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def annotations(self, fingerprints: Sequence[str]) -> dict[str, Annotation]:
        """Return the annotations of these groups by fingerprint, without empty ones. Raises StoreError."""
        return read_annotations(self._store, fingerprints)

    def rules(self) -> dict[str, Rule]:
        """Return all standing rules by fingerprint."""
        return rules(self._store)

    def audit(self) -> Audit:
        """Return the audit log: who changed what, when and why. Iterating yields its entries, the newest first."""
        return Audit(self._store)

    def note(self, fingerprint: str, text: str, *, actor: str | None = None, reason: str = "") -> Annotation:
        """Set the note of a group; an empty text removes it. The reason defaults to the note."""
        text = _bounded(text, "note", NOTE_MAX)
        entry = self._entry("note", fingerprint, actor, reason or text or "the note is removed", text if reason else "")
        return self._say(fingerprint, entry, lambda about: replace(about, note=text))

    def own(self, fingerprint: str, owner: str, *, actor: str | None = None, reason: str = "") -> Annotation:
        """Set the owner of a group; an empty text removes it."""
        owner = _bounded(owner, "owner", OWNER_MAX)
        word = f"owned by {owner}" if owner else "the owner is removed"
        entry = self._entry("own", fingerprint, actor, reason or word, owner if reason else "")
        return self._say(fingerprint, entry, lambda about: replace(about, owner=owner))

    def mute(
        self,
        fingerprint: str,
        for_: Duration = "366d",
        *,
        until_rate: str = "",
        until_total: int = 0,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Annotation:
        """Mute alerts about the group for this long, at most a year (the default); 0 unmutes it. Its messages are not
        affected. The mute ends early once so many of its messages died in a span, such as `until_rate="10/m"`, or once
        it has `until_total` dead messages."""
        span_ms = milliseconds(for_, "mute")
        if span_ms > ONE_YEAR_MS:
            raise ConfigError(f"mute {fingerprint} for {for_} is refused; expected a year at most")
        if until_rate:
            rate_of(until_rate)
        if until_total:
            whole(until_total, "until_total", 1, TOTAL_MAX)
        until_ms = self._store.now_ms() + span_ms if span_ms else 0
        if not span_ms:
            reason, until_rate, until_total = reason or "no longer muted", "", 0
        words = [f"until {rfc3339(until_ms)}" if until_ms else "off", f"or {until_rate} died" if until_rate else "",
                 f"or {until_total:,} are dead" if until_total else ""]  # fmt: skip
        entry = self._entry("mute", fingerprint, actor, reason, " ".join(filter(None, words)))
        ends = {"until_rate": until_rate, "until_total": until_total, "grown_ms": 0}
        return self._say(fingerprint, entry, lambda about: replace(about, muted_until_ms=until_ms), **ends)

    def resolve(
        self, fingerprint: str, *, release: str = "", actor: str | None = None, reason: str | None = None
    ) -> Annotation:
        """Mark a group as resolved; its dead messages stay. Once a message dies of it again, it is regressed: a need
        and an alert. With a `release`, that of the workers which have the fix (`App(release=…)`), only deaths in it
        count, and in releases whose first worker started later than its first worker."""
        release = _bounded(release, "release", OWNER_MAX)
        entry = self._entry("resolve", fingerprint, actor, reason, f"in release {release}" if release else "")
        by = entry.claimed or entry.actor
        return self._become(fingerprint, entry, resolved_ms=entry.at_ms, release=release, by=by, regressed_ms=0)

    def reopen(self, fingerprint: str, *, actor: str | None = None, reason: str = "") -> Annotation:
        """Take back that a group is resolved, whether it has regressed or not."""
        entry = self._entry("resolve", fingerprint, actor, reason or "no longer resolved", "off")
        return self._become(fingerprint, entry, resolved_ms=0, release="", by="", regressed_ms=0)

    def merge(self, fingerprint: str, into: str, *, actor: str | None = None, reason: str | None = None) -> Annotation:
        """Show and count a group with another one, `into`, whose selectors, rule, mute and state hold for both. Its own
        ones are kept until it is unmerged. Messages are not changed. Raises ConfigError for a circle."""
        _check(into)
        self._refuse_circle(fingerprint, into)
        return self._become(fingerprint, self._entry("merge", fingerprint, actor, reason, f"into {into}"), into=into)

    def _refuse_circle(self, fingerprint: str, into: str) -> None:
        if into and fingerprint in (top := root(read_states(self._store), into), into):
            raise ConfigError(f"merge {fingerprint} into {into}: that group is already part of {top}")

    def unmerge(self, fingerprint: str, *, actor: str | None = None, reason: str = "") -> Annotation:
        """Show and count a merged group on its own again, as it was. Raises ConfigError if it is not merged."""
        if not read_states(self._store).get(fingerprint, NO_STATE).into:
            raise ConfigError(f"failure group {fingerprint} is not merged into another")
        entry = self._entry("merge", fingerprint, actor, reason or "no longer merged", "off")
        return self._become(fingerprint, entry, into="")

    def family(self, fingerprint: str) -> tuple[str, ...]:
        """Return the fingerprint, and those that are merged into it."""
        return family(read_states(self._store), fingerprint)

    def rule(
        self,
        fingerprint: str,
        kind: str | None,
        *,
        auto: AutoRedrive | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Annotation:
        """Set the standing rule of the group: "hold", "auto" or "discard"; None removes it. A rule "auto" redrives by
        the settings `auto` (default: `AutoRedrive()`). Raises ConfigError beyond a thousand rules."""
        if kind is not None and kind not in get_args(RuleKind):
            near = near_miss(kind, get_args(RuleKind))
            raise ConfigError(
                f"rule {kind!r} is not known; "
                + (f"did you mean {near!r}?" if near else "expected 'hold', 'auto', 'discard' or None")
            )
        if auto is not None and kind != "auto":
            raise ConfigError(f"rule {kind!r} with auto={auto!r}: only the rule 'auto' takes it")
        entry = self._entry("rule", fingerprint, actor, reason, kind or "none")
        if kind == "auto" and auto is None:
            auto = AutoRedrive()
        made = None
        if kind is not None:
            word: RuleKind = msgspec.convert(kind, RuleKind)
            made = Rule(word, entry.claimed or entry.actor, entry.at_ms, entry.reason, auto)
        self.audit().commit(entry, lambda swaps: self._set_rule(fingerprint, made, swaps))
        return read_annotations(self._store, [fingerprint]).get(fingerprint, NOTHING)

    def _entry(self, action: str, fingerprint: str, actor: str | None, reason: str | None, text: str) -> Entry:
        _check(fingerprint)
        if action != "merge" and (into := read_states(self._store).get(fingerprint, NO_STATE).into):
            raise ConfigError(f"{action} {fingerprint}: it is merged into {into}, whose {action} holds for both")
        actor, reason = signed(actor, reason, f"{action} {fingerprint}")
        return self.audit().entry(action, actor, reason, text, about=fingerprint)

    def _become(self, fingerprint: str, entry: Entry, **fields: Any) -> Annotation:
        """Change the state of a group, in one commit with the entry."""

        def write(swaps: list[Swap]) -> None:
            mine = changing(self._store, fingerprint, fields)
            self._refuse_circle(fingerprint, fields.get("into", ""))  # after the swap has its version
            self._store.put([], swaps=[*mine, *swaps])

        self.audit().commit(entry, write)
        return read_annotations(self._store, [fingerprint]).get(fingerprint, NOTHING)

    def _say(
        self, fingerprint: str, entry: Entry, change: Callable[[Annotation], Annotation], **fields: Any
    ) -> Annotation:
        """Change the annotation of a group, and `fields` of its state, in one commit with the entry."""

        def write(swaps: list[Swap]) -> None:
            cell = self._store.cells.read([cell_of(fingerprint)])[0]
            said = change(decoded(cell, _decode, NOTHING))
            empty = said == replace(NOTHING, by=said.by, at_ms=said.at_ms, reason=said.reason)
            signed_by = replace(said, by=entry.claimed or entry.actor, at_ms=entry.at_ms, reason=entry.reason)
            value = None if empty else encode(signed_by)
            swap = Swap(cell_of(fingerprint), version_of(cell), value)
            mine = [] if cell is None and empty else [swap]
            self._store.put([], swaps=[*mine, *(changing(self._store, fingerprint, fields) if fields else ()), *swaps])

        self.audit().commit(entry, write)
        return read_annotations(self._store, [fingerprint]).get(fingerprint, NOTHING)

    def _set_rule(self, fingerprint: str, rule: Rule | None, swaps: Sequence[Swap]) -> None:
        version, standing = read_rules(self._store)
        standing.pop(fingerprint, None)
        if rule is not None:
            standing[fingerprint] = rule
        if len(standing) > RULES_MAX:
            raise ConfigError(
                f"rule for {fingerprint}: there are {RULES_MAX:,} standing rules, which is the most; remove one first"
            )
        value = encode(standing) if standing else None
        mine = [Swap(RULES, version, value)] if version or standing else []
        self._store.put([], swaps=[*mine, *swaps])


def cell_of(fingerprint: str) -> str:
    """Return the key of the cell with a failure group's annotation."""
    return f"group/{fingerprint}"


def _check(fingerprint: str) -> None:
    if not fingerprint or len(fingerprint) > FINGERPRINT_MAX or not fingerprint.replace("-", "").isalnum():
        raise ConfigError(f"fingerprint {fingerprint!r}: expected that of a failure group, such as 'a1097e748bbaf6be'")


def _bounded(text: str, what: str, most: int) -> str:
    text = text.strip()
    if len(text) > most:
        raise ConfigError(f"{what} of {len(text):,} characters; expected at most {most:,}")
    return text
