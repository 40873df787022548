"""What is done to dead letters beside redriving them: edit, discard, quarantine, readmit, export, import; each with its
reason.

Batches of 500, each one commit with its entry in the audit log. Cut off, it has done the batches it has done, and the
log says which; the same call again does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from ..audit.actor import signed
from ..audit.log import Audit
from ..duration import Duration
from ..errors import ConfigError
from ..message import RESTING, Discard, Handle, Isolate, Lane, Message, Readmit, Verdict
from ..registry import Registry
from ..store import Store
from .edit import Body, Edited, Editor
from .export import Exported, File, Imported, export, import_lines
from .reveal import reveal as noted
from .select.selector import Selection

BATCH = 500  # messages that are looked at, or moved in one commit, at a time


class Mended(Struct, frozen=True):
    """What became of messages: the ids it was done to, those that were not at rest any more, those unknown."""

    ids: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


Tick = Callable[[int], object]


class Mending:
    """Mends dead letters, and puts them where they belong."""

    def __init__(self, store: Store, app: Registry | None = None) -> None:
        self._store, self._app = store, app

    def edit(
        self,
        id: str,
        *,
        args: Mapping[str, Any] | None = None,
        body: Body | None = None,
        headers: Mapping[str, str | None] | None = None,
        reason: str,
        actor: str | None = None,
        delay: Duration = 0,
        unchecked: bool = False,
    ) -> Edited:
        """Put a message with another body or headers in the place of a dead one, in one commit: both or neither.

        `args` changes some arguments by name (`msgspec.UNSET` takes one away), `body` is the whole: JSON as text or
        bytes, or a mapping. `headers` changes some, None takes one away. The new message has an id of its own, the
        original's task, queue, key, group, priority and correlation, no deadline, a fresh life, the header
        `redrive-replaces` and the original's id as `causation_id`; it runs after `delay`. The original is discarded.
        The audit log has the difference, without secrets.

        The body must fit the task: one of an older version is lifted first. Raises Refused where it does not, where the
        task is not known (unless `unchecked`), or where the message is not dead or has moved meanwhile; ConfigError
        where nothing is changed; Unreadable, BlobsUnavailable for an old body that cannot be read; StoreError. Then
        nothing was changed.
        """
        signed(actor, reason, f"edit of message {id}")
        editor = Editor(self._store, self._app)
        message = editor.find(id)
        prepared = editor.prepared(message, args=args, body=body, headers=headers, delay=delay, unchecked=unchecked)
        return editor.commit(message, prepared, reason=reason, actor=actor)

    def export(
        self,
        select: str | Selection,
        file: File,
        *,
        reveal: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Exported:
        """Write dead messages to a file, or a stream of bytes, as JSON lines, with all that is kept of them. They stay
        where they are. The audit log has an entry before the file has its name, or the stream its first line.

        Secrets are hidden, and what held one cannot be imported; with `reveal` they are written as they are, which
        needs a reason and has an entry of its own. Raises ConfigError, SelectorError, OSError, StoreError.
        """
        chosen = Selection(self._store, select) if isinstance(select, str) else select
        if reveal:
            noted(self._store, str(chosen), reason=reason, actor=actor, count=chosen.count())
        return export(self._store, chosen, file, reveal=reveal, actor=actor, reason=reason)

    def import_(self, file: File, *, reason: str, actor: str | None = None, skip_damaged: bool = False) -> Imported:
        """Write the dead messages of an export, or of a stream of it, with their ids, histories and faults; what the
        store has already stays as it is, and stands in `held`.

        Where a line is damaged nothing is imported, and Refused says which and why; with `skip_damaged` the others are.
        Raises OSError, StoreError: then the batches of 500 before it are there, and the same call again does the rest.
        """
        actor, reason = signed(actor, reason, "import")
        return import_lines(self._store, file, actor=actor, reason=reason, skip_damaged=skip_damaged)

    def discard(
        self,
        ids: Iterable[str] | None = None,
        *,
        select: str | Selection | None = None,
        reason: str,
        actor: str | None = None,
        tick: Tick | None = None,
    ) -> Mended:
        """Remove dead or quarantined messages for good; their unique keys are free again.

        Give `ids`, or `select`, a selector or a selection; quarantined messages must be named. Each batch of 500 is one
        commit with its entry in the audit log, and `tick` hears of it. Raises ConfigError, StoreError.
        """
        return self._do("discard", Discard(reason), ids, select, reason, actor, tick)

    def quarantine(
        self,
        ids: Iterable[str] | None = None,
        *,
        select: str | Selection | None = None,
        reason: str,
        actor: str | None = None,
        tick: Tick | None = None,
    ) -> Mended:
        """Move dead messages to the quarantine lane, out of reach of bulk redrives. As `discard` otherwise."""
        return self._do("quarantine", Isolate(reason), ids, select, reason, actor, tick)

    def readmit(
        self,
        ids: Iterable[str] | None = None,
        *,
        select: str | Selection | None = None,
        reason: str,
        actor: str | None = None,
        tick: Tick | None = None,
    ) -> Mended:
        """Move quarantined messages to the dead lane, to be redriven as others are. As `discard` otherwise; a selector
        names them by `lane:quarantine`."""
        return self._do("readmit", Readmit(reason), ids, select, reason, actor, tick)

    def _do(
        self,
        action: str,
        verdict: Verdict,
        ids: Iterable[str] | None,
        select: str | Selection | None,
        reason: str,
        actor: str | None,
        tick: Tick | None,
    ) -> Mended:
        actor, reason = signed(actor, reason, action)
        batches = Batches(self._store, verdict, action, actor, reason, tick)
        chosen = chosen_by(self._store, ids, select, action)
        return batches.of_ids(chosen) if isinstance(chosen, list) else batches.of_selection(chosen)


def chosen_by(
    store: Store, ids: Iterable[str] | None, select: str | Selection | None, what: str
) -> list[str] | Selection:
    """What was named: by ids, each once, or by a selector. Raises ConfigError for both or neither."""
    if (ids is None) == (select is None) or isinstance(ids, str):
        raise ConfigError(
            f"{what}(ids={ids!r}, select={select!r}): give a sequence of ids, or select=, and only one of them"
        )
    if ids is not None:
        return list(dict.fromkeys(ids))
    return Selection(store, select) if isinstance(select, str) else _given(select)


def _given(select: Selection | None) -> Selection:
    assert select is not None
    return select


class Batches:
    """A verdict on many messages, batch by batch, each with its entry in the audit log in the same commit."""

    def __init__(
        self, store: Store, verdict: Verdict, action: str, actor: str, reason: str, tick: Tick | None = None
    ) -> None:
        self._store, self._audit, self._verdict = store, Audit(store), verdict
        self._action, self._actor, self._reason = action, actor, reason
        self._tick = tick or (lambda count: None)
        self._lanes = (Lane.QUARANTINE,) if isinstance(verdict, Readmit) else RESTING
        if isinstance(verdict, Isolate):
            self._lanes = (Lane.DEAD,)

    def of_ids(self, ids: list[str]) -> Mended:
        """Of the messages with these ids."""
        found: dict[str, Message] = {}
        for at in range(0, len(ids), BATCH):
            found |= {m.id: m for m in self._store.find(ids[at : at + BATCH]) if m is not None}
        done = self.of(message for message in found.values() if message.lane in self._lanes)
        elsewhere = tuple(m.id for m in found.values() if m.lane not in self._lanes)
        return Mended(done.ids, done.changed + elsewhere, tuple(id for id in ids if id not in found))

    def of_selection(self, selection: Selection) -> Mended:
        """Of the messages that it selects."""
        return self.of((m for m in selection if m.lane in self._lanes), str(selection) or "all")

    def of(self, messages: Iterable[Message], about: str = "") -> Mended:
        """Of these; `about` says for the log how they were chosen."""
        moved: list[str] = []
        changed: list[str] = []
        todo = iter(messages)
        while handles := [m.handle for m in islice(todo, BATCH)]:
            done = list(self._batch(handles, about))
            moved += done
            if len(done) < len(handles):
                gone = set(done)
                changed += [handle.id for handle in handles if handle.id not in gone]
            self._tick(len(handles))
        return Mended(tuple(moved), tuple(changed))

    def _batch(self, handles: list[Handle], about: str) -> Iterator[str]:
        ids = [handle.id for handle in handles]
        entry = self._audit.entry(self._action, self._actor, self._reason, ids=ids, about=about)
        done = self._audit.commit(entry, lambda swaps: self._store.triage(handles, self._verdict, swaps=swaps))
        # The commit cannot know which of them have moved meanwhile. Killed here, the entry says more than was done.
        if not all(done):
            self._audit.amend(entry, ids=[id for id, was in zip(ids, done, strict=True) if was])
        return (id for id, was in zip(ids, done, strict=True) if was)
