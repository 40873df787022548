"""Act on dead letters: edit, discard, quarantine, readmit, export and import them, each with a reason.

Messages are moved in batches of 500, each one commit with its entry in the audit log. After a crash the log lists the
batches done, and repeating the call does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from ..audit import Audit, signed
from ..duration import Duration
from ..errors import ConfigError
from ..message import RESTING, Discard, Handle, Isolate, Lane, Message, Readmit, Verdict
from ..registry import Registry
from ..store import Store
from .edit import Body, Edited, Editor
from .export import Exported, ExportFile, Imported, export, import_lines
from .reveal import reveal as record_reveal
from .selection import Selection

BATCH = 500  # messages of one commit, or of one look-up
WAIVED = "waived: counted as done in their batches"  # the text of the audit entry of such a discard


class ActionResult(Struct, frozen=True):
    """The result of an action: the ids it was applied to, the ids of messages that had changed, and unknown ids."""

    ids: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


Tick = Callable[[int], object]


class Actions:
    """Edits, moves, exports and imports dead letters."""

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
        """Replace a dead message by one with another body or headers, in one commit.

        `args` changes some arguments by name (`msgspec.UNSET` removes one), or parts of them by a path such as
        `order.customer.country`; `body` replaces the whole body: JSON as
        text or bytes, or a mapping. `headers` changes some headers; None removes one. The new message has an id of its
        own; task, queue, key, group, priority and correlation of the original; no deadline, a new life, the header
        `redrive-replaces` and the original's id as `causation_id`. It runs after `delay`. The original is discarded.
        The audit log records the difference, without secrets.

        The body must fit the task; a body of an older version is upgraded first. Raises Refused if it does not fit, if
        the task is unknown (unless `unchecked`), or if the message is not dead or was moved meanwhile; ConfigError if
        nothing changes; Unreadable, BlobsUnavailable if the old body cannot be read; StoreError. After an error
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
        file: ExportFile,
        *,
        reveal: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Exported:
        """Write dead messages to a file or a binary stream, as JSON lines with everything that the store keeps of them.
        The messages stay. The audit log has its entry before the file has its name, or the stream its first line.

        Secrets are hidden, and a message that held one cannot be imported. `reveal` writes secrets too; it needs a
        reason, and has an audit entry of its own. Raises ConfigError, SelectorError, OSError, StoreError.
        """
        chosen = Selection(self._store, select) if isinstance(select, str) else select
        if reveal:
            record_reveal(self._store, str(chosen), reason=reason, actor=actor, count=chosen.count())
        return export(self._store, chosen, file, reveal=reveal, actor=actor, reason=reason)

    def import_(
        self, file: ExportFile, *, reason: str, actor: str | None = None, skip_damaged: bool = False
    ) -> Imported:
        """Import the dead messages of an exported file or stream, with their ids, histories and faults. Messages that
        the store already has do not change; `held` lists them.

        If a line is damaged, nothing is imported and Refused says which and why; `skip_damaged` imports the others.
        Raises OSError, StoreError: then earlier batches of 500 were imported, and repeating the call does the rest.
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
        waive: bool = False,
    ) -> ActionResult:
        """Delete dead or quarantined messages; this frees their unique keys.

        Give `ids`, or `select`, a selector or a selection; quarantined messages must be named. With `waive`, a batch
        (`App.batch`) counts its members among them as done, and not as discarded: their work was done by hand, or is
        not needed. Each batch of 500 is one commit with its entry in the audit log, which says if they were waived;
        `tick` is called with its size. Raises ConfigError, StoreError.
        """
        return self._do("discard", Discard(reason, waive), ids, select, reason, actor, tick)

    def quarantine(
        self,
        ids: Iterable[str] | None = None,
        *,
        select: str | Selection | None = None,
        reason: str,
        actor: str | None = None,
        tick: Tick | None = None,
    ) -> ActionResult:
        """Move dead messages to the quarantine lane, where bulk redrives do not touch them. Otherwise as `discard`."""
        return self._do("quarantine", Isolate(reason), ids, select, reason, actor, tick)

    def readmit(
        self,
        ids: Iterable[str] | None = None,
        *,
        select: str | Selection | None = None,
        reason: str,
        actor: str | None = None,
        tick: Tick | None = None,
    ) -> ActionResult:
        """Move quarantined messages back to the dead lane. Otherwise as `discard`; use `lane:quarantine` in
        selectors."""
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
    ) -> ActionResult:
        actor, reason = signed(actor, reason, action)
        batches = VerdictBatches(self._store, verdict, action, actor, reason, tick)
        chosen = chosen_by(self._store, ids, select, action)
        return batches.of_ids(chosen) if isinstance(chosen, list) else batches.of_selection(chosen)


def chosen_by(
    store: Store, ids: Iterable[str] | None, select: str | Selection | None, what: str
) -> list[str] | Selection:
    """Return the distinct ids, or the selection, of the messages to act on. Raises ConfigError for both or neither."""
    if (ids is None) == (select is None) or isinstance(ids, str):
        raise ConfigError(f"{what}(ids={ids!r}, select={select!r}): give one of them: a sequence of ids, or select=")
    if ids is not None:
        return list(dict.fromkeys(ids))
    return Selection(store, select) if isinstance(select, str) else _given(select)


def _given(select: Selection | None) -> Selection:
    assert select is not None
    return select


class VerdictBatches:
    """Applies a verdict to many messages: each batch is one commit with its entry in the audit log."""

    def __init__(
        self, store: Store, verdict: Verdict, action: str, actor: str, reason: str, tick: Tick | None = None
    ) -> None:
        self._store, self._audit, self._verdict = store, Audit(store), verdict
        self._action, self._actor, self._reason = action, actor, reason
        self._tick = tick or (lambda count: None)
        self._text = WAIVED if isinstance(verdict, Discard) and verdict.waive else ""
        self._lanes = (Lane.QUARANTINE,) if isinstance(verdict, Readmit) else RESTING
        if isinstance(verdict, Isolate):
            self._lanes = (Lane.DEAD,)

    def of_ids(self, ids: list[str]) -> ActionResult:
        """Apply the verdict to the messages with these ids; report those in other lanes as changed."""
        messages: dict[str, Message] = {}
        for at in range(0, len(ids), BATCH):
            messages |= {m.id: m for m in self._store.find(ids[at : at + BATCH]) if m is not None}
        done = self.of(message for message in messages.values() if message.lane in self._lanes)
        elsewhere = tuple(m.id for m in messages.values() if m.lane not in self._lanes)
        return ActionResult(done.ids, done.changed + elsewhere, tuple(id for id in ids if id not in messages))

    def of_selection(self, selection: Selection) -> ActionResult:
        """Apply the verdict to the messages of a selection."""
        return self.of((m for m in selection if m.lane in self._lanes), str(selection) or "all")

    def of(self, messages: Iterable[Message], about: str = "") -> ActionResult:
        """Apply the verdict to these messages, in batches. `about`: how they were chosen, for the audit log."""
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
        return ActionResult(tuple(moved), tuple(changed))

    def _batch(self, handles: list[Handle], about: str) -> Iterator[str]:
        ids = [handle.id for handle in handles]
        entry = self._audit.entry(self._action, self._actor, self._reason, self._text, ids=ids, about=about)
        done = self._audit.commit(entry, lambda swaps: self._store.triage(handles, self._verdict, swaps=swaps))
        # The entry was written with all ids, also those that others moved meanwhile. A crash before the correction
        # leaves these in it.
        if not all(done):
            self._audit.amend(entry, ids=[id for id, was in zip(ids, done, strict=True) if was])
        return (id for id, was in zip(ids, done, strict=True) if was)
