"""The Store protocol: what redrive needs of an engine, and the traits by which a store says what it promises.

Small on purpose. A third party writes a store in a day and proves it with `redrive.testing.StoreContract`.
Stores are plain synchronous code and safe to call from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from .fault import Fault
from .message import (
    Ask,
    Cancel,
    Cell,
    Counts,
    Draft,
    Exchange,
    FailureGroup,
    Group,
    GroupOrder,
    Handle,
    Hold,
    Keep,
    Lane,
    Message,
    OnDead,
    Page,
    Put,
    Receipt,
    Settlement,
    Started,
    Swap,
    Verdict,
    Where,
)


class Traits(Struct, frozen=True):
    """What a store promises. The contract suite holds it to exactly these."""

    name: str
    batch_max: int = 1000  # messages per call of put, exchange or extend
    body_bytes_max: int = 64 * 1024 * 1024
    blob_threshold: int | None = None  # bodies over it lie in blob storage; None: there is none
    inline_bytes_max: int | None = None  # of what lies with the message in any case; None: as for a body
    delay_ms_max: int | None = None  # None: any length
    names_bytes_max: int | None = None  # of queue and group together, and of task and key; None: any length
    durable: bool = True  # an acknowledged put survives kill -9 of every process
    one_machine: bool = False  # all who use it are on this machine, so that a power cut ends them with it
    shared: bool = True  # several processes may use it at once
    fenced: bool = True  # a stale receipt is refused
    atomic_moves: bool = True  # each settlement is one commit with its follow-ups and swaps
    counts_crashes: bool = True
    unique: bool = True
    exact_counts: bool = True  # False: counts and names of queues are near the truth, or late
    cells: bool = True  # False: reads find nothing; swaps, checkpoints and pauses raise Unsupported
    finds: bool = True  # False: of what waits or runs, find knows only what this handle holds; no listing, no cancel
    cancels: bool = True  # without `finds`: what waits or runs can be looked up by its id, without body, and cancelled
    triages: bool = True  # False: what rests cannot be looked at; failure groups, verdicts, restore raise Unsupported
    keeps_done: bool = True  # False: an ack removes, whatever it asks; no result is kept
    priorities: bool = True  # claims go by priority, then due time; False: in any order
    skips: bool = True  # False: messages of skipped tasks are delivered all the same
    widths: bool = True  # False: no group width, order or block but what the queue itself has (FIFO); no list
    releases: bool = True  # False: what a dead worker had comes back when its leases run out
    kept_bytes_max: int | None = None  # of a checkpoint or a result, where that is less than of a body
    tick_ms: int = 1  # waits and leases last whole ticks, rounded up: nothing is early
    read_only: str = ""  # why this handle may only look: then what changes anything raises ReadOnly

    @property
    def state_bytes_max(self) -> int:
        """How long a checkpoint or a result may be: neither goes to blob storage."""
        most = self.body_bytes_max if self.inline_bytes_max is None else self.inline_bytes_max
        return most if self.kept_bytes_max is None else min(most, self.kept_bytes_max)


class Work(Struct, frozen=True, kw_only=True):
    """What a worker is about to do on a queue: a task's policy in figures, for a store that looks whether it can (an
    optional method of stores: `vet(works, *, advise=False) -> list[str]`, why it cannot, each line with the fix; with
    `advise` also what is doubtful). A queue without tasks is a work without a task's name.

    `crash_cap`: crashes that convict it; `longest_s`: the longest wait between two of its runs; `horizon_s`: the
    latest start of a retry after the first failure; `needs`: what of it is shared by cells, in words.
    """

    queue: str
    task: str = ""
    attempts: int = 1
    crash_cap: int = 3
    longest_s: float = 0.0
    horizon_s: float = 0.0
    timeout_s: float = 0.0
    needs: tuple[str, ...] = ()


class Cells(Protocol):
    """Small pieces of shared, versioned state, changed by compare-and-set.

    Where `traits.cells` is False there are none: `read` finds nothing, `swap` raises Unsupported.

    A cell that was deleted or has expired takes no room: it goes at once or within the next minutes of work. A key's
    versions rise for all that, also when it is used again later; a new cell's need not begin at 1.
    """

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        """The cells, in the order of `keys`; None where there is none or it has expired."""
        ...

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        """Try each swap; True where it was written. Each stands for itself; those that win share one commit, where
        the cells lie in a database (on DynamoDB each is a commit of its own).

        `durable=False` spares the wait for the disk: a power cut may take the commit back, a killed process does not.
        For state that lives seconds.
        """
        ...


class OpenCells(Cells, Protocol):
    """Cells opened by a URL of their own, for messages that lie where there are none. Any number of threads may use
    them."""

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        """All of the swaps or none, in one commit. Raises Conflict if one does not apply: then nothing was written."""
        ...

    def doctor(self) -> list[str]:
        """What is unsafe or dear about the set-up; one line each with what to do, empty when all is well."""
        ...

    def close(self) -> None:
        """Give back sockets and threads. The cells cannot be used afterwards."""
        ...


class Store(Protocol):
    """Durable messages ordered by due time, where a claim is a due time pushed past the lease."""

    traits: Traits
    cells: Cells
    state_dir: Path | None  # where workers on this machine keep their identities; None: they keep none

    def now_ms(self) -> int:
        """The store's clock, the only wall clock redrive goes by."""
        ...

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[Put]:
        """Write all drafts (and swaps) in one commit; durable when it returns.

        A draft whose unique key is held yields the holder, `duplicate=True`, and is not written. With `tx`, an open
        connection or session on the same database, they are written in its transaction: there once it commits.
        Raises Conflict if a swap does not apply, EnqueueError for a draft no store could take, Unsupported for a `tx`
        it cannot write in, a key (`traits.unique`) or swaps (`traits.cells`) it does not have, StoreError if the commit
        failed: then nothing was written. Without `traits.finds` an id is not looked up: put twice, it is there twice.
        """
        ...

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        """Settle all, then claim in the asks' order: one commit. Either part may be empty.

        A settlement with a stale receipt changes nothing and says so; each other one is atomic with its follow-ups
        and swaps. Claiming raises `fence`, and `attempt` on a message that was ready or `crashes` on one whose lease
        ran out. Messages come by priority, then by due time; never more than an ask's limit. Raises Conflict if one
        of `swaps` does not apply.

        Without `traits.atomic_moves` what a settlement sends is sent first, then its swaps are made, then its message
        is deleted: cut off in between it comes again, and nothing is lost. Swaps that do not apply when it begins make
        it stale all the same. What dies may then be found as `restore` would leave it.

        Of an ask with `skip` it looks at the first SKIP_LOOKED due messages of each priority. Where there are more,
        and those looked at did not reach the limit, the queue is in `clogged`.
        """
        ...

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
        """Return when one of the asks may find something, on nudge, or after `timeout_ms`. A put in another process
        wakes it.

        Of an ask with `skip` it looks as far as a claim does: it sleeps no longer than until the first message that
        it did not look at is due."""
        ...

    def nudge(self) -> None:
        """End every wait of this store object, now or the next one."""
        ...

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[Hold]:
        """Push the end of these leases to now + lease_ms, in one commit.

        `alone` says that from now on each of these runs alone in its process: a lease that then runs out, or lapses,
        raises `crashes_alone` too.
        """
        ...

    def release(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        """Take back at once what a dead worker of this identity had leased: (released, lapsed).

        What stands in `started` lapses, if that is still its claim: the next one counts a crash. The others go back
        free, their attempt given back. None: nothing is known about what was started, so all lapse. `fault`, how the
        worker died, joins the history of each that lapses. Only for whoever holds the identity's lock. Without
        `traits.releases` it takes nothing back: the leases run out.
        """
        ...

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        """Keep `state` with the message, fenced; False if the receipt is stale. Raises Unsupported without
        `traits.cells`."""
        ...

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        """The messages with these ids, in their order; None for one that is not stored.

        Without `traits.finds` also for one that waits, or that another handle holds; but with `traits.cancels` such a
        one is found by what is recorded of it: its content is ABSENT, and `ready` it may run elsewhere. Without
        `traits.triages` None for one that rests."""
        ...

    def counts(self, queue: str | None = None) -> Counts:
        """How many messages lie in each lane."""
        ...

    def counts_by_queue(self) -> dict[str, Counts]:
        """What `counts` says of each queue that `queues` names, found in one look."""
        ...

    def queues(self) -> list[str]:
        """The names of all queues that hold messages or settings, sorted."""
        ...

    def peek(
        self, lane: Lane | str | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        """A page of messages, without claiming them; `lane` None means every lane. `lane`, as all words here,
        may be its text. Raises ValueError on a cursor not of ours, ConfigError for a word that is no lane, Unsupported
        for dead and quarantine without `traits.triages`, for all others without `traits.finds`."""
        ...

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        """Dead messages grouped by (fingerprint, task), largest first; with `trend`, how many of each came to rest in
        the last two hours."""
        ...

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Apply the verdict to each message that is still as its handle says; one commit with the swaps.

        A handle's lane is dead or quarantine; for Redrive also done, for Return ready, for Readmit quarantine. Raises
        Conflict if one of `swaps` does not apply, EnqueueError for a Replace whose draft cannot be put (its key is held
        by another message): then nothing was changed. Raises ValueError for a Redrive with a number of `delays_ms` that
        is not that of the handles, and for a Replace with another number of handles than one.
        """
        ...

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        """Write messages that rest dead or in quarantine, as they are, in one commit with the swaps: an import.

        False for one whose id is stored already, or whose unique key another message holds. Each is found by the last
        fault of its history, and stands out of its group's line; a deferral, a cancel, a result and the run that moved
        it are left behind. Raises EnqueueError for what no store could take, Conflict if one of `swaps` does not apply:
        then nothing was written.
        """
        ...

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        """End waiting messages as done (state `cancelled`); ask running ones to stop; resting and done ones are too
        late. One commit with the swaps, as `configure` has it. Raises Conflict if one of `swaps` does not apply: then
        nothing was changed; Unsupported without `traits.cancels`. Where it cannot be known whether it runs (without
        `traits.finds`), a message that is due is asked to stop, and is ended when it is claimed next."""
        ...

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
        """Change a queue's settings for every process, in one commit with the swaps; None leaves one as it is. A paused
        queue is not claimed from. Without `traits.atomic_moves` the swaps are looked at first and made last.

        `group_width` is how many messages of one group may run at once (1 until said otherwise). Raises ConfigError
        for a strict order with another width than 1, for `block` without strict order, and for a word that is neither;
        Conflict if one of `swaps` does not apply; Unsupported for a pause without `traits.cells`, and for what its
        groups cannot do without `traits.widths`. Then nothing was changed.
        """
        ...

    def configure_group(
        self,
        queue: str,
        group: str | None,
        *,
        width: int | None = None,
        resume: bool = False,
        swaps: Sequence[Swap] = (),
    ) -> None:
        """Give one group, or (None) all groups of the queue, a width that wins over what `configure` said; 0 takes it
        back. `resume` lets a group go on that a dead message blocks. One commit with the swaps. Raises ConfigError,
        Conflict and Unsupported as `configure`."""
        ...

    def groups(self, queue: str) -> list[Group]:
        """The queue's groups that hold messages in line or a width of their own, by name. Raises Unsupported without
        `traits.widths`."""
        ...

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        """Remove what the queue's done and dead lanes hold beyond these bounds; how many of each. At most a thousand
        of each in one call; those longest at rest go first."""
        ...

    def paused(self) -> frozenset[str]:
        """The queues that are paused."""
        ...

    def check(self) -> list[str]:
        """Look for damage; one line per problem, empty when all is well."""
        ...

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        """Mend what `check` finds and can be mended; one line for each message. `keep` is given each of them, with its
        row as it was, before anything of it is changed."""
        ...

    def doctor(self) -> list[str]:
        """What is unsafe or slow about the set-up; one line each with what to do, empty when all is well."""
        ...

    def about(self) -> dict[str, str | int]:
        """What the engine is and holds, where that is cheap to know: `engine` with its version, `schema`,
        `size_bytes`, …"""
        ...

    def close(self) -> None:
        """Give back files, sockets and threads. The store cannot be used afterwards."""
        ...


def box_of(store: Any) -> Any:
    """What encrypts the payloads of a store (a `crypto.Box`), also behind blob storage; None where nothing does. It
    is asked for here, so that what does not encrypt needs no package for that."""
    return getattr(store, "box", None)
