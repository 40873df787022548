"""The parts of a batch: nested batches, and the steps of a workflow. A part has an id below that of the whole, and the
store counts its members as those of any batch."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..chain import with_arguments
from ..ids import part_id
from ..message import BatchCounts, Draft

PARTS_MAX = 200  # parts of one batch: its state is one cell, which each change writes
RESULT_KEPT_MS = 30 * 24 * 3600 * 1000  # for how long a step's message keeps its result, until a look stores that


class Tolerance(Struct, frozen=True):
    """How many members may fail: a number, or a percentage of all members."""

    count: int = 0
    percent: float = 0.0

    def allows(self, counts: BatchCounts) -> bool:
        """True if no more members than this failed: are dead, quarantined, cancelled or discarded."""
        return counts.failed <= max(self.count, int(counts.total * self.percent / 100))


class Part(Struct, frozen=True, omit_defaults=True):
    """A part of a batch. `nested`: it is a batch with a state of its own; else a step of a workflow.

    A step begins once the steps `after` are done. Its message is `draft`; `awaits` maps arguments to the steps whose
    results they are. Instead, a step of many messages has `chunks` stored lists of drafts, and `put` of them are put.
    `keeps`: a later step takes its result, which is stored here as JSON once it is `done`. `last` is how its members
    were counted then, as the store forgets the counts of what has ended.
    """

    name: str
    nested: bool = False
    after: tuple[str, ...] = ()
    draft: Draft | None = None
    awaits: dict[str, str] = {}
    chunks: int = 0
    tolerance: Tolerance = Tolerance()
    keeps: bool = False
    begun: bool = False
    put: int = 0
    done: bool = False
    result: bytes | None = None
    last: BatchCounts = BatchCounts()

    @property
    def feeds(self) -> bool:
        """True if the step has begun and some of its stored drafts are not yet put."""
        return self.begun and self.put < self.chunks

    def is_over(self, counts: BatchCounts) -> bool:
        """True if the step is done, given the counts of its members."""
        return self.begun and not self.feeds and counts.open == 0 and self.tolerance.allows(counts)


class Seen(Struct, frozen=True):
    """A part as read: its members, and if it is open, done, or neither. `result`: that of a step that is done."""

    counts: BatchCounts
    open: bool
    done: bool
    result: bytes | None = None


NOTHING: Mapping[str, Seen] = {}


def summed(counts: BatchCounts, parts: Mapping[str, Seen]) -> BatchCounts:
    """Return the counts of a batch with those of its parts."""
    rows = [counts, *(seen.counts for seen in parts.values())]
    return BatchCounts(*(sum(getattr(row, field) for row in rows) for field in BatchCounts.__struct_fields__))


def begin(
    id: str, parts: tuple[Part, ...], seen: Mapping[str, Seen], *, cancelled: bool
) -> tuple[tuple[Part, ...], list[Draft]]:
    """Note which parts are done, and begin the steps that wait for no other; return the parts and the messages to put.
    A batch that is cancelled begins no more steps. Steps come after those that they wait for."""
    done: dict[str, Part] = {}
    made: list[Part] = []
    drafts: list[Draft] = []
    for part in parts:
        known = seen.get(part.name)
        if known is not None and known.done and (not part.done or known.counts != part.last):
            part = replace(part, begun=True, done=True, last=known.counts, result=part.result or known.result)
        elif part.nested and not part.begun and known is not None and known.counts.total:
            part = replace(part, begun=True)
        if not part.begun and not part.nested and not cancelled and all(name in done for name in part.after):
            part = replace(part, begun=True, done=part.draft is None and not part.chunks)
            if part.draft is not None:
                drafts.append(_message(id, part, part.draft, done))
        if part.done:
            done[part.name] = part
        made.append(part)
    return tuple(made), drafts


def _message(id: str, part: Part, draft: Draft, done: Mapping[str, Part]) -> Draft:
    values = {argument: done[step].result or b"null" for argument, step in part.awaits.items()}
    return replace(draft, body=with_arguments(draft.body, values), batch=part_id(id, part.name))
