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
    `keeps`: a later step takes its result, which is stored here as JSON once its message is done. `last` is how its
    members were counted when none was open or dead, as the store forgets the counts of what has ended.
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

    def noted(self, seen: Seen) -> Part:
        """Return the part with what is to be known of it later: that it began and is done, its result, and its counts
        once no redrive can change them."""
        n = seen.counts
        rests = n.total > 0 and not (seen.open or n.dead or n.quarantine)
        return replace(
            self,
            begun=self.begun or seen.done or (self.nested and n.total > 0),
            done=self.done or seen.done,
            result=self.result or seen.result,
            last=n if rests else self.last,
        )


class Seen(Struct, frozen=True):
    """A part as read: its members, and if it is open, done, or neither. `result`: that of a step that is done. `lost`:
    it is not done, as its message returned a result that is gone."""

    counts: BatchCounts
    open: bool
    done: bool
    result: bytes | None = None
    lost: bool = False


NOTHING: Mapping[str, Seen] = {}


def summed(counts: BatchCounts, parts: Mapping[str, Seen]) -> BatchCounts:
    """Return the counts of a batch with those of its parts."""
    return sum((seen.counts for seen in parts.values()), counts)


def begin(
    id: str, parts: tuple[Part, ...], seen: Mapping[str, Seen], *, steps: bool
) -> tuple[tuple[Part, ...], list[Draft]]:
    """Note which parts are done, and with `steps` begin the steps that wait for no other; return the parts and the
    messages to put. Steps come after those that they wait for."""
    done: dict[str, Part] = {}
    made: list[Part] = []
    drafts: list[Draft] = []
    for part in parts:
        if part.name in seen:
            part = part.noted(seen[part.name])
        if steps and not part.begun and not part.nested and all(name in done for name in part.after):
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
