"""Administration, the third part of a store: triage, settings, retention, repair."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

from ..errors import Unsupported
from ..message import Cancel, GroupOrder, Handle, Keep, Message, OnDead, Swap, Verdict
from .base import StoreBase
from .traits import Work


class AdminOperations(StoreBase):
    """Operations that people and redrive runs use to change stored messages and settings. A store writes `configure`,
    and whatever else its traits promise."""

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Apply the verdict to each message that is still as its handle says; one commit with the swaps.

        The lane of a handle is dead or quarantine; for Redrive also done, for Return and Hasten ready, for Readmit
        quarantine. Redriven messages of one group queue in the order of the handles. Raises Conflict if one of `swaps`
        does not apply, EnqueueError for a Replace whose draft cannot be put (another message holds its key): then
        nothing was changed. Raises ValueError for a Redrive with another number of `delays_ms` than of handles, and for
        a Replace with another number of handles than one.
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
        """Remove done and dead messages of the queue beyond these bounds, the oldest first, at most a thousand per lane
        and call; returns the numbers removed of done and of dead ones."""
        return 0, 0

    def preflight(self, works: Iterable[Work], *, advise: bool = False, function_s: float | None = None) -> list[str]:
        """Report why these works cannot be done, one line each with the fix; with `advise` also doubtful settings.
        `works` may be a generator that calls functions of the app: a store without conditions need not iterate it.
        `function_s` is the timeout of the Lambda function that does the work."""
        return []

    def check(self) -> list[str]:
        """Check the stored data for damage; one line per problem, empty if there is none."""
        return []

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        """Repair the damage that `check` finds, where possible; one line for each message. Before anything is changed,
        `keep` is called with each affected message, with its row as it was."""
        return []

    def doctor(self) -> list[str]:
        """Find unsafe or slow settings; one line each with the remedy, empty if there are none."""
        return []

    def info(self) -> dict[str, str | int]:
        """Version and size of the engine, if cheap to find: `engine` with its version, `schema`, `size_bytes`, …"""
        return {"engine": self.traits.name}
