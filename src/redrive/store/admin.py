"""Administration, the third part of a store: triage, settings, retention, repair."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

from ..errors import Unsupported
from ..message import BatchMark, Cancel, GroupOrder, Handle, Keep, Message, OnDead, Swap, Verdict
from .base import StoreBase
from .traits import Work


class AdminOperations(StoreBase):
    """Operations that people and redrive runs use to change stored messages and settings. A store must implement
    `configure`, and the other operations that its traits promise."""

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Apply the verdict to each message that is still as its handle says; one commit with the swaps.

        The lane of a handle is dead or quarantine; for Redrive also done, for Return, Hasten, Postpone and Edit ready,
        for the undo of a cancel done, for Readmit quarantine. Redriven messages of one group queue in the order of the
        handles. Raises Conflict if one of `swaps` does not apply, EnqueueError for a Replace whose draft cannot be put
        (another message holds its key): then nothing was changed. Raises ValueError for a Redrive with another number
        of `delays_ms` than of handles, an Edit with another number of changes, and a Replace with another number of
        handles than one; Unsupported for Hasten without `traits.hastens`, and for Edit without `traits.edits`.
        """
        raise Unsupported(f"{self.traits.name} has no access to dead messages")

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Import dead or quarantined messages unchanged, in one commit with the swaps.

        False for one whose id is stored already, or whose unique key another message holds. Each is indexed by the last
        fault of its history, and does not block its group; a deferral, a cancel, a result and the run that moved it are
        dropped. Raises EnqueueError for what no store could take, Conflict if one of `swaps` does not apply: then
        nothing was written.
        """
        raise Unsupported(f"{self.traits.name} has no access to dead messages")

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        """End waiting messages as done (state `cancelled`) and ask running ones to stop; for dead, quarantined and done
        ones it is too late. All in one commit with the swaps, as in `configure`. Raises Conflict if one of `swaps` does
        not apply: then nothing was changed; Unsupported without `traits.cancels`. Without `traits.finds` a store cannot
        know if a due message runs: it is asked to stop, and the next claim ends it."""
        raise Unsupported(f"{self.traits.name} cannot cancel messages")

    def mark_batches(self, marks: Sequence[BatchMark]) -> None:
        """Leave these batches out of `changed_batches` until they change again. A mark whose counts are no longer those
        of the batch has no effect. Not durable: a mark that is lost costs one more look. Raises Unsupported without
        `traits.batches`."""
        raise Unsupported(f"{self.traits.name} keeps no counts of batches")

    @abstractmethod
    def configure(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        group_width: int | None = None,
        group_order: GroupOrder | str | None = None,
        on_dead: OnDead | str | None = None,
        swaps: Sequence[Swap] = (),
    ) -> None:
        """Change a queue's settings for every process, in one commit with the swaps; None leaves a setting as it is. A
        paused queue is not claimed from. Without `traits.atomic_moves` the swaps are checked first and made last.

        `group_width` is how many messages of one group may run at once (1 by default). Raises ConfigError for a strict
        order with another width than 1, for `block` without strict order, and for an unknown word; Conflict if one of
        `swaps` does not apply; Unsupported for a pause without `traits.cells`, and for group settings without
        `traits.widths`. Then nothing was changed.
        """

    def configure_group(
        self,
        queue: str,
        group: str | None,
        *,
        width: int | None = None,
        resume: bool = False,
        swaps: Sequence[Swap] = (),
    ) -> None:
        """Give one group, or (None) all groups of the queue, a width that overrides that of `configure`; 0 removes it.
        `resume` unblocks a group that a dead message blocks. One commit with the swaps. Raises ConfigError, Conflict
        and Unsupported as `configure`."""
        raise Unsupported(f"{self.traits.name} has no widths of groups")

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        """Remove the oldest done and dead messages of the queue, beyond the bounds `done` and `dead`, at most a
        thousand per lane and call; returns how many done and how many dead messages were removed."""
        return 0, 0

    def preflight(self, works: Iterable[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        """Report why these works cannot be done, one line per problem with its fix; with `advise`, report doubtful
        settings too. `works` may be a generator that calls functions of the app: a store without conditions need not
        iterate it. `function_s` is the timeout of the Lambda function that does the work."""
        return []

    def check(self) -> list[str]:
        """Check the stored data for damage; returns one line per problem, or an empty list."""
        return []

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        """Repair the damage that `check` finds, where possible; returns one line for each affected message. Before any
        change, `keep` is called with each affected message as its damaged row stores it."""
        return []

    def doctor(self) -> list[str]:
        """Find unsafe or slow settings; returns one line per setting with the remedy, or an empty list."""
        return []

    def info(self) -> dict[str, str | int]:
        """Return cheap facts about the engine: `engine` (its name and version), `schema`, `size_bytes` and others."""
        return {"engine": self.traits.name}
